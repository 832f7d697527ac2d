/*
 * Inside rpc/: completion tags, and the loop and the completion queue of a runtime (rpc/rpc.h).
 * Everything belongs to the loop's thread, except that runtime.c's poller handles a tag between the
 * queue and the loop.
 */
#ifndef FSDPD_RPC_RUNTIME_H
#define FSDPD_RPC_RUNTIME_H

#include <grpc/grpc.h>
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "rpc/rpc.h"

/*
 * The tag of a gRPC operation. It is a member of its owner, which must live until `done` has run. A
 * tag is in flight at most once at a time.
 */
struct rpc_tag {
    void (*done)(struct rpc_tag *tag, bool ok);
    void *owner;
    bool ok;
    struct rpc_tag *next;
};

uv_loop_t *rpc_runtime_loop(struct rpc_runtime *runtime);
grpc_completion_queue *rpc_runtime_queue(struct rpc_runtime *runtime);

/* Runs tag->done from the loop, after the current callback. */
void rpc_runtime_post(struct rpc_runtime *runtime, struct rpc_tag *tag);

/* grpc_call_start_batch; an error is a bug in this library and aborts. */
void rpc_batch_start(grpc_call *call, const grpc_op *ops, size_t count, struct rpc_tag *tag);

#endif
