/* The end of a turn; see turn.h. */
#include "coordinator/turn.h"

#include "coordinator/calls/calls.h"
#include "coordinator/calls/checkpoints.h"
#include "coordinator/calls/evaluations.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/calls/pulls.h"
#include "coordinator/jobs/attempt_run.h"
#include "coordinator/jobs/elastic.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/jobs/owners.h"
#include "coordinator/monitor/notices.h"
#include "coordinator/retention/retention.h"
#include "coordinator/scheduler/arrays.h"
#include "coordinator/scheduler/dependencies.h"
#include "coordinator/scheduler/queue.h"
#include "coordinator/workers/planner.h"

static void on_ready(struct job *job)
{
    pulls_advance(job);
    checkpoints_resume(job);
    checkpoints_advance(job);
}

static void on_event(struct job *job, const job_event *event)
{
    watch_send_event(job, event);
    notices_event(job, event);
}

static void on_rank_away(struct job *job, int rank)
{
    traces_rank_away(job, rank);
    evaluations_rank_away(job, rank);
}

const struct job_clients turn_clients = {
    .event = on_event,
    .stored = watch_wake,
    .logged = logs_wake,
    .ready = on_ready,
    .rank_away = on_rank_away,
    .diagnosed = diagnose_done,
    .is_uploading = uploads_has,
    .resize = checkpoints_vacate,
    .preempt = checkpoints_preempt,
};

static void on_worker_lost(struct worker *worker, const char *how, bool certain)
{
    planner_worker_lost(worker);
    attempt_worker_lost(worker, how, certain);
}

const struct worker_users turn_users = {
    .lost = on_worker_lost,
    .process_exited = attempt_process_exited,
};

/* Cleans up its files first, then notifies jobs that wait for it: these may end, too, and come
 * next. */
static void on_job_over(struct job *job)
{
    struct coordinator *c = job->c;
    unplanned_job_over(job);
    owners_note_kept(c, job->message, 1);
    forget_tick_soon(c);
    arrays_job_over(c, job->message);
    sweeps_job_over(c, job->message);
    dependencies_job_over(c, job->message);
}

void turn_end(struct coordinator *c)
{
    MUST_OWN(&c->owner);
    do {
        for (struct job *job; (job = jobs_take_ended(c)) != NULL;) {
            job_calls_attempt_over(job);
            elastic_attempt_over(job);
            if (!job->over) continue;
            on_job_over(job);
            job_free(job);
        }
        arrays_place(c);
        unplanned_place(c);
        queue_place(c);
    } while (c->ended_count > 0); /* a job that cannot be started is over */
}

static void on_prepare(uv_prepare_t *handle)
{
    turn_end(handle->data);
}

/* A prepare handle runs after all callbacks of an iteration and before the loop waits. So no work
 * is delayed by a wait, and the handle neither wakes the loop nor keeps it alive. */
void turn_begin(struct coordinator *c)
{
    uv_prepare_init(c->loop, &c->turn_end);
    c->turn_end.data = c;
    uv_prepare_start(&c->turn_end, on_prepare);
    uv_unref((uv_handle_t *)&c->turn_end);
}
