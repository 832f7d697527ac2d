/*
 * The samples that a rank sees in an epoch, and their order: torch.utils.data.DistributedSampler
 * bit for bit. Its seed is 0, PyTorch's default, whatever the job's seed, and epochs count from 1
 * in set_epoch, both as in PyTorch's FSDP tutorial: a generator seeded with the epoch's number
 * determines the epoch's order.
 */
#ifndef FSDPD_DATA_SAMPLER_H
#define FSDPD_DATA_SAMPLER_H

#include "base/status.h"
#include "data/batch_share.h"
#include "data/generator.h"

/* An entry without a sample: a row that pads a batch and does not count. */
#define SAMPLE_NONE UINT32_MAX

struct sampler {
    uint32_t samples;
    int world, rank;
    bool shuffle;
    /*
     * With samples % world != 0, PyTorch repeats the first samples, so that all ranks have the same
     * number. Training does the same. An evaluation marks the repeats as SAMPLE_NONE instead,
     * because an accuracy must not count a sample twice.
     */
    bool skip_repeats;
    /* With a global batch: which of each batch's samples are this rank's. None is repeated; entries
     * without a sample are SAMPLE_NONE. Zeroed otherwise; the caller sets it. */
    struct batch_share share;
    uint32_t *all; /* the order of the whole set: scratch memory of sampler_fill */
};

/* INVALID_ARGUMENT for 0 samples, and for PERMUTATION_MAX or more. */
status_t sampler_init(struct sampler *sampler, int64_t samples, int world, int rank, bool shuffle,
                      bool skip_repeats) FSDPD_MUST_USE;
void sampler_deinit(struct sampler *sampler);

/* The number of entries per rank and epoch, the same on every rank: ceil(samples / world), or, with
 * a global batch, whole batches. */
int64_t sampler_count(const struct sampler *sampler);

/* Writes sampler_count entries. `epoch` counts from 1. */
void sampler_fill(const struct sampler *sampler, uint32_t epoch, uint32_t *order);

#endif
