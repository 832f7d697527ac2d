/*
 * Local workers: child processes, one per slot, started with the program's `worker` role and
 * restarted, after growing pauses, when they die. Their stderr is the daemon's. They are not in its
 * process group, so that Ctrl-C reaches only the coordinator, which then ends them in order. When
 * the coordinator dies, idle workers exit by themselves and workers that train continue: the next
 * coordinator takes them over (see adopted.h).
 */
#ifndef FSDPD_COORDINATOR_SUPERVISOR_H
#define FSDPD_COORDINATOR_SUPERVISOR_H

#include "coordinator/core/internal.h"

/* Takes over the workers that a previous coordinator left, and starts the rest of
 * options.local_workers. `list`: of records_read. */
void supervisor_start(struct coordinator *c, const char *list);

/* The threads of each local worker: as set, or its share of the processors, which may change. */
int supervisor_threads(const struct coordinator *c);

/* Whether a local worker has this id. */
bool supervisor_has_slot(const struct coordinator *c, const char *id);

/* Whether a local worker has this id and pid. */
bool supervisor_has_child(const struct coordinator *c, const char *id, int64_t pid);

/* Number of workers that are expected to attach: those that supervisor_each_starting visits. */
int supervisor_starting(struct coordinator *c);

/* Visits every local worker, running or not. */
void supervisor_each_slot(const struct coordinator *c,
                          void (*visit)(void *user, const char *id, uint32_t restarts), void *user);

/* Sends SIGKILL to the local worker with this pid. `why` completes "was killed by fsdpd (SIGKILL):
 * ...". */
void supervisor_kill(struct coordinator *c, int64_t pid, const char *why);

/* Number of restarts of the worker with this id; 0 for others. */
uint32_t supervisor_restarts(const struct coordinator *c, const char *id);

/* Calls `visit` for each slot whose worker is not attached but expected; surplus workers that have
 * ended are not replaced. `pid` is 0 while the slot has no process. */
void supervisor_each_starting(struct coordinator *c,
                              void (*visit)(void *user, const char *id, int64_t pid,
                                            uint32_t restarts),
                              void *user);

void supervisor_tick(struct coordinator *c);

/* Time before the end of a drain at which the remaining workers are killed. */
enum { STOP_LAST_MS = 1000 };

/* Starts no more workers; asks all to leave (Drain, or SIGTERM for those without a link), later
 * kills the rest, and leaves behind those that do not end even then. Calls
 * coordinator_supervisor_gone when none is left. */
void supervisor_stop(struct coordinator *c);

/* Sends SIGKILL to all, immediately. */
void supervisor_kill_all(struct coordinator *c);
void supervisor_free(struct coordinator *c);

/* ---- oom.c ---- */

/*
 * Determines whether the kernel's OOM killer ended a local worker. A parent sees only SIGKILL, so
 * the kernel's counters are compared: `oom_kill` of the cgroup's memory.events, which counts only
 * this cgroup's processes, and `oom_kill` of /proc/vmstat, which counts those of the whole system.
 * Both are read every second; each counted kill explains the end of one worker, for one minute.
 */

enum oom_verdict {
    OOM_NO,
    OOM_LIKELY,  /* the system counted a kill; it does not report of which process */
    OOM_CERTAIN, /* fsdpd's cgroup counted a kill; it contains only fsdpd and its workers */
};

struct oom_watch;

/* Starts to count kills. */
struct oom_watch *oom_watch_new(const struct coordinator_options *options);
void oom_watch_free(struct oom_watch *watch);
void oom_watch_tick(struct oom_watch *watch, int64_t now);

/* Call this when a worker was killed, but not by fsdpd: returns whether a counted kill explains
 * that. Each kill explains only one worker. */
enum oom_verdict oom_watch_claim(struct oom_watch *watch, int64_t now);

#endif
