/* A worker's settings: from the command line or the configuration (daemon/option_table.c). */
#ifndef FSDPD_WORKER_SETTINGS_H
#define FSDPD_WORKER_SETTINGS_H

#include <stdbool.h>

#include "rpc/client.h"

enum { WORKER_MAX_DATA_ROOTS = 16, WORKER_MAX_FAMILIES = 16 };

struct worker_options {
    const char *device;      /* "cpu" */
    bool share_device;       /* others may have it, too; see backend_join's `staged` */
    const char *coordinator; /* address, see rpc/rpc.h */
    const char *id;          /* "NODE/NAME", or NAME alone; NULL: the device and, where that is
                              * shared, this process's number. NODE: the certificate's name, or the
                              * host's without one */
    const char *data_roots[WORKER_MAX_DATA_ROOTS];
    int data_root_count;
    const char *families[WORKER_MAX_FAMILIES]; /* directories of family files (hf/hf.h) */
    int family_count;
    const char *address; /* that other workers reach this host under; NULL: detected */
    struct rpc_channel_security security; /* for a coordinator over TCP */
    int threads;                          /* per CPU op; 0: 1 */
    bool supervised; /* by the coordinator: exit when the link is lost and nothing is done */
    const char *program; /* fsdpd, to start for calibrations; NULL: "/proc/self/exe" */
    int away_ms;         /* give up the attempt after this long without a coordinator; 0: never */
};

/* ---- worker.c ---- */

/*
 * The worker role: one process that owns one device, attaches to a coordinator and runs the
 * attempts assigned to it. worker_main returns the process's exit code.
 *
 * Threads: the main thread runs the libuv loop (the link); an attempt has a training thread and,
 * while state_dicts are pulled, a pull thread; plans are made on libuv's pool. Only the loop's
 * thread uses rpc.
 */

/* The file descriptors that the process needs. */
enum { WORKER_FILES_NEEDED = 64 };

int worker_main(const struct worker_options *options);

#endif
