/*
 * The worker role: one process that owns one device, attaches to a coordinator and runs what it is
 * assigned. worker_main returns the process's exit code.
 *
 * Threads: the main thread runs the libuv loop (the link); an attempt has a training thread and,
 * while state_dicts are pulled, a pull thread; plans are made on libuv's pool. The loop's thread
 * alone touches rpc.
 */
#ifndef FSDPD_WORKER_WORKER_H
#define FSDPD_WORKER_WORKER_H

#include <stdbool.h>

#include "rpc/client.h"

enum { WORKER_MAX_DATA_ROOTS = 16 };

struct worker_options {
    const char *device;      /* "cpu" */
    bool share_device;       /* others may have it, too; see backend_join's `staged` */
    const char *coordinator; /* address, see rpc/rpc.h */
    const char *id;          /* "<host>/<device>"; NULL: made from the host name and the device, and,
                              * where that is shared, this process's number */
    const char *data_roots[WORKER_MAX_DATA_ROOTS];
    int data_root_count;
    const char *address; /* that other workers reach this host under; NULL: found out */
    struct rpc_channel_security security; /* for a coordinator over TCP */
    int threads;                          /* per CPU op; 0: 1 */
    bool supervised; /* by the coordinator: exit when the link is lost and nothing is done */
    int away_ms;     /* give up what is done if there is no coordinator for so long; 0: never */
};

int worker_main(const struct worker_options *options);

#endif
