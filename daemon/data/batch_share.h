/*
 * A global batch divided over ranks: a step has the same samples, in the same order, whatever the
 * world. Rank r has the samples from size * r / world up to size * (r + 1) / world, rounded down,
 * so that ranks differ by at most one. It takes them in micro-batches of equal size; rows of these
 * that have no sample do not count. Pure.
 */
#ifndef FSDPD_DATA_BATCH_SHARE_H
#define FSDPD_DATA_BATCH_SHARE_H

#include "setup/job.h"

struct batch_share {
    int64_t samples; /* of a step, all ranks; 0: there is no global batch */
    int world, rank;
    int64_t batch;        /* rows of a micro-batch */
    uint32_t micro_steps; /* micro-batches of a step, the same on every rank */
};

/* INVALID_ARGUMENT if a rank would have no sample. */
status_t batch_share_check(const struct train_job *job) FSDPD_MUST_USE;

/* Zeroed without a global batch. Calling it again with the batch size that it found changes
 * nothing. */
struct batch_share batch_share_of(const struct train_job *job, int rank);

/* The rows of this rank for `samples` samples: those of whole steps. */
int64_t batch_share_rows(const struct batch_share *share, int64_t samples);

/* The place of this rank's row among the samples of all ranks, or -1. With `limit`, that is
 * the number of samples, and the last step's are divided as evenly as those of others. */
int64_t batch_share_find(const struct batch_share *share, int64_t row, int64_t limit);

/* The place of the first row of a micro-batch in the samples of its step, from 0. */
int64_t batch_share_first(const struct batch_share *share, int64_t step, uint32_t micro,
                          int64_t limit);

/* The row of every rank with which it continues after all ranks have taken `samples`; with a global
 * batch these are whole steps. */
int64_t batch_share_position(const struct train_job *job, uint64_t samples);

#endif
