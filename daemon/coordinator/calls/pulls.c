/*
 * Pulls; see pulls.h. A pull is freed when its client's call is closed or, while a disk read is in
 * flight, right after the read.
 */
#include "coordinator/calls/pulls.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/calls/access.h"
#include "coordinator/calls/calls.h"
#include "coordinator/calls/checkpoint_reader.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/calls/kept_weights.h"
#include "coordinator/jobs/attempt_run.h"
#include "coordinator/jobs/checkpoint_place.h"
#include "coordinator/jobs/job_record.h"

enum { PULL_QUEUE = 4 }; /* chunks queued for the client */

/* How often the client gets an empty chunk while a checkpoint is verified. */
enum { PULL_SIGN_MS = 5000 };

enum pull_state {
    PULL_WAITING, /* for its turn, or until the job runs */
    PULL_ORDERED,
    PULL_RELAYING,
    PULL_FILE, /* the kept file, or a checkpoint */
};

struct pull {
    /* Its deadline: ORDERED: for the answer; RELAYING: for the next chunk, from rank 0 or to the
     * client. */
    struct job_call base;
    uint64_t number;
    char *by;
    uint32_t attempt;
    enum pull_state state;
    bool average; /* of the weights, which the kept file does not have */
    bool others; /* the caller is neither the job's owner nor an operator */
    bool share;  /* holds the other users' share; see calls.h */
    /* Ranks or disks work for it: since `busy_from` (0: not now), and for `busy_ms` before. */
    int64_t busy_from, busy_ms;
    uint64_t total, sent, step;

    struct upload *upload; /* RELAYING */
    bool asked;            /* the next chunk was requested */

    struct kept_weights *kept;        /* FILE, the kept file; NULL otherwise */
    struct checkpoint_reader *reader; /* FILE, a checkpoint; NULL otherwise */
    status_t damage; /* of the kept file; then `reader` looks for a whole checkpoint to offer */
    uv_work_t work;
    status_t read_status; /* the result of the work, with its bytes in `read_count` */
    size_t read_count;
    uint8_t *chunk;
    bool reading;   /* another thread owns `chunk`, `kept` and `reader` */
    bool has_begun; /* the first chunk was sent */
    int64_t sent_at;
};

static void pull_free(struct pull *pull)
{
    kept_weights_free(pull->kept);
    checkpoint_reader_free(pull->reader);
    status_free(pull->damage);
    status_free(pull->read_status);
    free(pull->chunk);
    free(pull->by);
    job_call_free(&pull->base);
}

static void enter(struct pull *pull, enum pull_state state)
{
    pull->state = state;
    pull->base.deadline = 0;
}

static void set_busy(struct pull *pull, bool busy)
{
    int64_t now = coordinator_now();
    if (!busy && pull->busy_from != 0) pull->busy_ms += now - pull->busy_from;
    if (!busy || pull->busy_from == 0) pull->busy_from = busy ? now : 0;
}

static void give_share_back(struct pull *pull, struct job *job)
{
    set_busy(pull, false);
    if (pull->share && job != NULL) share_give_back(job, pull->busy_ms);
    pull->share = false;
}

/* Ends the pull for its client. The caller has already dealt with any upload. */
static void pull_end(struct pull *pull, status_t status)
{
    struct job_call *own = &pull->base;
    if (own->over) {
        status_free(status);
        return;
    }
    job_call_finish(own, status);
    pull->upload = NULL;
    give_share_back(pull, own->job);
    log_event(LOG_INFO, "pull_over", "job=%s by=%s bytes=%llu busy_ms=%lld", own->id, pull->by,
              (unsigned long long)pull->sent, (long long)pull->busy_ms);
    if (own->job != NULL) pulls_advance(own->job);
}

static void send_chunk(struct pull *pull, const uint8_t *bytes, size_t size)
{
    Fsdpd__V1__PullStateDictResponse chunk = FSDPD__V1__PULL_STATE_DICT_RESPONSE__INIT;
    chunk.data.data = (uint8_t *)bytes;
    chunk.data.len = size;
    if (!pull->has_begun) {
        chunk.total_size = pull->total;
        chunk.step = pull->step;
        if (pull->reader != NULL && pull->damage == NULL)
            chunk.checkpoint = (Fsdpd__V1__Checkpoint *)checkpoint_reader_found(pull->reader);
    }
    rpc_call_send(pull->base.call, &chunk.base);
    pull->has_begun = true;
    pull->sent_at = coordinator_now();
    pull->sent += size;
}

/* ---- the kept file, and checkpoints ---- */

static void read_next(struct pull *pull);

static void work(uv_work_t *request)
{
    struct pull *pull = request->data;
    pull->read_status =
        pull->reader != NULL
            ? checkpoint_reader_work(pull->reader, pull->chunk, STATE_DICT_CHUNK, &pull->read_count)
            : kept_weights_work(pull->kept, pull->chunk, STATE_DICT_CHUNK, &pull->read_count);
}

/* Ends the pull of a damaged file; `step` is that of the newest whole checkpoint, 0: there is
 * none. */
static void end_damaged(struct pull *pull, uint64_t step)
{
    const char *message = status_message(pull->damage);
    pull_end(pull, step == 0 ? status_new(STATUS_DATA_LOSS,
                                          "%s; job %s has no whole checkpoint either", message,
                                          pull->base.id)
                             : status_new(STATUS_DATA_LOSS,
                                          "%s; its checkpoint of step %llu is whole: fsdpctl pull "
                                          "%s --checkpoint %llu",
                                          message, (unsigned long long)step, pull->base.id,
                                          (unsigned long long)step));
}

/* Looks for what the client can have instead of a file that is damaged. */
static void look_for_checkpoint(struct pull *pull, status_t damage)
{
    job_message *message = NULL;
    status_t status = store_get_job(pull->base.c->store, pull->base.id, &message);
    log_event(LOG_ERROR, "weights_damaged", "job=%s message=\"%s\"", pull->base.id,
              status_message(damage));
    if (status != NULL) {
        status_free(status);
        pull_end(pull, damage);
        return;
    }
    pull->damage = damage;
    pull->reader = checkpoint_reader_new(pull->base.c, message, 0, false,
                                         status_new(STATUS_NOT_FOUND, "no whole checkpoint"));
    checkpoint_reader_pass_damage(pull->reader);
    message_free(message);
    read_next(pull);
}

/* Sends the first chunk when the file or the checkpoint is open, and an empty one periodically
 * while a checkpoint is verified, which keeps the client from timing out. */
static void send_read(struct pull *pull)
{
    if (pull->damage != NULL && checkpoint_reader_is_verified(pull->reader)) {
        end_damaged(pull, checkpoint_reader_found(pull->reader)->step);
        return;
    }
    bool first = !pull->has_begun && pull->damage == NULL;
    if (first && pull->reader != NULL) {
        pull->total = checkpoint_reader_bytes(pull->reader);
        pull->step = checkpoint_reader_found(pull->reader)->step;
    } else if (first) {
        pull->total = kept_weights_bytes(pull->kept);
    }
    if (first || pull->read_count > 0 ||
        (pull->has_begun && coordinator_now() - pull->sent_at >= PULL_SIGN_MS))
        send_chunk(pull, pull->chunk, pull->read_count);
    if (pull->sent == pull->total && pull->damage == NULL) pull_end(pull, NULL);
    else read_next(pull);
}

static void on_work(uv_work_t *request, int canceled)
{
    (void)canceled; /* never cancelled */
    struct pull *pull = request->data;
    struct coordinator *c = pull->base.c;
    status_t status = pull->read_status;
    pull->read_status = NULL;
    pull->reading = false;
    set_busy(pull, false);
    if (pull->base.over) {
        status_free(status);
        if (pull->base.call == NULL) pull_free(pull);
    } else if (status != NULL && pull->damage != NULL) {
        status_free(status);
        end_damaged(pull, 0);
    } else if (status_code(status) == STATUS_DATA_LOSS && pull->kept != NULL) {
        look_for_checkpoint(pull, status);
    } else if (status != NULL) {
        pull_end(pull, status);
    } else {
        send_read(pull);
    }
    coordinator_disk_done(c);
}

static void read_next(struct pull *pull)
{
    if (pull->reading || rpc_call_queued(pull->base.call) >= PULL_QUEUE) return;
    pull->work.data = pull;
    int error = uv_queue_work(pull->base.c->loop, &pull->work, work, on_work);
    if (error != 0) {
        pull_end(pull, status_new(STATUS_INTERNAL, "cannot read the weights of job %s: %s",
                                  pull->base.id, uv_strerror(error)));
        return;
    }
    pull->reading = true;
    set_busy(pull, true);
    pull->base.c->disk_requests++;
}

/* Sends a checkpoint. `none` is the error if there is none; takes ownership of it. */
static void send_checkpoint(struct pull *pull, const job_message *message, uint64_t step,
                            status_t none)
{
    pull->reader = checkpoint_reader_new(pull->base.c, message, step, pull->average, none);
    pull->chunk = mem_alloc(STATE_DICT_CHUNK);
    enter(pull, PULL_FILE);
    read_next(pull);
}

static void send_kept(struct pull *pull)
{
    struct coordinator *c = pull->base.c;
    struct store_weights weights;
    status_t status = store_get_state_dict(c->store, pull->base.id, &weights);
    if (status != NULL) {
        pull_end(pull, status);
        return;
    }
    AUTO_FREE char *path = coordinator_state_dict_path(c, pull->base.id);
    pull->kept = kept_weights_new(path, &weights);
    pull->step = weights.step;
    pull->chunk = mem_alloc(STATE_DICT_CHUNK);
    enter(pull, PULL_FILE);
    read_next(pull);
}

/* ---- the client's call ---- */

static void on_writable(struct job_call *own)
{
    struct pull *pull = (struct pull *)own;
    if (rpc_call_queued(own->call) >= PULL_QUEUE) return;
    if (pull->state == PULL_FILE) {
        if (pull->sent < pull->total) read_next(pull);
    } else if (pull->state == PULL_RELAYING && !pull->asked) {
        pull->asked = true;
        set_busy(pull, true);
        job_call_expect(own, own->c->options.limits.pull_idle_ms);
        upload_read(pull->upload);
    }
}

/* Ends a pull whose upload may have begun. */
static void fail(struct job_call *own, status_t status)
{
    struct pull *pull = (struct pull *)own;
    if (pull->upload != NULL) upload_reject(pull->upload, status_copy(status));
    pull_end(pull, status);
}

static void on_closed(struct job_call *own)
{
    struct pull *pull = (struct pull *)own;
    fail(own, status_new(STATUS_CANCELLED, "the client went away"));
    if (!pull->reading) pull_free(pull);
}

static void on_tick(struct job_call *own, bool late)
{
    struct pull *pull = (struct pull *)own;
    bool relaying = pull->state == PULL_RELAYING;
    if (pull->state == PULL_WAITING && own->job != NULL) pulls_advance(own->job);
    else if (late && relaying && !pull->asked)
        fail(own, status_new(STATUS_DEADLINE_EXCEEDED,
                             "the client read nothing of the state_dict of job %s for %g s",
                             own->id, own->c->options.limits.pull_idle_ms / 1000.0));
    else if (late)
        fail(own, status_new(STATUS_DEADLINE_EXCEEDED, "rank 0 of job %s sent %s in time", own->id,
                             relaying ? "no more of its state_dict" : "no state_dict"));
}

/* Pulls that have sent nothing yet continue with the kept file or, if the job has none, with its
 * newest checkpoint; otherwise they fail. */
static void on_attempt_over(struct job_call *own, struct job *job)
{
    struct pull *pull = (struct pull *)own;
    const job_message *message = job->message;
    bool succeeded = message->state == FSDPD__V1__JOB_STATE__JOB_STATE_SUCCEEDED;
    if (pull->state == PULL_FILE) return;
    if (pull->state == PULL_RELAYING && succeeded) return; /* the rest still arrives */
    give_share_back(pull, job);
    status_t late = job_call_error_of_end(job, "its state_dict was sent");
    if (pull->state == PULL_RELAYING) fail(own, late);
    else if (pull->average || !message->has_state_dict) send_checkpoint(pull, message, 0, late);
    else {
        status_free(late);
        send_kept(pull);
    }
}

static const struct job_call_type pull_calls = {.size = sizeof(struct pull),
                                                .writable = on_writable,
                                                .tick = on_tick,
                                                .attempt_over = on_attempt_over,
                                                .end = fail,
                                                .closed = on_closed};

/* The next pull of the job, or of any job; see job_calls_next. */
static struct pull *next_of(const struct coordinator *c, const struct job *job,
                            const struct pull *after)
{
    return job_calls_next(c, &pull_calls, job, after);
}

int pulls_count(const struct coordinator *c)
{
    return job_calls_count(c, &pull_calls);
}

/* Counts a job's pulls, also when it is over. */
static int pulls_of(const struct coordinator *c, const char *id, bool others)
{
    int count = 0;
    for (struct pull *pull = NULL; (pull = next_of(c, NULL, pull)) != NULL;)
        count += strcmp(pull->base.id, id) == 0 && (!others || pull->others);
    return count;
}

static bool is_in_checkpoint(const job_message *message,
                             const Fsdpd__V1__PullStateDictRequest *request)
{
    return request->from_checkpoint || ((request->average || !message->has_state_dict) &&
                                        !job_is_in_attempt((int)message->state));
}

/* A checkpoint of the job says itself whether it has one. */
static status_t check_average(const job_message *message,
                              const Fsdpd__V1__PullStateDictRequest *request)
{
    const Fsdpd__V1__EmaSpec *ema = message->spec->train->ema;
    if (!request->average || request->from_checkpoint || (ema != NULL && ema->decay > 0))
        return NULL;
    return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                  "job %s keeps no average of its weights: its settings have no "
                                  "train.ema",
                                  request->id),
                       (struct status_details){.reason = "JOB_HAS_NO_AVERAGE",
                                               .subject = request->id});
}

/* Whether the pull is allowed. `job` is NULL if it is over. */
static status_t check(struct coordinator *c, const struct job *job,
                      const Fsdpd__V1__PullStateDictRequest *request, bool checkpoint, bool others)
{
    int limit = c->options.limits.pulls_per_job, own = (limit + 1) / 2;
    if (request->best && (!request->from_checkpoint || request->checkpoint_step != 0))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "best: requires from_checkpoint, and no checkpoint_step");
    if (request->checkpoint_step != 0 && !request->from_checkpoint)
        return status_new(STATUS_INVALID_ARGUMENT, "checkpoint_step: requires from_checkpoint");
    if (job != NULL && !checkpoint && job->attempt != NULL && !attempt_is_active(job))
        return status_with(status_new(STATUS_FAILED_PRECONDITION, "the attempt of job %s is ending",
                                      request->id),
                           (struct status_details){.reason = "JOB_IS_ENDING",
                                                   .subject = request->id});
    if (job == NULL && !checkpoint) return NULL;
    int waiting = pulls_of(c, request->id, false);
    if (waiting >= limit)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "%d pulls of job %s wait already", waiting,
                          request->id);
    if (others && pulls_of(c, request->id, true) >= own)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "%d pulls of job %s by users other than its owner wait already", own,
                          request->id);
    if (others && checkpoint && job != NULL && job_is_in_attempt((int)job->message->state))
        return share_check(job); /* verifying checksums takes CPU time */
    return NULL;
}

/* The error for a job without a checkpoint: why its weights are not available. */
static status_t no_weights_error(const job_message *message)
{
    bool over = job_state_is_over(message->state);
    return status_with(
        status_new(STATUS_FAILED_PRECONDITION, "job %s is %s: %s, and it has no checkpoint",
                   message->id, job_state_name(message->state),
                   message->has_state_dict                  ? "it kept its state_dict alone"
                   : over && !message->spec->save_model     ? "it kept no state_dict (save_model "
                                                              "is false)"
                   : over                                   ? "it kept no state_dict"
                   : job_is_in_attempt((int)message->state) ? "workers have its weights"
                                                            : "no worker has its weights now"),
        (struct status_details){.reason = "JOB_HAS_NO_WEIGHTS", .subject = message->id});
}

static struct pull *new_pull(struct rpc_call *call, const char *id, struct coordinator *c)
{
    struct pull *pull = job_call_begin(&pull_calls, call, c, id);
    pull->number = ++c->last_number;
    pull->by = mem_strdup(access_user(call));
    return pull;
}

void pulls_start(struct rpc_call *call, const ProtobufCMessage *first, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__PullStateDictRequest *request = (const void *)first;
    struct job *job = jobs_find(c, request->id);
    if (job != NULL && job_state_is_over(job->message->state)) job = NULL;
    job_message *stored = NULL;
    status_t status = job == NULL ? store_get_job(c->store, request->id, &stored) : NULL;
    const job_message *message = job != NULL ? job->message : stored;
    bool checkpoint = status == NULL && is_in_checkpoint(message, request);
    bool others = status == NULL && share_is_others(call, message);
    if (status == NULL) status = check_average(message, request);
    if (status == NULL) status = check(c, job, request, checkpoint, others);
    uint64_t step = request->checkpoint_step;
    if (status == NULL && request->best) status = checkpoint_place_best(c, request->id, &step);
    if (status != NULL) {
        message_free(stored);
        rpc_call_finish(call, status);
        return;
    }
    struct pull *pull = new_pull(call, request->id, c);
    pull->others = others;
    pull->average = request->average;
    if (checkpoint && others && job != NULL && job_is_in_attempt((int)message->state)) {
        pull->share = true;
        share_take(job);
    }
    if (checkpoint) {
        send_checkpoint(pull, message, step, no_weights_error(message));
    } else if (job != NULL && job_is_in_attempt((int)message->state)) {
        pull->attempt = message->attempt;
        pulls_advance(job);
    } else {
        send_kept(pull);
    }
    message_free(stored);
}

/* ---- the job's side ---- */

/* For a SAVING job whose state_dict is kept already: only its last checkpoint is missing. */
static void hand_out_kept(struct job *job)
{
    for (struct pull *pull = NULL; (pull = next_of(job->c, job, pull)) != NULL;)
        if (pull->state == PULL_WAITING && !pull->average) send_kept(pull);
}

/* Other users wait until their share allows more; the owner never waits behind them. */
static bool may_begin(const struct job *job, const struct pull *pull)
{
    status_t status = pull->others ? share_check(job) : NULL;
    bool may = status == NULL;
    status_free(status);
    return may;
}

void pulls_advance(struct job *job)
{
    const struct attempt *attempt = job->attempt;
    if (job->message->state != FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING || !attempt_is_active(job))
        return;
    if ((attempt->saving & SAVING_STATE_DICT) != 0) return; /* waiting pulls take the next upload */
    if (attempt->saving != 0 && job_has_result(job)) {
        hand_out_kept(job);
        return;
    }
    struct pull *next = NULL;
    for (struct pull *pull = NULL; (pull = next_of(job->c, job, pull)) != NULL;) {
        if (pull->state == PULL_ORDERED || pull->state == PULL_RELAYING) return;
        if (pull->state == PULL_WAITING && next == NULL && may_begin(job, pull)) next = pull;
    }
    if (next == NULL) return;
    next->share = next->others;
    if (next->share) share_take(job);
    set_busy(next, true);
    enter(next, PULL_ORDERED);
    next->attempt = job->message->attempt;
    job_call_expect(&next->base, job->c->options.limits.pull_start_ms);
    attempt_order_pull(job, next->number, next->average);
}

void pulls_wait_for_upload(struct job *job)
{
    for (struct pull *pull = NULL; (pull = next_of(job->c, job, pull)) != NULL;) {
        if (pull->state != PULL_ORDERED) continue;
        enter(pull, PULL_WAITING);
        give_share_back(pull, job);
    }
}

static struct pull *find_pull(const struct job *job, uint32_t attempt, uint64_t number)
{
    for (struct pull *pull = NULL; (pull = next_of(job->c, job, pull)) != NULL;)
        if (pull->number == number && pull->attempt == attempt) return pull;
    return NULL;
}

void pulls_failed(struct job *job, const Fsdpd__V1__PullFailed *failed)
{
    if (failed->pull == 0) {
        saving_failed(job, SAVING_STATE_DICT, failed->message);
        return;
    }
    struct pull *pull = find_pull(job, job->message->attempt, failed->pull);
    if (pull == NULL || (pull->state != PULL_ORDERED && pull->state != PULL_RELAYING)) return;
    bool known = failed->code >= STATUS_CANCELLED && failed->code <= STATUS_UNAUTHENTICATED;
    fail(&pull->base, status_new(known ? (enum status_code)failed->code : STATUS_UNKNOWN,
                                 "the ranks of job %s could not send the state_dict: %s",
                                 job->message->id, failed->message));
}

/* ---- the upload's side ---- */

static struct pull *begin_relay(struct pull *pull, const Fsdpd__V1__UploadStateRequest *first,
                                struct upload *upload)
{
    enter(pull, PULL_RELAYING);
    pull->upload = upload;
    pull->total = first->total_size;
    pull->step = first->step;
    return pull;
}

bool pull_accept_final(struct job *job, const Fsdpd__V1__UploadStateRequest *first,
                       struct upload *upload, struct pull **out)
{
    for (struct pull *pull = NULL; (pull = next_of(job->c, job, pull)) != NULL;) {
        if (pull->state != PULL_WAITING || pull->average) continue;
        pull->attempt = first->attempt;
        *out = begin_relay(pull, first, upload);
        return true;
    }
    return false;
}

status_t pull_accept(struct coordinator *c, const Fsdpd__V1__UploadStateRequest *first,
                     struct upload *upload, struct pull **out)
{
    const struct job *job = jobs_find(c, first->job);
    struct pull *pull = job != NULL ? find_pull(job, first->attempt, first->pull) : NULL;
    if (pull == NULL || pull->state != PULL_ORDERED)
        return status_new(STATUS_CANCELLED, "no client waits for pull %llu of job %s any more",
                          (unsigned long long)first->pull, first->job);
    *out = begin_relay(pull, first, upload);
    return NULL;
}

status_t pull_relay(struct pull *pull, const ProtobufCBinaryData *data)
{
    if (data->len > STATE_DICT_CHUNK || data->len > pull->total - pull->sent)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data: a chunk of %zu bytes at %llu of %llu does not fit", data->len,
                          (unsigned long long)pull->sent, (unsigned long long)pull->total);
    pull->asked = false;
    set_busy(pull, false);
    job_call_expect(&pull->base, pull->base.c->options.limits.pull_idle_ms);
    if (data->len > 0) send_chunk(pull, data->data, data->len);
    on_writable(&pull->base);
    return NULL;
}

status_t pull_finish(struct pull *pull)
{
    status_t status = NULL;
    if (pull->sent != pull->total || pull->total == 0)
        status =
            status_new(STATUS_DATA_LOSS, "the state_dict of job %s ended after %llu of %llu bytes",
                       pull->base.id, (unsigned long long)pull->sent,
                       (unsigned long long)pull->total);
    pull_end(pull, status_copy(status));
    return status;
}

void pull_break(struct pull *pull, status_t status)
{
    pull_end(pull, status);
}
