/*
 * Uploading a state_dict; see link.h. The producing thread waits while UPLOAD_IN_FLIGHT pieces are
 * not yet accepted by the transport, so a slow reader at the far end slows the producer, not
 * memory. The stream belongs to the loop's thread; the upload is freed there, once the stream is
 * closed and the producer has released it.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "fsdpd/v1/methods.h"
#include "worker/link_internal.h"

enum { UPLOAD_IN_FLIGHT = 4 };

struct worker_upload {
    struct link *link;
    struct gate *gate;
    Fsdpd__V1__UploadStateRequest first;
    /* loop's thread */
    struct rpc_stream *stream;
    bool released;
    /* guarded by link->lock */
    int in_flight;
    bool room, closed; /* room: a piece may be added, or there is no point in waiting */
    status_t status;
};

struct upload_piece {
    struct worker_upload *upload;
    Fsdpd__V1__UploadStateRequest message;
};

static void upload_free(struct worker_upload *upload)
{
    free(upload->first.job);
    status_free(upload->status);
    free(upload);
}

static void on_writable(struct rpc_stream *stream, void *user)
{
    (void)stream;
    struct worker_upload *upload = user;
    pthread_mutex_lock(&upload->link->lock);
    upload->in_flight--;
    upload->room = true;
    pthread_cond_broadcast(&upload->link->changed);
    pthread_mutex_unlock(&upload->link->lock);
}

static void on_message(struct rpc_stream *stream, const ProtobufCMessage *message, void *user)
{
    (void)stream, (void)message, (void)user; /* the empty response; on_closed reports the end */
}

static void on_closed(struct rpc_stream *stream, status_t status, void *user)
{
    (void)stream;
    struct worker_upload *upload = user;
    upload->stream = NULL;
    pthread_mutex_lock(&upload->link->lock);
    upload->status = status;
    upload->closed = upload->room = true;
    pthread_cond_broadcast(&upload->link->changed);
    pthread_mutex_unlock(&upload->link->lock);
    if (upload->released) upload_free(upload);
}

static void open_on_loop(void *argument)
{
    static const struct rpc_stream_callbacks callbacks = {
        .on_message = on_message,
        .on_writable = on_writable,
        .on_closed = on_closed,
    };
    struct worker_upload *upload = argument;
    upload->stream = rpc_stream_open(upload->link->channel, &worker_link_upload_state, NULL, 0,
                                     false, &callbacks, upload);
    rpc_stream_send(upload->stream, &upload->first.base);
    rpc_stream_read(upload->stream);
}

static void send_on_loop(void *argument)
{
    struct upload_piece *piece = argument;
    if (piece->upload->stream != NULL) rpc_stream_send(piece->upload->stream, &piece->message.base);
    free(piece->message.data.data);
    free(piece);
}

static void finish_on_loop(void *argument)
{
    struct worker_upload *upload = argument;
    if (upload->stream != NULL) rpc_stream_finish_sending(upload->stream);
}

static void release_on_loop(void *argument)
{
    struct worker_upload *upload = argument;
    upload->released = true;
    if (upload->stream != NULL) rpc_stream_cancel(upload->stream);
    else upload_free(upload);
}

status_t upload_begin(struct link *link, struct gate *gate, const char *job, uint32_t attempt,
                      uint64_t pull, uint64_t total_size, uint64_t step, struct worker_upload **out)
{
    struct worker_upload *upload = mem_alloc(sizeof *upload);
    *upload = (struct worker_upload){.link = link, .gate = gate, .in_flight = 1, .room = true};
    fsdpd__v1__upload_state_request__init(&upload->first);
    upload->first.job = mem_strdup(job);
    upload->first.attempt = attempt;
    upload->first.pull = pull;
    upload->first.total_size = total_size;
    upload->first.step = step;
    mailbox_post(link->mailbox, open_on_loop, upload);
    *out = upload;
    return NULL;
}

/* With the lock held: the error if the stream has ended or the gate is closed. */
static status_t upload_error(const struct worker_upload *upload)
{
    if (upload->closed)
        return upload->status != NULL
                   ? status_copy(upload->status)
                   : status_new(STATUS_CANCELLED, "the coordinator stopped reading the state_dict");
    if (upload->gate->closed != NULL) return status_new(STATUS_ABORTED, "%s", upload->gate->closed);
    return NULL;
}

status_t upload_write(struct worker_upload *upload, const void *bytes, size_t size)
{
    struct link *link = upload->link;
    pthread_mutex_lock(&link->lock);
    if (upload->in_flight >= UPLOAD_IN_FLIGHT) upload->room = upload->closed;
    link_wait(link, upload->gate, &upload->room);
    status_t status = upload_error(upload);
    if (status == NULL) upload->in_flight++;
    pthread_mutex_unlock(&link->lock);
    if (status != NULL) return status;

    struct upload_piece *piece = mem_alloc(sizeof *piece);
    piece->upload = upload;
    fsdpd__v1__upload_state_request__init(&piece->message);
    piece->message.data.data = mem_dup(bytes, size);
    piece->message.data.len = size;
    mailbox_post(link->mailbox, send_on_loop, piece);
    return NULL;
}

status_t upload_finish(struct worker_upload *upload)
{
    struct link *link = upload->link;
    mailbox_post(link->mailbox, finish_on_loop, upload);
    pthread_mutex_lock(&link->lock);
    bool closed = link_wait(link, upload->gate, &upload->closed);
    status_t status = closed ? status_copy(upload->status) : upload_error(upload);
    pthread_mutex_unlock(&link->lock);
    mailbox_post(link->mailbox, release_on_loop, upload);
    return status;
}

void upload_cancel(struct worker_upload *upload)
{
    if (upload != NULL) mailbox_post(upload->link->mailbox, release_on_loop, upload);
}
