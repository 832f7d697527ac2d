/* Why a job is where it is, as one paragraph for people. */
#ifndef FSDPD_COORDINATOR_WHY_H
#define FSDPD_COORDINATOR_WHY_H

#include "base/buf.h"
#include "coordinator/jobs/jobs.h"

/* Another job that matters for this one, and how many workers it has. Borrows its texts. */
struct why_job {
    const char *id, *owner;
    int state, priority;
    int workers, reserved; /* workers: running on them; reserved: idle, but kept for it */
    double usage;          /* of its user, for fair share, in worker-milliseconds */
};

struct why_jobs {
    struct why_job *items;
    int count, capacity;
};

/* What the paragraph is made of. The job's reason is that of queue_explain. */
struct why {
    const job_message *job;
    struct standing standing; /* of a job with a place in the queue */
    struct why_jobs holders;  /* that have workers of its kind */
    struct why_jobs before;   /* that have a place before it, in order */
    struct why_jobs awaited;  /* of its waits_for */
    double half_life_ms;      /* of its user's usage, in worker-milliseconds; 0: no fair share */
    double usage;
    double retry_seconds;     /* until its next attempt; 0: it does not pause */
    bool unsaved;             /* the store refused its last change */
    bool draining;            /* fsdpd shuts down: nothing starts */
};

/* Appends the paragraph, without an end of line. Pure. */
void why_describe(const struct why *why, struct buf *out);

/* The same for a job in memory: gathers first. */
void why_explain(struct job *job, struct buf *out);

#endif
