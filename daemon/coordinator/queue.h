/*
 * Which queued jobs start now, and where the others stand. The rules, which docs/queue.md explains to
 * users: the higher priority first, then the earlier submission; all of a job's workers or none; no
 * job starts before one that stands before it and could run on the workers that there are. So a
 * large job is never starved by small ones; what that costs is workers that are idle while they are
 * gathered for it (there is no back-filling: nobody knows how long a training takes).
 */
#ifndef FSDPD_COORDINATOR_QUEUE_H
#define FSDPD_COORDINATOR_QUEUE_H

#include "coordinator/jobs.h"

/* The workers of one kind of device. Drained ones are counted by `drained` alone. */
struct queue_fleet {
    const char *kind; /* "cpu" */
    int attached;
    int expected; /* attached, or supervised and being started */
    int idle;
    int drained;

    /* While queue_decide runs. */
    int waiting, priority, waiting_higher;
    bool blocked;
};

struct queue_item {
    const char *kind;
    int workers;
    int priority;
    struct standing standing; /* the answer */
};

/*
 * Decides for all items, which are in the order that they are to be started in. Strictly in order
 * within a kind, except that a job larger than the fleet is passed over. `idle` counts are used up
 * by what is started.
 */
void queue_decide(struct queue_item *items, int count, struct queue_fleet *fleets, int fleet_count);

/* Decides for the coordinator's queue, starts what can start, and notes how the others stand. Does
 * nothing if nothing has changed since the last time. */
void queue_place(struct coordinator *c);

/* Something that decisions depend on has changed: a job, a worker, a priority. */
void queue_changed(struct coordinator *c);

/* Puts position and reason of a queued job into its message, for a reply. Others stay as they are. */
void queue_explain(struct job *job);

/* "1st", "22nd", written to `text`, which it returns. */
const char *queue_ordinal(int number, char text[static 16]);

#endif
