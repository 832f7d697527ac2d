/*
 * The settings among which fsdpd chooses for a job: units, sharding, recomputation, offload,
 * prefetching, and how a step's batch is divided. A point has one option of each dimension. All
 * points train on the same samples per step. Internal to this room.
 */
#ifndef FSDPD_PLANNING_SPACE_H
#define FSDPD_PLANNING_SPACE_H

#include "base/buf.h"
#include "planning/profile.h"
#include "train/job.h"

enum dimension {
    DIMENSION_BATCH,     /* samples per batch, batches per step, when gradients are reduced */
    DIMENSION_RECOMPUTE, /* modules that backward computes again */
    DIMENSION_UNITS,     /* the wrap policy */
    DIMENSION_SHARDING,  /* strategy, shard size, what stays gathered after forward */
    DIMENSION_FETCH,     /* gathered_limit and backward_prefetch */
    DIMENSION_OFFLOAD,
    DIMENSION_COUNT
};

struct point {
    int at[DIMENSION_COUNT]; /* the option's index */
};

struct space;

/* `offload`: the device has memory of its own, so units can be offloaded to the host. */
struct space *space_new(const struct train_job *job, const struct model *model,
                        const struct plan_rates *rates, bool offload);
void space_free(struct space *space); /* accepts NULL */

int space_size(const struct space *space, enum dimension dimension); /* number of options */
uint64_t space_points(const struct space *space);                    /* UINT64_MAX: at least that */

/* A number below space_points that identifies the point. Points that differ only in settings
 * without effect have the same one. */
uint64_t space_key(const struct space *space, struct point point);

/* The job with the point's settings. It borrows from the space, and from the space's job. */
void space_apply(const struct space *space, struct point point, struct train_job *job);

/* Adds "key=value" lines that make a job file's settings those of the point. */
void space_print(const struct space *space, struct point point, struct buf *out);

/* Those of `fsdp.wrap` alone, for an option of DIMENSION_UNITS. */
void space_print_units(const struct space *space, int option, struct buf *out);

/* A few words on an option that differs from PyTorch's default; "" for the default. */
const char *space_words(const struct space *space, enum dimension dimension, int option);

/* The option of a dimension that needs least memory, as far as that is known without a plan. */
int space_frugal(const struct space *space, enum dimension dimension);

#endif
