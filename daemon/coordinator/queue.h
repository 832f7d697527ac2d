/* Which queued jobs start now: first in, first out, all of a job's workers or none. */
#ifndef FSDPD_COORDINATOR_QUEUE_H
#define FSDPD_COORDINATOR_QUEUE_H

#include "coordinator/internal.h"

enum queue_decision {
    QUEUE_START,
    QUEUE_WAIT_TURN,    /* it fits, but not now, or an earlier job waits */
    QUEUE_WAIT_WORKERS, /* it needs more workers than exist; holds nobody up */
};

/* The workers of one kind of device. */
struct queue_fleet {
    const char *kind; /* "cpu" */
    int attached;
    int expected; /* attached, or supervised and being started */
    int idle;
    bool taken; /* false; true once a job waits for its turn, and later ones behind it */
};

struct queue_item {
    const char *kind;
    int workers;
    enum queue_decision decision; /* the answer */
};

/*
 * Decides for all items, which are in order of submission. Strictly in order within a kind, so that
 * a large job is not starved by small ones, except that a job larger than the fleet is passed over.
 * `idle` counts are used up by what is started.
 */
void queue_decide(struct queue_item *items, int count, struct queue_fleet *fleets, int fleet_count);

/* Decides for the coordinator's queue, starts what can start, and gives the others a reason. */
void queue_place(struct coordinator *c);

#endif
