/* What the files of the link share; for link.c and upload.c only. */
#ifndef FSDPD_WORKER_LINK_INTERNAL_H
#define FSDPD_WORKER_LINK_INTERNAL_H

#include <pthread.h>

#include "worker/link.h"

struct link {
    uv_loop_t *loop;
    struct mailbox *mailbox;
    const struct worker_options *options;
    const char *id;
    uint64_t memory_bytes;
    struct link_callbacks callbacks;
    char *address;
    struct rpc_runtime *runtime;
    struct rpc_channel *channel;
    struct rpc_stream *stream; /* NULL while there is none */
    uv_timer_t heartbeat, reconnect;
    int handles_open;
    bool closing;
    bool channel_closing;
    void (*closed)(void *user);
    void *closed_user;
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* With the lock held. Waits until *done, or until the gate closes: false then. */
bool link_wait(struct link *link, const struct gate *gate, const bool *done);

#endif
