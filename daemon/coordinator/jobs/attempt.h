/*
 * One run of a job on a group of workers: the assignment, the ranks' reports, orders to all of
 * them, and the verdict when all have ended (or enough is known).
 */
#ifndef FSDPD_COORDINATOR_ATTEMPT_H
#define FSDPD_COORDINATOR_ATTEMPT_H

#include "coordinator/jobs/jobs.h"
#include "coordinator/workers/workers.h"

enum rank_state {
    RANK_ASSIGNED,
    RANK_STARTED,  /* it has built its plan */
    RANK_FINISHED, /* it has reported how it ended */
    RANK_AWAY,     /* its link closed: it may attach again, or its exit status may arrive */
    RANK_LOST,     /* `message` says how */
};

struct rank {
    struct worker *worker; /* NULL once it has finished or is lost */
    char *worker_id;
    int64_t pid;
    enum rank_state state;
    uint64_t plan_hash;
    int code;         /* FINISHED: gRPC status code; 0: success */
    bool lacks;       /* FINISHED with an error: see status_lacks */
    char *reason;     /* FINISHED with an error: machine-readable */
    char *message;    /* FINISHED with an error or early, AWAY, LOST */
    int failure;      /* order among this attempt's failures, from 1; 0: none */
    bool stopped;     /* it was ordered to stop at once */
    bool cut_off;     /* it did not stop and was killed for it: its end is a consequence */
    int64_t leave_by; /* AWAY: when it counts as lost */
    int64_t show_at;  /* AWAY: when the job's reason starts to name it; 0: it already does */
    bool since_start; /* AWAY since the coordinator started; its message is complete */
    uint64_t orders;  /* number of the last order sent to its worker */
    uint64_t report;  /* number of its last accepted report */

    /* From its last heartbeat. */
    int64_t heard_at;
    uint64_t step, collectives;
    bool waits, evaluates;
    uint64_t evaluated_batch; /* as in the heartbeat */
    uint64_t own_us;        /* time that it has taken itself for its steps; see diagnoses.h */
    int64_t collectives_at; /* when it was first heard to wait in this one; 0: it does not */
};

/* Orders of the running attempt; see orders.h. */
struct order_log {
    Fsdpd__V1__Order **kept; /* the most recent ones, by number */
    int count, capacity;
    uint64_t last;           /* number of the last order */
    Fsdpd__V1__Order **held; /* to be sent when all ranks are attached */
    int held_count, held_capacity;
};

/* Progress of a running job's step; see diagnoses.h. */
struct stall {
    uint64_t step;
    int64_t step_at; /* when it last changed; 0: not observed yet */
    int64_t since;   /* `step_at`, or the last batch of an evaluation if that is later */
    double usual_ms; /* usual duration of a step; 0: not known yet */
    int steps_seen;  /* number of changes of the step */
    char *before;    /* STALLED: the reason's previous message */
};

/* What the ranks do, by their own account; see diagnoses.h. */
struct diagnosing {
    uint64_t number;                    /* of the latest order */
    bool stacks;                        /* it asked for them */
    int64_t due;                        /* when it ends without the answers that are missing */
    Fsdpd__V1__RankDiagnosis **answers; /* by rank; NULL unless it is under way */
    Fsdpd__V1__Diagnosis *kept;         /* the last one; NULL: none yet */
    int64_t kept_at;
};

/* A rank's own time for its steps, over a number of them; see diagnoses.h. */
struct rank_pace {
    uint64_t from_us, from_step; /* where the steps that are being measured begin */
    double step_seconds;         /* of the last ones that were; 0: none yet */
    double slowdown;             /* of those, of the median rank's time */
    bool slow;                   /* it has been called slow, and has not recovered since */
};

/* The attempt of a job that is STARTING or RUNNING. */
struct attempt {
    struct rank *ranks; /* `world` of them */
    int world;

    /* Used by attempt.c and attempt_reports.c. */
    bool begun;           /* a rank trains or has trained */
    bool ending;          /* a rank failed */
    int failures;         /* number of failed ranks, which gives their order */
    int64_t settle_at;    /* when the verdict is due */
    char *started_text;   /* message of RUNNING; NULL until rank 0 has started */
    uint64_t report;      /* rank 0's last recorded report */
    uint64_t report_kept; /* rank 0's last report that is on disk */

    bool found_cut; /* its ranks could not connect, and which of them was not known before */

    /* Used by attempt_orders.c: why and when the attempt has to end. */
    struct store_stop stop;
    bool cancel_ordered; /* it was ordered to end at the next step boundary */
    int64_t escalate_at; /* when the order is repeated as "at once"; 0: not scheduled */
    bool escalated;      /* the order was repeated */

    /* Used by reattach.c: the reason once all ranks are back; NULL: no rank is missing. */
    char *code_after, *text_after;

    /* Used by saving.c and uploads.c. */
    unsigned saving;       /* bits of enum saving: what waits for disk space */
    bool handed_out;       /* SAVING: the last state_dict received went to a pull */
    char *weights_refused; /* why the final state_dict was refused; else NULL */

    uint64_t checkpoint_order; /* checkpoints.c: the one under way; 0: none */
    uint64_t vacate_order;     /* the one after which the job moves elsewhere; 0: not ordered */
    uint64_t wrap_done;        /* rewrap.c: last change of units whose report was accepted */
    struct order_log orders;
    struct stall stall;
    struct diagnosing diagnosing;
    struct rank_pace *paces; /* by rank; NULL: nothing is measured yet */
    int64_t paces_at;        /* when the current measurement began */
};

/* Creates the job's attempt; the caller fills in the ranks. */
struct attempt *attempt_new(struct job *job, int world);
void attempt_dispose(struct attempt *attempt);

/* Whether the job has an attempt that is not about to end: no rank has failed, and no order to end
 * was given. */
bool attempt_is_active(const struct job *job);

/* The rank on this worker in the job's running attempt, if `number` is that attempt's; else
 * NULL. */
struct rank *attempt_find_rank(const struct job *job, uint32_t number, const char *worker_id);
bool attempt_rank_has_ended(const struct rank *rank);

/* Notes that a rank trains or has trained: from then on, the loss of a rank is a failure of the
 * attempt. */
void attempt_note_begun(struct job *job);

/* Acknowledges to rank 0 which of its reports are on disk. */
void attempt_acknowledge(struct job *job);

/* Lets all ranks' workers discard the attempt: it is over, and the store has recorded that. */
void attempt_release(struct job *job);

/* Whether its ranks share devices and therefore communicate through host memory. */
bool attempt_is_staged(const struct job *job);

/* For orders.c: sends one order to one rank, which must have a worker. */
void attempt_send_order(struct job *job, struct rank *rank, const Fsdpd__V1__Order *order);

/* Sets the job's reason while its attempt runs. While ranks are missing, the job shows REATTACHING,
 * which states what follows; this reason replaces it when all are back. */
void attempt_set_reason(struct job *job, const char *code, const char *format, ...)
    FSDPD_PRINTF(3, 4);

/* The code of that reason, even while the job shows REATTACHING. */
const char *attempt_reason_code(const struct job *job);

/* "<job>/<attempt>", the name of its rendezvous store; the caller frees it. */
char *attempt_store_name(const job_message *message);

/* Releases the ranks, ordering those that still run to stop at once, and moves the attempt to
 * job->left. Called by jobs.c. */
void attempt_end(struct job *job);

/* Orders all ranks that still run to stop, even without the agreement of the others. */
void attempt_stop_at_once(struct job *job, const char *why);

#endif
