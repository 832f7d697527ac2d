/*
 * The users who own jobs: what quotas and fair share count of each. A record stays until the
 * coordinator ends. On the loop's thread.
 */
#ifndef FSDPD_COORDINATOR_OWNERS_H
#define FSDPD_COORDINATOR_OWNERS_H

#include "coordinator/core/internal.h"

struct job_owner {
    char *name;
    int left;          /* workers that its jobs may still take; used by quotas.c and queue.c */
    double kept_bytes; /* of its jobs that are over; see owners_count_kept */
    double usage;      /* worker-milliseconds, decayed up to c->usage_at; used by fair_share.c */
    int busy;          /* workers that it has had since then */
};

/* The user's record, which is created if there is none. */
struct job_owner *owners_get(struct coordinator *c, const char *name);
void owners_free(struct coordinator *c);

/*
 * Sums of what jobs that are over keep below the state directory: final state_dicts and
 * checkpoints. They are read once, by the first call, and follow what happens from then on.
 */
void owners_count_kept(struct coordinator *c);

/* The bytes that one job keeps. */
double owners_kept_by(struct coordinator *c, const char *id);

/* A job that is over appears, or (`sign` -1) is about to be forgotten or revived. */
void owners_note_kept(struct coordinator *c, const job_message *job, int sign);

#endif
