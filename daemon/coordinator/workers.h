/* The workers that are attached: what they are, what they do, and when they count as lost. */
#ifndef FSDPD_COORDINATOR_WORKERS_H
#define FSDPD_COORDINATOR_WORKERS_H

#include "coordinator/internal.h"

struct worker {
    struct coordinator *c;
    struct rpc_call *link; /* the Attach call; NULL once it is over */
    char *id, *device, *version, *address, *host;
    uint64_t memory_bytes;
    int64_t pid;
    bool supervised;     /* a child of this process */
    bool drained;        /* gets no more work */
    bool shares_device;  /* others may have it, too */
    int64_t attached_ms; /* wall clock */
    int64_t heard_at;

    /* What it runs; job is NULL when idle. Kept after the job is over until the worker says that it
     * has finished, so that it is not given work before. */
    char *job;
    uint32_t attempt;
    int rank;
    int64_t stop_at; /* it was told to stop at once and is killed then; 0: it was not */
    bool obsolete;   /* of another version of fsdpd: it ends with its attempt */
    bool overdue;    /* it did not stop, so it is killed or cut off */
    bool killed;     /* its process was sent SIGKILL */
    int plans;       /* that it was asked for and has not answered */
};

/* A worker has said hello. ALREADY_EXISTS if its id is attached by another process (the same one's
 * old link is closed), or its device, unless it is a cpu, is another worker's and not both share it;
 * FAILED_PRECONDITION if its version is another and it runs nothing of ours;
 * INVALID_ARGUMENT for fields that are missing or too long. */
status_t workers_add(struct coordinator *c, struct rpc_call *link, const Fsdpd__V1__Hello *hello,
                     struct worker **worker) FSDPD_MUST_USE;

struct worker *workers_find(struct coordinator *c, const char *id);

/* Whether they have the same memory: that of a host, or of a device that they share. */
bool worker_shares_memory(const struct worker *worker, const struct worker *other);

/* Whether they are of one kind and on one host: so they can be ranks of one job there. */
bool worker_shares_host(const struct worker *worker, const struct worker *other);

/* As many attached workers that may get work, this one with them, have the memory of this one, or
 * are of its kind on its host. */
int worker_sharers(const struct worker *worker);
int worker_host_workers(const struct worker *worker);

/* Whether a job on so many workers of a kind could only have them if some of them share a device. */
bool workers_must_share(const struct coordinator *c, const char *kind, int count);

/* "cpu" of "cpu", "cuda" of "cuda:3": whether that is `kind`. */
bool worker_is_kind(const char *device, const char *kind);

void worker_assign(struct worker *worker, const char *job, uint32_t attempt, int rank);
void worker_set_idle(struct worker *worker);
/* Tells it to leave. */
void worker_drain(struct worker *worker);
void worker_send(struct worker *worker, Fsdpd__V1__CoordinatorMessage *message);

/* It is told to be back by then, or it is killed (a child) or cut off (any other). */
void worker_stop_by(struct worker *worker, int milliseconds);

/*
 * The worker is gone: its job is told, its plan requests fail, it is freed. `how` completes the
 * sentence "rank 1 (host/cpu:1) ...": "was lost: its connection closed". With `certain` false, the
 * process's exit status may still tell more.
 */
void worker_lose(struct worker *worker, const char *how, bool certain);

/* Silence and ignored orders. */
void workers_tick(struct coordinator *c);

#endif
