/*
 * Running elastic jobs that get other numbers of workers: fewer if a user asked for that, or for a
 * waiting job of higher priority; more if workers are idle that no waiting job needs. The attempt
 * ends at its next step boundary, and leaves its state in memory (jobs/handover.h) or in a
 * checkpoint to the next one, in the same processes.
 */
#ifndef FSDPD_COORDINATOR_RESIZING_H
#define FSDPD_COORDINATOR_RESIZING_H

#include "coordinator/scheduler/queue.h"

/* Looks for a change of one running job, of which `fleet` has the workers left idle by the queue;
 * takes those that the job is going to use. */
void resizing_check(struct job *job, struct queue_fleet *fleet);

/* Looks for a change of running jobs of lower priority, if the options allow that: so that
 * `workers` of them become free for `waiting`, the next one in the queue of its kind. Elastic jobs
 * shrink, and if that is not enough, jobs are preempted. Does nothing if that is not possible, or
 * will happen anyway. */
void resizing_make_room(struct job *waiting, int workers);

#endif
