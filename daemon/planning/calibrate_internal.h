/* The parts of a calibration share this. Internal to this room. */
#ifndef FSDPD_PLANNING_CALIBRATE_INTERNAL_H
#define FSDPD_PLANNING_CALIBRATE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "planning/calibrate.h"
#include "planning/calibrate_models.h"
#include "runtime/comm.h"
#include "runtime/rendezvous.h"

/* Samples of one piece of work in several runs, before they are merged. */
struct calibrate_found {
    int row;
    bool half;
    struct plan_sample sample;
};

/* One group of ranks; the threads share it. */
struct calibrate_group {
    const struct calibrate_options *options;
    int world, processors;
    int64_t deadline_ns;
    struct local_store *store;
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t changed;
    status_t failure;                          /* the first */
    int decided;                               /* decisions that rank 0 has made so far */
    bool go;                                   /* the last of them */
    int taken;                                 /* ranks other than 0 that have read it */
    struct comm *comms[CALIBRATE_WORKERS_MAX]; /* to abort if a rank fails */
    /* Only rank 0 adds. */
    struct calibrate_found *found;
    int found_count, found_capacity;
};

struct calibrate_rank {
    struct calibrate_group *group;
    int rank;
    struct device *device;
    struct comm *comm; /* NULL for one rank */
    int decisions;     /* of rank 0 that this one has read */
};

/* The same answer on every rank, which is rank 0's `go`. */
bool calibrate_agree(struct calibrate_rank *rank, bool go);

/* Seconds left for this group; CANCELLED if the caller wants to stop. */
status_t calibrate_check(const struct calibrate_rank *rank, double *left) FSDPD_MUST_USE;

void calibrate_add(struct calibrate_rank *rank, int row, bool half,
                   const struct plan_sample *sample);

status_t calibrate_steps(struct calibrate_rank *rank) FSDPD_MUST_USE;
status_t calibrate_links(struct calibrate_rank *rank) FSDPD_MUST_USE;

/* ---- local_store.c ---- */

/* A rendezvous store for ranks that are threads of this process. Internal to this room. */

struct local_store;

struct local_store *local_store_new(void);
void local_store_free(struct local_store *store); /* accepts NULL; after every rank's last call */
struct rendezvous local_store_view(struct local_store *store);

/* Ends every current and future wait with ABORTED and `why`. */
void local_store_close(struct local_store *store, const char *why);

#endif
