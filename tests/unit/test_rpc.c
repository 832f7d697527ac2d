/*
 * Calls and streams of common/rpc, server and client against each other over a Unix socket:
 * answers, errors, limits, backpressure, cancellation, vanishing peers, and ends without leftovers.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "test_rpc_world.h"

/* ---- the test service ---- */

#define METHOD(variable, name, its_kind)                                                           \
    static struct rpc_method variable = {.path = "/test.Notes/" name, .kind = its_kind}

METHOD(echo, "Echo", RPC_UNARY);           /* answers with the same; number < 0 is an error */
METHOD(later, "Later", RPC_UNARY);         /* is answered when the test says so */
METHOD(count, "Count", RPC_SERVER_STREAM); /* `number` messages as long as `text`, one queued */
METHOD(hold, "Hold", RPC_SERVER_STREAM);   /* one message, then nothing until the test says so */
METHOD(collect, "Collect", RPC_CLIENT_STREAM); /* reads as the test allows; answers the sum */
METHOD(chat, "Chat", RPC_BIDIRECTIONAL);       /* answers every message with its double */
METHOD(missing, "Missing", RPC_UNARY);         /* has no handler */

/* What the handlers saw; calls that wait for the test. */
static struct {
    int started, closed, cancelled, messages, ends, sum, writable, most_queued;
    bool reads_itself; /* Collect asks for the next message by itself */
    struct rpc_call *held;
    char peer[128];
} seen;

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
    snprintf(seen.peer, sizeof seen.peer, "%s", rpc_call_peer(call));
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
static const struct rpc_service service = {.name = "test.Notes",
                                           .handlers = handlers,
                                           .handler_count = sizeof handlers / sizeof *handlers,
                                           .user = &seen};

/* ---- the client's side of a stream ---- */

struct listener {
    struct rpc_stream *stream;
    bool reads_itself, closed;
    int messages, sum, writable, closes;
    enum status_code code;
    char message[512];
};

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

static void listen_to(struct world *world, struct listener *listener,
                      const struct rpc_method *method, const char *text, int number)
{
    Note request = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    if (text) request.containing_type = (char *)text;
    request.extension_number = number;
    bool with_request = method->kind == RPC_SERVER_STREAM;
    listener->stream = rpc_stream_open(world->channel, method, with_request ? &request.base : NULL,
                                       10000, false, &callbacks, listener);
    if (listener->reads_itself) rpc_stream_read(listener->stream);
}

static struct world world;

static void set_up(void)
{
    memset(&seen, 0, sizeof seen);
    struct rpc_method *all[] = {&echo, &later, &count, &hold, &collect, &chat, &missing};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        all[i]->request = all[i]->response = note_type;
    world_init(&world, &service, 1);
}

static void tear_down(void)
{
    world_deinit(&world);
    ck_assert_int_eq(seen.started, seen.closed);
}

/* ---- unary ---- */

START_TEST(unary_is_answered)
{
    struct outcome outcome;
    world_call(&world, &echo, "grüße", 42, 5000, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_OK);
    ck_assert_str_eq(outcome.text, "grüße");
    ck_assert_int_eq(outcome.number, 42);
    world_wait_count(&world, &seen.closed, 1);
    ck_assert_int_eq(seen.cancelled, 0);
}
END_TEST

START_TEST(unary_many_at_once)
{
    enum { MANY = 300 };
    static struct outcome outcomes[MANY];
    memset(outcomes, 0, sizeof outcomes);
    Note request = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    for (int i = 0; i < MANY; i++) {
        request.extension_number = i;
        rpc_channel_call(world.channel, &echo, &request.base, 10000, false, outcome_done,
                         &outcomes[i]);
    }
    for (int i = 0; i < MANY; i++) {
        world_wait(&world, &outcomes[i].done);
        ck_assert_int_eq(outcomes[i].code, STATUS_OK);
        ck_assert_int_eq(outcomes[i].number, i);
    }
}
END_TEST

START_TEST(unary_error_keeps_code_and_message)
{
    struct outcome outcome;
    world_call(&world, &echo, "job \"x\": not now\nline 2 ü", -1, 5000, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_FAILED_PRECONDITION);
    ck_assert_str_eq(outcome.message, "job \"x\": not now\nline 2 ü");
}
END_TEST

START_TEST(unary_long_error_stays_an_error)
{
    /* 4 KiB of characters that travel as six bytes each: more than metadata may hold. */
    char text[4001];
    for (int i = 0; i < 4000; i += 2) memcpy(text + i, "ü", 2);
    text[4000] = '\0';
    struct outcome outcome;
    world_call(&world, &echo, text, -1, 5000, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_FAILED_PRECONDITION);
    size_t length = strlen(outcome.message);
    ck_assert_uint_gt(length, 1500);
    ck_assert_uint_eq(length % 2, 0); /* cut between characters */
    ck_assert_int_eq(strncmp(outcome.message, text, length), 0);
}
END_TEST

START_TEST(unary_answered_later)
{
    struct outcome outcome = {0};
    Note request = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    rpc_channel_call(world.channel, &later, &request.base, 10000, false, outcome_done, &outcome);
    world_wait_count(&world, &seen.started, 1);
    world_idle(&world, 50);
    ck_assert(!outcome.done);
    ck_assert_int_eq(seen.closed, 0);
    ck_assert_int_eq(strncmp(seen.peer, "unix:", 5), 0);
    request.extension_number = 7;
    rpc_call_reply(seen.held, &request.base);
    rpc_call_reply(seen.held, &request.base); /* ignored */
    rpc_call_finish(seen.held, status_new(STATUS_INTERNAL, "ignored and freed"));
    world_wait(&world, &outcome.done);
    ck_assert_int_eq(outcome.code, STATUS_OK);
    ck_assert_int_eq(outcome.number, 7);
    world_wait_count(&world, &seen.closed, 1);
    ck_assert_int_eq(seen.cancelled, 0);
}
END_TEST

START_TEST(unary_deadline_reaches_both_sides)
{
    struct outcome outcome;
    int64_t before = clock_monotonic_ns();
    world_call(&world, &later, "", 0, 150, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_DEADLINE_EXCEEDED);
    ck_assert_ptr_nonnull(strstr(outcome.message, world.address));
    ck_assert_int_lt((clock_monotonic_ns() - before) / 1000000, 5000);
    world_wait_count(&world, &seen.closed, 1);
    ck_assert_int_eq(seen.cancelled, 1);
}
END_TEST

START_TEST(unary_handler_learns_that_client_left)
{
    struct outcome outcome = {0};
    Note request = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    rpc_channel_call(world.channel, &later, &request.base, 0, false, outcome_done, &outcome);
    world_wait_count(&world, &seen.started, 1);
    world_close_channel(&world);
    ck_assert(outcome.done);
    ck_assert_int_eq(outcome.code, STATUS_CANCELLED);
    world_wait_count(&world, &seen.closed, 1);
    ck_assert_int_eq(seen.cancelled, 1);
    ck_assert_ptr_null(seen.held);
}
END_TEST

START_TEST(unknown_method_is_unimplemented)
{
    struct outcome outcome;
    for (int i = 0; i < 3; i++) {
        world_call(&world, &missing, "", 0, 5000, false, &outcome);
        ck_assert_int_eq(outcome.code, STATUS_UNIMPLEMENTED);
        ck_assert_ptr_nonnull(strstr(outcome.message, "/test.Notes/Missing"));
    }
}
END_TEST

START_TEST(garbage_is_an_invalid_argument)
{
    /* A number where the service expects a string. */
    struct rpc_method crooked = echo;
    crooked.request = &grpc__health__v1__health_check_response__descriptor;
    Grpc__Health__V1__HealthCheckResponse request = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    request.status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    struct outcome outcome = {0};
    rpc_channel_call(world.channel, &crooked, &request.base, 5000, false, outcome_done, &outcome);
    world_wait(&world, &outcome.done);
    ck_assert_int_eq(outcome.code, STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(outcome.message, "ExtensionRequest"));
    ck_assert_int_eq(seen.started, 0);

    world_call(&world, &echo, "\xff\xfe", 0, 5000, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_INVALID_ARGUMENT);

    /* In a stream, and as a stream's request. */
    crooked.path = chat.path;
    crooked.kind = RPC_BIDIRECTIONAL;
    seen.reads_itself = true;
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &crooked, NULL, 0);
    rpc_stream_send(listener.stream, &request.base);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_INVALID_ARGUMENT);
    ck_assert_int_eq(seen.messages, 0);

    /* The other way round: an answer that does not decode. */
    crooked = echo;
    crooked.response = &grpc__health__v1__health_check_response__descriptor;
    world_call(&world, &crooked, "x", 0, 5000, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_INTERNAL);

    world_call(&world, &echo, "fine", 0, 5000, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_OK);
}
END_TEST

START_TEST(oversized_is_resource_exhausted)
{
    char *text = mem_alloc(RPC_MESSAGE_MAX + 100);
    memset(text, 'x', RPC_MESSAGE_MAX + 50);
    struct outcome outcome;
    world_call(&world, &echo, text, 0, 10000, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_RESOURCE_EXHAUSTED);
    ck_assert_int_eq(seen.started, 0);

    seen.reads_itself = true;
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &chat, NULL, 0);
    stream_send_note(listener.stream, text, 1);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_RESOURCE_EXHAUSTED);
    ck_assert_int_eq(seen.messages, 0);
    ck_assert_int_eq(seen.ends, 0);

    /* As much as is allowed. */
    text[RPC_MESSAGE_MAX - 16] = '\0';
    world_call(&world, &echo, text, 0, 10000, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_OK);
    free(text);
}
END_TEST

/* ---- streams ---- */

START_TEST(server_stream_arrives_in_full)
{
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &count, "x", 1000);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_OK);
    ck_assert_int_eq(listener.messages, 1000);
    ck_assert_int_eq(listener.sum, 1000 * 999 / 2);
    world_wait_count(&world, &seen.closed, 1);
    ck_assert_int_eq(seen.cancelled, 0);
}
END_TEST

START_TEST(server_stream_of_nothing)
{
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &count, "", 0);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_OK);
    ck_assert_int_eq(listener.messages, 0);
}
END_TEST

START_TEST(server_stream_waits_for_a_slow_reader)
{
    enum { SIZE = 16 << 10, TOTAL = 400 };
    char *text = mem_alloc(SIZE + 1);
    memset(text, 'x', SIZE);
    struct listener listener = {0};
    listen_to(&world, &listener, &count, text, TOTAL);
    world_wait_count(&world, &seen.writable, 1);
    world_idle(&world, 500);
    /* Without reading, a few windows' worth were accepted, and the handler queues no more than it
     * decided to. */
    ck_assert_int_lt(seen.writable, 30);
    ck_assert_int_le(seen.most_queued, 2);
    int stuck = seen.writable;
    world_idle(&world, 200);
    ck_assert_int_eq(seen.writable, stuck);
    rpc_stream_read(listener.stream);
    world_wait_count(&world, &listener.messages, 1);
    listener.reads_itself = true;
    rpc_stream_read(listener.stream);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.messages, TOTAL);
    ck_assert_int_eq(listener.code, STATUS_OK);
    /* One for each message but those accepted after the handler had finished. */
    ck_assert_int_ge(seen.writable, TOTAL - 2);
    ck_assert_int_le(seen.writable, TOTAL);
    free(text);
}
END_TEST

START_TEST(client_stream_is_answered)
{
    seen.reads_itself = true;
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &collect, NULL, 0);
    for (int i = 1; i <= 100; i++) stream_send_note(listener.stream, "x", i);
    ck_assert_int_eq(rpc_stream_queued(listener.stream), 100);
    rpc_stream_finish_sending(listener.stream);
    rpc_stream_finish_sending(listener.stream);
    stream_send_note(listener.stream, "too late", 1000);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_OK);
    ck_assert_int_eq(listener.messages, 1);
    ck_assert_int_eq(listener.sum, 5050);
    ck_assert_int_eq(seen.messages, 100);
    ck_assert_int_eq(seen.ends, 1);
}
END_TEST

START_TEST(client_stream_waits_for_the_handler)
{
    enum { SIZE = 16 << 10, TOTAL = 200 };
    char *text = mem_alloc(SIZE + 1);
    memset(text, 'x', SIZE);
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &collect, NULL, 0);
    for (int i = 0; i < TOTAL; i++) stream_send_note(listener.stream, text, 1);
    world_wait_count(&world, &seen.started, 1);
    world_idle(&world, 400);
    ck_assert_int_eq(seen.messages, 0);
    ck_assert_int_lt(listener.writable, 30);
    ck_assert_int_eq(rpc_stream_queued(listener.stream) + listener.writable, TOTAL);
    rpc_call_read(seen.held);
    rpc_call_read(seen.held); /* one outstanding at most */
    world_wait_count(&world, &seen.messages, 1);
    world_idle(&world, 50);
    ck_assert_int_eq(seen.messages, 1);
    seen.reads_itself = true;
    rpc_call_read(seen.held);
    rpc_stream_finish_sending(listener.stream);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_OK);
    ck_assert_int_eq(listener.sum, TOTAL);
    free(text);
}
END_TEST

START_TEST(client_stream_refused_in_the_middle)
{
    seen.reads_itself = true;
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &collect, NULL, 0);
    char *text = mem_alloc((16 << 10) + 1);
    memset(text, 'x', 16 << 10);
    stream_send_note(listener.stream, "stop", -1);
    for (int i = 0; i < 100; i++) stream_send_note(listener.stream, text, 1);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_OUT_OF_RANGE);
    ck_assert_str_eq(listener.message, "enough");
    ck_assert_int_eq(seen.messages, 1);
    world_wait_count(&world, &seen.closed, 1);
    free(text);
}
END_TEST

START_TEST(bidirectional_answers_as_it_goes)
{
    seen.reads_itself = true;
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &chat, NULL, 0);
    for (int i = 1; i <= 50; i++) {
        stream_send_note(listener.stream, "x", i);
        world_wait_count(&world, &listener.messages, i);
    }
    ck_assert_int_eq(listener.sum, 50 * 51);
    ck_assert_int_eq(listener.writable, 50);
    rpc_stream_finish_sending(listener.stream);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_OK);
    ck_assert_int_eq(seen.ends, 1);
    ck_assert_int_eq(listener.closes, 1);
}
END_TEST

START_TEST(bidirectional_server_speaks_first)
{
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &chat, NULL, 0);
    world_wait_count(&world, &seen.started, 1);
    call_send_note(seen.held, "hello", 5);
    world_wait_count(&world, &listener.messages, 1);
    ck_assert_int_eq(listener.sum, 5);
    rpc_call_finish(seen.held, NULL);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_OK);
}
END_TEST

/* ---- ends that nobody likes ---- */

START_TEST(client_cancels)
{
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &hold, "", 0);
    world_wait_count(&world, &listener.messages, 1);
    rpc_stream_cancel(listener.stream);
    rpc_stream_cancel(listener.stream);
    stream_send_note(listener.stream, "ignored", 0);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_CANCELLED);
    ck_assert_int_eq(listener.closes, 1);
    world_wait_count(&world, &seen.closed, 1);
    ck_assert_int_eq(seen.cancelled, 1);

    /* Before it has even left, and with a full pipe. */
    struct listener early = {0};
    listen_to(&world, &early, &hold, "", 0);
    rpc_stream_cancel(early.stream);
    world_wait(&world, &early.closed);
    ck_assert_int_eq(early.code, STATUS_CANCELLED);

    char *text = mem_alloc((16 << 10) + 1);
    memset(text, 'x', 16 << 10);
    struct listener full = {0};
    int closed = seen.closed;
    listen_to(&world, &full, &count, text, 100000);
    world_idle(&world, 200);
    rpc_stream_cancel(full.stream);
    world_wait(&world, &full.closed);
    ck_assert_int_eq(full.messages, 0);
    world_wait_count(&world, &seen.closed, closed + 1);
    free(text);
}
END_TEST

START_TEST(client_vanishes_in_the_middle_of_an_upload)
{
    seen.reads_itself = true;
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &collect, NULL, 0);
    stream_send_note(listener.stream, "x", 1);
    world_wait_count(&world, &seen.messages, 1);
    world_close_channel(&world);
    ck_assert(listener.closed);
    ck_assert_int_eq(listener.code, STATUS_CANCELLED);
    world_wait_count(&world, &seen.closed, 1);
    ck_assert_int_eq(seen.cancelled, 1);
    ck_assert_int_eq(seen.ends, 0); /* half an upload never looks complete */
}
END_TEST

/* A client process that is killed: no goodbye of any kind. */
START_TEST(client_process_is_killed)
{
    seen.reads_itself = true;
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    ck_assert_int_gt(length, 0);
    self[length] = '\0';
    char *argv[] = {self, (char *)"--upload-and-hang", world.address, NULL};
    uv_process_t process;
    uv_process_options_t options = {.file = self, .args = argv};
    ck_assert_int_eq(uv_spawn(&world.loop, &process, &options), 0);
    world_wait_count(&world, &seen.messages, 1);
    ck_assert_int_eq(kill(process.pid, SIGKILL), 0);
    world_wait_count(&world, &seen.closed, 1);
    ck_assert_int_eq(seen.cancelled, 1);
    ck_assert_int_eq(seen.ends, 0);
    while (uv_is_active((uv_handle_t *)&process)) world_idle(&world, 10);
    uv_close((uv_handle_t *)&process, NULL);
}
END_TEST

static int upload_and_hang(char *address)
{
    struct world child = {.address = address};
    struct listener listener = {0};
    uv_loop_init(&child.loop);
    collect.request = collect.response = note_type;
    if (rpc_runtime_new(&child.loop, &child.runtime)) return 1;
    if (rpc_channel_new(child.runtime, address, &child.channel)) return 1;
    listen_to(&child, &listener, &collect, NULL, 0);
    stream_send_note(listener.stream, "x", 1);
    alarm(30);
    uv_run(&child.loop, UV_RUN_DEFAULT);
    return 0;
}

START_TEST(channel_close_cancels_everything)
{
    seen.reads_itself = true;
    struct outcome outcome = {0};
    Note request = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    rpc_channel_call(world.channel, &later, &request.base, 0, false, outcome_done, &outcome);
    struct listener a = {.reads_itself = true}, b = {.reads_itself = true};
    listen_to(&world, &a, &hold, "", 0);
    listen_to(&world, &b, &chat, NULL, 0);
    world_wait_count(&world, &seen.started, 3);
    world_close_channel(&world);
    ck_assert(outcome.done && a.closed && b.closed);
    ck_assert_int_eq(outcome.code, STATUS_CANCELLED);
    ck_assert_int_eq(a.code, STATUS_CANCELLED);
    ck_assert_int_eq(b.code, STATUS_CANCELLED);
    world_wait_count(&world, &seen.closed, 3);
}
END_TEST

START_TEST(server_close_waits_for_the_grace_period)
{
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &hold, "", 0);
    world_wait_count(&world, &listener.messages, 1);
    int64_t before = clock_monotonic_ns();
    world_close_server(&world, 300);
    int64_t took = (clock_monotonic_ns() - before) / 1000000;
    ck_assert_int_ge(took, 290);
    ck_assert_int_lt(took, 5000);
    world_wait(&world, &listener.closed);
    ck_assert_int_ne(listener.code, STATUS_OK);
    ck_assert_int_eq(seen.cancelled, 1);
}
END_TEST

START_TEST(server_close_lets_calls_finish)
{
    struct outcome outcome = {0}, refused = {0};
    Note request = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    rpc_channel_call(world.channel, &later, &request.base, 0, false, outcome_done, &outcome);
    world_wait_count(&world, &seen.started, 1);
    int64_t before = clock_monotonic_ns();
    rpc_server_close(world.server, 15000, world_set, &world.server_closed);
    rpc_channel_call(world.channel, &echo, &request.base, 0, false, outcome_done, &refused);
    world_wait(&world, &refused.done);
    ck_assert_int_eq(refused.code, STATUS_UNAVAILABLE);
    ck_assert(!world.server_closed);
    request.extension_number = 9;
    rpc_call_reply(seen.held, &request.base);
    world_wait(&world, &world.server_closed);
    world.server = NULL;
    ck_assert_int_lt((clock_monotonic_ns() - before) / 1000000, 10000);
    world_wait(&world, &outcome.done);
    ck_assert_int_eq(outcome.code, STATUS_OK);
    ck_assert_int_eq(outcome.number, 9);
    ck_assert_int_eq(seen.cancelled, 0);
}
END_TEST

START_TEST(server_close_with_full_pipes)
{
    char *text = mem_alloc((16 << 10) + 1);
    memset(text, 'x', 16 << 10);
    seen.reads_itself = false;
    struct listener down = {0}, up = {0}, both = {0};
    listen_to(&world, &down, &count, text, 100000);
    listen_to(&world, &up, &collect, NULL, 0);
    listen_to(&world, &both, &chat, NULL, 0);
    for (int i = 0; i < 100; i++) {
        stream_send_note(up.stream, text, 1);
        stream_send_note(both.stream, text, 1);
    }
    world_wait_count(&world, &seen.started, 3);
    world_idle(&world, 200);
    world_close_server(&world, 100);
    ck_assert_int_eq(seen.closed, 3);
    world_wait(&world, &down.closed);
    world_wait(&world, &up.closed);
    world_wait(&world, &both.closed);
    ck_assert_int_ne(down.code, STATUS_OK);
    free(text);
}
END_TEST

START_TEST(both_sides_close_at_once)
{
    seen.reads_itself = true;
    struct listener a = {.reads_itself = true}, b = {.reads_itself = true};
    listen_to(&world, &a, &hold, "", 0);
    listen_to(&world, &b, &chat, NULL, 0);
    rpc_channel_close(world.channel, world_set, &world.channel_closed);
    rpc_server_close(world.server, 0, world_set, &world.server_closed);
    world_wait(&world, &world.channel_closed);
    world_wait(&world, &world.server_closed);
    world.channel = NULL;
    world.server = NULL;
    ck_assert(a.closed && b.closed);
}
END_TEST

/* ---- reaching a server ---- */

START_TEST(no_server_is_unavailable_at_once)
{
    world_close_server(&world, 0);
    struct outcome outcome;
    int64_t before = clock_monotonic_ns();
    world_call(&world, &echo, "", 0, 10000, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_UNAVAILABLE);
    ck_assert_int_lt((clock_monotonic_ns() - before) / 1000000, 3000);
    char *expected = mem_printf("cannot connect to %s: No such file or directory", world.address);
    ck_assert_str_eq(outcome.message, expected);
    free(expected);
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &chat, NULL, 0);
    stream_send_note(listener.stream, "x", 1);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_UNAVAILABLE);
}
END_TEST

START_TEST(waiting_for_ready_ends_at_the_deadline)
{
    world_close_server(&world, 0);
    struct outcome outcome;
    world_call(&world, &echo, "", 0, 300, true, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_DEADLINE_EXCEEDED);
}
END_TEST

START_TEST(restarted_server_is_found_again)
{
    struct outcome outcome;
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &hold, "", 0);
    world_wait_count(&world, &listener.messages, 1);
    world_close_server(&world, 0);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_UNAVAILABLE);
    world_call(&world, &echo, "", 0, 5000, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_UNAVAILABLE);
    world_idle(&world, 1500); /* backoff has grown */
    outcome = (struct outcome){0};
    Note request = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    rpc_channel_call(world.channel, &echo, &request.base, 10000, true, outcome_done, &outcome);
    world_idle(&world, 100);
    world_serve(&world, &service, 1);
    int64_t before = clock_monotonic_ns();
    world_wait(&world, &outcome.done);
    ck_assert_int_eq(outcome.code, STATUS_OK);
    ck_assert_int_lt((clock_monotonic_ns() - before) / 1000000, 3000);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--upload-and-hang") == 0) return upload_and_hang(argv[2]);
    Suite *suite = suite_create("rpc");
    TCase *unary = tcase_create("unary");
    TCase *streams = tcase_create("streams");
    TCase *ends = tcase_create("ends");
    TCase *reaching = tcase_create("reaching");
    TCase *cases[] = {unary, streams, ends, reaching};
    for (int i = 0; i < 4; i++) {
        tcase_add_checked_fixture(cases[i], set_up, tear_down);
        tcase_set_timeout(cases[i], 60);
        suite_add_tcase(suite, cases[i]);
    }
    tcase_add_test(unary, unary_is_answered);
    tcase_add_test(unary, unary_many_at_once);
    tcase_add_test(unary, unary_error_keeps_code_and_message);
    tcase_add_test(unary, unary_long_error_stays_an_error);
    tcase_add_test(unary, unary_answered_later);
    tcase_add_test(unary, unary_deadline_reaches_both_sides);
    tcase_add_test(unary, unary_handler_learns_that_client_left);
    tcase_add_test(unary, unknown_method_is_unimplemented);
    tcase_add_test(unary, garbage_is_an_invalid_argument);
    tcase_add_test(unary, oversized_is_resource_exhausted);
    tcase_add_test(streams, server_stream_arrives_in_full);
    tcase_add_test(streams, server_stream_of_nothing);
    tcase_add_test(streams, server_stream_waits_for_a_slow_reader);
    tcase_add_test(streams, client_stream_is_answered);
    tcase_add_test(streams, client_stream_waits_for_the_handler);
    tcase_add_test(streams, client_stream_refused_in_the_middle);
    tcase_add_test(streams, bidirectional_answers_as_it_goes);
    tcase_add_test(streams, bidirectional_server_speaks_first);
    tcase_add_test(ends, client_cancels);
    tcase_add_test(ends, client_vanishes_in_the_middle_of_an_upload);
    tcase_add_test(ends, client_process_is_killed);
    tcase_add_test(ends, channel_close_cancels_everything);
    tcase_add_test(ends, server_close_waits_for_the_grace_period);
    tcase_add_test(ends, server_close_lets_calls_finish);
    tcase_add_test(ends, server_close_with_full_pipes);
    tcase_add_test(ends, both_sides_close_at_once);
    tcase_add_test(reaching, no_server_is_unavailable_at_once);
    tcase_add_test(reaching, waiting_for_ready_ends_at_the_deadline);
    tcase_add_test(reaching, restarted_server_is_found_again);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
