/*
 * The orders of an attempt: numbered from 1, the same for every rank. They are kept for ranks whose
 * link broke before they had them, and held back while a rank is away: a rank that the coordinator
 * of before had told more than others hands that order in when it is back.
 */
#ifndef FSDPD_COORDINATOR_ORDERS_H
#define FSDPD_COORDINATOR_ORDERS_H

#include "coordinator/attempt.h"

/* Sends an order to all ranks of the attempt, now or when all are there. Copied. */
void orders_give(struct job *job, Fsdpd__V1__Order *order);

/* The rank's worker has said what orders it has: what others lack is sent to them, what it lacks to
 * it. */
void orders_compare(struct job *job, struct rank *rank, const Fsdpd__V1__HeldAttempt *held);

/* Every rank is there: gives what was held back. */
void orders_give_held(struct job *job);

/* The policy that the order with this number of a change was about, or NULL. */
const Fsdpd__V1__WrapSpec *orders_find_wrap(const struct job *job, uint64_t change);

/* Whether ranks were ordered to end at a step boundary. */
bool orders_have_cancel(const struct job *job);
/* The same, or to take a checkpoint and end. */
bool orders_have_end(const struct job *job);

void orders_clear(struct job *job);

#endif
