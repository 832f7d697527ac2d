/*
 * The gRPC side of a uv loop. A poller thread waits on the completion queue (gRPC does its I/O
 * there) and passes finished tags to the loop through a locked list and a uv_async. The loop's
 * thread owns everything else. The runtime is freed when the wake-up handle has closed.
 */
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/signals.h"
#include "rpc/runtime.h"

struct rpc_runtime {
    uv_loop_t *loop;
    struct must_owner owner; /* the loop's thread */
    uv_async_t wake;
    grpc_completion_queue *queue;
    pthread_t poller;
    pthread_mutex_t lock; /* guards the list and `drained` */
    struct rpc_tag *first, *last;
    bool drained;                /* the poller has reached the queue's end */
    grpc_channel *probe_channel; /* never connects; watching its state serves as the probe */
    struct rpc_tag probe;
    bool probing;
    void (*closed)(void *user);
    void *closed_user;
};

static void append(struct rpc_runtime *runtime, struct rpc_tag *tag)
{
    tag->next = NULL;
    if (runtime->last) runtime->last->next = tag;
    else runtime->first = tag;
    runtime->last = tag;
}

static void *poll_queue(void *argument)
{
    struct rpc_runtime *runtime = argument;
    bool more = true;
    while (more) {
        grpc_event event =
            grpc_completion_queue_next(runtime->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_TIMEOUT) continue;
        more = event.type == GRPC_OP_COMPLETE;
        pthread_mutex_lock(&runtime->lock);
        if (more) {
            struct rpc_tag *tag = event.tag;
            tag->ok = event.success != 0;
            append(runtime, tag);
        } else {
            runtime->drained = true;
        }
        /* Under the lock: the loop may close the handle once it has seen `drained`. */
        uv_async_send(&runtime->wake);
        pthread_mutex_unlock(&runtime->lock);
    }
    return NULL;
}

static void on_wake_closed(uv_handle_t *handle)
{
    struct rpc_runtime *runtime = handle->data;
    void (*closed)(void *) = runtime->closed;
    void *user = runtime->closed_user;
    pthread_mutex_destroy(&runtime->lock);
    free(runtime);
    grpc_shutdown_blocking();
    if (closed) closed(user);
}

static void on_wake(uv_async_t *handle)
{
    struct rpc_runtime *runtime = handle->data;
    MUST_OWN(&runtime->owner);
    pthread_mutex_lock(&runtime->lock);
    struct rpc_tag *tag = runtime->first;
    runtime->first = runtime->last = NULL;
    bool drained = runtime->drained;
    pthread_mutex_unlock(&runtime->lock);
    while (tag) {
        /* Do not touch the tag after `done`: its memory may be freed, or the tag in flight
         * again. */
        struct rpc_tag *next = tag->next;
        tag->done(tag, tag->ok);
        tag = next;
    }
    if (drained) {
        pthread_join(runtime->poller, NULL);
        grpc_completion_queue_destroy(runtime->queue);
        uv_close((uv_handle_t *)handle, on_wake_closed);
    }
}

/* gRPC's own log, for debugging; users see errors as a status. */
static void log_grpc(gpr_log_func_args *args)
{
    const char *file = strrchr(args->file, '/');
    AUTO_FREE char *message = log_quote(args->message);
    log_event(LOG_DEBUG, "grpc", "severity=%s source=%s:%d message=%s",
              gpr_log_severity_string(args->severity), file ? file + 1 : args->file, args->line,
              message);
}

status_t rpc_runtime_new(uv_loop_t *loop, struct rpc_runtime **runtime_out)
{
    struct rpc_runtime *runtime = mem_alloc(sizeof *runtime);
    runtime->loop = loop;
    int error = uv_async_init(loop, &runtime->wake, on_wake);
    if (error) {
        free(runtime);
        return status_new(STATUS_INTERNAL, "cannot make a wake-up handle: %s", uv_strerror(error));
    }
    runtime->wake.data = runtime;
    pthread_mutex_init(&runtime->lock, NULL);

    /* The main thread handles signals: gRPC's threads and ours start with all signals blocked. */
    sigset_t before;
    signals_block(&before);
    gpr_set_log_function(log_grpc);
    /* Resolve names with getaddrinfo, like the rest of the system: gRPC's default, c-ares, ignores
     * nsswitch.conf and leaks memory. The environment variable is the only way to select it. */
    setenv("GRPC_DNS_RESOLVER", "native", 0);
    grpc_init();
    runtime->queue = grpc_completion_queue_create_for_next(NULL);
    error = pthread_create(&runtime->poller, NULL, poll_queue, runtime);
    signals_restore(&before);
    if (error) {
        grpc_completion_queue_shutdown(runtime->queue);
        while (grpc_completion_queue_next(runtime->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL)
                   .type != GRPC_QUEUE_SHUTDOWN) {}
        grpc_completion_queue_destroy(runtime->queue);
        uv_close((uv_handle_t *)&runtime->wake, on_wake_closed);
        return status_from_errno(error, "cannot start gRPC's poller thread");
    }
    *runtime_out = runtime;
    return NULL;
}

void rpc_runtime_close(struct rpc_runtime *runtime, void (*closed)(void *user), void *user)
{
    MUST_OWN(&runtime->owner);
    runtime->closed = closed;
    runtime->closed_user = user;
    if (runtime->probe_channel != NULL) grpc_channel_destroy(runtime->probe_channel);
    grpc_completion_queue_shutdown(runtime->queue);
}

static void on_probe(struct rpc_tag *tag, bool ok)
{
    struct rpc_runtime *runtime = tag->owner;
    (void)ok; /* the event has returned; nothing else to do */
    runtime->probing = false;
}

bool rpc_runtime_is_alive(struct rpc_runtime *runtime)
{
    MUST_OWN(&runtime->owner);
    if (runtime->probing) return false;
    if (runtime->probe_channel == NULL) {
        grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
        runtime->probe_channel = grpc_channel_create("unix:/nonexistent", credentials, NULL);
        grpc_channel_credentials_release(credentials);
    }
    runtime->probing = true;
    runtime->probe = (struct rpc_tag){.done = on_probe, .owner = runtime};
    grpc_channel_watch_connectivity_state(runtime->probe_channel, GRPC_CHANNEL_IDLE,
                                          gpr_now(GPR_CLOCK_MONOTONIC), runtime->queue,
                                          &runtime->probe);
    return true;
}

uv_loop_t *rpc_runtime_loop(struct rpc_runtime *runtime)
{
    MUST_OWN(&runtime->owner);
    return runtime->loop;
}

grpc_completion_queue *rpc_runtime_queue(struct rpc_runtime *runtime)
{
    MUST_OWN(&runtime->owner);
    return runtime->queue;
}

void rpc_runtime_post(struct rpc_runtime *runtime, struct rpc_tag *tag)
{
    MUST_OWN(&runtime->owner);
    tag->ok = true;
    pthread_mutex_lock(&runtime->lock);
    append(runtime, tag);
    pthread_mutex_unlock(&runtime->lock);
    uv_async_send(&runtime->wake);
}

void rpc_batch_start(grpc_call *call, const grpc_op *ops, size_t count, struct rpc_tag *tag)
{
    grpc_call_error error = grpc_call_start_batch(call, ops, count, tag, NULL);
    if (error == GRPC_CALL_OK) return;
    fprintf(stderr, "fsdpd: gRPC refused a batch of operations (grpc_call_error %d)\n", error);
    abort();
}
