/*
 * Decides which queued jobs start now, and the positions of the others. docs/queue.md explains the
 * rules to users: higher priority first, then earlier submission; a job gets all of its workers or
 * none; no job starts before an earlier one that could run on the existing workers. So small jobs
 * never starve a large one; the cost is that workers stay idle while they are gathered for it
 * (there is no back-filling: the duration of a training is unknown).
 */
#ifndef FSDPD_COORDINATOR_QUEUE_H
#define FSDPD_COORDINATOR_QUEUE_H

#include "base/buf.h"
#include "coordinator/core/internal.h"
#include "coordinator/jobs/jobs.h"

/* The workers of one kind of device. Drained workers count only in `drained`. */
struct queue_fleet {
    const char *kind; /* "cpu" */
    int attached;
    int expected; /* attached, or supervised and starting */
    int idle;
    int drained;
    /* How many of all, and of the idle ones, have to be left out, as they cannot reach others. */
    int cut, cut_idle;

    /* Used while queue_decide runs. */
    int waiting, priority, waiting_higher;
    bool blocked;
    int all_idle;
    int apart; /* queue_place: jobs whose turn it is, and that found too few that reach each other */
};

/* The jobs of an array. */
struct queue_array {
    const char *id;
    int at_once; /* 0: any number */
    int running; /* or kept for: they have workers, or continue at once */
};

struct queue_item {
    const char *kind;
    int workers;  /* at least */
    int reserved; /* idle for this job only; not in the fleet's `idle` */
    int most;     /* it takes what is idle up to this many; 0: `workers` */
    int priority;
    int *quota; /* what its user has left, shared by the user's items; NULL: no limit */
    struct queue_array *array; /* NULL: it is of no array, or of one without a limit */
    struct standing standing;  /* the result */
};

/* A job's place in the starting order. */
struct queue_rank {
    int priority;
    double usage; /* of its user, for fair share; else 0 for all */
    int number;   /* in order of submission */
};

/* Below 0: the first one starts first. The higher priority comes first, among equals the lower
 * usage, then the earlier submission. Pure. */
int queue_compare(const struct queue_rank *first, const struct queue_rank *second);

/*
 * Decides for all items, which are sorted in starting order. Strictly in order within a kind,
 * except that a job larger than the fleet, or than what its user has left, is skipped, and one whose
 * array runs enough jobs. Started jobs reduce the fleets' `idle` counts and the quotas, and raise
 * their arrays' `running`; `most` becomes what the quota allows.
 */
void queue_decide(struct queue_item *items, int count, struct queue_fleet *fleets, int fleet_count);

/* Appends why a job waits that queue_decide has not started. Pure. */
void queue_describe_turn(const struct standing *standing, const char *device, struct buf *out);

/* Decides for the coordinator's queue, starts the jobs that can start, and notes the positions of
 * the others. Does nothing if nothing has changed since the last call. Only turn.c calls it. */
void queue_place(struct coordinator *c);

/* At a tick: a change may have been missed, so the decisions are made again, at each tick while the
 * queue is short, and each two seconds at least. Whether it is time for that. */
bool queue_check(struct coordinator *c);

/* Writes a queued job's position and reason into its message, for a reply. Other jobs do not
 * change. */
void queue_explain(struct job *job);

struct placement_worker;

/* placement_keep_apart with the cuts of today; whether that made a difference decides if they are
 * probed. */
int queue_keep_apart(struct coordinator *c, struct placement_worker *workers, int count,
                     int *needed);

/* Writes "1st" or "22nd" to `text`, and returns it. */
const char *queue_ordinal(int number, char text[static 16]);

/* ---- resizing.c ---- */

/*
 * Running elastic jobs that get other numbers of workers: fewer if a user asked for that, or for a
 * waiting job of higher priority; more if workers are idle that no waiting job needs. The attempt
 * ends at its next step boundary, and leaves its state in memory (jobs/attempt_run.h) or in a
 * checkpoint to the next one, in the same processes.
 */

/* Looks for a change of one running job, of which `fleet` has the workers left idle by the queue;
 * takes those that the job is going to use. */
void resizing_check(struct job *job, struct queue_fleet *fleet);

/* Looks for a change of running jobs of lower priority, if the options allow that: so that
 * `workers` of them become free for `waiting`, the next one in the queue of its kind. Elastic jobs
 * shrink, and if that is not enough, jobs are preempted. Does nothing if that is not possible, or
 * will happen anyway. */
void resizing_make_room(struct job *waiting, int workers);

/* ---- unplanned.c ---- */

/*
 * Jobs that were submitted while no worker was attached: they are queued without a plan, or with
 * one for known devices, and planned when a worker comes. A job that cannot be planned then fails,
 * with the message that its submission would have been refused with.
 */

/* Whether the job has no plan of a worker yet. */
bool unplanned_is(const struct job *job);

/* Requests the plans of those that a worker can plan now. Only turn.c calls it. */
void unplanned_place(struct coordinator *c);

/* Plans of this job are no longer needed. */
void unplanned_job_over(struct job *job);

/* ---- fair_share.c ---- */

/*
 * Fair share: of jobs of equal priority, those come first whose user has used the least. A user's
 * usage is the time of all the workers that its jobs had, and decays exponentially. The store keeps
 * it; after a crash at most the last seconds are missing.
 */

/* The usage after `ms` in which `workers` were busy all the time. Old usage halves in each
 * `half_life` (ms, above 0), and new usage decays from the moment at which it arises. Pure. */
double fair_share_use(double usage, int workers, double ms, double half_life);

/* Brings the users' usage up to now. Does nothing if there is no fair share. */
void fair_share_advance(struct coordinator *c);

/* Notes the workers that each user has from now on. */
void fair_share_note_busy(struct coordinator *c);

/* Saves the usage every few seconds; fair_share_save at once. */
void fair_share_tick(struct coordinator *c);
void fair_share_save(struct coordinator *c);

#endif
