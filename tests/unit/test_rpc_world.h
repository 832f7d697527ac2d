/*
 * Shared by the tests of common/rpc: a loop, a runtime, a server and a channel in a temporary
 * directory, and waits with a time limit. Everything runs on the test's thread.
 */
#ifndef FSDPD_TESTS_RPC_WORLD_H
#define FSDPD_TESTS_RPC_WORLD_H

#include <check.h>
#include <stdbool.h>
#include <uv.h>

#include "grpc/health/v1/health.pb-c.h"
#include "grpc/reflection/v1alpha/reflection.pb-c.h"
#include "rpc/client.h"
#include "rpc/server.h"

/* The test service's messages: a string and a number. */
typedef Grpc__Reflection__V1alpha__ExtensionRequest Note;
extern const ProtobufCMessageDescriptor *const note_type;

struct world {
    char directory[64];
    char *address;
    uv_loop_t loop;
    struct rpc_runtime *runtime;
    struct rpc_server *server;
    struct rpc_channel *channel;
    bool server_closed, channel_closed, runtime_closed;
};

/* A server for `services` on a Unix socket (not if `services` is NULL), and a channel to it. */
void world_init(struct world *world, const struct rpc_service *services, int count);
/* A deadline or grace period that outlasts every test, in ms: whatever ends under it ended by
 * itself. */
enum { WORLD_NEVER_MS = 3600000 };

void world_serve(struct world *world, const struct rpc_service *services, int count);

void world_close_channel(struct world *world);
void world_close_server(struct world *world, int grace_ms);

/* Closes everything and checks that nothing is left in the loop. */
void world_deinit(struct world *world);

/* For callbacks that only record their call: *(bool *)user = true. */
void world_set(void *user);

/* Runs the loop until *flag, failing the test after 20 seconds. */
void world_wait(struct world *world, const bool *flag);

/* Runs the loop until *value is at least `least`. */
void world_wait_count(struct world *world, const int *value, int least);

/* Runs the loop for a while. */
void world_idle(struct world *world, int milliseconds);

/* Sends a note; the text may be NULL. */
void call_send_note(struct rpc_call *call, const char *text, int number);
void stream_send_note(struct rpc_stream *stream, const char *text, int number);

/* A unary call's outcome. */
struct outcome {
    bool done;
    int count; /* number of calls of done */
    enum status_code code;
    char message[8192];
    char text[256];
    int number;
};
void world_call(struct world *world, const struct rpc_method *method, const char *text, int number,
                int64_t deadline_ms, bool wait_for_ready, struct outcome *outcome);
void outcome_done(status_t status, const ProtobufCMessage *response, void *user);

#endif
