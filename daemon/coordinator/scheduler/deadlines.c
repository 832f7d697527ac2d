/* Deadlines; see admission.h. */
#include "coordinator/scheduler/admission.h"

#include "base/clock.h"
#include "base/mem.h"
#include "coordinator/jobs/attempt_run.h"
#include "proto/message.h"
#include "spec/queue.h"

static const char *start_at(const job_spec *spec)
{
    return spec->start != NULL ? spec->start->at : "";
}

void deadlines_resolve(job_message *message)
{
    const Fsdpd__V1__DeadlineSpec *deadline = message->spec->deadline;
    if (message->spec->array != NULL) return; /* an array's are its jobs' */
    int64_t submitted = message_time_ms(message->submit_time);
    message_set_time(&message->start_at, spec_time_at(start_at(message->spec), submitted));
    if (deadline == NULL) return;
    message_set_time(&message->start_by, spec_time_at(deadline->start, submitted));
    message_set_time(&message->finish_by, spec_time_at(deadline->finish, submitted));
}

status_t deadlines_check(const job_spec *spec)
{
    if (spec->deadline == NULL) return NULL;
    int64_t now = clock_wall_ms();
    int64_t start = spec_time_at(spec->deadline->start, now);
    int64_t finish = spec_time_at(spec->deadline->finish, now);
    if (start != 0 && start <= now)
        return status_new(STATUS_INVALID_ARGUMENT, "deadline.start: %s has passed",
                          spec->deadline->start);
    if (finish != 0 && finish <= now)
        return status_new(STATUS_INVALID_ARGUMENT, "deadline.finish: %s has passed",
                          spec->deadline->finish);
    int64_t at = spec_time_at(start_at(spec), now);
    int64_t by = start != 0 ? start : finish;
    if (by != 0 && at >= by)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "start.at: expected a time before %s (%s), found %s",
                          start != 0 ? "deadline.start" : "deadline.finish",
                          start != 0 ? spec->deadline->start : spec->deadline->finish,
                          start_at(spec));
    if (start != 0 && finish != 0 && start > finish)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "deadline.start: expected a time before deadline.finish (%s), found %s",
                          spec->deadline->finish, spec->deadline->start);
    return NULL;
}

/* The monotonic time at which a duration ends whose wall-clock end is `at_ms`; 0 for a point in
 * time. */
static int64_t monotonic(const char *text, int64_t at_ms)
{
    bool is_duration = false;
    int64_t milliseconds;
    if (at_ms == 0) return 0;
    status_free(spec_parse_time(text, &is_duration, &milliseconds));
    if (!is_duration) return 0;
    int64_t left = at_ms - clock_wall_ms();
    /* The clock may have changed over a restart: at most the full duration is left. */
    if (left > milliseconds) left = milliseconds;
    int64_t at = coordinator_now() + left;
    return at > 0 ? at : 1;
}

void deadlines_begin(struct job *job)
{
    const Fsdpd__V1__DeadlineSpec *deadline = job->message->spec->deadline;
    job->start_at =
        monotonic(start_at(job->message->spec), message_time_ms(job->message->start_at));
    if (deadline == NULL) return;
    job->start_by = monotonic(deadline->start, message_time_ms(job->message->start_by));
    job->finish_by = monotonic(deadline->finish, message_time_ms(job->message->finish_by));
}

static bool has_passed(int64_t monotonic_ms, int64_t wall_ms, int64_t now, int64_t wall_now)
{
    if (wall_ms == 0) return false;
    return monotonic_ms != 0 ? now >= monotonic_ms : wall_now >= wall_ms;
}

bool deadlines_defer(const struct job *job)
{
    int64_t at = message_time_ms(job->message->start_at);
    return at != 0 && !has_passed(job->start_at, at, coordinator_now(), clock_wall_ms());
}

/* "within 2h of its submission", "by 2026-12-01T08:00:00Z"; the caller frees it. */
static char *describe(const char *text)
{
    bool is_duration = false;
    int64_t milliseconds;
    status_free(spec_parse_time(text, &is_duration, &milliseconds));
    return is_duration ? mem_printf("within %s of its submission", text) : mem_printf("by %s", text);
}

static void finish_late(struct job *job)
{
    AUTO_FREE char *when = describe(job->message->spec->deadline->finish);
    AUTO_FREE char *why = mem_printf("it was not over %s", when);
    if (job->attempt == NULL) job_set_state(job, JOB_FAILED, "DEADLINE_EXCEEDED", "%s", why);
    else attempt_stop(job, "DEADLINE_EXCEEDED", false, why);
}

static void start_late(struct job *job)
{
    AUTO_FREE char *when = describe(job->message->spec->deadline->start);
    job_set_state(job, JOB_FAILED, "DEADLINE_EXCEEDED", "it was not started %s", when);
}

static void check(struct job *job, int64_t now, int64_t wall_now)
{
    const job_message *message = job->message;
    int state = (int)message->state;
    if (job->unsaved || (job->attempt != NULL && job->attempt->saving != 0) ||
        job_state_is_over(state))
        return;
    if (has_passed(job->finish_by, message_time_ms(message->finish_by), now, wall_now))
        finish_late(job);
    else if (state == JOB_QUEUED && message->attempt == 0 &&
             has_passed(job->start_by, message_time_ms(message->start_by), now, wall_now))
        start_late(job);
}

void deadlines_tick(struct coordinator *c)
{
    if (c->draining) return;
    int64_t now = coordinator_now(), wall_now = clock_wall_ms();
    for (int i = 0; i < c->job_count; i++) {
        const job_message *message = c->jobs[i]->message;
        if (message->start_by != NULL || message->finish_by != NULL)
            check(c->jobs[i], now, wall_now);
    }
}
