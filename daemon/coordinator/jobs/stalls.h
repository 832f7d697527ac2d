/*
 * Jobs whose step does not advance: since when, and which ranks the others wait for, according to
 * the ranks' heartbeats.
 */
#ifndef FSDPD_COORDINATOR_STALLS_H
#define FSDPD_COORDINATOR_STALLS_H

#include "coordinator/jobs/attempt.h"

/* Records a rank's heartbeat. */
void stalls_heartbeat(struct job *job, struct rank *rank, const Fsdpd__V1__Heartbeat *heartbeat);

/* Sets the reason STALLED for a job whose step has not advanced for longer than ten usual steps and
 * five heartbeats or, before the attempt's first step is done, sixty heartbeats; restores the old
 * reason when it advances again. A batch of an evaluation counts as a step. Not while the job ends
 * or waits for ranks to attach again. */
void stalls_tick(struct job *job, int64_t now);

/* Usual duration of a step of the running attempt; 0: not known. */
double stalls_usual_ms(const struct job *job);

/* Seconds since the job's step last changed, or since its last batch of an evaluation if that is
 * later; before the attempt's first step, since it entered its state. */
double stalls_quiet_seconds(const struct job *job);

/* Seconds since the job's step last changed; NAN: the job does not train. */
double stalls_age_seconds(const struct job *job);

#endif
