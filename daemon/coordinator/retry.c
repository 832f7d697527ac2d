/* Retries; see retry.h. What was used of the budget is on the disk before the job is queued again.
 */
#include "coordinator/retry.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "coordinator/queue.h"

enum { MACHINE_FAILURES = 3, TEXT_MAX = 4096 };

/* Of a spec that says nothing of retries: as the table of keys has it. */
static struct store_retries budget_of(const job_message *message)
{
    const Fsdpd__V1__RetrySpec *spec = message->spec->retry;
    if (spec == NULL) return (struct store_retries){.machine_failures = MACHINE_FAILURES};
    return (struct store_retries){spec->failures, spec->machine_failures};
}

static int pause_ms(const struct job *job)
{
    const struct coordinator_limits *limits = &job->c->options.limits;
    uint32_t tried = job->retries.failures + job->retries.machine_failures;
    int64_t pause = limits->retry_ms;
    for (uint32_t i = 1; i < tried && pause < limits->retry_max_ms; i++) pause *= 2;
    return pause < limits->retry_max_ms ? (int)pause : limits->retry_max_ms;
}

static void try_again(struct job *job, bool machine, uint32_t used, uint32_t budget,
                      const char *text)
{
    job->retried = true; /* goes to the store with the event */
    int pause = pause_ms(job);
    job->retry_at = coordinator_now() + pause;
    coordinator_hurry(job->c);
    job_set_state(job, JOB_QUEUED, "RETRYING",
                  "attempt %u failed (%s): tries again in %.3g s, after failure %u of %u %s",
                  job->message->attempt, text, pause / 1000.0, used, budget,
                  machine ? "of machines" : "of its own");
}

static void end_between_characters(char text[static TEXT_MAX])
{
    size_t length = strlen(text);
    while (length > 0 && ((unsigned char)text[length - 1] & 0xc0) == 0x80) length--;
    if (length > 0 && (unsigned char)text[length - 1] >= 0x80) length--;
    text[length] = '\0';
}

void retry_attempt_interrupted(struct job *job, const char *code, const char *format, ...)
{
    char text[TEXT_MAX];
    va_list args;
    va_start(args, format);
    bool cut = vsnprintf(text, sizeof text, format, args) >= (int)sizeof text;
    va_end(args);
    if (cut) end_between_characters(text);
    if (budget_of(job->message).machine_failures == 0)
        job_set_state(job, JOB_FAILED, code, "%s", text);
    else job_set_state(job, JOB_QUEUED, code, "%s; it will be tried again", text);
}

void retry_attempt_failed(struct job *job, bool machine, const char *code, const char *format, ...)
{
    char text[TEXT_MAX];
    va_list args;
    va_start(args, format);
    bool cut = vsnprintf(text, sizeof text, format, args) >= (int)sizeof text;
    va_end(args);
    if (cut) end_between_characters(text);
    const struct store_retries budget = budget_of(job->message);
    uint32_t allowed = machine ? budget.machine_failures : budget.failures;
    uint32_t *used = machine ? &job->retries.machine_failures : &job->retries.failures;
    if (*used < allowed) {
        ++*used;
        try_again(job, machine, *used, allowed, text);
    } else if (job->message->attempt > 1) {
        job_set_state(job, JOB_FAILED, code, "%s (attempt %u)", text, job->message->attempt);
    } else {
        job_set_state(job, JOB_FAILED, code, "%s", text);
    }
}

void retry_start_later(struct job *job, status_t why)
{
    job->retry_at = coordinator_now() + job->c->options.limits.retry_ms;
    coordinator_hurry(job->c);
    if (strcmp(job->message->reason->code, "STORE_FAILED") != 0) {
        log_status(LOG_ERROR, "store_failed",
                   status_wrap(status_copy(why), "job %s is not started", job->message->id));
        job_set_waiting(job, "STORE_FAILED", status_message(why));
    }
    status_free(why);
}

bool retry_is_waiting(const struct job *job)
{
    return job->retry_at != 0 && coordinator_now() < job->retry_at;
}

void retry_tick(struct coordinator *c)
{
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        if (job->retry_at == 0 || retry_is_waiting(job)) continue;
        job->retry_at = 0;
        queue_changed(c);
    }
}

status_t retry_recover(struct job *job)
{
    return store_get_retries(job->c->store, job->message->id, &job->retries);
}
