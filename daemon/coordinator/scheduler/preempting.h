/*
 * Preemption: running jobs that give all their workers to a waiting job of higher priority. A
 * preempted job takes a checkpoint at its next step boundary and is QUEUED with the reason
 * PREEMPTED; its history is the durable record of that.
 */
#ifndef FSDPD_COORDINATOR_PREEMPTING_H
#define FSDPD_COORDINATOR_PREEMPTING_H

#include "coordinator/jobs/jobs.h"

struct preempting_victim {
    struct job *job; /* for the caller */
    int priority;
    int64_t lost_ms; /* that it has trained since its last checkpoint or its start */
    int workers;     /* that it has; they become free */
};

/*
 * Moves the victims that free at least `workers` to the front, and returns their number; 0: all
 * together do not. Those of the lowest priority come first, of equals those that lose least time;
 * of these, none is taken without which the others suffice. Pure.
 */
int preempting_choose(struct preempting_victim *victims, int count, int workers);

/* The jobs that may be preempted for `waiting`; the caller frees the array. */
struct preempting_victim *preempting_find(const struct job *waiting, int *count);

/* Whether the victims' workers and the idle ones have enough that can reach each other. */
bool preempting_is_enough(struct job *waiting, const struct preempting_victim *victims, int count);

/* Orders the victim to leave. */
void preempting_begin(const struct preempting_victim *victim, const struct job *waiting);

/* Whether both want the same kind of device. */
bool preempting_is_same_kind(const struct job *job, const struct job *other);

/* After a restart: reads from the jobs' histories whether and when they were preempted. */
status_t preempting_recover(struct coordinator *c) FSDPD_MUST_USE;

#endif
