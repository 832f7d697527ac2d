/*
 * Checkpoints; see checkpoints.h. A call belongs to its client until that is answered or gone; a
 * checkpoint that was ordered is taken anyway. One order of a job is under way at a time; calls
 * that come meanwhile share the next one.
 */
#include "coordinator/checkpoints.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/access.h"
#include "coordinator/attempt.h"
#include "coordinator/checkpoint_dirs.h"
#include "coordinator/queue.h"

struct checkpoint_call {
    struct rpc_call *call;
    char *job;
    bool pause;
    uint64_t number; /* of the order; 0: not ordered yet */
    bool taken;      /* a pause: it is on the disk, the attempt ends */
};

static void forget(struct coordinator *c, struct checkpoint_call *own)
{
    for (int i = 0; i < c->checkpoint_count; i++)
        if (c->checkpoints[i] == own) LIST_REMOVE(c->checkpoints, c->checkpoint_count, i);
    rpc_call_set_user(own->call, NULL);
    free(own->job);
    free(own);
}

/* Ends the call with `status`; NULL: it is answered by the caller, with what is returned. */
static struct rpc_call *conclude(struct coordinator *c, struct checkpoint_call *own,
                                 status_t status)
{
    struct rpc_call *call = own->call;
    forget(c, own);
    if (status == NULL) return call;
    rpc_call_finish(call, status);
    return NULL;
}

static bool is_of(const struct checkpoint_call *own, const struct job *job)
{
    return strcmp(own->job, job->message->id) == 0;
}

/* ---- the clients' calls ---- */

/* The caller's job, if it runs or is about to. */
static status_t find_job(struct coordinator *c, const struct rpc_call *call, const char *id,
                         bool pause, struct job **out)
{
    struct job *job = NULL;
    TRY(access_find(c, call, id, pause ? "pause" : "take checkpoints of", &job));
    int state = job->message->state;
    if (pause && state == JOB_QUEUED)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "job %s is QUEUED and has nothing to pause: fsdpctl hold keeps it from "
                          "starting",
                          id);
    if (pause && state == JOB_PAUSED)
        return status_new(STATUS_FAILED_PRECONDITION, "job %s is PAUSED already", id);
    if (state != JOB_STARTING && state != JOB_RUNNING)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "job %s is %s: only a running job takes checkpoints", id,
                          job_state_name(state));
    if (job->ending || job->cancel_ordered)
        return status_new(STATUS_FAILED_PRECONDITION, "job %s is ending", id);
    *out = job;
    return NULL;
}

void checkpoints_create(struct rpc_call *call, const char *id, bool pause, struct coordinator *c)
{
    struct job *job = NULL;
    status_t status = find_job(c, call, id, pause, &job);
    if (status == NULL && c->checkpoint_count >= c->options.limits.watchers)
        status = status_new(STATUS_RESOURCE_EXHAUSTED, "%d calls wait for checkpoints already",
                            c->checkpoint_count);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct checkpoint_call *own = mem_alloc(sizeof *own);
    *own = (struct checkpoint_call){.call = call, .job = mem_strdup(id), .pause = pause};
    rpc_call_set_user(call, own);
    MEM_GROW(c->checkpoints, c->checkpoint_count, c->checkpoint_capacity);
    c->checkpoints[c->checkpoint_count++] = own;
    checkpoints_advance(job);
}

void checkpoints_closed(struct coordinator *c, struct rpc_call *call)
{
    struct checkpoint_call *own = rpc_call_user(call);
    if (own != NULL) forget(c, own);
}

/* The order has been given. It is kept with the job, as the one who asked may be gone when it is
 * done. */
static void begin_pause(struct job *job, const char *user)
{
    struct coordinator *c = job->c;
    const char *actor = c->actor;
    message_set_text(&job->stop.by, user);
    job->stop.pausing = true;
    c->actor = job->stop.by;
    job_set_reason(job, "PAUSING", "takes a checkpoint at its next step boundary, then ends");
    c->actor = actor;
}

void checkpoints_advance(struct job *job)
{
    struct coordinator *c = job->c;
    if (job->message->state != FSDPD__V1__JOB_STATE__RUNNING || job->ending ||
        job->cancel_ordered || job->checkpoint_order != 0)
        return;
    const struct checkpoint_call *pause = NULL;
    bool any = false;
    for (int i = 0; i < c->checkpoint_count; i++) {
        const struct checkpoint_call *own = c->checkpoints[i];
        if (!is_of(own, job) || own->number != 0) continue;
        any = true;
        if (own->pause) pause = own;
    }
    if (!any) return;
    job->checkpoint_order = ++c->last_checkpoint;
    for (int i = 0; i < c->checkpoint_count; i++)
        if (is_of(c->checkpoints[i], job) && c->checkpoints[i]->number == 0)
            c->checkpoints[i]->number = job->checkpoint_order;
    attempt_order_checkpoint(job, job->checkpoint_order, pause != NULL);
    if (pause != NULL) begin_pause(job, access_user(pause->call));
}

/* ---- the job's side ---- */

static void order_vacating(struct job *job)
{
    job->checkpoint_order = job->vacate_order = ++job->c->last_checkpoint;
    attempt_order_checkpoint(job, job->checkpoint_order, true);
    job_set_reason(job, "VACATING",
                   "%s: takes a checkpoint at its next step boundary, then goes on elsewhere",
                   job->stop.message);
}

static void vacate_at_once(struct job *job)
{
    attempt_stop(job, "WORKER_DRAINED", true, job->stop.message);
}

void checkpoints_vacate(struct job *job, const char *by, const char *why)
{
    if (job->ranks == NULL || job->ending || job->cancel_ordered || job->stop.pausing)
        return; /* it ends */
    message_set_text(&job->stop.by, by);
    message_set_text(&job->stop.message, why);
    bool can_save = !job->stop.vacating && job->message->state == FSDPD__V1__JOB_STATE__RUNNING;
    job->stop.vacating = true;
    if (!can_save) vacate_at_once(job);
    else if (job->checkpoint_order == 0) order_vacating(job);
    else job_sync_soon(job); /* after that one; the store is to know it, too */
}

void checkpoints_go_on(struct job *job)
{
    if (job->message->state != FSDPD__V1__JOB_STATE__RUNNING || job->ending ||
        job->cancel_ordered || job->checkpoint_order != 0)
        return;
    if (job->stop.vacating) {
        order_vacating(job);
    } else if (job->stop.pausing) {
        job->checkpoint_order = ++job->c->last_checkpoint;
        attempt_order_checkpoint(job, job->checkpoint_order, true);
    }
}

/* A checkpoint of a job that is to vacate its workers has been taken, or could not be. */
static void go_on_vacating(struct job *job, const Fsdpd__V1__CheckpointReport *report)
{
    if (report->number != job->vacate_order) order_vacating(job);
    else if (report->code != STATUS_OK) vacate_at_once(job);
}

static void answer(struct job *job, const Fsdpd__V1__CheckpointReport *report)
{
    struct coordinator *c = job->c;
    bool known = report->code <= STATUS_UNAUTHENTICATED;
    for (int i = c->checkpoint_count - 1; i >= 0; i--) {
        struct checkpoint_call *own = c->checkpoints[i];
        if (!is_of(own, job) || own->number != report->number) continue;
        if (report->code != STATUS_OK) {
            conclude(c, own,
                     status_new(known ? (enum status_code)report->code : STATUS_UNKNOWN, "%s",
                                report->message));
        } else if (own->pause) {
            own->taken = true; /* answered when the attempt has ended */
        } else {
            rpc_call_reply(conclude(c, own, NULL), &report->checkpoint->base);
        }
    }
}

void checkpoints_report(struct job *job, const Fsdpd__V1__CheckpointReport *report)
{
    if (report->checkpoint == NULL) return;
    job_add_checkpoint(job, report);
    if (report->number == 0) return;
    if (report->number == job->checkpoint_order) {
        job->checkpoint_order = 0;
        if (report->code != STATUS_OK && job->stop.pausing) {
            job->stop.pausing = false;
            message_set_text(&job->stop.by, "");
            if (!job->cancel_ordered)
                job_set_reason(job, "RUNNING", "could not be paused: %s", report->message);
        }
        if (job->stop.vacating) {
            answer(job, report);
            go_on_vacating(job, report);
            return;
        }
        if (report->code != STATUS_OK) attempt_not_saved(job);
    }
    answer(job, report);
    checkpoints_advance(job);
}

void checkpoints_attempt_over(struct job *job)
{
    struct coordinator *c = job->c;
    const job_message *message = job->message;
    bool paused = message->state == FSDPD__V1__JOB_STATE__PAUSED;
    job->checkpoint_order = 0;
    for (int i = c->checkpoint_count - 1; i >= 0; i--) {
        struct checkpoint_call *own = c->checkpoints[i];
        if (!is_of(own, job)) continue;
        if (paused && own->pause) job_reply(conclude(c, own, NULL), message);
        else
            conclude(c, own,
                     status_new(STATUS_ABORTED,
                                "the attempt of job %s ended (it is %s) before the checkpoint was "
                                "taken",
                                message->id, job_state_name(message->state)));
    }
}

/* ---- listing, resuming ---- */

static status_t add_to_list(void *user, const Fsdpd__V1__Checkpoint *checkpoint)
{
    Fsdpd__V1__ListCheckpointsResponse *response = user;
    size_t count = response->n_checkpoints;
    response->checkpoints =
        mem_resize_array(response->checkpoints, count + 1, sizeof *response->checkpoints);
    response->checkpoints[response->n_checkpoints++] = message_copy(checkpoint);
    return NULL;
}

void checkpoints_list(struct rpc_call *call, const char *id, struct coordinator *c)
{
    Fsdpd__V1__ListCheckpointsResponse response = FSDPD__V1__LIST_CHECKPOINTS_RESPONSE__INIT;
    job_message *stored = NULL;
    status_t status = store_get_job(c->store, id, &stored);
    if (status == NULL) status = store_each_checkpoint(c->store, id, add_to_list, &response);
    if (status != NULL) rpc_call_finish(call, status);
    else rpc_call_reply(call, &response.base);
    for (size_t i = 0; i < response.n_checkpoints; i++) message_free(response.checkpoints[i]);
    free(response.checkpoints);
    message_free(stored);
}

void checkpoints_resume(struct rpc_call *call, const char *id, struct coordinator *c)
{
    struct job *job = NULL;
    status_t status = access_find(c, call, id, "resume", &job);
    if (status == NULL && job->message->state != FSDPD__V1__JOB_STATE__PAUSED)
        status = status_new(STATUS_FAILED_PRECONDITION, "job %s is %s: only a PAUSED job resumes",
                            id, job_state_name(job->message->state));
    if (status == NULL && c->draining)
        status = status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down");
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    c->actor = access_user(call);
    job_set_state(job, JOB_QUEUED, "RESUMED", "resumed by %s; goes on from step %llu", c->actor,
                  (unsigned long long)job->message->step);
    c->actor = NULL;
    queue_place(c);
    job = jobs_find(c, id); /* it may have failed to start */
    if (job != NULL) {
        job_reply(call, job->message);
        return;
    }
    job_message *stored = NULL;
    status = store_get_job(c->store, id, &stored);
    if (status != NULL) rpc_call_finish(call, status);
    else job_reply(call, stored);
    message_free(stored);
}

/* ---- where they are ---- */

static const char *directory_of(const job_message *message)
{
    const Fsdpd__V1__CheckpointSpec *spec = message->spec->checkpoint;
    return spec != NULL ? spec->directory : "";
}

/* Whether it sees this host's files: our child, or one that came through a socket of this host. */
static bool is_local(const struct worker *worker)
{
    return worker->supervised ||
           (worker->link != NULL && rpc_call_peer(worker->link)->kind == RPC_PEER_UNIX);
}

static const struct worker *find_remote(struct worker *const *workers, int count)
{
    for (int i = 0; i < count; i++)
        if (!is_local(workers[i])) return workers[i];
    return NULL;
}

status_t checkpoints_check_workers(const struct job *job, struct worker *const *workers, int count)
{
    const Fsdpd__V1__CheckpointSpec *spec = job->message->spec->checkpoint;
    if (spec == NULL || spec->directory[0] != '\0') return NULL;
    if (spec->every_steps == 0 && spec->every_epochs == 0) return NULL;
    const struct worker *remote = find_remote(workers, count);
    if (remote == NULL) return NULL;
    return status_new(STATUS_FAILED_PRECONDITION,
                      "checkpoint.directory: is missing; worker %s is on another host: expected a "
                      "directory below the data roots that all of them share",
                      remote->id);
}

status_t checkpoints_find_place(const struct job *job, struct worker *const *workers, int count,
                                struct checkpoint_place *place)
{
    const job_message *message = job->message;
    bool resume = message->attempt > 0, must = false;
    if (resume) TRY(store_has_checkpoint(job->c->store, message->id, &must));
    *place = (struct checkpoint_place){.run = checkpoint_dirs_run(message),
                                       .resume = resume,
                                       .must_resume = must};
    bool own = directory_of(message)[0] == '\0' && find_remote(workers, count) == NULL;
    place->folder = own ? coordinator_job_path(job->c, message->id, "checkpoints") : mem_strdup("");
    return NULL;
}
