/* Shared by the files of the link; for link.c, link_store.c, upload.c and fetch.c only. */
#ifndef FSDPD_WORKER_LINK_INTERNAL_H
#define FSDPD_WORKER_LINK_INTERNAL_H

#include <pthread.h>

#include "base/must.h"
#include "worker/link.h"
#include "worker/outbox.h"

struct store_call;
struct kept_key;

struct link {
    uv_loop_t *loop;
    struct must_owner owner; /* the loop's thread */
    struct mailbox *mailbox;
    const struct worker_options *options;
    struct link_self self;
    struct link_callbacks callbacks;
    char *address;
    struct rpc_runtime *runtime;
    struct rpc_channel *channel;
    struct rpc_stream *stream; /* NULL while there is none */
    bool welcome;              /* the stream's other end has taken the hello */
    struct outbox outbox;
    int64_t heard_at, lost_at; /* monotonic ms; lost_at: since when there is no welcome, 0: there is */
    int silence_ms, retry_ms;
    uv_timer_t heartbeat, reconnect, retry;
    int handles_open;
    bool closing;
    bool channel_closing;
    void (*closed)(void *user);
    void *closed_user;

    struct store_call *stalled; /* calls to make again */
    struct kept_key *keys;      /* of this worker's attempt, for a coordinator that lost its own */
    int key_count, key_capacity;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool attached; /* as `welcome`, guarded by the lock */
};

/* With the lock held. Waits until *done, or until the gate closes: false then. */
bool link_wait(struct link *link, const struct gate *gate, const bool *done);

/* The calls and keys of the rendezvous store: again, for a coordinator that may be another one. */
void link_store_repeat(struct link *link);
void link_store_deinit(struct link *link);

#endif
