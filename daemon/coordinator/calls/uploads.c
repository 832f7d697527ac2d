/*
 * Uploads; see calls.h. One message is read at a time. libuv's threads write, hash and sync the
 * bytes of a final state_dict, so a slow disk does not stop the loop; an upload whose call is over
 * is freed when its work is done.
 */
#include "coordinator/calls/calls.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/calls/access.h"
#include "coordinator/calls/final_weights.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/calls/kept_weights.h"
#include "coordinator/calls/pulls.h"
#include "coordinator/core/internal.h"
#include "coordinator/jobs/attempt_run.h"

struct upload {
    struct job_call base; /* without a job until the first message */
    bool begun;           /* the first message has arrived */
    struct pull *pull;    /* the pull that it is relayed to */
    bool handed_out;      /* relays a final state_dict, which must still be kept */

    bool final;
    uint32_t attempt;
    uint64_t total, written, step;
    char *temporary; /* the file's name until the rename */
    int fd;          /* -1 unless final */
    struct final_weights weights;
    struct state_sums sums;
    struct digest sums_digest;
    uint8_t *chunk;
    size_t chunk_size;
    uv_work_t disk;
    status_t disk_status; /* the result of `disk` */
    bool busy;            /* `disk` is in flight; its thread owns the chunk and the sums */
};

/* The sums, until they are renamed with the file. */
static char *temporary_sums(const struct upload *upload)
{
    return mem_printf("%s.sums", upload->temporary);
}

/* Closes the file, and removes it unless it was renamed. */
static void drop_file(struct upload *upload)
{
    if (upload->fd >= 0) close(upload->fd);
    upload->fd = -1;
    if (upload->temporary != NULL) {
        AUTO_FREE char *sums = temporary_sums(upload);
        unlink(upload->temporary);
        unlink(sums);
    }
    free(upload->temporary);
    upload->temporary = NULL;
}

static void upload_free(struct upload *upload)
{
    drop_file(upload);
    state_sums_deinit(&upload->sums);
    final_weights_deinit(&upload->weights);
    free(upload->chunk);
    job_call_free(&upload->base);
}

/* Answers the call and, for a final state_dict, lets the job reach its verdict. */
static void conclude(struct upload *upload, status_t status)
{
    struct job_call *own = &upload->base;
    if (own->over) {
        status_free(status);
        return;
    }
    upload->pull = NULL;
    if (upload->handed_out) {
        status_free(status);
        status = status_new(STATUS_UNAVAILABLE,
                            "the final state_dict went to a pull: upload it again for the job");
    }
    bool final = upload->final;
    upload->final = false;
    if (!upload->busy) drop_file(upload); /* before the answer */
    if (final && status != NULL) {
        AUTO_FREE char *quoted = log_quote(status_message(status));
        log_event(LOG_WARNING, "state_dict_lost", "job=%s message=%s", own->id, quoted);
    }
    if (status != NULL) {
        job_call_finish(own, status);
    } else {
        Fsdpd__V1__UploadStateResponse response = FSDPD__V1__UPLOAD_STATE_RESPONSE__INIT;
        job_call_reply(own, &response.base);
    }
    if (final && own->job != NULL) attempt_check(own->job);
}

/* After an error, notifies the pull's client, too. */
static void give_up(struct job_call *own, status_t status)
{
    struct upload *upload = (struct upload *)own;
    if (upload->pull != NULL) pull_break(upload->pull, status_copy(status));
    conclude(upload, status);
}

static void on_closed(struct job_call *own)
{
    struct upload *upload = (struct upload *)own;
    give_up(own, status_new(STATUS_ABORTED, "the upload of rank 0 was interrupted"));
    if (!upload->busy) upload_free(upload);
}

static const struct job_call_type upload_calls = {.size = sizeof(struct upload),
                                                  .end = give_up,
                                                  .closed = on_closed};

void upload_read(struct upload *upload)
{
    if (!upload->base.over) rpc_call_read(upload->base.call);
}

void upload_reject(struct upload *upload, status_t status)
{
    conclude(upload, status);
}

bool uploads_has(const struct job *job)
{
    struct upload *upload = NULL;
    while ((upload = job_calls_next(job->c, &upload_calls, job, upload)) != NULL)
        if (upload->final) return true;
    return false;
}

/* The job, if the upload belongs to its running attempt, else NULL. */
static struct job *find_attempt(const struct upload *upload)
{
    struct job *job = upload->base.job;
    bool fits = job != NULL && job->attempt != NULL && job->message->attempt == upload->attempt;
    return fits ? job : NULL;
}

/* ---- the final state_dict ---- */

/* The error for a resource that this host lacks, or for a request that it refuses. */
static status_t lack(int error, const char *doing, const char *path)
{
    if (error != ENOSPC && error != EDQUOT && error != EFBIG)
        return status_from_errno(error, "cannot %s %s", doing, path);
    AUTO_FREE char *directory = file_path_directory(path);
    return status_new(STATUS_RESOURCE_EXHAUSTED, "no space left on %s", directory);
}

/* This is not a failure of the job: the ranks keep the weights, and retry on UNAVAILABLE. */
static status_t not_now(struct job *job, status_t why)
{
    saving_failed(job, SAVING_STATE_DICT, status_message(why));
    status_t status = status_new(STATUS_UNAVAILABLE, "%s", status_message(why));
    status_free(why);
    return status;
}

/* Checks that the disk has room for the whole file: uploads that fill it again and again would
 * leave no room for other jobs. */
static status_t check_room(const char *directory, uint64_t bytes)
{
    if (disk_free(directory) >= (double)bytes) return NULL;
    return status_new(STATUS_RESOURCE_EXHAUSTED, "no space left on %s", directory);
}

static status_t open_temporary(const char *temporary, uint64_t bytes, int *fd)
{
    AUTO_FREE char *directory = file_path_directory(temporary);
    status_t status = file_make_directory(directory, 0750);
    if (status == NULL) status = check_room(directory, bytes);
    TRY(status);
    *fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    return *fd < 0 ? lack(errno, "make", temporary) : NULL;
}

/* Refuses an invalid final state_dict; the job's reason will state why. */
static status_t refuse_weights(struct job *job, status_t why)
{
    if (why == NULL) return NULL;
    struct attempt *attempt = job->attempt;
    free(attempt->weights_refused);
    attempt->weights_refused = mem_strdup(status_message(why));
    return status_wrap(why, "the final state_dict of job %s", job->message->id);
}

static status_t check_step(const job_message *message, uint64_t step)
{
    if (message->steps == 0 || step == message->steps) return NULL;
    if (step < message->steps && job_may_end_early(message)) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "it belongs to step %llu, but the job's last step is %llu",
                      (unsigned long long)step, (unsigned long long)message->steps);
}

static status_t begin_final(struct upload *upload, const Fsdpd__V1__UploadStateRequest *first)
{
    struct coordinator *c = upload->base.c;
    struct job *job = find_attempt(upload);
    if (job == NULL)
        return status_new(STATUS_ABORTED, "attempt %u of job %s is over", first->attempt,
                          first->job);
    const job_message *message = job->message;
    struct store_weights kept = {0};
    const bool has_result = job_has_result(job);
    if (has_result) TRY(store_get_state_dict(c->store, message->id, &kept));
    if (has_result && kept.step == first->step) /* only our answer was lost */
        return status_new(STATUS_ALREADY_EXISTS, "the state_dict of job %s, step %llu, is kept",
                          message->id, (unsigned long long)kept.step);
    if (!message->spec->save_model || has_result || uploads_has(job))
        return status_new(STATUS_FAILED_PRECONDITION, "job %s needs no final state_dict",
                          message->id);
    /* At most eight bytes per element, the largest type, plus a header. */
    uint64_t limit = (message->plan != NULL ? message->plan->parameters : 0) * 8 + (64u << 20);
    if (first->total_size == 0 || first->total_size > limit)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "total_size: expected 1 to %llu bytes for job %s, found %llu",
                          (unsigned long long)limit, message->id,
                          (unsigned long long)first->total_size);
    TRY(refuse_weights(job, check_step(message, first->step)));
    /* At most every other upload goes to a pull, so that pulls do not keep it from the disk. */
    struct attempt *attempt = job->attempt;
    attempt->handed_out = !attempt->handed_out && (attempt->saving & SAVING_STATE_DICT) != 0 &&
                          pull_accept_final(job, first, upload, &upload->pull);
    upload->handed_out = attempt->handed_out;
    if (upload->handed_out) return NULL;
    AUTO_FREE char *path = coordinator_state_dict_path(c, message->id);
    char *temporary = mem_printf("%s.tmp", path);
    int fd;
    status_t status = open_temporary(temporary, first->total_size, &fd);
    if (status != NULL) {
        free(temporary);
        return not_now(job, status);
    }
    final_weights_begin(&upload->weights, first->total_size,
                        message->plan != NULL ? message->plan->parameters : 0);
    state_sums_begin(&upload->sums);
    upload->final = true;
    upload->total = first->total_size;
    upload->step = first->step;
    upload->temporary = temporary;
    upload->fd = fd;
    return NULL;
}

/* The upload cannot continue now; takes ownership of `why`. */
static void postpone(struct upload *upload, status_t why)
{
    struct job *job = find_attempt(upload);
    drop_file(upload); /* first, as the store may need the space */
    conclude(upload, job != NULL ? not_now(job, why) : why);
}

/* After any work. Returns its result in *status; false if the upload is over, and perhaps freed. */
static bool disk_is_done(struct upload *upload, status_t *status)
{
    upload->busy = false;
    *status = upload->disk_status;
    upload->disk_status = NULL;
    struct coordinator *c = upload->base.c;
    bool over = upload->base.over;
    if (upload->base.call == NULL) upload_free(upload);
    coordinator_disk_done(c);
    if (over) status_free(*status);
    return !over;
}

static void disk_begin(struct upload *upload, uv_work_cb work, uv_after_work_cb done)
{
    upload->disk.data = upload;
    int error = uv_queue_work(upload->base.c->loop, &upload->disk, work, done);
    if (error != 0) {
        postpone(upload, lack(-error, "write", upload->temporary));
        return;
    }
    upload->busy = true;
    upload->base.c->disk_requests++;
}

static void write_chunk(uv_work_t *work)
{
    struct upload *upload = work->data;
    for (size_t done = 0; done < upload->chunk_size;) {
        ssize_t count = pwrite(upload->fd, upload->chunk + done, upload->chunk_size - done,
                               (off_t)(upload->written + done));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) {
            upload->disk_status = lack(count < 0 ? errno : EIO, "write", upload->temporary);
            return;
        }
        done += (size_t)count;
    }
    state_sums_add(&upload->sums, upload->weights.checked ? &upload->weights.layout : NULL,
                   upload->chunk, upload->chunk_size);
}

static void on_written(uv_work_t *work, int canceled)
{
    (void)canceled; /* never cancelled */
    struct upload *upload = work->data;
    status_t status;
    if (!disk_is_done(upload, &status)) return;
    if (status != NULL) {
        postpone(upload, status);
        return;
    }
    upload->written += upload->chunk_size;
    rpc_call_read(upload->base.call);
}

static status_t check_weights(struct upload *upload, const ProtobufCBinaryData *data)
{
    status_t status = final_weights_take(&upload->weights, data->data, data->len);
    struct job *job = find_attempt(upload);
    return job != NULL ? refuse_weights(job, status) : status;
}

static status_t take_chunk(struct upload *upload, const ProtobufCBinaryData *data)
{
    if (data->len > STATE_DICT_CHUNK || data->len > upload->total - upload->written)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data: a chunk of %zu bytes at %llu of %llu does not fit", data->len,
                          (unsigned long long)upload->written, (unsigned long long)upload->total);
    if (data->len == 0) {
        rpc_call_read(upload->base.call);
        return NULL;
    }
    TRY(check_weights(upload, data));
    if (upload->chunk == NULL) upload->chunk = mem_alloc(STATE_DICT_CHUNK);
    memcpy(upload->chunk, data->data, data->len);
    upload->chunk_size = data->len;
    disk_begin(upload, write_chunk, on_written);
    return NULL;
}

/* A resumed job has those of its earlier end. */
static void settle_kept(struct coordinator *c, const job_message *job)
{
    struct store_weights recorded;
    if (!job->has_state_dict) return;
    AUTO_FREE char *path = coordinator_state_dict_path(c, job->id);
    status_t status = store_get_state_dict(c->store, job->id, &recorded);
    if (status == NULL && recorded.proved) kept_weights_settle(path, &recorded);
    status_free(status);
}

void uploads_recover(struct coordinator *c)
{
    for (int i = 0; i < c->job_count; i++) settle_kept(c, c->jobs[i]->message);
}

/* The bytes are on the disk: rename the files, then record them in the store. */
static status_t rename_and_record(struct upload *upload)
{
    struct coordinator *c = upload->base.c;
    AUTO_FREE char *path = coordinator_state_dict_path(c, upload->base.id);
    AUTO_FREE char *sums = coordinator_state_sums_path(c, upload->base.id);
    AUTO_FREE char *written = temporary_sums(upload);
    status_t status = NULL;
    if (rename(written, sums) != 0) status = lack(errno, "rename", written);
    else if (rename(upload->temporary, path) != 0)
        status = lack(errno, "rename", upload->temporary);
    if (status == NULL) {
        free(upload->temporary);
        upload->temporary = NULL;
        status = file_sync_parent(path);
    }
    TRY(status);
    struct store_weights weights = {.step = upload->step, .proved = true};
    static_assert(sizeof weights.sums == sizeof upload->sums_digest.bytes, "a digest");
    memcpy(weights.sums, upload->sums_digest.bytes, sizeof weights.sums);
    return store_set_state_dict(c->store, upload->base.id, &weights);
}

static status_t keep(struct upload *upload, const struct job *job)
{
    AUTO_FREE char *path = coordinator_state_dict_path(upload->base.c, upload->base.id);
    if (job->message->has_state_dict) kept_weights_set_aside(path);
    status_t status = rename_and_record(upload);
    settle_kept(upload->base.c, job->message);
    return status;
}

static void note_kept(struct upload *upload, struct job *job)
{
    job->message->has_state_dict = true;
    job->outdated = false;
    log_event(LOG_INFO, "state_dict_kept", "job=%s step=%llu bytes=%llu", upload->base.id,
              (unsigned long long)upload->step, (unsigned long long)upload->total);
    saving_done(job, SAVING_STATE_DICT);
    conclude(upload, NULL);
}

static void sync_file(uv_work_t *work)
{
    struct upload *upload = work->data;
    if (fsync(upload->fd) != 0) {
        upload->disk_status = lack(errno, "sync", upload->temporary);
        return;
    }
    AUTO_FREE char *path = temporary_sums(upload);
    state_sums_end(&upload->sums, &upload->sums_digest);
    upload->disk_status =
        file_write_atomic(path, upload->sums.list.data, upload->sums.list.length, 0640);
}

static void on_synced(uv_work_t *work, int canceled)
{
    (void)canceled;
    struct upload *upload = work->data;
    status_t status;
    if (!disk_is_done(upload, &status)) return;
    struct job *job = find_attempt(upload);
    if (job == NULL) {
        status_free(status);
        conclude(upload, status_new(STATUS_ABORTED, "attempt %u of job %s is over", upload->attempt,
                                    upload->base.id));
        return;
    }
    if (status == NULL) status = keep(upload, job);
    if (status != NULL) postpone(upload, status);
    else note_kept(upload, job);
}

static void end_final(struct upload *upload)
{
    if (upload->written != upload->total) {
        conclude(upload, status_new(STATUS_DATA_LOSS,
                                    "the state_dict of job %s ended after %llu of %llu bytes",
                                    upload->base.id, (unsigned long long)upload->written,
                                    (unsigned long long)upload->total));
        return;
    }
    disk_begin(upload, sync_file, on_synced);
}

/* ---- the call ---- */

void uploads_start(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    (void)request;
    struct coordinator *c = service;
    struct upload *upload = job_call_begin(&upload_calls, call, c, "");
    upload->fd = -1;
    rpc_call_expect(call, c->options.limits.pull_idle_ms);
    rpc_call_read(call);
}

static status_t begin(struct upload *upload, const Fsdpd__V1__UploadStateRequest *first)
{
    struct job_call *own = &upload->base;
    upload->begun = true;
    TRY(access_check_rank(own->c, own->call, first->job));
    job_call_set_job(own, first->job);
    upload->attempt = first->attempt;
    if (first->pull == 0) return begin_final(upload, first);
    return pull_accept(own->c, first, upload, &upload->pull);
}

void uploads_message(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    (void)service;
    struct upload *upload = rpc_call_user(call);
    const Fsdpd__V1__UploadStateRequest *message = (const void *)request;
    if (upload->base.over) return;
    status_t status = NULL;
    if (message == NULL) {
        if (!upload->begun)
            conclude(upload, status_new(STATUS_INVALID_ARGUMENT, "an empty upload"));
        else if (upload->final) end_final(upload);
        else conclude(upload, pull_finish(upload->pull));
        return;
    }
    if (!upload->begun) status = begin(upload, message);
    if (status == NULL && upload->final) status = take_chunk(upload, &message->data);
    else if (status == NULL) status = pull_relay(upload->pull, &message->data);
    if (status != NULL) give_up(&upload->base, status);
}
