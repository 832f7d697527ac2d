/*
 * CreateCheckpoint, ListCheckpoints, PauseJob and ResumeJob; what ranks report of checkpoints; and
 * where an attempt finds its own. A checkpoint that a user asks for is an order to all ranks, which
 * rank 0 answers when everything is on the disk. A pause is such an order, after which the attempt
 * ends: its ranks say so themselves, so that no coordinator has to remember it.
 */
#ifndef FSDPD_COORDINATOR_CHECKPOINTS_H
#define FSDPD_COORDINATOR_CHECKPOINTS_H

#include "coordinator/jobs.h"
#include "coordinator/workers.h"

struct checkpoint_call;

/* `pause`: the call is PauseJob's, answered with the job. */
void checkpoints_create(struct rpc_call *call, const char *id, bool pause, struct coordinator *c);
void checkpoints_closed(struct coordinator *c, struct rpc_call *call);
void checkpoints_list(struct rpc_call *call, const char *id, struct coordinator *c);
void checkpoints_resume(struct rpc_call *call, const char *id, struct coordinator *c);

/*
 * The job's workers are needed back: it takes a checkpoint at its next step boundary, ends its
 * attempt and is queued again, to go on elsewhere. `by` is the user who wants it, `why` is for the
 * record. What cannot be saved, or was asked before, ends without a checkpoint and is tried again
 * as after a failure of the machine.
 */
void checkpoints_vacate(struct job *job, const char *by, const char *why);

/* After a restart of the coordinator: orders again the checkpoint after which the job was to end,
 * as it may not have reached all ranks. */
void checkpoints_go_on(struct job *job);

/* Rank 0 says how it went. */
void checkpoints_report(struct job *job, const Fsdpd__V1__CheckpointReport *report);

/* Orders what waits, if the job can take an order now. */
void checkpoints_advance(struct job *job);

/* The attempt is over, the job in the state that came of it: what waits is answered. */
void checkpoints_attempt_over(struct job *job);

/* What an assignment of the job's next attempt says of checkpoints; the caller frees the two texts.
 * For workers of other hosts the folder is "", unless the spec names one. */
struct checkpoint_place {
    char *folder, *run;
    bool resume, must_resume;
};
status_t checkpoints_find_place(const struct job *job, struct worker *const *workers, int count,
                                struct checkpoint_place *place) FSDPD_MUST_USE;

/* The error if the job's settings want checkpoints that these workers could not share. */
status_t checkpoints_check_workers(const struct job *job, struct worker *const *workers,
                                   int count) FSDPD_MUST_USE;

#endif
