/* Inside train/: a run while it runs, which run.c carries out, and resume.c saves and restores. */
#ifndef FSDPD_TRAIN_RUN_STATE_H
#define FSDPD_TRAIN_RUN_STATE_H

#include "checkpoint/agreement.h"
#include "checkpoint/manifest.h"
#include "train/feed.h"
#include "train/run.h"

struct run {
    struct train_session *session;
    const struct train_job *job;
    const struct train_hooks *hooks;
    struct comm *comm;       /* NULL with one rank, as is the lane */
    struct lane_queue *lane; /* for the collectives outside of steps, while no step runs */
    struct agreement ranks;  /* by these two */
    struct executor *executor;
    uint64_t baseline;    /* bytes that the device had handed out before the executor */
    uint64_t memory_peak; /* of executors that are gone, and of the changes between them */
    struct feed train, test;
    struct optimizer_step optimizer; /* of the current step */
    float gradient_norm;             /* of the last step */
    uint64_t skipped_steps;
    double epoch_rate;    /* the current epoch's, before the step's factor */
    uint32_t epochs;      /* that are over */
    uint64_t step;        /* training steps done */
    uint64_t orders_done; /* sequence number */
    /* The failure in progress is known to every rank: nobody waits for this one. */
    bool agreed;
    bool noted; /* the executor's note was told */

    /* Of all ranks, in the order of the data: taken of the epoch, or, of tokens, in all. */
    uint64_t rows;
    /* Steps more that this data and this group would have taken to come here than were taken: 0,
     * unless a checkpoint of another group was resumed. */
    double shift;
    bool resumed;
    uint64_t captured_step; /* of the last checkpoint; UINT64_MAX: none yet */

    int64_t began_ns;
    struct tally interval, whole; /* since the last metrics; since the start */
    struct tally epoch;           /* of images, since it began */
    int64_t evaluation_ns;        /* of the last one; 0 before */
    bool validated;               /* the rest is of the last one, of tokens */
    double validation_loss;
    uint64_t validation_step;
};

/* Before the first step: an error on the ranks that are about to do something else than rank 0. */
status_t run_compare_ranks(struct run *run) FSDPD_MUST_USE;

#endif
