/* The attached workers: what they are, what they run, and when they count as lost. */
#ifndef FSDPD_COORDINATOR_WORKERS_H
#define FSDPD_COORDINATOR_WORKERS_H

#include "coordinator/core/internal.h"

struct worker {
    struct coordinator *c;
    struct rpc_call *link; /* the Attach call; NULL once it is over */
    char *id, *device, *version, *address, *host;
    char *make; /* of its device; see Hello */
    uint64_t memory_bytes;
    int64_t pid;
    bool supervised;     /* a child of this process */
    bool drained;        /* gets no more work */
    bool leaves;         /* its process is ending: it is drained, too */
    bool shares_device;  /* other workers may have it, too */
    int64_t attached_ms; /* wall clock */
    int64_t heard_at;

    /* The job and rank that it runs; job is NULL while it is idle. Kept after the job is over until
     * the worker reports that it has finished, so that it gets no work before then. */
    char *job;
    uint32_t attempt;
    int rank;
    int64_t stop_from; /* when it was ordered to stop at once */
    int64_t stop_at;   /* when it is killed or cut off; 0: it was not ordered to stop */
    bool obsolete;     /* of another version of fsdpd: ends with its attempt */
    bool overdue;      /* it did not stop, so it is killed or cut off */
    bool killed;       /* its process was sent SIGKILL */
    int plans;         /* plan requests that it has not answered */
    int64_t idle_from; /* since when it has no job and makes no plans, while that is so */
    int calibrates;    /* the number of workers whose devices it has measured; 0: it does not */
    bool calibration_stopped;
    int64_t calibrates_until; /* then nothing waits for its report any more */
    int64_t calibrate_from;   /* after a failure: when it may be tried again */
    Fsdpd__V1__KeptState
        *kept;      /* in memory, of a job that is not over; NULL: nothing. See jobs/parts.h */
    int plans_late; /* plan requests that it has not answered in time since its last answer */
};

/* Adds a worker that has said hello. ALREADY_EXISTS if another process is attached under its id (an
 * old link of the same process is closed), or if another worker has its device, unless the device
 * is a cpu or both share it; FAILED_PRECONDITION if its version differs and it is not `wanted`,
 * since it runs nothing of ours; INVALID_ARGUMENT for missing or overlong fields. */
status_t workers_add(struct coordinator *c, struct rpc_call *link, const Fsdpd__V1__Hello *hello,
                     bool wanted, struct worker **worker) FSDPD_MUST_USE;

struct worker *workers_find(struct coordinator *c, const char *id);

/* Whether they use the same memory: that of a host, or of a device that they share. */
bool worker_shares_memory(const struct worker *worker, const struct worker *other);

/* Whether they are of one kind and on one host, and so can be ranks of one job there. */
bool worker_shares_host(const struct worker *worker, const struct worker *other);

/* The number of attached workers that may get work, including this one, that have this one's
 * memory, or are of its kind on its host. */
int worker_sharers(const struct worker *worker);
int worker_host_workers(const struct worker *worker);

/* Whether a job on `count` workers of a kind needs some that share a device. */
bool workers_must_share(const struct coordinator *c, const char *kind, int count);

/* Whether a device is of this kind: "cpu" is of "cpu", "cuda:3" of "cuda". */
bool worker_is_kind(const char *device, const char *kind);

void worker_assign(struct worker *worker, const char *job, uint32_t attempt, int rank);
void worker_set_idle(struct worker *worker);
/* Applies changed drains; see drains.h. */
void workers_apply_drains(struct coordinator *c);

/* It has said so: it gets no more work, and does not come back when its link closes. */
void worker_leaves(struct worker *worker);

/* Asks the worker to leave. */
void worker_drain(struct worker *worker);

/* Sends the message of that kind. */
void worker_send(struct worker *worker, Fsdpd__V1__CoordinatorMessage__MessageCase kind,
                 const void *body);

/* Allows the worker to discard everything it keeps for the attempt. */
void worker_release(struct worker *worker, const char *job, uint32_t attempt);

/* Sets a deadline for its stop, after which it is killed (a child) or cut off (any other). */
void worker_stop_by(struct worker *worker, int milliseconds);

/*
 * The worker is gone: notifies its job, fails its plan requests and frees it. `how` completes the
 * sentence "rank 1 (host/cpu:1) ...": "was lost: its connection closed". With `certain` false, the
 * process's exit status may still provide more.
 */
void worker_lose(struct worker *worker, const char *how, bool certain);

/* Checks for silent workers and ignored orders. */
void workers_tick(struct coordinator *c);

#endif
