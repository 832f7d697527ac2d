/*
 * Local workers: child processes, one per slot, started with the program's `worker` role and
 * started again, with growing pauses, when they die. Their stderr is the daemon's. They are not in
 * its process group, so that Ctrl-C reaches the coordinator alone, which then ends them in order.
 * When the coordinator dies, those that do nothing leave by themselves, and those that train go on:
 * the next coordinator takes them over (see adopted.h).
 */
#ifndef FSDPD_COORDINATOR_SUPERVISOR_H
#define FSDPD_COORDINATOR_SUPERVISOR_H

#include "coordinator/internal.h"

/* Takes over what a coordinator of before left, and starts what is missing of
 * options.local_workers. */
void supervisor_start(struct coordinator *c);

/* Whether a local worker has this id. */
bool supervisor_has_slot(const struct coordinator *c, const char *id);

/* Whether a local worker has this id and pid. */
bool supervisor_has_child(const struct coordinator *c, const char *id, int64_t pid);

/* How many workers are to attach, as supervisor_each_starting visits them. */
int supervisor_starting(struct coordinator *c);

/* Every local worker, whether it runs or not. */
void supervisor_each_slot(const struct coordinator *c,
                          void (*visit)(void *user, const char *id, uint32_t restarts), void *user);

void supervisor_kill(struct coordinator *c, int64_t pid);

/* How often the worker with this id was started again; 0 for others. */
uint32_t supervisor_restarts(const struct coordinator *c, const char *id);

/* Calls `visit` for each slot whose worker is not attached, unless none will be: those that are too
 * many are not replaced. `pid` is 0 while it has no process. */
void supervisor_each_starting(struct coordinator *c,
                              void (*visit)(void *user, const char *id, int64_t pid,
                                            uint32_t restarts),
                              void *user);

void supervisor_tick(struct coordinator *c);

/* Starts no more; asks all to leave (Drain, SIGTERM for those without a link), kills the rest
 * later. coordinator_supervisor_gone is called when none is left. */
void supervisor_stop(struct coordinator *c);

/* SIGKILL for all, now. */
void supervisor_kill_all(struct coordinator *c);
void supervisor_free(struct coordinator *c);

#endif
