/*
 * One run of a job on a group of workers: assignment, the ranks' reports, orders to all of them,
 * and the verdict when all have ended (or enough is known). The fields are in struct job.
 */
#ifndef FSDPD_COORDINATOR_ATTEMPT_H
#define FSDPD_COORDINATOR_ATTEMPT_H

#include "coordinator/jobs.h"
#include "coordinator/workers.h"

enum rank_state {
    RANK_ASSIGNED,
    RANK_STARTED,  /* its plan is built */
    RANK_FINISHED, /* it said how it ended */
    RANK_LEAVING,  /* its link closed; the exit status of the process may still come */
    RANK_LOST,     /* `message` says how */
};

struct rank {
    struct worker *worker; /* NULL once it has finished or is lost */
    char *worker_id;
    int64_t pid;
    enum rank_state state;
    uint64_t plan_hash;
    int code;      /* FINISHED: gRPC's; 0: well */
    char *reason;  /* FINISHED badly: machine-readable */
    char *message; /* FINISHED badly, LEAVING, LOST */
    int failure;   /* the how manieth of the attempt's failures, from 1 */
    bool stopped;  /* was ordered to stop at once */
    bool cut_off;  /* did not, and was killed for it: its end is a consequence */
    int64_t leave_by;
};

/* QUEUED → STARTING on exactly spec.workers idle workers; the array gives the ranks. */
void attempt_begin(struct job *job, struct worker **workers);

/* A rank's report. Reports of attempts that are over only free the worker. */
void attempt_event(struct worker *worker, const Fsdpd__V1__AttemptEvent *event);

/* worker_lose calls this. With `certain` false, RANK_LEAVING comes first. */
void attempt_worker_lost(struct worker *worker, const char *how, bool certain);

/* The exit of a child that was a worker. */
void attempt_process_exited(struct coordinator *c, int64_t pid, const char *how);

/* Ends the attempt at a step boundary; `cancelled` by a user, else by the end of the daemon. */
void attempt_cancel(struct job *job, bool cancelled, const char *message);

/* The same, and the attempt has then failed for this reason: the job, too, or with `machine` what it
 * runs on, so that it may be tried again. `code` is static. An attempt that is being ended already
 * keeps its reason. */
void attempt_stop(struct job *job, const char *code, bool machine, const char *why);

void attempt_order_pull(struct job *job, uint64_t pull);
void attempt_order_trace(struct job *job, uint64_t trace, uint32_t steps);

/* `pause`: if it can be taken, all ranks end with the reason "PAUSED". */
void attempt_order_checkpoint(struct job *job, uint64_t number, bool pause);

/* Other units for all ranks; returns the number that rank 0's report will have. */
uint64_t attempt_order_wrap(struct job *job, const Fsdpd__V1__WrapSpec *wrap);

/* The final state_dict has arrived, or its upload broke off: the verdict may be due. */
void attempt_check(struct job *job);

/* Deadlines. The job may be over, and freed, after this. */
void attempt_tick(struct job *job, int64_t now);

/* Lets go of the ranks, ordering those that still run to stop at once; jobs.c calls this. */
void attempt_end(struct job *job);
void attempt_clear(struct job *job);

#endif
