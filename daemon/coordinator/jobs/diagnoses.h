/*
 * Diagnoses of running attempts: every rank is asked what it does, and blame.c judges. Clients ask
 * for one; and before a wait in a group, or the silence of a worker, reaches its deadline, one is
 * taken and kept, for the history of an attempt that ends by that.
 */
#ifndef FSDPD_COORDINATOR_DIAGNOSES_H
#define FSDPD_COORDINATOR_DIAGNOSES_H

#include "coordinator/jobs/attempt.h"

/* Asks the job's ranks, unless that is under way; clients->diagnosed follows in any case, if the
 * attempt does not end before. The job is in an attempt. */
void diagnoses_ask(struct job *job, bool stacks);

/* A rank's answer. Takes `report`'s content. */
void diagnoses_answer(struct worker *worker, Fsdpd__V1__DiagnosisReport *report);

/* Concludes what is due, and asks where a deadline is near. */
void diagnoses_tick(struct job *job, int64_t now);

/* The last diagnosis of the attempt, if its step has not changed since; else NULL. */
const Fsdpd__V1__Diagnosis *diagnoses_current(const struct job *job);

#endif
