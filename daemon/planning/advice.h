/* Alternatives to a plan that would be faster or smaller, or would fit; see advice.c. Internal to
 * this room. */
#ifndef FSDPD_PLANNING_ADVICE_H
#define FSDPD_PLANNING_ADVICE_H

#include "base/buf.h"
#include "planning/message.h"

struct advisor {
    const struct train_job *job;
    struct device *device;
    const struct profile *profile;
    uint64_t memory_bytes;      /* of a device */
    uint64_t host_memory_bytes; /* of a host; 0: unknown */
    int host_workers;           /* on a host, at least 1 */
    int tries;                  /* number of plans that may still be made */
};

/* RESOURCE_EXHAUSTED if the plan of the job's session does not fit the device, or its ranks a host.
 */
status_t advisor_check_fits(const struct advisor *advisor, const struct train_job *job,
                            const struct train_session *session) FSDPD_MUST_USE;

/* The most ranks of a job on one host. */
int advisor_host_ranks(const struct advisor *advisor, const struct train_job *job);

/* The number of alternatives that may be planned for a plan with that many instructions. */
int advice_tries(int instruction_count);

/* Adds advice to the message of the session's plan. */
void advice_add(struct advisor *advisor, const struct train_session *session,
                Fsdpd__V1__Plan *message);

/* For a job that does not fit: "; it would fit with ..." appended to `out`. */
void advice_what_fits(struct advisor *advisor, struct buf *out);

/* ---- trials.c ---- */

/* The units that a job with fsdp.tune tries in its first steps. Internal to this room. */

/*
 * Adds to the plan's message what the advisor's job will try, and for how long: its own units, then
 * the most promising others that fit. Nothing but a note if there is nothing to try.
 */
status_t trials_add(struct advisor *advisor, Fsdpd__V1__Plan *message) FSDPD_MUST_USE;

/* ---- choose.c ---- */

/* A job's settings, chosen for a device's memory and rates; see planning.h. Internal to this room.
 */

struct chosen;

/*
 * Chooses settings for the advisor's job. RESOURCE_EXHAUSTED if none fit; the message says what the
 * most frugal ones need, and for what.
 */
status_t choose(struct advisor *advisor, struct chosen **chosen) FSDPD_MUST_USE;
void chosen_free(struct chosen *chosen); /* accepts NULL */

/* The job with these settings; it borrows from `chosen` and from the advisor's job. */
const struct train_job *chosen_job(const struct chosen *chosen);

/* Adds the choice, the next best ones, and what limits the step to the plan's message. */
void chosen_add(const struct chosen *chosen, Fsdpd__V1__Plan *message);

#endif
