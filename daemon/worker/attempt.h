/*
 * One attempt of a job on this worker: a training thread that sets up, joins the group, trains, and
 * answers orders at step boundaries. Functions run on the loop's thread.
 */
#ifndef FSDPD_WORKER_ATTEMPT_H
#define FSDPD_WORKER_ATTEMPT_H

#include "worker/link.h"
#include "worker/spare.h"

struct worker_attempt;

/* `spare` is used until the attempt is freed. `ended` is called on the loop's thread when the
 * attempt's thread has finished and everything has been reported to the coordinator; the callee
 * then calls attempt_free. */
struct worker_attempt *attempt_start(struct link *link, struct mailbox *mailbox,
                                     const struct worker_options *options,
                                     const Fsdpd__V1__Assignment *assignment, struct spare *spare,
                                     void (*ended)(void *user), void *user);
void attempt_free(struct worker_attempt *attempt);

/* Hands on an order; one for another attempt is ignored. */
void attempt_order(struct worker_attempt *attempt, const Fsdpd__V1__Order *order);

/* Ends it soon without the agreement of the others; `ended` still follows. */
void attempt_abort(struct worker_attempt *attempt, const char *why);

/* Whether it is this attempt of this job. */
bool attempt_is(const struct worker_attempt *attempt, const char *job, uint32_t number);

/* The data that a coordinator needs to continue it; in malloc'ed memory. */
void attempt_describe(struct worker_attempt *attempt, Fsdpd__V1__HeldAttempt *held);

/* Describes what this rank does now, in malloc'ed memory, while its training runs or hangs: with
 * the stacks of the process's threads if asked for. Takes a second at most. */
Fsdpd__V1__RankDiagnosis *attempt_diagnose(struct worker_attempt *attempt, bool stacks);

/* Fills in the attempt's part of a heartbeat. */
void attempt_beat(struct worker_attempt *attempt, Fsdpd__V1__Heartbeat *heartbeat);

#endif
