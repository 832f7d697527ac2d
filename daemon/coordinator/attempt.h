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
    RANK_AWAY,     /* its link closed: it may come back, or its exit status may come */
    RANK_LOST,     /* `message` says how */
};

struct rank {
    struct worker *worker; /* NULL once it has finished or is lost */
    char *worker_id;
    int64_t pid;
    enum rank_state state;
    uint64_t plan_hash;
    int code;         /* FINISHED: gRPC's; 0: well */
    char *reason;     /* FINISHED badly: machine-readable */
    char *message;    /* FINISHED badly, AWAY, LOST */
    int failure;      /* the how manieth of the attempt's failures, from 1 */
    bool stopped;     /* was ordered to stop at once */
    bool cut_off;     /* did not, and was killed for it: its end is a consequence */
    int64_t leave_by; /* AWAY: lost then */
    bool since_start; /* AWAY since the coordinator began; its message says all */
    uint64_t orders;  /* as many has its worker been sent */
    uint64_t report;  /* its last report that was taken */
};

/* QUEUED → STARTING on exactly spec.workers idle workers; the array gives the ranks. */
void attempt_begin(struct job *job, struct worker **workers);

/* A rank's report. Reports of attempts that are over only free the worker. */
void attempt_event(struct worker *worker, const Fsdpd__V1__AttemptEvent *event);

/*
 * worker_lose calls this. With `certain` false the rank is only away: its worker may attach again,
 * and the ranks go on meanwhile.
 */
void attempt_worker_lost(struct worker *worker, const char *how, bool certain);

/* The exit of a local worker that is not attached. */
void attempt_process_exited(struct coordinator *c, const char *worker_id, int64_t pid,
                            const char *how);

/* Ends the attempt at a step boundary: this user's wish. */
void attempt_cancel(struct job *job, const char *by);

/* Ends the attempt at a step boundary with a checkpoint, if the job can have one, as the daemon ends:
 * the job is QUEUED for the next start. */
void attempt_shut_down(struct job *job, const char *why);

/* That checkpoint could not be taken: the attempt ends without. */
void attempt_not_saved(struct job *job);

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

/* The rank of the job's running attempt, if that is its number, on this worker; else NULL. */
struct rank *attempt_find_rank(const struct job *job, uint32_t attempt, const char *worker_id);
bool attempt_rank_has_ended(const struct rank *rank);

/* The rank is lost for certain; `how` completes "rank 1 (host/cpu:1) ...". The job may be over, and
 * freed, after this. */
void attempt_lose_rank(struct job *job, struct rank *rank, const char *how);

/* A rank failed: the others cannot go on without it, and are ordered to stop at once. The verdict
 * follows when all have ended, or soon. */
void attempt_begin_ending(struct job *job, struct rank *rank);

/* The same again for a rank that is back: whoever still runs is ordered to stop at once, unless he
 * was. */
void attempt_stop_rest(struct job *job);

/* STARTING → RUNNING, if all ranks have started on the same plan. */
void attempt_check_started(struct job *job);

/* Tells rank 0 which of its reports are on the disk. */
void attempt_acknowledge(struct job *job);

/* Says that we live, and what the worker need not keep. */
void attempt_answer_heartbeat(struct worker *worker);

/* All ranks' workers may forget the attempt: it is over, and the store knows. */
void attempt_release(struct job *job);

/* Whether its ranks share devices, and so talk through host memory. */
bool attempt_is_staged(const struct job *job);

/* Whether a rank runs on a worker that this coordinator supervises. */
bool attempt_is_local(const struct job *job);

/* For orders.c: one order to one rank, which has a worker. */
void attempt_send_order(struct job *job, struct rank *rank, const Fsdpd__V1__Order *order);

/* "<job>/<attempt>", the name of its rendezvous store; the caller frees it. */
char *attempt_store_name(const job_message *message);

/* The final state_dict has arrived, or its upload broke off: the verdict may be due. */
void attempt_check(struct job *job);

/* Deadlines. The job may be over, and freed, after this. */
void attempt_tick(struct job *job, int64_t now);

/* Lets go of the ranks, ordering those that still run to stop at once; jobs.c calls this. */
void attempt_end(struct job *job);
void attempt_clear(struct job *job);

#endif
