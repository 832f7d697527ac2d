/*
 * Jobs that were submitted while no worker was attached: they are queued without a plan, or with
 * one for known devices, and planned when a worker comes. A job that cannot be planned then fails,
 * with the message that its submission would have been refused with.
 */
#ifndef FSDPD_COORDINATOR_UNPLANNED_H
#define FSDPD_COORDINATOR_UNPLANNED_H

#include "coordinator/jobs/jobs.h"

/* Whether the job has no plan of a worker yet. */
bool unplanned_is(const struct job *job);

/* Requests the plans of those that a worker can plan now. Only turn.c calls it. */
void unplanned_place(struct coordinator *c);

/* Plans of this job are no longer needed. */
void unplanned_job_over(struct job *job);

#endif
