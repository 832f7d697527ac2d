/*
 * Attempts that outlive their coordinator, and links that break under a running attempt: what the
 * store says runs, and what workers say that they run, made one again.
 */
#ifndef FSDPD_COORDINATOR_REATTACH_H
#define FSDPD_COORDINATOR_REATTACH_H

#include "coordinator/attempt.h"

/* A job that was STARTING or RUNNING when the coordinator of before ended: its ranks are away, and
 * have limits.reattach_ms to come back. False if the record does not say who they are. */
bool reattach_job(struct job *job);

/* A worker that has just been added says what it was doing: attempts that go on are taken back,
 * others released, and ranks that it should have run and does not are lost. */
void reattach_worker(struct worker *worker, const Fsdpd__V1__Hello *hello);

/* Whether a job waits for workers that this worker's id stands for, or one of the attempts in its
 * hello is known: then it is taken back although its fsdpd is of another version. */
bool reattach_is_wanted(struct coordinator *c, const Fsdpd__V1__Hello *hello);

/* Tells the worker that it need not keep anything of the attempt. */
void reattach_release(struct worker *worker, const char *job, uint32_t attempt);

#endif
