/* The environment of the tests of common/rpc; see test_rpc_world.h. */
#include "test_rpc_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "proto/descriptors.h"

const ProtobufCMessageDescriptor *const note_type =
    &grpc__reflection__v1alpha__extension_request__descriptor;

enum { PATIENCE_MS = 60000 };

static void require_ok(status_t status)
{
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

void world_serve(struct world *world, const struct rpc_service *services, int count)
{
    require_ok(rpc_server_new(world->runtime, services, count, proto_descriptors,
                              proto_descriptors_size, &world->server));
    require_ok(rpc_server_listen(world->server, world->address, 0, NULL));
    require_ok(rpc_server_start(world->server));
    world->server_closed = false;
}

void world_init(struct world *world, const struct rpc_service *services, int count)
{
    memset(world, 0, sizeof *world);
    strcpy(world->directory, "/tmp/fsdpd-rpc-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(world->directory));
    world->address = mem_printf("unix:%s/socket", world->directory);
    ck_assert_int_eq(uv_loop_init(&world->loop), 0);
    require_ok(rpc_runtime_new(&world->loop, &world->runtime));
    if (services) world_serve(world, services, count);
    require_ok(rpc_channel_new(world->runtime, world->address, NULL, &world->channel));
}

void world_set(void *user)
{
    *(bool *)user = true;
}

void world_close_channel(struct world *world)
{
    if (world->channel == NULL) return;
    rpc_channel_close(world->channel, world_set, &world->channel_closed);
    world_wait(world, &world->channel_closed);
    world->channel = NULL;
}

void world_close_server(struct world *world, int grace_ms)
{
    if (world->server == NULL) return;
    rpc_server_close(world->server, grace_ms, world_set, &world->server_closed);
    world_wait(world, &world->server_closed);
    world->server = NULL;
}

void world_deinit(struct world *world)
{
    world_close_channel(world);
    world_close_server(world, 0);
    rpc_runtime_close(world->runtime, world_set, &world->runtime_closed);
    world_wait(world, &world->runtime_closed);
    ck_assert_int_eq(uv_loop_close(&world->loop), 0);
    free(world->address);
    ck_assert_msg(rmdir(world->directory) == 0, "files are left in %s", world->directory);
}

static void on_tick(uv_timer_t *timer)
{
    (void)timer;
}

/* The loop may be asleep when the condition becomes true outside a callback: tick. */
static void run_until(struct world *world, const bool *flag, const int *value, int least,
                      int milliseconds, bool must)
{
    int64_t end = clock_monotonic_ns() + (int64_t)milliseconds * 1000000;
    uv_timer_t timer;
    uv_timer_init(&world->loop, &timer);
    uv_timer_start(&timer, on_tick, 5, 5);
    bool reached = false;
    while (!reached && clock_monotonic_ns() < end) {
        uv_run(&world->loop, UV_RUN_ONCE);
        reached = (flag && *flag) || (value && *value >= least);
    }
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&world->loop, UV_RUN_NOWAIT);
    if (must) ck_assert_msg(reached, "what was waited for did not happen in time");
}

void world_wait(struct world *world, const bool *flag)
{
    if (!*flag) run_until(world, flag, NULL, 0, PATIENCE_MS, true);
}

void world_wait_count(struct world *world, const int *value, int least)
{
    if (*value < least) run_until(world, NULL, value, least, PATIENCE_MS, true);
}

void world_idle(struct world *world, int milliseconds)
{
    run_until(world, NULL, NULL, 0, milliseconds, false);
}

static Note note(const char *text, int number)
{
    Note made = GRPC__REFLECTION__V1ALPHA__EXTENSION_REQUEST__INIT;
    if (text) made.containing_type = (char *)text;
    made.extension_number = number;
    return made;
}

void call_send_note(struct rpc_call *call, const char *text, int number)
{
    Note sent = note(text, number);
    rpc_call_send(call, &sent.base);
}

void stream_send_note(struct rpc_stream *stream, const char *text, int number)
{
    Note sent = note(text, number);
    rpc_stream_send(stream, &sent.base);
}

void outcome_done(status_t status, const ProtobufCMessage *response, void *user)
{
    struct outcome *outcome = user;
    outcome->done = true;
    outcome->count++;
    outcome->code = status_code(status);
    snprintf(outcome->message, sizeof outcome->message, "%s", status_message(status));
    ck_assert((response != NULL) == (status == NULL));
    if (response && response->descriptor == note_type) {
        snprintf(outcome->text, sizeof outcome->text, "%s",
                 ((const Note *)response)->containing_type);
        outcome->number = ((const Note *)response)->extension_number;
    }
    status_free(status);
}

void world_call(struct world *world, const struct rpc_method *method, const char *text, int number,
                int64_t deadline_ms, bool wait_for_ready, struct outcome *outcome)
{
    memset(outcome, 0, sizeof *outcome);
    Note request = note(text, number);
    rpc_channel_call(world->channel, method, &request.base, deadline_ms, wait_for_ready,
                     outcome_done, outcome);
    ck_assert(!outcome->done);
    world_wait(world, &outcome->done);
    ck_assert_int_eq(outcome->count, 1);
}
