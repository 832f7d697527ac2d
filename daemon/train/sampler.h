/*
 * Which samples a rank sees in an epoch, and in which order: torch.utils.data.DistributedSampler
 * bit for bit. Its seed is 0, PyTorch's default, whatever the job's seed, and set_epoch is called
 * with epochs counted from 1, both as in PyTorch's FSDP tutorial: the order of an epoch is that of
 * a generator seeded with the epoch's number.
 */
#ifndef FSDPD_TRAIN_SAMPLER_H
#define FSDPD_TRAIN_SAMPLER_H

#include "base/status.h"
#include "train/generator.h"

/* An entry that is no sample: a row that fills up a batch and counts for nothing. */
#define SAMPLE_NONE UINT32_MAX

struct sampler {
    uint32_t samples;
    int world, rank;
    bool shuffle;
    /*
     * With samples % world != 0 PyTorch repeats the first samples, so that all ranks have equally
     * many. Training does the same; an evaluation marks the repeats as SAMPLE_NONE instead, because
     * a sample must not be counted twice in an accuracy.
     */
    bool skip_repeats;
    uint32_t *all; /* the order of the whole set: scratch of sampler_fill */
};

/* INVALID_ARGUMENT for 0 or PERMUTATION_MAX samples and more. */
status_t sampler_init(struct sampler *sampler, int64_t samples, int world, int rank, bool shuffle,
                      bool skip_repeats) FSDPD_MUST_USE;
void sampler_deinit(struct sampler *sampler);

/* Entries that a rank gets per epoch, the same on every rank: ceil(samples / world). */
int64_t sampler_count(const struct sampler *sampler);

/* Writes sampler_count entries. `epoch` counts from 1. */
void sampler_fill(const struct sampler *sampler, uint32_t epoch, uint32_t *order);

#endif
