/*
 * The coordinator: accepts jobs over RPC, keeps them in its store, has them planned, places them on
 * attached workers, and supervises local workers. It never touches a device. Everything runs on one
 * libuv loop; the functions here are called on its thread.
 */
#ifndef FSDPD_COORDINATOR_COORDINATOR_H
#define FSDPD_COORDINATOR_COORDINATOR_H

#include <uv.h>

#include "base/status.h"
#include "coordinator/core/settings.h"
#include "coordinator/monitor/notice_targets.h"
#include "rpc/peer.h"

/* The default limits of a daemon. */
struct coordinator_limits coordinator_limits_default(void);

/* The file descriptors that the process needs to serve, with this number of local workers and 16
 * other clients. */
int coordinator_files_needed(int local_workers);

struct coordinator;

/*
 * Takes the locks, opens the store, cleans up after an earlier run, listens and starts the local
 * workers. It serves when this returns. Options are copied. On failure nothing is left behind, but
 * the loop must run once more to close its handles.
 */
status_t coordinator_new(uv_loop_t *loop, const struct coordinator_options *options,
                         struct coordinator **coordinator) FSDPD_MUST_USE;

/* "unix:/run/fsdpd/fsdpd.sock" */
const char *coordinator_address(const struct coordinator *coordinator);

/* What a reload reads from outside of this process. */
struct coordinator_files {
    struct rpc_operators operators;
    struct rpc_pems pems;
    struct notice_targets notify;
};
/* Reads it, on any thread. Free it with coordinator_files_deinit, whether or not that succeeds. */
status_t coordinator_files_read(const struct coordinator_options *options,
                                struct coordinator_files *files) FSDPD_MUST_USE;
void coordinator_files_deinit(struct coordinator_files *files);

/*
 * Applies the options that can change at run time, and takes the files: the limits (those of a wait
 * in progress stay unchanged), the operators, the certificate, and the log level of workers started
 * from now on. On error, nothing changes.
 */
status_t coordinator_reload(struct coordinator *coordinator,
                            const struct coordinator_options *options,
                            struct coordinator_files *files) FSDPD_MUST_USE;

/*
 * Accepts no more jobs, ends those on local workers at their next step boundary, ends local
 * workers, then closes and frees everything and calls `closed`. Queued jobs stay queued for the
 * next start, and workers that it does not supervise continue their work until then. Only the first
 * call counts. It takes at most coordinator_drain_ms, unless a call on the loop hangs: ranks that
 * do not end in time are killed, and processes that survive SIGKILL are left behind.
 */
void coordinator_drain(struct coordinator *coordinator, void (*closed)(void *user), void *user);
int64_t coordinator_drain_ms(const struct coordinator *coordinator);

/* Stops at once: kills local workers and queues their jobs for the next start. The process then
 * exits; the coordinator must not be used again. */
void coordinator_abandon(struct coordinator *coordinator);

#endif
