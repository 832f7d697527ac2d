/* The weights of other jobs that a job begins with (JobWeights). */
#ifndef FSDPD_WORKER_JOB_FROM_H
#define FSDPD_WORKER_JOB_FROM_H

#include "worker/job_message.h"
#include "worker/link.h"

/* Compares names and shapes of the parameters, from the models' texts alone: the first that differ
 * are INVALID_ARGUMENT, with the key. */
status_t job_from_check(const struct job_settings *settings) FSDPD_MUST_USE;

/* Finds the files of an attempt, or reads them through the coordinator into files that live as long
 * as the settings. Not on the loop's thread. */
status_t job_from_find(struct job_settings *settings, const Fsdpd__V1__Assignment *assignment,
                       struct link *link, struct gate *gate) FSDPD_MUST_USE;
void job_from_deinit(struct job_settings *settings); /* before job_settings_deinit */

#endif
