/*
 * The orders of an attempt: numbered from 1, the same for every rank. They are kept for ranks whose
 * link broke before they received them, and held back while a rank is away: a rank may have
 * received an order from the previous coordinator that other ranks lack, and reports it when it is
 * back.
 */
#ifndef FSDPD_COORDINATOR_ORDERS_H
#define FSDPD_COORDINATOR_ORDERS_H

#include "coordinator/jobs/attempt.h"

/* Sends an order of that kind to all ranks of the attempt, now or when all are attached. Copies its
 * body. */
void orders_give(struct job *job, Fsdpd__V1__Order__OrderCase kind, const void *body);

/* The rank's worker has reported which orders it has: sends the others what they lack, and this
 * rank what it lacks. */
void orders_compare(struct job *job, struct rank *rank, const Fsdpd__V1__HeldAttempt *held);

/* All ranks are attached: sends the orders that were held back. */
void orders_give_held(struct job *job);

/* The policy in the order with this change number, or NULL. */
const Fsdpd__V1__WrapSpec *orders_find_wrap(const struct job *job, uint64_t change);

/* Whether ranks were ordered to end at a step boundary. */
bool orders_have_cancel(const struct job *job);
/* Whether ranks were ordered to end at a step boundary, or to take a checkpoint and end. */
bool orders_have_end(const struct job *job);

#endif
