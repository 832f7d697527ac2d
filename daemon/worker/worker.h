/*
 * The worker role: one process that owns one device, attaches to a coordinator and runs the
 * attempts assigned to it. worker_main returns the process's exit code.
 *
 * Threads: the main thread runs the libuv loop (the link); an attempt has a training thread and,
 * while state_dicts are pulled, a pull thread; plans are made on libuv's pool. Only the loop's
 * thread uses rpc.
 */
#ifndef FSDPD_WORKER_WORKER_H
#define FSDPD_WORKER_WORKER_H

#include "worker/settings.h"

/* The file descriptors that the process needs. */
enum { WORKER_FILES_NEEDED = 64 };

int worker_main(const struct worker_options *options);

#endif
