/*
 * One attempt of a job on this worker: a training thread that sets up, joins the group, trains, and
 * answers orders at step boundaries. Functions run on the loop's thread.
 */
#ifndef FSDPD_WORKER_ATTEMPT_H
#define FSDPD_WORKER_ATTEMPT_H

#include "worker/link.h"

struct attempt;

/* `ended` is called on the loop's thread when the attempt's thread is done and everything has been
 * told to the coordinator; the callee then calls attempt_free. */
struct attempt *attempt_start(struct link *link, struct mailbox *mailbox,
                              const struct worker_options *options,
                              const Fsdpd__V1__Assignment *assignment, void (*ended)(void *user),
                              void *user);
void attempt_free(struct attempt *attempt);

/* Hands on an order; one for another attempt is ignored. */
void attempt_order(struct attempt *attempt, const Fsdpd__V1__Order *order);

/* Ends it soon without the agreement of the others; `ended` still follows. */
void attempt_abort(struct attempt *attempt, const char *why);

/* Whether it is this attempt of this job. */
bool attempt_is(const struct attempt *attempt, const char *job, uint32_t number);

/* What a coordinator must know to go on with it; in malloc'ed memory. */
void attempt_describe(struct attempt *attempt, Fsdpd__V1__HeldAttempt *held);

/* Of the last step, for heartbeats. */
uint64_t attempt_step(const struct attempt *attempt);

#endif
