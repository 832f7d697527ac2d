/*
 * Jobs that are not over: their records in memory, the one function that changes a job's state, and
 * the log of their events. A job that is over exists only in the store: its record in memory is
 * freed at the end of the loop's turn (turn.h), and at no other time.
 */
#ifndef FSDPD_COORDINATOR_JOBS_H
#define FSDPD_COORDINATOR_JOBS_H

#include "coordinator/core/internal.h"
#include "coordinator/store/message.h"

struct attempt;

/* What an array's record has beside it: its jobs are records of their own. Used by arrays.c. */
struct job_array {
    uint32_t *indices;
    size_t count;     /* the record's `step` of them are made */
    int64_t again_at; /* when more are made or cancelled, after as many as are at a time */
    uint32_t over[3]; /* of those, that are over: succeeded, failed, cancelled */
    bool has_no_room; /* the next jobs wait for room: the limits of jobs, or the disk */
};

enum queue_decision {
    QUEUE_START,
    QUEUE_WAIT_TURN,    /* it fits, but not now, or an earlier job waits */
    QUEUE_WAIT_ARRAY,   /* as many jobs of its array run as may at once; does not block others */
    QUEUE_WAIT_WORKERS, /* it needs more workers than exist; does not block others */
    QUEUE_WAIT_QUOTA,   /* it needs more workers than its user has left; likewise */
};

/* A queued job's place, as queue_place last determined it. */
struct standing {
    enum queue_decision decision;
    int position; /* from 1, among jobs that wait for its kind of device; 0: not known yet, or none
                   */
    int higher;   /* number of jobs before it that have a higher priority */
    bool behind;  /* a job before it waits for workers that this one could use */
    int workers;                 /* that it needs at least */
    int attached, idle, drained; /* workers of its kind; `idle`: when its turn came, for it */
    int cut; /* of those attached, how many have to be left out as they cannot reach others */
};

/* A job's totals since this coordinator accepted or loaded it: those behind the
 * Prometheus counters. */

enum { JOB_TOTALS_OPS = 8 };

/* Steps are rank 0's. */
struct job_totals {
    uint64_t step;  /* the step up to which the totals count */
    uint64_t steps; /* steps reported with a duration */
    double samples, seconds, exposed_seconds;
    uint64_t checkpoints;
    double checkpoint_seconds;
    int64_t checkpoint_ms; /* when the newest was complete, also before this coordinator; 0: none */
    struct {
        char kind[24]; /* "all_gather" */
        double bytes;  /* sent by all ranks */
    } ops[JOB_TOTALS_OPS];
    int op_count;
};

/* Adds what has happened since rank 0's last report, under the job's current plan. */
void job_totals_add(struct job_totals *totals, const job_message *job,
                    const Fsdpd__V1__Metrics *report);

struct job {
    struct coordinator *c;
    job_message *message;    /* owned; what the API shows */
    struct job_owner *owner; /* see owners.h */
    struct attempt *attempt; /* the running one, or NULL; see attempt.h */
    struct attempt *left;    /* the one left in this turn: freed at the turn's end */

    /* Used by jobs.c. */
    bool over;               /* the store knows that it is over: removed at the end of the turn */
    bool ended;              /* it is in c->ended */
    uint64_t metrics_events; /* number in the store */
    uint64_t thin_from;      /* number that triggers the next thinning */
    struct job_totals totals;
    bool outdated; /* its kept state_dict is of an earlier end; that of the next end replaces it */

    /* Used by job_record.c: what the store has. */
    uint64_t sequence;   /* number of the last event */
    int64_t sync_at;     /* when changes that are not yet on disk are synced; 0: all are */
    bool unsaved;        /* the store refused the last change; retried at every tick */
    job_event **backlog; /* the refused events, in order */
    int backlog_count, backlog_capacity;
    bool settings_changed; /* what is chosen and the plan changed; not yet in the store */
    bool retried;          /* `retries` changed; not yet in the store */

    /* Used by retry.c: attempts that ended badly. */
    struct store_retries retries; /* retries made so far */
    uint32_t lacked;              /* attempts ended because a host had no space or descriptors */
    int not_begun;                /* consecutive attempts that ended before any rank began */
    int64_t retry_at;             /* QUEUED: not placed before; 0: at once */

    struct job_elastic {
        int world; /* of the last attempt that began; 0: none */
        uint64_t step;
        int64_t ended_at;
        uint32_t kept_since; /* see Assignment; all ranks of that attempt began */
        bool lost_before;    /* workers were lost: */
        uint64_t lost_step;
        char *by;       /* the user who asked for this number of workers; NULL: none */
        int keep;       /* workers that it keeps if jobs of higher priority wait; 0: not decided */
        int next;       /* workers for which the running attempt ends, to grow; 0: none */
        bool *leaves;   /* of the last attempt: by rank; NULL: not decided. Used by handover.c */
        int staying;    /* its other ranks; 0: not decided */
        bool saved;     /* by order it left a checkpoint: no worker's memory has more */
        bool restarted; /* fsdpd was: what its workers keep is known only when they attach */
        int64_t reserved_until; /* QUEUED: until when workers that keep its state are its own */
        int64_t settle_at;      /* restarted: until when others that keep its state may attach */
        int64_t back_by;        /* restarted: the same for workers that had left it by order */
        bool waits;             /* QUEUED: for workers that may keep its state */
        bool between; /* QUEUED by the end of an attempt after which it continues at once */
    } elastic;        /* used by elastic.c, resizing.c and queue.c */

    char *preempted;      /* QUEUED: why its last attempt was preempted; NULL: it was not */
    int64_t preempted_at; /* when that last happened to it, or failed; 0: never */

    struct job_array *array;     /* NULL: it is no array */
    struct standing standing;    /* set by queue.c while it is queued */
    bool planning;               /* used by unplanned.c: a plan has been requested */
    int64_t start_at, start_by,
        finish_by;               /* used by deadlines.c, for durations: monotonic ms; 0: none */
    bool share_taken;            /* used by shares.c: another user than its owner pulls or traces */
    int64_t share_at;            /* used by shares.c: when others may do so again */
    int64_t sample_due;          /* used by shares.c: samples would be within their share then */
    const Fsdpd__V1__Diagnosis *diagnosis; /* set by verdict.c for the event that ends an attempt */
    struct tensorboard *tensorboard;       /* its event file; NULL until there is one */
};

/* The job, if it is not over or the store has not recorded its end yet; else NULL. */
struct job *jobs_find(struct coordinator *c, const char *id);

/*
 * Changes the state: checks that the change is allowed, writes the job and the event to the store,
 * logs it, and notifies the watchers. Leaving an attempt releases its ranks. Everything else that
 * follows from the end of an attempt or a job waits for the end of the turn; until then the job's
 * record stays.
 */
void job_set_state(struct job *job, enum job_state state, const char *code, const char *format, ...)
    FSDPD_PRINTF(4, 5);

/* Sets a new reason in the same state; does nothing if the reason is unchanged. */
void job_set_reason(struct job *job, const char *code, const char *format, ...) FSDPD_PRINTF(3, 4);

/* Sets the reason why a job waits: records an event but does not sync it to disk, since the reason
 * is determined again after a crash. */
void job_set_waiting(struct job *job, const char *code, const char *text);

/* Records a change to a job that a user requested (of its priority, say) in one event; the job's
 * reason stays unchanged. Without `durable` it does not wait for the disk: a durable change of any
 * job that follows includes it. */
void job_note_change(struct job *job, bool durable, const char *code, const char *format, ...)
    FSDPD_PRINTF(4, 5);

/* Records a note on the job of this id, which may be over since: nothing happens if it is
 * forgotten. `code` is not that of a state. */
void job_note_later(struct coordinator *c, const char *id, const char *code, const char *text);

/* The running attempt begins after `step`. Latest figures of later steps come from an earlier
 * attempt, which may have failed because of them: they are removed, and the last report up to
 * `step` is shown again. The events stay. The store gets the change with the next event. */
void job_rewind(struct job *job, uint64_t step);

/* Whether the state_dict of its last step is kept. */
bool job_has_result(const struct job *job);

/* Whether its training may end before its last step (train.early_stop). */
bool job_may_end_early(const job_message *message);

/* Record what rank 0 reports: events that are stored and passed on. */
void job_add_metrics(struct job *job, const Fsdpd__V1__Metrics *metrics);
void job_add_sampled(struct job *job, const Fsdpd__V1__Sampled *sampled);
void job_add_validation(struct job *job, const Fsdpd__V1__Validation *validation);
void job_add_epoch(struct job *job, const Fsdpd__V1__EpochEnd *epoch);

/* Records that a checkpoint was taken or failed: an event that is stored and passed on. */
void job_add_checkpoint(struct job *job, const Fsdpd__V1__CheckpointReport *report);

/* Counts metrics that rank 0 dropped before its next report because no coordinator took them. */
void job_add_dropped(struct job *job, uint64_t metrics);

/* What is chosen for the job, to be changed; the store gets it with the next event. */
Fsdpd__V1__Chosen *job_choose(struct job *job);

/* The job has this plan now, for which the planner chose these settings (NULL: none), instead of
 * all that was chosen before but the number of workers; likewise. Both are copied. */
void job_set_plan(struct job *job, const Fsdpd__V1__Chosen *chosen, const Fsdpd__V1__Plan *plan);

/* Records the job's new units: what is chosen, the plan and an event, which are stored and passed
 * on. Without `wrap` and `plan` the units are the old ones, and only the report is new: the end of
 * fsdp.tune. */
void job_set_wrap(struct job *job, const Fsdpd__V1__WrapSpec *wrap, const Fsdpd__V1__Plan *plan,
                  const Fsdpd__V1__WrapReport *report);

/* No rank of the message is slow any more. */
void job_forget_slow_ranks(job_message *message);

/* Takes the next job that has left its attempt or is over since the last call, in that order; NULL
 * if there is none. A job that is over is removed from c->jobs: the caller frees it. */
struct job *jobs_take_ended(struct coordinator *c);
void job_free(struct job *job);

/* Writes jobs whose last change the store refused, and syncs reports that have waited long
 * enough. */
void jobs_save_again(struct coordinator *c);

/* Schedules a sync: the job's changes will be on disk within a second. */
void job_sync_soon(struct job *job);

/* Syncs everything to disk before the coordinator ends. */
void jobs_sync(struct coordinator *c);

/* Frees all records without changing the jobs: the coordinator ends. */
void jobs_free_all(struct coordinator *c);

/* Replies to a call with a job as the API shows it (units and so on filled in). */
void job_reply(struct rpc_call *call, const job_message *message);

/* Fills `view`, a shallow copy for a reply; it borrows everything from `message`. */
void job_view(const job_message *message, job_message *view);

/* Whether `id` is a valid job id: [a-z0-9][a-z0-9-]*, at most 64 characters. It becomes a
 * directory. */
bool job_id_is_valid(const char *id);

/* ---- job_log.c ---- */

/*
 * Writes the logs of jobs: what ranks report and what fsdpd records about a job, stored beside the
 * job's other files.
 */

/* The directory of the log's files; the caller frees it. */
char *job_log_directory(const struct coordinator *c, const char *job);

/* Appends what a rank of an attempt has logged. `live`: the job is not over. */
void job_log_report(struct coordinator *c, const char *job, bool live, uint32_t attempt, int rank,
                    const Fsdpd__V1__LogReport *report);

/* Appends a line from fsdpd itself. `level`: "INFO", for example. */
void job_log_note(struct coordinator *c, const char *job, uint32_t attempt, const char *level,
                  const char *text);

#endif
