/*
 * Fair share: of jobs of equal priority, those come first whose user has used the least. A user's
 * usage is the time of all the workers that its jobs had, and decays exponentially. The store keeps
 * it; after a crash at most the last seconds are missing.
 */
#ifndef FSDPD_COORDINATOR_FAIR_SHARE_H
#define FSDPD_COORDINATOR_FAIR_SHARE_H

#include "coordinator/core/internal.h"

/* The usage after `ms` in which `workers` were busy all the time. Old usage halves in each
 * `half_life` (ms, above 0), and new usage decays from the moment at which it arises. Pure. */
double fair_share_use(double usage, int workers, double ms, double half_life);

/* Brings the users' usage up to now. Does nothing if there is no fair share. */
void fair_share_advance(struct coordinator *c);

/* Notes the workers that each user has from now on. */
void fair_share_note_busy(struct coordinator *c);

/* Saves the usage every few seconds; fair_share_save at once. */
void fair_share_tick(struct coordinator *c);
void fair_share_save(struct coordinator *c);

#endif
