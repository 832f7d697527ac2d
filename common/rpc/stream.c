/*
 * The client side of streams. A stream owns its gRPC call, its queue and its tags; it is freed
 * after on_closed, which is called when the status has arrived and every tag has completed. At most
 * one send and one read are in flight. Everything runs on the loop's thread.
 */
#include <grpc/byte_buffer.h>
#include <stdlib.h>

#include "base/mem.h"
#include "rpc/client_internal.h"
#include "rpc/message.h"

struct rpc_stream {
    struct rpc_client_call base;
    struct rpc_stream_callbacks callbacks;
    void *user;
    struct rpc_tag initial_tag, status_tag, send_tag, read_tag;
    int pending; /* tags in flight */
    struct rpc_outbox outbox;
    grpc_byte_buffer *sending, *received;
    bool wait_for_ready;
    bool opened; /* the initial metadata is pending */
    bool sending_now, reading, ended;
    bool finished, close_sent;
    bool broken;    /* nothing can be sent any more */
    bool cancelled; /* cancelled by the caller: only on_closed follows */
    bool over;      /* the status has arrived */
};

static void start(struct rpc_stream *stream, const grpc_op *ops, size_t count, struct rpc_tag *tag)
{
    stream->pending++;
    rpc_batch_start(stream->base.call, ops, count, tag);
}

static void pump(struct rpc_stream *stream)
{
    if (stream->sending_now || stream->broken || stream->close_sent) return;
    grpc_op ops[3] = {0};
    size_t count = 0;
    if (!stream->opened) ops[count++] = rpc_client_call_open(stream->wait_for_ready);
    stream->sending = rpc_outbox_pop(&stream->outbox);
    if (stream->sending) {
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count++].data.send_message.send_message = stream->sending;
    }
    stream->close_sent = stream->finished && stream->outbox.count == 0;
    if (stream->close_sent) ops[count++].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    if (count == 0) return;
    stream->opened = true;
    stream->sending_now = true;
    start(stream, ops, count, &stream->send_tag);
}

static void maybe_end(struct rpc_stream *stream)
{
    if (!stream->over || stream->pending > 0) return;
    status_t status = stream->cancelled
                          ? status_new(STATUS_CANCELLED, "%s was cancelled by its caller",
                                       stream->base.method->path)
                          : rpc_client_call_status(&stream->base);
    stream->callbacks.on_closed(stream, status, stream->user);
    rpc_outbox_clear(&stream->outbox);
    rpc_client_call_deinit(&stream->base);
    free(stream);
}

static void break_off(struct rpc_stream *stream)
{
    stream->broken = true;
    rpc_outbox_clear(&stream->outbox);
}

static void on_initial(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct rpc_stream *stream = tag->owner;
    stream->pending--;
    maybe_end(stream);
}

static void on_status(struct rpc_tag *tag, bool ok)
{
    (void)ok; /* always succeeds */
    struct rpc_stream *stream = tag->owner;
    stream->pending--;
    stream->over = true;
    break_off(stream);
    maybe_end(stream);
}

static void on_sent(struct rpc_tag *tag, bool ok)
{
    struct rpc_stream *stream = tag->owner;
    stream->pending--;
    stream->sending_now = false;
    bool message = stream->sending != NULL;
    if (message) grpc_byte_buffer_destroy(stream->sending);
    stream->sending = NULL;
    if (ok) pump(stream);
    else break_off(stream); /* the status follows */
    if (ok && message && !stream->cancelled && !stream->finished && !stream->broken &&
        stream->callbacks.on_writable)
        stream->callbacks.on_writable(stream, stream->user);
    maybe_end(stream);
}

static void on_read(struct rpc_tag *tag, bool ok)
{
    struct rpc_stream *stream = tag->owner;
    stream->pending--;
    stream->reading = false;
    grpc_byte_buffer *received = stream->received;
    stream->received = NULL;
    stream->ended = received == NULL; /* the status follows */
    if (received && ok && !stream->cancelled) {
        const struct rpc_method *method = stream->base.method;
        ProtobufCMessage *message = rpc_response_unpack(method->response, received);
        if (message) {
            stream->callbacks.on_message(stream, message, stream->user);
            protobuf_c_message_free_unpacked(message, NULL);
        } else {
            stream->ended = true;
            grpc_call_cancel_with_status(stream->base.call, GRPC_STATUS_INTERNAL,
                                         "a message from the server could not be decoded", NULL);
        }
    }
    if (received) grpc_byte_buffer_destroy(received);
    maybe_end(stream);
}

struct rpc_stream *rpc_stream_open(struct rpc_channel *channel, const struct rpc_method *method,
                                   const ProtobufCMessage *request, int64_t deadline_ms,
                                   bool wait_for_ready,
                                   const struct rpc_stream_callbacks *callbacks, void *user)
{
    struct rpc_stream *stream = mem_alloc(sizeof *stream);
    rpc_client_call_init(&stream->base, channel, method, deadline_ms);
    stream->callbacks = *callbacks;
    stream->user = user;
    stream->wait_for_ready = wait_for_ready;
    stream->initial_tag = (struct rpc_tag){.done = on_initial, .owner = stream};
    stream->status_tag = (struct rpc_tag){.done = on_status, .owner = stream};
    stream->send_tag = (struct rpc_tag){.done = on_sent, .owner = stream};
    stream->read_tag = (struct rpc_tag){.done = on_read, .owner = stream};
    if (request) rpc_outbox_push(&stream->outbox, rpc_message_pack(request));
    if (method->kind == RPC_SERVER_STREAM) stream->finished = true;
    grpc_op initial = rpc_client_call_initial(&stream->base);
    grpc_op trailing = rpc_client_call_trailing(&stream->base);
    start(stream, &trailing, 1, &stream->status_tag);
    pump(stream);
    start(stream, &initial, 1, &stream->initial_tag);
    return stream;
}

void rpc_stream_send(struct rpc_stream *stream, const ProtobufCMessage *message)
{
    if (stream->finished || stream->broken || stream->cancelled) return;
    rpc_outbox_push(&stream->outbox, rpc_message_pack(message));
    pump(stream);
}

int rpc_stream_queued(const struct rpc_stream *stream)
{
    return stream->outbox.count + (stream->sending != NULL);
}

void rpc_stream_finish_sending(struct rpc_stream *stream)
{
    if (stream->finished || stream->cancelled) return;
    stream->finished = true;
    pump(stream);
}

void rpc_stream_read(struct rpc_stream *stream)
{
    if (stream->reading || stream->ended || stream->cancelled || stream->over) return;
    stream->reading = true;
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &stream->received;
    start(stream, &op, 1, &stream->read_tag);
}

void rpc_stream_cancel(struct rpc_stream *stream)
{
    if (stream->cancelled) return;
    stream->cancelled = true;
    break_off(stream);
    grpc_call_cancel(stream->base.call, NULL);
}
