/* Room on the disks of the state directory: it must hold what jobs will write. */
#ifndef FSDPD_COORDINATOR_ROOM_H
#define FSDPD_COORDINATOR_ROOM_H

#include "coordinator/core/internal.h"

/*
 * Checks that the store and the jobs' directory have room for what this job will write, in addition
 * to what the jobs accepted before it have yet to write. RESOURCE_EXHAUSTED names the directory,
 * the bytes needed, and the bytes free.
 */
status_t room_check(struct coordinator *c, const job_spec *spec, const Fsdpd__V1__Plan *plan,
                    uint64_t steps) FSDPD_MUST_USE;

/* The bytes that a job with these settings writes there at most. */
double room_needed(const job_spec *spec, const Fsdpd__V1__Plan *plan, uint64_t steps);

/* RESOURCE_EXHAUSTED with the reason if no new jobs are accepted at all, else NULL. */
status_t room_refusal(const struct coordinator *c) FSDPD_MUST_USE;

#endif
