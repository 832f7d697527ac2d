/*
 * Pulls; see pulls.h. A pull belongs to its client's call: it is freed when that call is over, or,
 * while a disk read is in flight, right after the read.
 */
#include "coordinator/pulls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "coordinator/attempt.h"
#include "coordinator/checkpoint_reader.h"
#include "coordinator/job_record.h"

enum { PULL_QUEUE = 4 }; /* chunks on their way to the client */

/* While a checkpoint is verified, its client hears from us as often. */
enum { PULL_SIGN_MS = 5000 };

enum pull_state {
    PULL_WAITING, /* for its turn, or for the job to run */
    PULL_ORDERED,
    PULL_RELAYING,
    PULL_FILE, /* the kept one, or a checkpoint's */
    PULL_OVER,
};

struct pull {
    struct coordinator *c;
    struct rpc_call *call; /* the client's; NULL once it is closed */
    uint64_t number;
    char *job;
    uint32_t attempt;
    enum pull_state state;
    int64_t deadline; /* ORDERED: for the answer; RELAYING: for the next chunk */
    uint64_t total, sent, step;

    struct upload *upload; /* RELAYING */
    bool asked;            /* for the next chunk */

    int fd; /* FILE, the kept one; -1 otherwise */
    uv_fs_t read;
    struct checkpoint_reader *reader; /* FILE, of a checkpoint; NULL otherwise */
    uv_work_t work;
    status_t read_status; /* what it came to, and in bytes */
    size_t read_count;
    uint8_t *chunk;
    bool reading; /* `chunk` and `reader` are another thread's */
    bool told;    /* the first chunk is out */
    int64_t told_at;
};

static void pull_free(struct pull *pull)
{
    if (pull->fd >= 0) close(pull->fd);
    checkpoint_reader_free(pull->reader);
    status_free(pull->read_status);
    free(pull->chunk);
    free(pull->job);
    free(pull);
}

/* The client's end of it. The upload, if any, has been seen to. */
static void pull_end(struct pull *pull, status_t status)
{
    if (pull->state == PULL_OVER) {
        status_free(status);
        return;
    }
    pull->state = PULL_OVER;
    pull->upload = NULL;
    if (pull->call != NULL) rpc_call_finish(pull->call, status);
    else status_free(status);
    struct job *job = jobs_find(pull->c, pull->job);
    if (job != NULL) pulls_advance(job);
}

static void send_chunk(struct pull *pull, const uint8_t *bytes, size_t size)
{
    Fsdpd__V1__StateDictChunk chunk = FSDPD__V1__STATE_DICT_CHUNK__INIT;
    chunk.data.data = (uint8_t *)bytes;
    chunk.data.len = size;
    if (!pull->told) {
        chunk.total_size = pull->total;
        chunk.step = pull->step;
        if (pull->reader != NULL)
            chunk.checkpoint = (Fsdpd__V1__Checkpoint *)checkpoint_reader_found(pull->reader);
    }
    rpc_call_send(pull->call, &chunk.base);
    pull->told = true;
    pull->told_at = coordinator_now();
    pull->sent += size;
}

/* ---- what is on the disk ---- */

static void read_next(struct pull *pull);

static void on_read(uv_fs_t *request)
{
    struct pull *pull = request->data;
    ssize_t count = request->result;
    uv_fs_req_cleanup(request);
    pull->reading = false;
    struct coordinator *c = pull->c;
    if (pull->call == NULL) {
        pull_free(pull);
    } else if (pull->state == PULL_FILE && count <= 0) {
        pull_end(pull, status_new(STATUS_DATA_LOSS,
                                  "the kept state_dict of job %s ends after %llu of %llu bytes: %s",
                                  pull->job, (unsigned long long)pull->sent,
                                  (unsigned long long)pull->total,
                                  count < 0 ? uv_strerror((int)count) : "the file was cut"));
    } else if (pull->state == PULL_FILE) {
        send_chunk(pull, pull->chunk, (size_t)count);
        if (pull->sent == pull->total) pull_end(pull, NULL);
        else read_next(pull);
    }
    coordinator_disk_done(c);
}

/* ---- a checkpoint ---- */

static void work(uv_work_t *request)
{
    struct pull *pull = request->data;
    pull->read_status =
        checkpoint_reader_work(pull->reader, pull->chunk, STATE_DICT_CHUNK, &pull->read_count);
}

/* The first chunk goes out when the checkpoint is open, an empty one now and then while it is
 * verified, so that nobody takes the pull for dead. */
static void go_on_with_checkpoint(struct pull *pull)
{
    if (!pull->told) {
        pull->total = checkpoint_reader_bytes(pull->reader);
        pull->step = checkpoint_reader_found(pull->reader)->step;
    }
    if (!pull->told || pull->read_count > 0 || coordinator_now() - pull->told_at >= PULL_SIGN_MS)
        send_chunk(pull, pull->chunk, pull->read_count);
    if (pull->sent == pull->total) pull_end(pull, NULL);
    else read_next(pull);
}

static void on_work(uv_work_t *request, int canceled)
{
    (void)canceled; /* nobody does */
    struct pull *pull = request->data;
    struct coordinator *c = pull->c;
    status_t status = pull->read_status;
    pull->read_status = NULL;
    pull->reading = false;
    if (pull->call == NULL || pull->state != PULL_FILE) {
        status_free(status);
        if (pull->call == NULL) pull_free(pull);
    } else if (status != NULL) {
        pull_end(pull, status);
    } else {
        go_on_with_checkpoint(pull);
    }
    coordinator_disk_done(c);
}

static void work_next(struct pull *pull)
{
    pull->work.data = pull;
    int error = uv_queue_work(pull->c->loop, &pull->work, work, on_work);
    if (error != 0) {
        pull_end(pull, status_new(STATUS_INTERNAL, "cannot read a checkpoint of job %s: %s",
                                  pull->job, uv_strerror(error)));
        return;
    }
    pull->reading = true;
    pull->c->disk_requests++;
}

/* `none` is the error if there is no checkpoint; taken over. */
static void send_checkpoint(struct pull *pull, const job_message *message, uint64_t step,
                            status_t none)
{
    pull->reader = checkpoint_reader_new(pull->c, message, step, none);
    pull->chunk = mem_alloc(STATE_DICT_CHUNK);
    pull->state = PULL_FILE;
    read_next(pull);
}

static void read_next(struct pull *pull)
{
    if (pull->reading || rpc_call_queued(pull->call) >= PULL_QUEUE) return;
    if (pull->reader != NULL) {
        work_next(pull);
        return;
    }
    uint64_t left = pull->total - pull->sent;
    uv_buf_t buffer = uv_buf_init((char *)pull->chunk,
                                  left < STATE_DICT_CHUNK ? (unsigned)left : STATE_DICT_CHUNK);
    pull->read.data = pull;
    int error =
        uv_fs_read(pull->c->loop, &pull->read, pull->fd, &buffer, 1, (int64_t)pull->sent, on_read);
    if (error != 0) {
        pull_end(pull, status_new(STATUS_INTERNAL, "cannot read the state_dict of job %s: %s",
                                  pull->job, uv_strerror(error)));
        return;
    }
    pull->reading = true;
    pull->c->disk_requests++;
}

static status_t open_kept(struct pull *pull)
{
    uint64_t step = 0;
    TRY(store_get_state_dict(pull->c->store, pull->job, &step));
    char *path = coordinator_state_dict_path(pull->c, pull->job);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    status_t status = NULL;
    if (fd < 0 || fstat(fd, &info) != 0)
        status = status_from_errno(errno, "cannot open the kept state_dict %s", path);
    else if (info.st_size == 0) status = status_new(STATUS_DATA_LOSS, "%s is empty", path);
    free(path);
    if (status != NULL) {
        if (fd >= 0) close(fd);
        return status;
    }
    pull->fd = fd;
    pull->total = (uint64_t)info.st_size;
    pull->step = step;
    pull->chunk = mem_alloc(STATE_DICT_CHUNK);
    pull->state = PULL_FILE;
    return NULL;
}

static void send_kept(struct pull *pull)
{
    status_t status = open_kept(pull);
    if (status != NULL) pull_end(pull, status);
    else read_next(pull);
}

/* ---- the client's call ---- */

static int pulls_of(const struct coordinator *c, const char *job)
{
    int count = 0;
    for (int i = 0; i < c->pull_count; i++)
        count += c->pulls[i]->state != PULL_OVER && strcmp(c->pulls[i]->job, job) == 0;
    return count;
}

static bool is_in_checkpoint(const job_message *message,
                             const Fsdpd__V1__PullStateDictRequest *request)
{
    if (request->from_checkpoint) return true;
    return job_state_is_over(message->state) ? !message->has_state_dict
                                             : !job_is_in_attempt((int)message->state);
}

/* `job` is NULL if it is over. */
static status_t check(struct coordinator *c, const struct job *job,
                      const Fsdpd__V1__PullStateDictRequest *request, bool checkpoint)
{
    if (request->checkpoint_step != 0 && !request->from_checkpoint)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "checkpoint_step: expected from_checkpoint with it");
    if (job != NULL && !checkpoint && (job->ending || job->cancel_ordered))
        return status_new(STATUS_FAILED_PRECONDITION, "job %s is ending", request->id);
    if ((job != NULL || checkpoint) && pulls_of(c, request->id) >= c->options.limits.pulls_per_job)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "%d pulls of job %s wait already",
                          pulls_of(c, request->id), request->id);
    return NULL;
}

/* What a job has whose weights are nowhere. */
static status_t say_none(const job_message *message)
{
    bool over = job_state_is_over(message->state);
    return status_new(STATUS_FAILED_PRECONDITION, "job %s is %s: %s, and it has no checkpoint",
                      message->id, job_state_name(message->state),
                      message->has_state_dict              ? "it kept its state_dict"
                      : over && !message->spec->save_model ? "it kept no state_dict (save_model "
                                                             "is false)"
                      : over                               ? "it kept no state_dict"
                      : job_is_in_attempt((int)message->state) ? "workers have its weights"
                                                               : "no worker has its weights now");
}

static struct pull *new_pull(struct rpc_call *call, const char *job, struct coordinator *c)
{
    struct pull *pull = mem_alloc(sizeof *pull);
    pull->c = c;
    pull->call = call;
    pull->number = ++c->last_pull;
    pull->job = mem_strdup(job);
    pull->fd = -1;
    rpc_call_set_user(call, pull);
    MEM_GROW(c->pulls, c->pull_count, c->pull_capacity);
    c->pulls[c->pull_count++] = pull;
    return pull;
}

void pulls_start(struct rpc_call *call, const Fsdpd__V1__PullStateDictRequest *request,
                 struct coordinator *c)
{
    struct job *job = jobs_find(c, request->id);
    if (job != NULL && job_state_is_over(job->message->state)) job = NULL;
    job_message *stored = NULL;
    status_t status = job == NULL ? store_get_job(c->store, request->id, &stored) : NULL;
    const job_message *message = job != NULL ? job->message : stored;
    bool checkpoint = status == NULL && is_in_checkpoint(message, request);
    if (status == NULL) status = check(c, job, request, checkpoint);
    if (status != NULL) {
        message_free(stored);
        rpc_call_finish(call, status);
        return;
    }
    struct pull *pull = new_pull(call, request->id, c);
    if (checkpoint) {
        send_checkpoint(pull, message, request->checkpoint_step, say_none(message));
    } else if (job != NULL) {
        pull->attempt = message->attempt;
        pulls_advance(job);
    } else {
        send_kept(pull);
    }
    message_free(stored);
}

void pulls_writable(struct rpc_call *call)
{
    struct pull *pull = rpc_call_user(call);
    if (pull == NULL || rpc_call_queued(call) >= PULL_QUEUE) return;
    if (pull->state == PULL_FILE) {
        if (pull->sent < pull->total) read_next(pull);
    } else if (pull->state == PULL_RELAYING && !pull->asked) {
        pull->asked = true;
        pull->deadline = coordinator_now() + pull->c->options.limits.pull_idle_ms;
        upload_read(pull->upload);
    }
}

void pulls_closed(struct coordinator *c, struct rpc_call *call)
{
    struct pull *pull = rpc_call_user(call);
    if (pull == NULL) return;
    pull->call = NULL;
    if (pull->upload != NULL)
        upload_reject(pull->upload, status_new(STATUS_CANCELLED, "the client went away"));
    pull_end(pull, NULL);
    for (int i = 0; i < c->pull_count; i++)
        if (c->pulls[i] == pull) LIST_REMOVE(c->pulls, c->pull_count, i);
    if (!pull->reading) pull_free(pull);
}

/* ---- the job's side ---- */

void pulls_advance(struct job *job)
{
    struct coordinator *c = job->c;
    if (job->message->state != FSDPD__V1__JOB_STATE__RUNNING || job->ending || job->cancel_ordered)
        return;
    struct pull *next = NULL;
    for (int i = 0; i < c->pull_count; i++) {
        struct pull *pull = c->pulls[i];
        if (strcmp(pull->job, job->message->id) != 0) continue;
        if (pull->state == PULL_ORDERED || pull->state == PULL_RELAYING) return;
        if (pull->state == PULL_WAITING && next == NULL) next = pull;
    }
    if (next == NULL) return;
    next->state = PULL_ORDERED;
    next->attempt = job->message->attempt;
    next->deadline = coordinator_now() + c->options.limits.pull_start_ms;
    attempt_order_pull(job, next->number);
    coordinator_hurry(c);
}

static struct pull *find_pull(struct coordinator *c, const char *job, uint32_t attempt,
                              uint64_t number)
{
    for (int i = 0; i < c->pull_count; i++) {
        struct pull *pull = c->pulls[i];
        if (pull->number == number && pull->attempt == attempt && strcmp(pull->job, job) == 0)
            return pull;
    }
    return NULL;
}

/* Ends a pull whose upload may have begun. */
static void fail(struct pull *pull, status_t status)
{
    if (pull->upload != NULL) upload_reject(pull->upload, status_copy(status));
    pull_end(pull, status);
}

void pulls_failed(struct job *job, const Fsdpd__V1__PullFailed *failed)
{
    struct pull *pull = find_pull(job->c, job->message->id, job->message->attempt, failed->pull);
    if (pull == NULL || (pull->state != PULL_ORDERED && pull->state != PULL_RELAYING)) return;
    bool known = failed->code >= STATUS_CANCELLED && failed->code <= STATUS_UNAUTHENTICATED;
    fail(pull, status_new(known ? (enum status_code)failed->code : STATUS_UNKNOWN,
                          "the ranks of job %s could not hand out the state_dict: %s",
                          job->message->id, failed->message));
}

void pulls_job_over(struct job *job)
{
    struct coordinator *c = job->c;
    const job_message *message = job->message;
    bool well = message->state == FSDPD__V1__JOB_STATE__SUCCEEDED;
    for (int i = c->pull_count - 1; i >= 0; i--) {
        struct pull *pull = c->pulls[i];
        if (strcmp(pull->job, message->id) != 0 || pull->state == PULL_OVER ||
            pull->state == PULL_FILE)
            continue;
        if (pull->state == PULL_RELAYING && well) continue; /* what is on its way arrives */
        status_t late =
            status_new(STATUS_ABORTED, "job %s ended (%s) before its state_dict was handed out",
                       message->id, job_state_name(message->state));
        if (pull->state == PULL_RELAYING) fail(pull, late);
        else if (!message->has_state_dict) send_checkpoint(pull, message, 0, late);
        else {
            status_free(late);
            send_kept(pull);
        }
    }
}

/* ---- the upload's side ---- */

status_t pull_accept(struct coordinator *c, const Fsdpd__V1__UploadStateRequest *first,
                     struct upload *upload, struct pull **out)
{
    struct pull *pull = find_pull(c, first->job, first->attempt, first->pull);
    if (pull == NULL || pull->state != PULL_ORDERED)
        return status_new(STATUS_CANCELLED, "nobody waits for pull %llu of job %s any more",
                          (unsigned long long)first->pull, first->job);
    pull->state = PULL_RELAYING;
    pull->upload = upload;
    pull->total = first->total_size;
    pull->step = first->step;
    pull->asked = true;
    *out = pull;
    return NULL;
}

status_t pull_relay(struct pull *pull, const ProtobufCBinaryData *data)
{
    if (data->len > STATE_DICT_CHUNK || data->len > pull->total - pull->sent)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "data: a chunk of %zu bytes at %llu of %llu does not fit", data->len,
                          (unsigned long long)pull->sent, (unsigned long long)pull->total);
    pull->asked = false;
    if (data->len > 0) send_chunk(pull, data->data, data->len);
    if (rpc_call_queued(pull->call) < PULL_QUEUE) pulls_writable(pull->call);
    return NULL;
}

status_t pull_finish(struct pull *pull)
{
    status_t status = NULL;
    if (pull->sent != pull->total || pull->total == 0)
        status =
            status_new(STATUS_DATA_LOSS, "the state_dict of job %s ended after %llu of %llu bytes",
                       pull->job, (unsigned long long)pull->sent, (unsigned long long)pull->total);
    pull_end(pull, status_copy(status));
    return status;
}

void pull_break(struct pull *pull, status_t status)
{
    pull_end(pull, status);
}

void pulls_tick(struct coordinator *c)
{
    int64_t now = coordinator_now();
    for (int i = c->pull_count - 1; i >= 0; i--) {
        struct pull *pull = c->pulls[i];
        bool waits = pull->state == PULL_ORDERED || (pull->state == PULL_RELAYING && pull->asked);
        if (!waits || now < pull->deadline) continue;
        fail(pull,
             status_new(STATUS_DEADLINE_EXCEEDED, "rank 0 of job %s sent %s in time", pull->job,
                        pull->state == PULL_ORDERED ? "no state_dict"
                                                    : "no more of its state_dict"));
    }
}

void pulls_close(struct coordinator *c)
{
    for (int i = c->pull_count - 1; i >= 0; i--)
        fail(c->pulls[i], status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down"));
}
