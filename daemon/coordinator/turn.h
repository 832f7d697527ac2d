/*
 * The end of a turn: before the loop waits for the next event, the other parts learn which jobs
 * left their attempt or are over, the queue is placed if it has changed, and jobs that are over are
 * freed. Nothing else frees a job: during a turn every pointer to one stays valid.
 */
#ifndef FSDPD_COORDINATOR_TURN_H
#define FSDPD_COORDINATOR_TURN_H

#include "coordinator/core/internal.h"

/* For c->clients and c->users. */
extern const struct job_clients turn_clients;
extern const struct worker_users turn_users;

/* Calls turn_end at the end of each loop iteration from now on; close c->turn_end to stop that. */
void turn_begin(struct coordinator *c);

/* Ends the turn now. Only for a caller at the bottom of the stack, since it frees jobs. */
void turn_end(struct coordinator *c);

#endif
