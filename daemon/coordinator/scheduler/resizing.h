/*
 * Running elastic jobs that get other numbers of workers: fewer if a user asked for that, more if
 * workers are idle that no waiting job needs. The attempt takes a checkpoint at its next step
 * boundary and ends; the next one starts from it, in the same processes.
 */
#ifndef FSDPD_COORDINATOR_RESIZING_H
#define FSDPD_COORDINATOR_RESIZING_H

#include "coordinator/scheduler/queue.h"

/* Looks for a change of one running job, of which `fleet` has the workers left idle by the queue;
 * takes those that the job is going to use. */
void resizing_check(struct job *job, struct queue_fleet *fleet);

#endif
