/* A job's settings, chosen for a device's memory and rates; see planning.h. Internal to this room.
 */
#ifndef FSDPD_PLANNING_CHOOSE_H
#define FSDPD_PLANNING_CHOOSE_H

#include "planning/advice.h"

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
