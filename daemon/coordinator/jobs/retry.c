/* Retries; see retry.h. The used part of the budget is on disk before the job is queued again. */
#include "coordinator/jobs/retry.h"

#include <stdarg.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/elastic.h"

enum { MACHINE_FAILURES = 3, TEXT_MAX = 4095 };

/* Attempts in a row that may end before a rank begins without using the budget: a job whose ranks
 * crash while they set up is not restarted without limit. */
enum { NOT_BEGUN_MAX = 5 };

/* A spec without retry settings has the defaults of the table of keys. */
static struct store_retries budget_of(const job_message *message)
{
    const Fsdpd__V1__RetrySpec *spec = message->spec->retry;
    if (spec == NULL) return (struct store_retries){.machine_failures = MACHINE_FAILURES};
    return (struct store_retries){spec->failures, spec->machine_failures};
}

static int pause_ms(const struct job *job)
{
    const struct coordinator_limits *limits = &job->c->options.limits;
    uint32_t tried = job->retries.failures + job->retries.machine_failures + job->lacked;
    int64_t pause = limits->retry_ms;
    for (uint32_t i = 1; i < tried && pause < limits->retry_max_ms; i++) pause *= 2;
    return pause < limits->retry_max_ms ? (int)pause : limits->retry_max_ms;
}

static void retry_after_pause(struct job *job, bool machine, uint32_t used, uint32_t budget,
                              const char *text)
{
    job->retried = true; /* goes to the store with the event */
    int pause = pause_ms(job);
    job->retry_at = coordinator_now() + pause;
    coordinator_tick_soon(job->c);
    job_set_state(job, JOB_QUEUED, "RETRYING",
                  "attempt %u failed (%s): retries in %.3g s, after failure %u of %u %s",
                  job->message->attempt, text, pause / 1000.0, used, budget,
                  machine ? "of machines" : "of its own");
}

/* Whether a rank of the attempt has begun. The attempt is NULL if it ended with the last
 * coordinator. */
static bool has_begun(const struct job *job)
{
    if (job->attempt != NULL) return job->attempt->begun;
    return job->message->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING;
}

/* The next attempt goes without one end of the pair. */
static bool has_found_cut(const struct job *job)
{
    return job->attempt != NULL && job->attempt->found_cut;
}

/* Whether the attempt ended before any rank began, which is not a failure of the job unless it
 * happens too often in a row. */
static bool is_free(const struct job *job)
{
    return !has_begun(job) && (has_found_cut(job) || job->not_begun < NOT_BEGUN_MAX);
}

/* The first restart is immediate: what was lost is often back already, and no rank has done any
 * work. */
static void restart_attempt(struct job *job, const char *text)
{
    if (!has_found_cut(job) && job->not_begun++ > 0) {
        job->retry_at = coordinator_now() + job->c->options.limits.retry_ms;
        coordinator_tick_soon(job->c);
    }
    job_set_state(job, JOB_QUEUED, "RETRYING",
                  "attempt %u ended before any rank began to train (%s): it starts again without "
                  "using its retry budget",
                  job->message->attempt, text);
}

/* The caller frees it. */
static char *reason_text(const char *format, va_list args)
{
    char *text = mem_vprintf(format, args);
    text[utf8_cut(text, TEXT_MAX)] = '\0';
    return text;
}

void retry_attempt_interrupted(struct job *job, const char *code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    AUTO_FREE char *text = reason_text(format, args);
    va_end(args);
    if (budget_of(job->message).machine_failures == 0 && has_begun(job))
        job_set_state(job, JOB_FAILED, code, "%s", text);
    else job_set_state(job, JOB_QUEUED, code, "%s; it will be retried", text);
}

void retry_attempt_failed(struct job *job, bool machine, const char *code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    AUTO_FREE char *text = reason_text(format, args);
    va_end(args);
    const struct store_retries budget = budget_of(job->message);
    uint32_t allowed = machine ? budget.machine_failures : budget.failures;
    uint32_t *used = machine ? &job->retries.machine_failures : &job->retries.failures;
    if (machine && elastic_continue(job, text)) {
        /* queued */
    } else if (machine && is_free(job)) {
        restart_attempt(job, text);
    } else if (*used < allowed) {
        ++*used;
        retry_after_pause(job, machine, *used, allowed, text);
    } else if (job->message->attempt > 1) {
        job_set_state(job, JOB_FAILED, code, "%s (attempt %u)", text, job->message->attempt);
    } else {
        job_set_state(job, JOB_FAILED, code, "%s", text);
    }
}

void retry_attempt_lacked(struct job *job, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    AUTO_FREE char *text = reason_text(format, args);
    va_end(args);
    job->lacked++;
    int pause = pause_ms(job);
    job->retry_at = coordinator_now() + pause;
    coordinator_tick_soon(job->c);
    job_set_state(job, JOB_QUEUED, "RETRYING",
                  "attempt %u ended because of its host, not of the job (%s): retries in %.3g s, "
                  "without using its retry budget",
                  job->message->attempt, text, pause / 1000.0);
}

void retry_start_later(struct job *job, status_t why)
{
    job->retry_at = coordinator_now() + job->c->options.limits.retry_ms;
    coordinator_tick_soon(job->c);
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
        if (job->elastic.waits) queue_changed(c); /* not longer than for a time */
        if (job->retry_at == 0 || retry_is_waiting(job)) continue;
        job->retry_at = 0;
        queue_changed(c);
    }
}

status_t retry_recover(struct job *job)
{
    return store_get_retries(job->c->store, job->message->id, &job->retries);
}
