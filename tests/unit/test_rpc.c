/*
 * Calls and streams of common/rpc, server and client against each other over a Unix socket:
 * answers, errors, limits and backpressure. test_rpc_ends.c tests their failures.
 */
#include <grpc/byte_buffer.h>
#include <grpc/compression.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "test_rpc_notes.h"
#include "tests/testing.h"

/* ---- unary ---- */

TESTS_BELOW(.timeout = 60, .set_up = notes_set_up, .tear_down = notes_tear_down);

TEST(unary_is_answered)
{
    struct outcome outcome;
    world_call(&world, &echo, "grüße", 42, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_OK);
    ck_assert_str_eq(outcome.text, "grüße");
    ck_assert_int_eq(outcome.number, 42);
    world_wait_count(&world, &seen.closed, 1);
    ck_assert_int_eq(seen.cancelled, 0);
}

TEST(unary_many_at_once)
{
    enum { MANY = 300 };
    static struct outcome outcomes[MANY];
    memset(outcomes, 0, sizeof outcomes);
    Note request = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    for (int i = 0; i < MANY; i++) {
        request.extension_number = i;
        rpc_channel_call(world.channel, &echo, &request.base, WORLD_NEVER_MS, false, outcome_done,
                         &outcomes[i]);
    }
    for (int i = 0; i < MANY; i++) {
        world_wait(&world, &outcomes[i].done);
        ck_assert_int_eq(outcomes[i].code, STATUS_OK);
        ck_assert_int_eq(outcomes[i].number, i);
    }
}

TEST(unary_error_keeps_code_and_message)
{
    struct outcome outcome;
    world_call(&world, &echo, "job \"x\": not now\nline 2 ü", -1, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_FAILED_PRECONDITION);
    ck_assert_str_eq(outcome.message, "job \"x\": not now\nline 2 ü");
}

TEST(unary_long_error_stays_an_error)
{
    /* 4 KiB of characters that take six bytes each on the wire: more than metadata may hold. */
    char text[4001];
    for (int i = 0; i < 4000; i += 2) memcpy(text + i, "ü", 2);
    text[4000] = '\0';
    struct outcome outcome;
    world_call(&world, &echo, text, -1, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_FAILED_PRECONDITION);
    size_t length = strlen(outcome.message);
    ck_assert_uint_gt(length, 1500);
    ck_assert_uint_eq(length % 2, 0); /* cut between characters */
    ck_assert_int_eq(strncmp(outcome.message, text, length), 0);
}

TEST(unary_answered_later)
{
    struct outcome outcome = {0};
    Note request = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    rpc_channel_call(world.channel, &later, &request.base, WORLD_NEVER_MS, false, outcome_done,
                     &outcome);
    world_wait_count(&world, &seen.started, 1);
    world_idle(&world, 50);
    ck_assert(!outcome.done);
    ck_assert_int_eq(seen.closed, 0);
    ck_assert_int_eq(seen.peer.kind, RPC_PEER_UNIX);
    ck_assert_uint_eq(seen.peer.uid, geteuid());
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

TEST(a_response_of_another_type_is_an_internal_error)
{
    static const char expected[] = "/test.Notes/Later: a response is a "
                                   "grpc.reflection.v1alpha.ExtensionRequest, not a "
                                   "grpc.health.v1.HealthCheckRequest";
    struct outcome outcome = {0};
    Note request = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    /* With the same field numbers, so that a client would take it for the response. */
    Grpc__Health__V1__HealthCheckRequest wrong = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    wrong.service = (char *)"not a note";
    rpc_channel_call(world.channel, &later, &request.base, WORLD_NEVER_MS, false, outcome_done,
                     &outcome);
    world_wait_count(&world, &seen.started, 1);
    rpc_call_reply(seen.held, &wrong.base);
    rpc_call_reply(seen.held, &request.base); /* ignored */
    world_wait(&world, &outcome.done);
    ck_assert_int_eq(outcome.code, STATUS_INTERNAL);
    ck_assert_str_eq(outcome.message, expected);
    world_wait_count(&world, &seen.closed, 1);
}

TEST(unary_deadline_reaches_both_sides)
{
    struct outcome outcome;
    world_call(&world, &later, "", 0, 150, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_DEADLINE_EXCEEDED);
    ck_assert_ptr_nonnull(strstr(outcome.message, world.address));
    world_wait_count(&world, &seen.closed, 1);
    ck_assert_int_eq(seen.cancelled, 1);
}

TEST(unary_handler_learns_that_client_left)
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

TEST(unknown_method_is_unimplemented)
{
    struct outcome outcome;
    for (int i = 0; i < 3; i++) {
        world_call(&world, &missing, "", 0, WORLD_NEVER_MS, false, &outcome);
        ck_assert_int_eq(outcome.code, STATUS_UNIMPLEMENTED);
        ck_assert_ptr_nonnull(strstr(outcome.message, "/test.Notes/Missing"));
    }
}

TEST(garbage_is_an_invalid_argument)
{
    /* A number where the service expects a string. */
    struct rpc_method crooked = echo;
    crooked.request = &grpc__health__v1__health_check_response__descriptor;
    Grpc__Health__V1__HealthCheckResponse request = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    request.status = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    struct outcome outcome = {0};
    rpc_channel_call(world.channel, &crooked, &request.base, WORLD_NEVER_MS, false, outcome_done,
                     &outcome);
    world_wait(&world, &outcome.done);
    ck_assert_int_eq(outcome.code, STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(outcome.message, "ExtensionRequest"));
    ck_assert_int_eq(seen.started, 0);

    world_call(&world, &echo, "\xff\xfe", 0, WORLD_NEVER_MS, false, &outcome);
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

    /* Conversely: an answer that does not decode. */
    crooked = echo;
    crooked.response = &grpc__health__v1__health_check_response__descriptor;
    world_call(&world, &crooked, "x", 0, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_INTERNAL);

    world_call(&world, &echo, "fine", 0, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_OK);
}

TEST(unary_without_a_request)
{
    /* A client that treats the method as a stream and closes without a message. */
    struct rpc_method crooked = echo;
    crooked.kind = RPC_CLIENT_STREAM;
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &crooked, NULL, 0);
    rpc_stream_finish_sending(listener.stream);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(listener.message, echo.path));
    ck_assert_int_eq(seen.started, 0);
    /* And one that sends two: the first counts. */
    struct listener two = {.reads_itself = true};
    listen_to(&world, &two, &crooked, NULL, 0);
    stream_send_note(two.stream, "x", 1);
    stream_send_note(two.stream, "x", 2);
    rpc_stream_finish_sending(two.stream);
    world_wait(&world, &two.closed);
    ck_assert_int_eq(two.code, STATUS_OK);
    ck_assert_int_eq(two.sum, 1);
}

/* A client of gRPC's own that compresses, which ours never does; on its own thread. */
static int call_compressed(const char *target)
{
    grpc_arg arg = {.type = GRPC_ARG_INTEGER,
                    .key = (char *)GRPC_COMPRESSION_CHANNEL_DEFAULT_ALGORITHM,
                    .value.integer = GRPC_COMPRESS_GZIP};
    grpc_channel_args args = {1, &arg};
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(target, credentials, &args);
    grpc_channel_credentials_release(credentials);
    grpc_completion_queue *queue = grpc_completion_queue_create_for_pluck(NULL);
    grpc_call *call =
        grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue,
                                 grpc_slice_from_static_string(echo.path), NULL,
                                 gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                              gpr_time_from_seconds(10, GPR_TIMESPAN)),
                                 NULL);
    static char text[5003] = {10, (char)(0x80 | (5000 & 0x7f)), 5000 >> 7};
    memset(text + 3, 'x', 5000);
    grpc_slice slice = grpc_slice_from_static_buffer(text, sizeof text);
    grpc_byte_buffer *request = grpc_raw_byte_buffer_create(&slice, 1), *response = NULL;
    grpc_metadata_array initial, trailing;
    grpc_metadata_array_init(&initial);
    grpc_metadata_array_init(&trailing);
    grpc_status_code code;
    grpc_slice details = grpc_empty_slice();
    grpc_op ops[6] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = request},
        {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        {.op = GRPC_OP_RECV_INITIAL_METADATA,
         .data.recv_initial_metadata.recv_initial_metadata = &initial},
        {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &response},
        {.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
         .data.recv_status_on_client = {.trailing_metadata = &trailing,
                                        .status = &code,
                                        .status_details = &details}},
    };
    bool good = grpc_call_start_batch(call, ops, 6, ops, NULL) == GRPC_CALL_OK;
    if (good) grpc_completion_queue_pluck(queue, ops, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    grpc_slice_unref(details);
    grpc_metadata_array_destroy(&initial);
    grpc_metadata_array_destroy(&trailing);
    grpc_byte_buffer_destroy(request);
    if (response) grpc_byte_buffer_destroy(response);
    grpc_call_unref(call);
    grpc_channel_destroy(channel);
    grpc_completion_queue_shutdown(queue);
    grpc_completion_queue_destroy(queue);
    return good ? (int)code : -1;
}

struct compressed {
    bool done;
    char *target;
    int code;
};

static void compress_in_thread(uv_work_t *work)
{
    struct compressed *compressed = work->data;
    compressed->code = call_compressed(compressed->target);
}

static void on_compressed(uv_work_t *work, int status)
{
    ck_assert_int_eq(status, 0);
    ((struct compressed *)work->data)->done = true;
}

TEST(compressed_messages_are_refused)
{
    struct compressed compressed = {.target = world.address};
    uv_work_t work = {.data = &compressed};
    ck_assert_int_eq(uv_queue_work(&world.loop, &work, compress_in_thread, on_compressed), 0);
    world_wait(&world, &compressed.done);
    ck_assert_int_eq(compressed.code, GRPC_STATUS_UNIMPLEMENTED);
    ck_assert_int_eq(seen.messages, 0);
}

TEST(oversized_is_resource_exhausted)
{
    char *text = mem_alloc(RPC_MESSAGE_MAX + 100);
    memset(text, 'x', RPC_MESSAGE_MAX + 50);
    struct outcome outcome;
    world_call(&world, &echo, text, 0, WORLD_NEVER_MS, false, &outcome);
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

    /* The largest message allowed. */
    text[RPC_MESSAGE_MAX - 16] = '\0';
    world_call(&world, &echo, text, 0, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_OK);
    free(text);
}

/* ---- streams ---- */

TEST(server_stream_arrives_in_full)
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

TEST(server_stream_of_nothing)
{
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &count, "", 0);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_OK);
    ck_assert_int_eq(listener.messages, 0);
}

TEST(server_stream_ends_before_a_message_of_another_type)
{
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &hold, "", 0);
    world_wait_count(&world, &listener.messages, 1);
    Grpc__Health__V1__HealthCheckRequest wrong = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    rpc_call_send(seen.held, &wrong.base);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_INTERNAL);
    ck_assert_int_eq(listener.messages, 1);
}

TEST(server_stream_waits_for_a_slow_reader)
{
    enum { SIZE = 16 << 10, TOTAL = 400 };
    char *text = mem_alloc(SIZE + 1);
    memset(text, 'x', SIZE);
    struct listener listener = {0};
    listen_to(&world, &listener, &count, text, TOTAL);
    world_wait_count(&world, &seen.writable, 1);
    world_idle(&world, 500);
    /* Without reading, a few windows' worth were accepted, and the handler queues no more than its
     * own limit. */
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
    /* One for each message except those accepted after the handler had finished. */
    ck_assert_int_ge(seen.writable, TOTAL - 2);
    ck_assert_int_le(seen.writable, TOTAL);
    free(text);
}

TEST(client_stream_is_answered)
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

TEST(client_stream_waits_for_the_handler)
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

TEST(client_stream_refused_in_the_middle)
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

TEST(bidirectional_answers_as_it_goes)
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

TEST(bidirectional_server_speaks_first)
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
