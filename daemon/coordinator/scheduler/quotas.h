/* Quotas of users: the workers that their running jobs have, and the bytes that their jobs keep. */
#ifndef FSDPD_COORDINATOR_QUOTAS_H
#define FSDPD_COORDINATOR_QUOTAS_H

#include "coordinator/jobs/jobs.h"
#include "coordinator/jobs/owners.h"

/* Sets what each user has left: the one place that counts. What a decision gives out is taken off
 * by the caller. A number below 0: the quota was lowered while jobs ran. */
void quotas_count(struct coordinator *c);

/* INVALID_ARGUMENT, at this field, if one job may not have that many workers. */
status_t quotas_check_count(const struct coordinator *c, const char *field,
                            uint32_t workers) FSDPD_MUST_USE;

/* The same if a job with these settings could never start. */
status_t quotas_check_workers(const struct coordinator *c, const job_spec *spec) FSDPD_MUST_USE;

/* A job that is submitted, or resumed with other settings. */
struct quotas_job {
    const char *id; /* "": it does not exist yet */
    const char *owner;
    const job_spec *spec;
    const Fsdpd__V1__Plan *plan;
    uint64_t steps;
    double others; /* the bytes of the user's jobs that are made together with it */
};

/* RESOURCE_EXHAUSTED with the figures if the user's jobs would keep too many bytes: what those that
 * are over keep, and what the others will have written at most. */
status_t quotas_check_kept(struct coordinator *c, const struct quotas_job *job) FSDPD_MUST_USE;

#endif
