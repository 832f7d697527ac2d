/*
 * gRPC on a libuv loop: the parts shared by servers and clients. Only common/rpc uses gRPC's C
 * core. One poller thread passes completed operations to the loop; call every function on the
 * loop's thread; every callback runs there, unless a comment states otherwise.
 *
 * Addresses: "unix:/absolute/path", "unix:relative/path" (made absolute when parsed), "host:port"
 * (IPv6 in brackets).
 */
#ifndef FSDPD_RPC_RPC_H
#define FSDPD_RPC_RPC_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/status.h"

/* Largest message either side accepts, in bytes; a larger one ends its call with
 * RESOURCE_EXHAUSTED. */
enum { RPC_MESSAGE_MAX = 16 << 20 };

/* The gRPC side of one uv loop: completion queue, poller thread, wake-up handle. */
struct rpc_runtime;

status_t rpc_runtime_new(uv_loop_t *loop, struct rpc_runtime **runtime) FSDPD_MUST_USE;

/*
 * Stops the poller and closes the wake-up handle. Keep the loop running until `closed` (may be
 * NULL) is called, after which the runtime is freed. All servers and channels must be closed before
 * (their own `closed` callbacks have run).
 */
void rpc_runtime_close(struct rpc_runtime *runtime, void (*closed)(void *user), void *user);

/*
 * Whether gRPC makes progress: requests an event that returns through gRPC's queue, the poller and
 * the loop, and returns whether the previously requested one has arrived. Call it periodically.
 */
bool rpc_runtime_is_alive(struct rpc_runtime *runtime);

/* One method of a service. Tables of methods are constant and outlive all users. */
enum rpc_kind { RPC_UNARY, RPC_SERVER_STREAM, RPC_CLIENT_STREAM, RPC_BIDIRECTIONAL };
struct rpc_method {
    const char *path; /* "/fsdpd.v1.Control/SubmitJob" */
    enum rpc_kind kind;
    const ProtobufCMessageDescriptor *request;
    /* If it has one field, a message, that is what handlers send and what callers get: the library
     * wraps and unwraps it. */
    const ProtobufCMessageDescriptor *response;
};

/* Checks and normalises an address; the caller frees *normal. INVALID_ARGUMENT gives the reason. */
status_t rpc_address_parse(const char *address, char **normal) FSDPD_MUST_USE;

#endif
