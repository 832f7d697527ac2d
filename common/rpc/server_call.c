/*
 * One incoming call, from being armed (requested from gRPC) to its end. A call owns its gRPC call,
 * its queue of outgoing messages and its tags; it is freed when it has closed and every tag has
 * completed. At most one send and one read are in flight. Everything runs on the loop's thread.
 */
#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "rpc/message.h"
#include "rpc/peer_internal.h"
#include "rpc/server_internal.h"

/* An error's text travels in the trailing metadata, where each unprintable byte takes three. Common
 * clients accept 8 KiB in all and replace a longer error by another. */
enum { STATUS_TEXT_MAX = 6 << 10, METADATA_MAX = 7 << 10 };

struct rpc_call {
    struct rpc_server *server;
    struct rpc_peer_server *peer_server; /* that it arrived at */
    const struct rpc_slot *slot;         /* NULL: an unknown method */
    grpc_call *call;
    void *user;
    struct rpc_peer peer;
    char *peer_name; /* storage of peer.name, if the call owns it */
    struct rpc_call *next, **link;

    /* Of a call that is not gRPC's, which has none of what follows but `finished`: */
    struct rpc_receiver receiver; /* else zeroed */
    struct rpc_slot inside;       /* its slot */
    int undelivered;              /* messages that the receiver has not passed on */

    struct rpc_tag arrival_tag, close_tag, send_tag, read_tag;
    int pending; /* tags in flight */

    /* filled in by gRPC when the call arrives */
    grpc_metadata_array metadata;
    grpc_call_details details; /* for unknown methods */
    gpr_timespec deadline;
    grpc_byte_buffer *payload;

    struct rpc_outbox outbox;
    grpc_byte_buffer *sending;  /* the message in flight */
    grpc_byte_buffer *received; /* receives a read message */
    status_t status;            /* the status to end with, once `finished` */
    int cancelled;              /* written by gRPC before close_tag comes back */
    int patience_ms;            /* deadline for a requested message; 0: none */
    uint64_t asked_at;          /* ms of the loop */
    bool starting;              /* inside on_start: everything it sends leaves in one batch */
    bool started;               /* the handler has seen the call and will get on_closed */
    bool metadata_sent, sending_now, reading, ended; /* end of stream: the client sends no more */
    bool finished, status_sent;
    bool forced; /* ended by the server's shutdown: cancelled, for the handler */
    bool broken; /* nothing can be sent any more */
    bool closed; /* close_tag has completed */
};

static bool is_streaming(enum rpc_kind kind)
{
    return kind == RPC_CLIENT_STREAM || kind == RPC_BIDIRECTIONAL;
}

static void start(struct rpc_call *call, const grpc_op *ops, size_t count, struct rpc_tag *tag)
{
    call->pending++;
    rpc_batch_start(call->call, ops, count, tag);
}

/* The longest prefix of `text` that fits, cut at a character boundary; its size when sent. */
static size_t status_text_length(const char *text, size_t *encoded)
{
    size_t length = 0;
    *encoded = 0;
    for (size_t i = 0; text[i]; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c & 0xc0) != 0x80) length = i;
        *encoded += c >= ' ' && c < 0x7f && c != '%' ? 1 : 3;
        if (*encoded > STATUS_TEXT_MAX) return length;
    }
    return strlen(text);
}

/* Reads the status's details, if the client gets them, into the operation that sends the status. */
static bool add_details(const struct rpc_call *call, size_t text, size_t encoded,
                        grpc_metadata *details, grpc_op *op)
{
    if (call->status == NULL || encoded >= METADATA_MAX ||
        !rpc_details_pack(call->status, text, METADATA_MAX - encoded, &details->value))
        return false;
    details->key = grpc_slice_from_static_string("grpc-status-details-bin");
    op->data.send_status_from_server.trailing_metadata = details;
    op->data.send_status_from_server.trailing_metadata_count = 1;
    return true;
}

/* Sends what can be sent now: the next message, with the status after the last one. */
static void pump(struct rpc_call *call)
{
    if (call->receiver.message != NULL) return;
    if (call->sending_now || call->starting || call->broken || call->status_sent) return;
    grpc_op ops[3] = {0};
    size_t count = 0;
    bool stream = call->slot && call->slot->handler->method->kind != RPC_UNARY;
    if (!call->metadata_sent) {
        /* Sends the initial metadata at once, so that a stream's client learns that it was
         * accepted. */
        if (!stream && !call->finished) return;
        ops[count++].op = GRPC_OP_SEND_INITIAL_METADATA;
    }
    call->sending = rpc_outbox_pop(&call->outbox);
    if (call->sending) {
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count++].data.send_message.send_message = call->sending;
    }
    grpc_slice text_slice;
    grpc_metadata details = {0};
    bool with_details = false;
    bool with_status = call->finished && call->outbox.count == 0;
    if (with_status) {
        const char *text = call->status ? status_message(call->status) : "";
        size_t encoded;
        size_t length = status_text_length(text, &encoded);
        text_slice = grpc_slice_from_copied_buffer(text, length);
        with_details = add_details(call, length, encoded, &details, &ops[count]);
        ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
        ops[count].data.send_status_from_server.status =
            (grpc_status_code)status_code(call->status);
        ops[count++].data.send_status_from_server.status_details = &text_slice;
    }
    if (count == 0) return;
    call->metadata_sent = true;
    call->sending_now = true;
    call->status_sent = with_status;
    start(call, ops, count, &call->send_tag);
    if (with_status) grpc_slice_unref(text_slice);
    if (with_details) grpc_slice_unref(details.value);
}

static void call_free(struct rpc_call *call)
{
    rpc_outbox_clear(&call->outbox);
    if (call->payload) grpc_byte_buffer_destroy(call->payload);
    grpc_metadata_array_destroy(&call->metadata);
    grpc_call_details_destroy(&call->details);
    free(call->peer_name);
    if (call->call) grpc_call_unref(call->call);
    status_free(call->status);
    free(call);
}

/* Every tag's callback ends here: frees the call when it has closed and nothing is in flight. */
static void maybe_end(struct rpc_call *call)
{
    if (!call->closed || call->pending > 0) return;
    struct rpc_server *server = call->server;
    struct rpc_peer_server *peer_server = call->peer_server;
    *call->link = call->next;
    if (call->next) call->next->link = call->link;
    if (call->started && call->slot->handler->on_closed)
        call->slot->handler->on_closed(call, call->cancelled || call->forced, call->slot->service);
    call_free(call);
    peer_server->calls--;
    rpc_peer_server_maybe_free(peer_server);
    rpc_server_maybe_free(server);
}

static void break_off(struct rpc_call *call)
{
    call->broken = true;
    rpc_outbox_clear(&call->outbox);
}

static void on_close(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;
    call->pending--;
    call->closed = true;
    if (!ok) call->cancelled = 1;
    if (call->cancelled) break_off(call);
    maybe_end(call);
}

static void on_sent(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;
    call->pending--;
    call->sending_now = false;
    bool message = call->sending != NULL;
    if (message) grpc_byte_buffer_destroy(call->sending);
    call->sending = NULL;
    if (ok) pump(call);
    else break_off(call); /* on_close follows */
    if (ok && message && call->started && !call->finished && !call->broken &&
        call->slot->handler->on_writable)
        call->slot->handler->on_writable(call, call->slot->service);
    maybe_end(call);
}

static status_t undecodable(const ProtobufCMessageDescriptor *descriptor)
{
    return status_new(STATUS_INVALID_ARGUMENT, "the bytes received are not a valid %s message",
                      descriptor->name);
}

static status_t too_large(const struct rpc_slot *slot, const grpc_byte_buffer *buffer)
{
    size_t size = grpc_byte_buffer_length((grpc_byte_buffer *)buffer);
    if (slot->message_max == 0 || size <= slot->message_max) return NULL;
    return status_new(STATUS_RESOURCE_EXHAUSTED,
                      "%s: a message of %zu bytes; at most %zu are accepted",
                      slot->handler->method->path, size, slot->message_max);
}

static void on_read(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;
    const struct rpc_handler *handler = call->slot->handler;
    call->pending--;
    call->reading = false;
    grpc_byte_buffer *received = call->received;
    call->received = NULL;
    /* A missing message is the regular end only if the call did not fail. on_closed reports a
     * failure, so that half an upload is never taken for a whole one. */
    bool failed = !ok || (received == NULL && grpc_call_failed_before_recv_message(call->call));
    call->ended = received == NULL;
    if (!failed && !call->finished && !call->broken) {
        status_t large = received != NULL ? too_large(call->slot, received) : NULL;
        if (received == NULL) {
            handler->on_message(call, NULL, call->slot->service);
        } else if (large != NULL) {
            rpc_call_finish(call, large);
        } else {
            ProtobufCMessage *message = rpc_message_unpack(handler->method->request, received);
            if (message) {
                handler->on_message(call, message, call->slot->service);
                protobuf_c_message_free_unpacked(message, NULL);
            } else {
                rpc_call_finish(call, undecodable(handler->method->request));
            }
        }
    }
    if (received) grpc_byte_buffer_destroy(received);
    maybe_end(call);
}

/* Number of open calls of the peer, including this one. */
static int count_calls(const struct rpc_call *call)
{
    int count = 0;
    for (const struct rpc_call *i = call->server->calls; i != NULL; i = i->next)
        count += i->peer_server == call->peer_server && strcmp(i->peer.name, call->peer.name) == 0;
    return count;
}

/* Why the peer may not make this call now; NULL if it may. */
static status_t refusal(const struct rpc_call *call)
{
    const struct rpc_peer *peer = &call->peer;
    const struct rpc_slot *slot = call->slot;
    const char *path = slot->handler->method->path;
    if (peer->roles == 0 && !slot->own)
        return status_new(STATUS_UNAUTHENTICATED,
                          "the certificate has no identity of fsdpd: expected one URI "
                          "fsdpd://user/NAME, fsdpd://operator/NAME or fsdpd://worker/NAME among "
                          "its subject alternative names");
    if ((peer->roles & slot->roles) == 0 && !slot->own) {
        AUTO_FREE char *needed = rpc_roles_text(slot->roles, "or"),
                       *has = rpc_roles_text(peer->roles, "and");
        const char *name = strrchr(path, '/');
        return status_new(STATUS_PERMISSION_DENIED,
                          "%s: requires the role %s; you are %s, with the role %s",
                          name != NULL ? name + 1 : path, needed, peer->name, has);
    }
    int most = call->server->limits.calls_per_user;
    if ((peer->roles & RPC_WORKER) == 0 && count_calls(call) > most)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "%s has %d calls open already, which is the limit "
                          "(limits.calls_per_user)",
                          peer->name, most);
    return NULL;
}

static void begin(struct rpc_call *call)
{
    const struct rpc_handler *handler = call->slot->handler;
    const struct rpc_method *method = handler->method;
    ProtobufCMessage *request = NULL;
    status_t status = refusal(call);
    if (status == NULL && call->payload != NULL) status = too_large(call->slot, call->payload);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    if (!is_streaming(method->kind)) {
        if (call->payload == NULL) {
            /* Too large a message ends here too; gRPC has already answered with its own status. */
            rpc_call_finish(call, status_new(STATUS_INVALID_ARGUMENT, "%s needs a request message",
                                             method->path));
            return;
        }
        request = rpc_message_unpack(method->request, call->payload);
        grpc_byte_buffer_destroy(call->payload);
        call->payload = NULL;
        if (request == NULL) {
            rpc_call_finish(call, undecodable(method->request));
            return;
        }
    }
    call->started = true;
    call->starting = true;
    handler->on_start(call, request, call->slot->service);
    call->starting = false;
    if (request) protobuf_c_message_free_unpacked(request, NULL);
    pump(call);
}

static status_t shutting_down(void)
{
    return status_new(STATUS_UNAVAILABLE, "the server is shutting down");
}

static void on_arrival(struct rpc_tag *tag, bool ok)
{
    struct rpc_call *call = tag->owner;
    struct rpc_server *server = call->server;
    struct rpc_peer_server *peer_server = call->peer_server;
    server->armed--;
    peer_server->armed--;
    if (!ok) { /* shutting down */
        call_free(call);
        rpc_peer_server_maybe_free(peer_server);
        rpc_server_maybe_free(server);
        return;
    }
    peer_server->calls++;
    if (!server->closing && !peer_server->retiring) rpc_call_arm(call->peer_server, call->slot);
    call->peer = call->peer_server->peer;
    if (call->peer.kind == RPC_PEER_TLS)
        call->peer_name = rpc_peer_of_call(call->call, &call->peer);
    rpc_peer_server_prove(peer_server, call->call);
    call->next = server->calls;
    if (call->next) call->next->link = &call->next;
    call->link = &server->calls;
    server->calls = call;

    grpc_op close_op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    close_op.data.recv_close_on_server.cancelled = &call->cancelled;
    start(call, &close_op, 1, &call->close_tag);
    if (server->closing) {
        rpc_call_finish(call, shutting_down());
    } else if (call->slot == NULL) {
        char *method = grpc_slice_to_c_string(call->details.method);
        rpc_call_finish(call, status_new(STATUS_UNIMPLEMENTED, "unknown method %s", method));
        gpr_free(method);
    } else {
        begin(call);
    }
}

void rpc_call_arm(struct rpc_peer_server *peer_server, const struct rpc_slot *slot)
{
    struct rpc_server *server = peer_server->server;
    struct rpc_call *call = mem_alloc(sizeof *call);
    call->server = server;
    call->peer_server = peer_server;
    call->slot = slot;
    call->arrival_tag = (struct rpc_tag){.done = on_arrival, .owner = call};
    call->close_tag = (struct rpc_tag){.done = on_close, .owner = call};
    call->send_tag = (struct rpc_tag){.done = on_sent, .owner = call};
    call->read_tag = (struct rpc_tag){.done = on_read, .owner = call};
    grpc_metadata_array_init(&call->metadata);
    grpc_call_details_init(&call->details);
    grpc_completion_queue *queue = rpc_runtime_queue(server->runtime);
    grpc_call_error error;
    if (slot == NULL) {
        error = grpc_server_request_call(peer_server->grpc, &call->call, &call->details,
                                         &call->metadata, queue, queue, &call->arrival_tag);
    } else {
        bool payload = !is_streaming(slot->handler->method->kind);
        void *registered = peer_server->registered[slot - server->slots];
        error = grpc_server_request_registered_call(peer_server->grpc, registered, &call->call,
                                                    &call->deadline, &call->metadata,
                                                    payload ? &call->payload : NULL, queue, queue,
                                                    &call->arrival_tag);
    }
    if (error != GRPC_CALL_OK) abort(); /* fails only for wrong arguments */
    server->armed++;
    peer_server->armed++;
}

void rpc_call_finish_all(struct rpc_server *server, bool own_only)
{
    for (struct rpc_call *call = server->calls; call; call = call->next) {
        if (own_only && !(call->slot && call->slot->own)) continue;
        if (!own_only) {
            call->forced = true;
            rpc_outbox_clear(&call->outbox);
        }
        rpc_call_finish(call, shutting_down());
    }
}

/* Only handlers send messages, so the method is known. */
static bool push(struct rpc_call *call, const ProtobufCMessage *message)
{
    if (call->receiver.message != NULL) {
        call->undelivered++;
        call->receiver.message(call->receiver.user, message);
        return true;
    }
    const struct rpc_method *method = call->slot->handler->method;
    grpc_byte_buffer *buffer = rpc_response_pack(method->response, message);
    if (buffer == NULL) {
        rpc_call_finish(call, status_new(STATUS_INTERNAL, "%s: a response is a %s, not a %s",
                                         method->path, method->response->name,
                                         message->descriptor->name));
        return false;
    }
    rpc_outbox_push(&call->outbox, buffer);
    return true;
}

void rpc_call_send(struct rpc_call *call, const ProtobufCMessage *message)
{
    if (call->finished || call->broken) return;
    if (push(call, message)) pump(call);
}

int rpc_call_queued(const struct rpc_call *call)
{
    return call->outbox.count + (call->sending != NULL) + call->undelivered;
}

void rpc_call_read(struct rpc_call *call)
{
    if (call->reading || call->ended || call->finished || call->broken) return;
    call->reading = true;
    call->asked_at = uv_now(rpc_runtime_loop(call->server->runtime));
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &call->received;
    start(call, &op, 1, &call->read_tag);
}

void rpc_call_expect(struct rpc_call *call, int ms)
{
    call->patience_ms = ms;
}

static bool is_silent(const struct rpc_call *call, uint64_t now)
{
    return call->reading && call->patience_ms > 0 && !call->finished &&
           now - call->asked_at > (uint64_t)call->patience_ms;
}

void rpc_server_end_silent(struct rpc_server *server)
{
    uint64_t now = uv_now(rpc_runtime_loop(server->runtime));
    for (struct rpc_call *call = server->calls; call != NULL; call = call->next) {
        if (!is_silent(call, now)) continue;
        const char *path = call->slot->handler->method->path;
        double seconds = call->patience_ms / 1000.0;
        log_event(LOG_WARNING, "silent_stream_closed", "method=%s peer=%s seconds=%g", path,
                  call->peer.name, seconds);
        rpc_call_finish(call, status_new(STATUS_UNAVAILABLE, "%s: no message arrived for %g s",
                                         path, seconds));
    }
}

void rpc_call_finish(struct rpc_call *call, status_t status)
{
    if (call->finished) {
        status_free(status);
        return;
    }
    call->finished = true;
    if (call->receiver.finished != NULL) {
        call->receiver.finished(call->receiver.user, status);
        return;
    }
    call->status = status;
    pump(call);
}

void rpc_call_reply(struct rpc_call *call, const ProtobufCMessage *message)
{
    if (call->finished || call->broken) return;
    if (push(call, message)) rpc_call_finish(call, NULL);
}

/* ---- calls that are not gRPC's ---- */

struct rpc_call *rpc_call_begin(const struct rpc_service *service, const struct rpc_method *method,
                                const struct rpc_peer *peer, const ProtobufCMessage *request,
                                const struct rpc_receiver *receiver)
{
    MUST(!is_streaming(method->kind));
    struct rpc_call *call = mem_alloc(sizeof *call);
    call->peer = *peer;
    call->receiver = *receiver;
    call->inside.service = service->user;
    for (int i = 0; i < service->handler_count; i++)
        if (service->handlers[i].method == method) call->inside.handler = &service->handlers[i];
    if (call->inside.handler == NULL) {
        rpc_call_finish(call, status_new(STATUS_INTERNAL, "%s is not a method of %s", method->path,
                                         service->name));
        return call;
    }
    call->slot = &call->inside;
    call->started = true;
    call->slot->handler->on_start(call, request, call->slot->service);
    return call;
}

void rpc_call_drained(struct rpc_call *call)
{
    call->undelivered = 0;
    if (call->finished || !call->started || call->slot->handler->on_writable == NULL) return;
    call->slot->handler->on_writable(call, call->slot->service);
}

void rpc_call_leave(struct rpc_call *call)
{
    const bool cancelled = !call->finished;
    call->finished = true;
    if (call->started && call->slot->handler->on_closed != NULL)
        call->slot->handler->on_closed(call, cancelled, call->slot->service);
    free(call);
}

void rpc_call_set_user(struct rpc_call *call, void *user)
{
    call->user = user;
}

void *rpc_call_user(const struct rpc_call *call)
{
    return call->user;
}

const struct rpc_peer *rpc_call_peer(const struct rpc_call *call)
{
    return &call->peer;
}
