/*
 * Uploads; see uploads.h. One message is read at a time. The bytes of a final state_dict are
 * written and synced by libuv's disk threads, so that a slow disk does not stop the loop; an upload
 * whose call is over is freed when its disk request is.
 */
#include "coordinator/uploads.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/access.h"
#include "coordinator/attempt.h"
#include "coordinator/pulls.h"

struct upload {
    struct coordinator *c;
    struct rpc_call *call; /* NULL once it is closed */
    bool begun;            /* the first message was seen */
    bool finished;         /* the call was answered */
    struct pull *pull;     /* a relayed one */

    bool final;
    char *job;
    uint32_t attempt;
    uint64_t total, written, step;
    char *temporary; /* the file's name until it is renamed */
    int fd;          /* -1 unless final */
    uint8_t *chunk;
    size_t chunk_size, chunk_done;
    uv_fs_t disk;
    bool busy; /* `disk` is in flight */
};

/* Closes the file, and removes it if it has not got its name. */
static void drop_file(struct upload *upload)
{
    if (upload->fd >= 0) close(upload->fd);
    upload->fd = -1;
    if (upload->temporary != NULL) unlink(upload->temporary);
    free(upload->temporary);
    upload->temporary = NULL;
}

static void upload_free(struct upload *upload)
{
    drop_file(upload);
    free(upload->chunk);
    free(upload->job);
    free(upload);
}

/* Answers the call and, for a final one, lets the job's verdict come. */
static void conclude(struct upload *upload, status_t status)
{
    if (upload->finished) {
        status_free(status);
        return;
    }
    upload->finished = true;
    upload->pull = NULL;
    bool final = upload->final;
    upload->final = false;
    if (!upload->busy) drop_file(upload); /* before anybody hears of it */
    if (final && status != NULL) {
        char *quoted = log_quote(status_message(status));
        log_event(LOG_WARNING, "state_dict_lost", "job=%s message=%s", upload->job, quoted);
        free(quoted);
    }
    if (upload->call == NULL) {
        status_free(status);
    } else if (status != NULL) {
        rpc_call_finish(upload->call, status);
    } else {
        Fsdpd__V1__UploadStateResponse response = FSDPD__V1__UPLOAD_STATE_RESPONSE__INIT;
        rpc_call_reply(upload->call, &response.base);
    }
    struct job *job = final ? jobs_find(upload->c, upload->job) : NULL;
    if (job != NULL) attempt_check(job);
}

void upload_read(struct upload *upload)
{
    if (!upload->finished) rpc_call_read(upload->call);
}

void upload_reject(struct upload *upload, status_t status)
{
    conclude(upload, status);
}

bool uploads_has(const struct job *job)
{
    for (int i = 0; i < job->c->upload_count; i++) {
        const struct upload *upload = job->c->uploads[i];
        if (upload->final && strcmp(upload->job, job->message->id) == 0) return true;
    }
    return false;
}

/* The job whose running attempt this is, or NULL. */
static struct job *find_attempt(struct coordinator *c, const char *id, uint32_t attempt)
{
    struct job *job = jobs_find(c, id);
    bool fits = job != NULL && job->ranks != NULL && job->message->attempt == attempt;
    return fits ? job : NULL;
}

/* ---- the final state_dict ---- */

static status_t begin_final(struct upload *upload, const Fsdpd__V1__UploadStateRequest *first)
{
    struct coordinator *c = upload->c;
    struct job *job = find_attempt(c, first->job, first->attempt);
    if (job == NULL)
        return status_new(STATUS_ABORTED, "attempt %u of job %s is over", first->attempt,
                          first->job);
    const job_message *message = job->message;
    uint64_t step = 0;
    if (message->has_state_dict) TRY(store_get_state_dict(c->store, message->id, &step));
    if (message->has_state_dict && step == first->step) /* only our answer to it was lost */
        return status_new(STATUS_ALREADY_EXISTS, "the state_dict of job %s, step %llu, is kept",
                          message->id, (unsigned long long)step);
    if (!message->spec->save_model || message->has_state_dict || uploads_has(job))
        return status_new(STATUS_FAILED_PRECONDITION, "job %s needs no final state_dict",
                          message->id);
    /* Eight bytes per element, and a header: no type is larger. */
    uint64_t limit = (message->plan != NULL ? message->plan->parameters : 0) * 8 + (64u << 20);
    if (first->total_size == 0 || first->total_size > limit)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "total_size: 1 to %llu bytes expected for job %s, found %llu",
                          (unsigned long long)limit, message->id,
                          (unsigned long long)first->total_size);
    char *path = coordinator_state_dict_path(c, message->id);
    char *directory = file_path_directory(path);
    status_t status = file_make_directory(directory, 0750);
    free(directory);
    if (status != NULL) {
        free(path);
        return status;
    }
    char *temporary = mem_printf("%s.tmp", path);
    free(path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    if (fd < 0) {
        status = status_from_errno(errno, "cannot make %s", temporary);
        free(temporary);
        return status;
    }
    upload->final = true;
    upload->job = mem_strdup(message->id);
    upload->attempt = first->attempt;
    upload->total = first->total_size;
    upload->step = first->step;
    upload->temporary = temporary;
    upload->fd = fd;
    return NULL;
}

static void write_chunk(struct upload *upload);

/* Common to all disk requests: false if the upload is over, and perhaps freed. */
static bool disk_came_back(struct upload *upload)
{
    uv_fs_req_cleanup(&upload->disk);
    upload->busy = false;
    if (upload->call == NULL) {
        struct coordinator *c = upload->c;
        upload_free(upload);
        coordinator_disk_done(c);
        return false;
    }
    coordinator_disk_done(upload->c);
    return !upload->finished;
}

static bool disk_began(struct upload *upload, int error, const char *doing)
{
    if (error != 0) {
        conclude(upload, status_new(STATUS_INTERNAL, "cannot %s %s: %s", doing, upload->temporary,
                                    uv_strerror(error)));
        return false;
    }
    upload->busy = true;
    upload->c->disk_requests++;
    return true;
}

static void on_written(uv_fs_t *request)
{
    struct upload *upload = request->data;
    ssize_t count = request->result;
    if (!disk_came_back(upload)) return;
    if (count <= 0) {
        conclude(upload, status_from_errno(count < 0 ? (int)-count : EIO, "cannot write %s",
                                           upload->temporary));
        return;
    }
    upload->chunk_done += (size_t)count;
    upload->written += (uint64_t)count;
    if (upload->chunk_done < upload->chunk_size) write_chunk(upload);
    else rpc_call_read(upload->call);
}

static void write_chunk(struct upload *upload)
{
    uv_buf_t buffer = uv_buf_init((char *)upload->chunk + upload->chunk_done,
                                  (unsigned)(upload->chunk_size - upload->chunk_done));
    upload->disk.data = upload;
    int error = uv_fs_write(upload->c->loop, &upload->disk, upload->fd, &buffer, 1,
                            (int64_t)upload->written, on_written);
    disk_began(upload, error, "write");
}

static status_t take_chunk(struct upload *upload, const ProtobufCBinaryData *data)
{
    if (data->len > STATE_DICT_CHUNK || data->len > upload->total - upload->written)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data: a chunk of %zu bytes at %llu of %llu does not fit", data->len,
                          (unsigned long long)upload->written, (unsigned long long)upload->total);
    if (data->len == 0) {
        rpc_call_read(upload->call);
        return NULL;
    }
    if (upload->chunk == NULL) upload->chunk = mem_alloc(STATE_DICT_CHUNK);
    memcpy(upload->chunk, data->data, data->len);
    upload->chunk_size = data->len;
    upload->chunk_done = 0;
    write_chunk(upload);
    return NULL;
}

/* The bytes are on the disk: give them their name, then say so in the store. */
static status_t keep(struct upload *upload)
{
    struct coordinator *c = upload->c;
    struct job *job = find_attempt(c, upload->job, upload->attempt);
    if (job == NULL)
        return status_new(STATUS_ABORTED, "attempt %u of job %s is over", upload->attempt,
                          upload->job);
    char *path = coordinator_state_dict_path(c, upload->job);
    status_t status = NULL;
    if (rename(upload->temporary, path) != 0)
        status = status_from_errno(errno, "cannot rename %s to %s", upload->temporary, path);
    if (status == NULL) {
        free(upload->temporary);
        upload->temporary = NULL;
        status = file_sync_parent(path);
    }
    free(path);
    TRY(status);
    TRY(store_set_state_dict(c->store, upload->job, upload->step));
    job->message->has_state_dict = true;
    log_event(LOG_INFO, "state_dict_kept", "job=%s step=%llu bytes=%llu", upload->job,
              (unsigned long long)upload->step, (unsigned long long)upload->total);
    return NULL;
}

static void on_synced(uv_fs_t *request)
{
    struct upload *upload = request->data;
    ssize_t result = request->result;
    if (!disk_came_back(upload)) return;
    status_t status = result < 0
                          ? status_from_errno((int)-result, "cannot sync %s", upload->temporary)
                          : keep(upload);
    conclude(upload, status);
}

static void end_final(struct upload *upload)
{
    if (upload->written != upload->total) {
        conclude(upload, status_new(STATUS_DATA_LOSS,
                                    "the state_dict of job %s ended after %llu of %llu bytes",
                                    upload->job, (unsigned long long)upload->written,
                                    (unsigned long long)upload->total));
        return;
    }
    upload->disk.data = upload;
    int error = uv_fs_fsync(upload->c->loop, &upload->disk, upload->fd, on_synced);
    disk_began(upload, error, "sync");
}

/* ---- the call ---- */

void uploads_start(struct coordinator *c, struct rpc_call *call)
{
    struct upload *upload = mem_alloc(sizeof *upload);
    upload->c = c;
    upload->call = call;
    upload->fd = -1;
    rpc_call_set_user(call, upload);
    MEM_GROW(c->uploads, c->upload_count, c->upload_capacity);
    c->uploads[c->upload_count++] = upload;
    rpc_call_read(call);
}

static status_t begin(struct upload *upload, const Fsdpd__V1__UploadStateRequest *first)
{
    upload->begun = true;
    TRY(access_check_rank(upload->c, upload->call, first->job));
    if (first->pull == 0) return begin_final(upload, first);
    return pull_accept(upload->c, first, upload, &upload->pull);
}

/* After an error, a pull's client is told too. */
static void give_up(struct upload *upload, status_t status)
{
    if (upload->pull != NULL) pull_break(upload->pull, status_copy(status));
    conclude(upload, status);
}

void uploads_message(struct rpc_call *call, const Fsdpd__V1__UploadStateRequest *message)
{
    struct upload *upload = rpc_call_user(call);
    if (upload->finished) return;
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
    if (status != NULL) give_up(upload, status);
}

void uploads_closed(struct coordinator *c, struct rpc_call *call)
{
    struct upload *upload = rpc_call_user(call);
    upload->call = NULL;
    for (int i = 0; i < c->upload_count; i++)
        if (c->uploads[i] == upload) LIST_REMOVE(c->uploads, c->upload_count, i);
    if (!upload->finished)
        give_up(upload, status_new(STATUS_ABORTED, "the upload of rank 0 broke off"));
    if (!upload->busy) upload_free(upload);
}

void uploads_close(struct coordinator *c)
{
    for (int i = c->upload_count - 1; i >= 0; i--)
        give_up(c->uploads[i], status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down"));
}
