/*
 * Ends of calls and streams of common/rpc: cancelled, with a vanished peer, by a closing server or
 * channel, or without ever reaching a server; and reconnection to a restarted server.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "test_rpc_notes.h"
#include "tests/testing.h"

/* ---- abnormal ends ---- */

TESTS_BELOW(.timeout = 60, .set_up = notes_set_up, .tear_down = notes_tear_down);

TEST(client_cancels)
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

    /* Cancelled before it has even left, and with a full pipe. */
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

    /* What waits for its turn is dropped at once; one message may be on its way. */
    struct listener sending = {0};
    listen_to(&world, &sending, &collect, NULL, 0);
    for (int i = 0; i < 10; i++) stream_send_note(sending.stream, text, 1);
    ck_assert_int_ge(rpc_stream_queued(sending.stream), 9);
    rpc_stream_cancel(sending.stream);
    ck_assert_int_le(rpc_stream_queued(sending.stream), 1);
    world_wait(&world, &sending.closed);
    free(text);
}

TEST(client_vanishes_in_the_middle_of_an_upload)
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

/* A killed client process: no goodbye of any kind. */
TEST(client_process_is_killed)
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

static int upload_and_hang(int argc, char **argv)
{
    if (argc != 3) return 1;
    char *address = argv[2];
    struct world child = {.address = address};
    struct listener listener = {0};
    uv_loop_init(&child.loop);
    if (rpc_runtime_new(&child.loop, &child.runtime)) return 1;
    if (rpc_channel_new(child.runtime, address, NULL, &child.channel)) return 1;
    listen_to(&child, &listener, &collect, NULL, 0);
    stream_send_note(listener.stream, "x", 1);
    alarm(30);
    uv_run(&child.loop, UV_RUN_DEFAULT);
    return 0;
}

TEST_PROGRAM("--upload-and-hang", upload_and_hang);

TEST(channel_close_cancels_everything)
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

TEST(server_close_waits_for_the_grace_period)
{
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &hold, "", 0);
    world_wait_count(&world, &listener.messages, 1);
    uint64_t before = uv_now(&world.loop); /* the clock of the server's timer */
    world_close_server(&world, 300);
    ck_assert_uint_ge(uv_now(&world.loop) - before, 300);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_UNAVAILABLE);
    ck_assert_str_eq(listener.message, "the server is shutting down");
    ck_assert_int_eq(seen.cancelled, 1);
}

TEST(server_close_lets_calls_finish)
{
    struct outcome outcome = {0}, refused = {0};
    Note request = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    rpc_channel_call(world.channel, &later, &request.base, 0, false, outcome_done, &outcome);
    world_wait_count(&world, &seen.started, 1);
    rpc_server_close(world.server, WORLD_NEVER_MS, world_set, &world.server_closed);
    rpc_channel_call(world.channel, &echo, &request.base, 0, false, outcome_done, &refused);
    world_wait(&world, &refused.done);
    ck_assert_msg(refused.code == STATUS_UNAVAILABLE, "%d %s", refused.code, refused.message);
    ck_assert(!world.server_closed);
    request.extension_number = 9;
    rpc_call_reply(seen.held, &request.base);
    world_wait(&world, &world.server_closed);
    world.server = NULL;
    world_wait(&world, &outcome.done);
    ck_assert_int_eq(outcome.code, STATUS_OK);
    ck_assert_int_eq(outcome.number, 9);
    ck_assert_int_eq(seen.cancelled, 0);
}

TEST(server_close_with_full_pipes)
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
    /* A client that does not read learns it when it reads. */
    down.reads_itself = true;
    rpc_stream_read(down.stream);
    world_wait(&world, &down.closed);
    world_wait(&world, &up.closed);
    world_wait(&world, &both.closed);
    ck_assert_int_ne(down.code, STATUS_OK);
    free(text);
}

TEST(both_sides_close_at_once)
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

/* ---- reaching a server ---- */

TEST(no_server_is_unavailable_at_once)
{
    world_close_server(&world, 0);
    struct outcome outcome;
    world_call(&world, &echo, "", 0, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_UNAVAILABLE);
    char *expected = mem_printf("cannot connect to %s: No such file or directory", world.address);
    ck_assert_str_eq(outcome.message, expected);
    free(expected);
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &chat, NULL, 0);
    stream_send_note(listener.stream, "x", 1);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_UNAVAILABLE);
}

TEST(waiting_for_ready_ends_at_the_deadline)
{
    world_close_server(&world, 0);
    struct outcome outcome;
    world_call(&world, &echo, "", 0, 300, true, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_DEADLINE_EXCEEDED);
}

TEST(restarted_server_is_found_again)
{
    struct outcome outcome;
    struct listener listener = {.reads_itself = true};
    listen_to(&world, &listener, &hold, "", 0);
    world_wait_count(&world, &listener.messages, 1);
    world_close_server(&world, 0);
    world_wait(&world, &listener.closed);
    ck_assert_int_eq(listener.code, STATUS_UNAVAILABLE);
    world_call(&world, &echo, "", 0, WORLD_NEVER_MS, false, &outcome);
    ck_assert_int_eq(outcome.code, STATUS_UNAVAILABLE);
    world_idle(&world, 1500); /* backoff has grown */
    outcome = (struct outcome){0};
    Note request = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    rpc_channel_call(world.channel, &echo, &request.base, WORLD_NEVER_MS, true, outcome_done,
                     &outcome);
    world_idle(&world, 100);
    world_serve(&world, &notes, 1);
    world_wait(&world, &outcome.done);
    ck_assert_int_eq(outcome.code, STATUS_OK);
}

TEST(server_restarts_at_once_on_the_same_path)
{
    /* The old server's cleanup must not affect the new one. */
    struct outcome outcome;
    for (int i = 0; i < 20; i++) {
        world_close_server(&world, 0);
        world_serve(&world, &notes, 1);
        world_call(&world, &echo, "", i, WORLD_NEVER_MS, true, &outcome);
        ck_assert_msg(outcome.code == STATUS_OK, "%s", outcome.message);
        ck_assert_int_eq(access(world.address + 5, F_OK), 0);
    }
}
