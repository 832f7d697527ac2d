/* DistributedSampler's order; see sampler.h. */
#include "data/sampler.h"

#include <inttypes.h>
#include <stdlib.h>

status_t sampler_init(struct sampler *sampler, int64_t samples, int world, int rank, bool shuffle,
                      bool skip_repeats)
{
    if (samples < 1 || samples >= PERMUTATION_MAX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "a data set of %" PRId64 " samples: expected 1 to %u", samples,
                          PERMUTATION_MAX - 1);
    uint32_t *all = malloc((size_t)samples * sizeof *all);
    if (all == NULL)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "no memory for the order of %" PRId64 " samples", samples);
    *sampler = (struct sampler){.samples = (uint32_t)samples,
                                .world = world,
                                .rank = rank,
                                .shuffle = shuffle,
                                .skip_repeats = skip_repeats,
                                .all = all};
    return NULL;
}

void sampler_deinit(struct sampler *sampler)
{
    free(sampler->all);
    *sampler = (struct sampler){0};
}

int64_t sampler_count(const struct sampler *sampler)
{
    if (sampler->share.samples > 0) return batch_share_rows(&sampler->share, sampler->samples);
    return ((int64_t)sampler->samples + sampler->world - 1) / sampler->world;
}

void sampler_fill(const struct sampler *sampler, uint32_t epoch, uint32_t *order)
{
    if (sampler->shuffle) {
        struct generator generator;
        generator_seed(&generator, epoch);
        generator_fill_permutation(&generator, sampler->samples, sampler->all);
    } else {
        for (uint32_t i = 0; i < sampler->samples; i++) sampler->all[i] = i;
    }
    int64_t count = sampler_count(sampler);
    for (int64_t i = 0; i < count && sampler->share.samples > 0; i++) {
        int64_t place = batch_share_find(&sampler->share, i, sampler->samples);
        order[i] = place < 0 ? SAMPLE_NONE : sampler->all[place];
    }
    if (sampler->share.samples > 0) return;
    for (int64_t i = 0; i < count; i++) {
        int64_t place = i * sampler->world + sampler->rank;
        bool repeat = place >= sampler->samples;
        order[i] =
            repeat && sampler->skip_repeats ? SAMPLE_NONE : sampler->all[place % sampler->samples];
    }
}
