/*
 * The settings among which fsdpd chooses for a job: units, sharding, recomputation, offload,
 * prefetching, and how a step's batch is divided. A point has one option of each dimension. All
 * points train on the same samples per step. Internal to this room.
 */
#ifndef FSDPD_PLANNING_SPACE_H
#define FSDPD_PLANNING_SPACE_H

#include "base/buf.h"
#include "fsdpd/v1/control.pb-c.h"
#include "planning/own.h"
#include "planning/profile.h"
#include "setup/job.h"

enum dimension {
    DIMENSION_BATCH,     /* samples per batch, batches per step, when gradients are reduced */
    DIMENSION_RECOMPUTE, /* modules that backward computes again */
    DIMENSION_UNITS,     /* the wrap policy */
    DIMENSION_SHARDING,  /* strategy, shard size, what stays gathered after forward */
    DIMENSION_FETCH,     /* gathered_limit and backward_prefetch */
    DIMENSION_OFFLOAD,
    DIMENSION_OWN,   /* what some units have of their own: a strategy, offload, ... */
    DIMENSION_SHARE, /* how many units these are */
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

/* The same settings without those that have no effect. What follows expects such points. */
struct point space_canonical(const struct space *space, struct point point);

/* A number below space_points that identifies the point. */
uint64_t space_key(const struct space *space, struct point point);

/* The job with the point's settings. It borrows from the space, and from the space's job. */
struct space_job {
    struct train_job job;
    struct wrap_unit_spec *units; /* with settings of their own; owned */
};

void space_apply(const struct space *space, struct point point, struct space_job *job);
void space_job_deinit(struct space_job *job);

/* The point's settings, or its units alone, as the API has them; free it with message_free. */
Fsdpd__V1__Chosen *space_chosen(const struct space *space, struct point point, bool units_only);

/* A few words on an option that differs from PyTorch's default; "" for the default. */
const char *space_words(const struct space *space, enum dimension dimension, int option);
/* The same for what some units have of their own, and which units these are. */
void space_describe_own(const struct space *space, struct point point, struct buf *out);

/* The option of DIMENSION_OWN with which units stay gathered until backward; -1 if there is none.
 */
int space_own_kept(const struct space *space);

enum { SPACE_SURVEY_MAX = 16 };

/* Options that stand for all of the dimension; returns their number, at least 1. */
int space_survey(const struct space *space, enum dimension dimension,
                 int options[static SPACE_SURVEY_MAX]);

/* The option of a dimension that needs least memory, as far as that is known without a plan. */
int space_frugal(const struct space *space, enum dimension dimension);

#endif
