/*
 * CreateCheckpoint, ListCheckpoints and PauseJob, and the ranks' reports about checkpoints. A
 * checkpoint that a user requests is an order to all ranks; rank 0 answers it when everything is on
 * the disk. A pause is such an order after which the attempt ends: the ranks report the pause
 * themselves, so no coordinator has to remember it.
 */
#ifndef FSDPD_COORDINATOR_CHECKPOINTS_H
#define FSDPD_COORDINATOR_CHECKPOINTS_H

#include "coordinator/jobs/jobs.h"
#include "coordinator/workers/workers.h"

/* The handlers of CreateCheckpoint, PauseJob and ListCheckpoints; the service is the coordinator.
 */
void checkpoints_create(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void checkpoints_pause(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void checkpoints_list(struct rpc_call *call, const ProtobufCMessage *request, void *service);

/*
 * Frees the job's workers: the job takes a checkpoint at its next step boundary, ends its attempt
 * and is queued again, to continue on other workers. `by` is the user who requested it; `why` goes
 * into the record. A job that cannot save, or that was already asked to vacate, ends without a
 * checkpoint and is retried as after a machine failure.
 */
void checkpoints_vacate(struct job *job, const char *by, const char *why);

/*
 * Does the same for a waiting job of higher priority: the job is then QUEUED with the reason
 * PREEMPTED. It must be able to take a checkpoint; if that fails, it trains on. Does nothing if the
 * attempt is ending already.
 */
void checkpoints_preempt(struct job *job, const char *why);

/* After a coordinator restart: repeats the order for the checkpoint that ends the attempt, as it
 * may not have reached all ranks. */
void checkpoints_resume(struct job *job);

/* Handles rank 0's report on a checkpoint. */
void checkpoints_report(struct job *job, const Fsdpd__V1__CheckpointReport *report);

/* Orders the waiting checkpoints if the job can take an order now. */
void checkpoints_advance(struct job *job);

#endif
