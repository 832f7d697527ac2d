/*
 * Diagnoses of running attempts: every rank is asked what it does, and blame.c judges. Clients ask
 * for one; and before a wait in a group, or the silence of a worker, reaches its deadline, one is
 * taken and kept, for the history of an attempt that ends by that.
 */
#ifndef FSDPD_COORDINATOR_DIAGNOSES_H
#define FSDPD_COORDINATOR_DIAGNOSES_H

#include "coordinator/jobs/attempt.h"
#include "coordinator/store/message.h"

/* Asks the job's ranks, unless that is under way; clients->diagnosed follows in any case, if the
 * attempt does not end before. The job is in an attempt. */
void diagnoses_ask(struct job *job, bool stacks);

/* A rank's answer. Takes `report`'s content. */
void diagnoses_answer(struct worker *worker, Fsdpd__V1__DiagnosisReport *report);

/* Concludes what is due, and asks where a deadline is near. */
void diagnoses_tick(struct job *job, int64_t now);

/* The last diagnosis of the attempt, if its step has not changed since; else NULL. */
const Fsdpd__V1__Diagnosis *diagnoses_current(const struct job *job);

/* ---- blame.c ---- */

/*
 * Who is to blame for a job that hangs or is slow: a verdict of one sentence from what its ranks
 * say and what is known of those that say nothing. Pure: it reads and writes only the message.
 */

/* A rank that takes this many times as long as the median rank is called slow. */
#define BLAME_SLOWDOWN 1.5

/* Sets the verdict, the cause and the ranks to blame; everything else is there already. */
void blame(Fsdpd__V1__Diagnosis *diagnosis);

/* ---- stalls.c ---- */

/*
 * Jobs whose step does not advance: since when, and which ranks the others wait for, according to
 * the ranks' heartbeats.
 */

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

/* ---- stragglers.c ---- */

/*
 * Ranks that are slower than the others. Ranks run in step, so a slow one slows them all down. What
 * counts is a rank's own time, without its waits for the others, which every heartbeat has.
 */

/*
 * After a rank's heartbeat. Once all ranks have done at least 50 steps, and five heartbeats have
 * passed, compares their times with the median (of an even number, the lower one of the two in the
 * middle). A rank that takes 1.5 times as long is slow until it takes less than 1.3 times as long;
 * the job's message has those ranks, and an event is recorded of each change.
 */
void stragglers_heartbeat(struct job *job);

#endif
