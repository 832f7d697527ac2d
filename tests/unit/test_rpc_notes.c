/* The service for the tests of common/rpc; see test_rpc_notes.h. */
#include "test_rpc_notes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"

struct seen seen;
struct world world;

#define NOTE &grpc__reflection__v1alpha__extension_request__descriptor
#define METHOD(variable, name, its_kind)                                                           \
    const struct rpc_method variable = {.path = "/test.Notes/" name,                               \
                                        .kind = its_kind,                                          \
                                        .request = NOTE,                                           \
                                        .response = NOTE}

METHOD(echo, "Echo", RPC_UNARY);
METHOD(later, "Later", RPC_UNARY);
METHOD(count, "Count", RPC_SERVER_STREAM);
METHOD(hold, "Hold", RPC_SERVER_STREAM);
METHOD(collect, "Collect", RPC_CLIENT_STREAM);
METHOD(chat, "Chat", RPC_BIDIRECTIONAL);
METHOD(missing, "Missing", RPC_UNARY);

static void on_echo(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    ck_assert_ptr_eq(service, &seen);
    seen.started++;
    const Note *note = (const Note *)request;
    if (note->extension_number < 0)
        rpc_call_finish(call, status_new(STATUS_FAILED_PRECONDITION, "%s", note->containing_type));
    else rpc_call_reply(call, request);
}

static void on_hold_it(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    (void)request;
    (void)service;
    seen.started++;
    seen.held = call;
    seen.peer = *rpc_call_peer(call);
}

static void on_hold(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    on_hold_it(call, request, service);
    call_send_note(call, "first", 1);
}

struct counting {
    int next, total;
    char *text;
};

static void count_on(struct rpc_call *call)
{
    struct counting *counting = rpc_call_user(call);
    while (counting->next < counting->total && rpc_call_queued(call) < 2)
        call_send_note(call, counting->text, counting->next++);
    if (rpc_call_queued(call) > seen.most_queued) seen.most_queued = rpc_call_queued(call);
    if (counting->next == counting->total) rpc_call_finish(call, NULL);
}

static void on_count(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    (void)service;
    seen.started++;
    struct counting *counting = mem_alloc(sizeof *counting);
    counting->total = ((const Note *)request)->extension_number;
    counting->text = mem_strdup(((const Note *)request)->containing_type);
    rpc_call_set_user(call, counting);
    count_on(call);
}

static void on_count_writable(struct rpc_call *call, void *service)
{
    (void)service;
    seen.writable++;
    count_on(call);
}

static void on_closed(struct rpc_call *call, bool cancelled, void *service)
{
    (void)service;
    seen.closed++;
    seen.cancelled += cancelled;
    if (call == seen.held) seen.held = NULL;
}

static void on_count_closed(struct rpc_call *call, bool cancelled, void *service)
{
    struct counting *counting = rpc_call_user(call);
    free(counting->text);
    free(counting);
    on_closed(call, cancelled, service);
}

static void on_stream(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    ck_assert_ptr_null(request);
    (void)service;
    seen.started++;
    seen.held = call;
    if (seen.reads_itself) rpc_call_read(call);
}

static void on_collect_message(struct rpc_call *call, const ProtobufCMessage *message,
                               void *service)
{
    (void)service;
    if (message) {
        const Note *note = (const Note *)message;
        seen.messages++;
        seen.sum += note->extension_number;
        if (note->extension_number == -1)
            rpc_call_finish(call, status_new(STATUS_OUT_OF_RANGE, "enough"));
        else if (seen.reads_itself) rpc_call_read(call);
        return;
    }
    seen.ends++;
    call_send_note(call, "sum", seen.sum);
    rpc_call_finish(call, NULL);
}

static void on_chat_message(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    (void)service;
    if (message == NULL) {
        seen.ends++;
        rpc_call_finish(call, NULL);
        return;
    }
    seen.messages++;
    call_send_note(call, "double", 2 * ((const Note *)message)->extension_number);
    rpc_call_read(call);
}

static const struct rpc_handler handlers[] = {
    {.method = &echo, .on_start = on_echo, .on_closed = on_closed},
    {.method = &later, .on_start = on_hold_it, .on_closed = on_closed},
    {.method = &count,
     .on_start = on_count,
     .on_writable = on_count_writable,
     .on_closed = on_count_closed},
    {.method = &hold, .on_start = on_hold, .on_closed = on_closed},
    {.method = &collect,
     .on_start = on_stream,
     .on_message = on_collect_message,
     .on_closed = on_closed},
    {.method = &chat, .on_start = on_stream, .on_message = on_chat_message, .on_closed = on_closed},
};
const struct rpc_service notes = {.name = "test.Notes",
                                  .handlers = handlers,
                                  .handler_count = COUNT_OF(handlers),
                                  .user = &seen,
                                  .roles = RPC_ANY_ROLE};

static void on_message(struct rpc_stream *stream, const ProtobufCMessage *message, void *user)
{
    struct listener *listener = user;
    ck_assert(!listener->closed);
    listener->messages++;
    listener->sum += ((const Note *)message)->extension_number;
    if (listener->reads_itself) rpc_stream_read(stream);
}

static void on_writable(struct rpc_stream *stream, void *user)
{
    (void)stream;
    ((struct listener *)user)->writable++;
}

static void on_stream_closed(struct rpc_stream *stream, status_t status, void *user)
{
    struct listener *listener = user;
    ck_assert_ptr_eq(stream, listener->stream);
    listener->closed = true;
    listener->closes++;
    listener->code = status_code(status);
    snprintf(listener->message, sizeof listener->message, "%s", status_message(status));
    status_free(status);
}

static const struct rpc_stream_callbacks callbacks = {.on_message = on_message,
                                                      .on_writable = on_writable,
                                                      .on_closed = on_stream_closed};

void listen_to(struct world *on, struct listener *listener, const struct rpc_method *method,
               const char *text, int number)
{
    Note request = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    if (text) request.containing_type = (char *)text;
    request.extension_number = number;
    bool with_request = method->kind == RPC_SERVER_STREAM;
    listener->stream = rpc_stream_open(on->channel, method, with_request ? &request.base : NULL,
                                       WORLD_NEVER_MS, false, &callbacks, listener);
    if (listener->reads_itself) rpc_stream_read(listener->stream);
}

void notes_set_up(void)
{
    memset(&seen, 0, sizeof seen);
    world_init(&world, &notes, 1);
}

void notes_tear_down(void)
{
    world_deinit(&world);
    ck_assert_int_eq(seen.started, seen.closed);
}
