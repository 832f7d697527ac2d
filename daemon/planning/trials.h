/* The units that a job with fsdp.tune tries in its first steps. Internal to this room. */
#ifndef FSDPD_PLANNING_TRIALS_H
#define FSDPD_PLANNING_TRIALS_H

#include "planning/advice.h"

/*
 * Adds to the plan's message what the advisor's job will try, and for how long: its own units, then
 * the most promising others that fit. Nothing but a note if there is nothing to try.
 */
status_t trials_add(struct advisor *advisor, Fsdpd__V1__Plan *message) FSDPD_MUST_USE;

#endif
