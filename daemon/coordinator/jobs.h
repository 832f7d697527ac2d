/*
 * Jobs that are not over: their record in memory, the one function that changes a job's state, and
 * the log of their events. A job that is over lives in the store alone.
 */
#ifndef FSDPD_COORDINATOR_JOBS_H
#define FSDPD_COORDINATOR_JOBS_H

#include "coordinator/internal.h"
#include "coordinator/metrics.h"

struct rank;
struct rewrap;

enum queue_decision {
    QUEUE_START,
    QUEUE_WAIT_TURN,    /* it fits, but not now, or an earlier job waits */
    QUEUE_WAIT_WORKERS, /* it needs more workers than exist; holds nobody up */
};

/* Where a queued job stands, as queue_place last found it. */
struct standing {
    enum queue_decision decision;
    int position; /* from 1, among those that wait for its kind of device; 0: not looked at yet */
    int higher;   /* of those before it, how many have a higher priority */
    bool behind;  /* somebody before it waits for workers that it could have */
    int attached, idle, drained; /* workers of its kind; `idle`: when it was its turn */
};

/* Orders of the running attempt; see orders.h. */
struct order_log {
    Fsdpd__V1__Order **kept; /* the last ones, by number */
    int count, capacity;
    uint64_t last;           /* the number of the last one */
    Fsdpd__V1__Order **held; /* to be given when all ranks are there */
    int held_count, held_capacity;
};

struct job {
    struct coordinator *c;
    job_message *message; /* owned; what the API shows */
    uint64_t sequence;    /* of the last event */
    uint64_t metrics_events; /* in the store */
    uint64_t thin_from;      /* and so many when they are thinned next, if that is too many */
    bool replanned;              /* its spec and plan changed; the store does not know them yet */
    struct rewrap *rewrap;       /* a change of its wrap policy that is under way, or NULL */
    bool unsaved;                /* the store refused the last change; tried again at every tick */
    struct standing standing;    /* while it is queued */
    int64_t start_by, finish_by; /* monotonic ms, of deadlines that are durations; 0: none */
    job_event **backlog;         /* the events that it refused, in order */
    int backlog_count, backlog_capacity;

    /* The attempt that runs; ranks is NULL while there is none. See attempt.h. */
    struct rank *ranks;
    int world;
    struct order_log orders;
    uint64_t wrap_done;   /* the last change of units whose report was taken */
    uint64_t report;      /* of rank 0: the last that was recorded, */
    uint64_t report_kept; /* and the last that is on the disk */
    int64_t sync_at;      /* when the first is to become the second; 0: it is */
    int failures;         /* counts ranks that failed, to tell which was first */
    bool ending;          /* some rank failed */
    int64_t settle_at;    /* when the verdict is due */
    bool cancel_ordered;
    int64_t escalate_at;          /* when the cancel order is repeated "at once"; 0: not due */
    struct store_stop stop;       /* why it is to end */
    uint64_t checkpoint_order;    /* under way; 0: none */
    uint64_t vacate_order;        /* the checkpoint after which it ends for that; 0: not ordered */
    char *started_text;           /* what RUNNING will say; NULL until rank 0 has started */
    struct store_retries retries; /* that were made */
    bool retried;                 /* the store does not know of the last one yet */
    int64_t retry_at;             /* QUEUED: not before; 0: at once */
    struct job_totals totals;
    struct tensorboard *tensorboard; /* its event file; NULL until there is one */
};

/* What is to become a job; all of it is copied. */
struct job_submission {
    const char *id; /* "" to have one made */
    const char *owner;
    bool hold;            /* by the owner, from the beginning */
    const job_spec *spec; /* checked */
    const Fsdpd__V1__Plan *plan;
    uint64_t steps;
};

/*
 * Makes a queued job, in the store. It is in c->jobs when this returns; placing it is the caller's
 * next step.
 */
status_t jobs_create(struct coordinator *c, const struct job_submission *submission,
                     struct job **job) FSDPD_MUST_USE;

/* The job if it is not over, else NULL. */
struct job *jobs_find(struct coordinator *c, const char *id);

/* Reads jobs that were not over from the store: queued ones are queued again, those that ran wait
 * for their workers. */
status_t jobs_recover(struct coordinator *c) FSDPD_MUST_USE;

/*
 * Every change of state: checks that it is allowed, writes the store and the event, logs it, tells
 * the watchers. Leaving an attempt for PAUSED or QUEUED lets go of the ranks. When the job is over
 * it is freed: the caller must not use it again.
 */
void job_set_state(struct job *job, enum job_state state, const char *code, const char *format, ...)
    FSDPD_PRINTF(4, 5);

/* A new reason in the same state; nothing happens if it is the old one. */
void job_set_reason(struct job *job, const char *code, const char *format, ...) FSDPD_PRINTF(3, 4);

/* The same for why a job waits: an event, but not synced to the disk, since it is found out again
 * after a crash. */
void job_set_waiting(struct job *job, const char *code, const char *text);

/* Something about a job has changed on a user's wish (its priority, say): an event that tells of it
 * once, durable; the reason is then again what it was. */
void job_tell(struct job *job, const char *code, const char *format, ...) FSDPD_PRINTF(3, 4);

/* The running attempt begins behind `step`. Of the latest figures, those of steps beyond it are of an
 * earlier attempt, which may have failed by them: they are taken away, and the last report up to
 * `step` is shown again; the events stay. The store has it with the next event. */
void job_go_back(struct job *job, uint64_t step);

/* What rank 0 reports: events, kept and handed on. */
void job_add_metrics(struct job *job, const Fsdpd__V1__Metrics *metrics);
void job_add_validation(struct job *job, const Fsdpd__V1__Validation *validation);
void job_add_epoch(struct job *job, const Fsdpd__V1__EpochEnd *epoch);

/* A checkpoint was taken, or could not be: an event, kept and handed on. */
void job_add_checkpoint(struct job *job, const Fsdpd__V1__CheckpointReport *report);

/* Metrics that rank 0 dropped before its next report, as nobody took them. */
void job_add_dropped(struct job *job, uint64_t metrics);

/* It has these units now: the spec, the plan and an event, kept and handed on. */
void job_set_wrap(struct job *job, const Fsdpd__V1__WrapSpec *wrap, const Fsdpd__V1__Plan *plan,
                  const Fsdpd__V1__WrapReport *report);

/* Writes jobs whose last change the store refused, and brings reports to the disk that have waited
 * for it long enough. */
void jobs_save_again(struct coordinator *c);

/* What changed in the job is to be on the disk within a second. */
void job_sync_soon(struct job *job);

/* Brings everything to the disk, before the coordinator ends. */
void jobs_sync(struct coordinator *c);

/* Frees all records without changing them: the coordinator ends. */
void jobs_free_all(struct coordinator *c);

/* Replies to a call with a job as the API shows it (units and so on filled in). */
void job_reply(struct rpc_call *call, const job_message *message);

/* Fills `view`, a shallow copy for a reply; it borrows everything from `message`. */
void job_view(const job_message *message, job_message *view);

/* Whether `id` could be a job's: [a-z0-9][a-z0-9-]*, at most 64 characters. It becomes a directory.
 */
bool job_id_is_valid(const char *id);

#endif
