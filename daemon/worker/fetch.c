/*
 * Reading another job's weights; see link.h. The stream belongs to the loop's thread, which holds
 * one piece at a time: the next one is asked for when the waiting thread has written it. The fetch
 * is freed on the loop, once the stream is closed and the waiting thread has released it.
 */
#include "worker/link.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "fsdpd/v1/methods.h"
#include "worker/link_internal.h"

struct fetch {
    struct link *link;
    struct gate *gate;
    Fsdpd__V1__PullStateDictRequest request;
    /* loop's thread */
    struct rpc_stream *stream;
    bool released;
    /* guarded by link->lock */
    uint8_t *piece;
    size_t size;
    uint64_t total;
    bool arrived, closed; /* arrived: a piece is there, or the end */
    status_t status;
};

static void fetch_free(struct fetch *fetch)
{
    free(fetch->request.id);
    free(fetch->piece);
    status_free(fetch->status);
    free(fetch);
}

static void on_message(struct rpc_stream *stream, const ProtobufCMessage *message, void *user)
{
    (void)stream;
    struct fetch *fetch = user;
    const Fsdpd__V1__PullStateDictResponse *chunk = (const void *)message;
    pthread_mutex_lock(&fetch->link->lock);
    if (chunk->total_size > 0) fetch->total = chunk->total_size;
    fetch->size = chunk->data.len;
    fetch->piece = mem_dup(chunk->data.data, chunk->data.len);
    fetch->arrived = true;
    pthread_cond_broadcast(&fetch->link->changed);
    pthread_mutex_unlock(&fetch->link->lock);
}

static void on_closed(struct rpc_stream *stream, status_t status, void *user)
{
    (void)stream;
    struct fetch *fetch = user;
    fetch->stream = NULL;
    pthread_mutex_lock(&fetch->link->lock);
    fetch->status = status;
    fetch->closed = fetch->arrived = true;
    pthread_cond_broadcast(&fetch->link->changed);
    pthread_mutex_unlock(&fetch->link->lock);
    if (fetch->released) fetch_free(fetch);
}

static void open_on_loop(void *argument)
{
    static const struct rpc_stream_callbacks callbacks = {.on_message = on_message,
                                                          .on_closed = on_closed};
    struct fetch *fetch = argument;
    fetch->stream = rpc_stream_open(fetch->link->channel, &worker_link_pull_source,
                                    &fetch->request.base, 0, false, &callbacks, fetch);
    rpc_stream_read(fetch->stream);
}

static void read_on_loop(void *argument)
{
    struct fetch *fetch = argument;
    if (fetch->stream != NULL) rpc_stream_read(fetch->stream);
}

static void release_on_loop(void *argument)
{
    struct fetch *fetch = argument;
    fetch->released = true;
    if (fetch->stream != NULL) rpc_stream_cancel(fetch->stream);
    else fetch_free(fetch);
}

/* Waits for a piece, which is the caller's; *over: there is none, and there will be none. */
static status_t take_piece(struct fetch *fetch, uint8_t **piece, size_t *size, bool *over)
{
    struct link *link = fetch->link;
    status_t status = NULL;
    pthread_mutex_lock(&link->lock);
    bool arrived = link_wait(link, fetch->gate, &fetch->arrived);
    *piece = fetch->piece;
    *size = fetch->size;
    fetch->piece = NULL;
    *over = arrived && *piece == NULL && fetch->closed;
    if (!arrived) status = status_new(STATUS_ABORTED, "%s", fetch->gate->closed);
    else if (*over) status = status_copy(fetch->status);
    fetch->arrived = fetch->closed;
    pthread_mutex_unlock(&link->lock);
    return status;
}

static status_t write_pieces(struct fetch *fetch, int fd, const char *path)
{
    uint64_t written = 0;
    for (bool over = false;;) {
        AUTO_FREE uint8_t *piece = NULL;
        size_t size = 0;
        TRY(take_piece(fetch, &piece, &size, &over));
        if (over) break;
        for (size_t done = 0; done < size;) {
            ssize_t count = write(fd, piece + done, size - done);
            if (count < 0 && errno == EINTR) continue;
            if (count < 0) return status_from_errno(errno, "cannot write %s", path);
            done += (size_t)count;
        }
        written += size;
        mailbox_post(fetch->link->mailbox, read_on_loop, fetch);
    }
    if (written == fetch->total && written > 0) return NULL;
    return status_new(STATUS_DATA_LOSS, "the weights ended after %llu of %llu bytes",
                      (unsigned long long)written, (unsigned long long)fetch->total);
}

status_t fetch_weights(struct link *link, struct gate *gate, const Fsdpd__V1__Source *source,
                       bool average, const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return status_from_errno(errno, "cannot create %s", path);
    struct fetch *fetch = mem_alloc(sizeof *fetch);
    *fetch = (struct fetch){.link = link, .gate = gate};
    fsdpd__v1__pull_state_dict_request__init(&fetch->request);
    fetch->request.id = mem_strdup(source->job);
    fetch->request.from_checkpoint = source->name[0] != '\0';
    fetch->request.checkpoint_step = fetch->request.from_checkpoint ? source->step : 0;
    fetch->request.average = average;
    mailbox_post(link->mailbox, open_on_loop, fetch);
    status_t status = write_pieces(fetch, fd, path);
    mailbox_post(link->mailbox, release_on_loop, fetch);
    close(fd);
    return status_wrap(status, "the weights of job %s", source->job);
}
