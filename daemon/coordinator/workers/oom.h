/*
 * Determines whether the kernel's OOM killer ended a local worker. A parent sees only SIGKILL, so
 * the kernel's counters are compared: `oom_kill` of the cgroup's memory.events, which counts only
 * this cgroup's processes, and `oom_kill` of /proc/vmstat, which counts those of the whole system.
 * Both are read every second; each counted kill explains the end of one worker, for one minute.
 */
#ifndef FSDPD_COORDINATOR_OOM_H
#define FSDPD_COORDINATOR_OOM_H

#include "coordinator/core/internal.h"

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
