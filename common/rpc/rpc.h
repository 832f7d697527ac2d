/*
 * gRPC on a libuv loop: what servers and clients share. gRPC's C core appears nowhere outside
 * common/rpc. One poller thread hands completed operations to the loop; every function here is
 * called on the loop's thread and every callback runs there, unless a comment says otherwise.
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
 * Ends the poller and closes the wake-up handle; the loop must keep running until `closed` is
 * called (it may be NULL), after which the runtime is gone. All servers and channels must have been
 * closed before (their own `closed` callbacks run).
 */
void rpc_runtime_close(struct rpc_runtime *runtime, void (*closed)(void *user), void *user);

/*
 * Whether gRPC makes progress: asks its queue for an event that comes back through the poller and
 * the loop, and tells whether the one that was asked for before has come. To be called now and
 * then.
 */
bool rpc_runtime_is_alive(struct rpc_runtime *runtime);

/* One method of a service. Tables of these are constant and outlive everything. */
enum rpc_kind { RPC_UNARY, RPC_SERVER_STREAM, RPC_CLIENT_STREAM, RPC_BIDIRECTIONAL };
struct rpc_method {
    const char *path; /* "/fsdpd.v1.Control/SubmitJob" */
    enum rpc_kind kind;
    const ProtobufCMessageDescriptor *request;
    const ProtobufCMessageDescriptor *response;
};

/* Normalises and checks an address; *normal is the caller's to free. INVALID_ARGUMENT says why not.
 */
status_t rpc_address_parse(const char *address, char **normal) FSDPD_MUST_USE;

#endif
