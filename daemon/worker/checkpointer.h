/*
 * Checkpoints while training continues: captures are taken on the training thread and written, one
 * after the other, by a thread of their own with a communicator of its own, which is made for the
 * first one. At most one is being written: the next one waits for it, so that memory is bounded.
 */
#ifndef FSDPD_WORKER_CHECKPOINTER_H
#define FSDPD_WORKER_CHECKPOINTER_H

#include "checkpoint/capture.h"
#include "worker/side_group.h"

struct checkpointer;

/* `context` as a pull has it, which must outlive the checkpointer, as must the texts. `folder`,
 * `root`, `keep`: as in capture_target. Removes what earlier attempts left half done: on every
 * rank, as the folder may not be the same one for all; before training has begun on this rank, so
 * that nothing is being written yet on any. */
status_t checkpointer_new(const struct side_context *context, const char *root, const char *folder,
                          uint32_t keep, struct checkpointer **checkpointer) FSDPD_MUST_USE;

/* Waits until the one before is done, then has `take` make a capture and takes ownership of it: no
 * two of them are in memory at a time. `number`: of the order, 0 for none; rank 0 reports under it.
 * ABORTED if there will be no more. Training thread. */
status_t checkpointer_add(struct checkpointer *checkpointer, uint64_t number,
                          struct capture *(*take)(void *user), void *user) FSDPD_MUST_USE;

/* The same for the job's last step: if it fails for a temporary reason, the report says that it
 * will be repeated. */
status_t checkpointer_add_last(struct checkpointer *checkpointer,
                               struct capture *(*take)(void *user), void *user) FSDPD_MUST_USE;

/* Waits until all added checkpoints are done. *outcome, owned by the caller, is that of the last
 * one, the same on every rank. ABORTED if there will be no more. */
status_t checkpointer_wait(struct checkpointer *checkpointer, status_t *outcome) FSDPD_MUST_USE;

/* Ends the current checkpoint soon, and refuses further ones. From any thread, until
 * checkpointer_free. */
void checkpointer_abort(struct checkpointer *checkpointer, const char *why);

/* Waits until everything is done and the thread has ended. Accepts NULL. */
void checkpointer_finish(struct checkpointer *checkpointer);
/* After checkpointer_finish, when no thread can reach it any more. Accepts NULL. */
void checkpointer_free(struct checkpointer *checkpointer);

/* Notes that it is the best one of its run (checkpoint.best), by this value. */
void checkpointer_mark_best(Fsdpd__V1__Checkpoint *checkpoint, double value);

/* Sends the coordinator a report, and takes ownership of it. Rank 0, any thread. */
void checkpointer_post(const struct side_context *context, Fsdpd__V1__CheckpointReport *report);

/* Reports to the coordinator that there is no checkpoint. Rank 0, any thread. */
void checkpointer_refuse(const struct side_context *context, uint64_t number, uint64_t step,
                         status_t status);

#endif
