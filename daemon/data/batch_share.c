/* Global batches; see batch_share.h. */
#include "data/batch_share.h"

#include <inttypes.h>

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

status_t batch_share_check(const struct train_job *job)
{
    if (job->global_batch >= (uint64_t)job->world) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "train.global_batch: expected at least a sample for each of %d workers, "
                      "found %" PRIu64,
                      job->world, job->global_batch);
}

struct batch_share batch_share_of(const struct train_job *job, int rank)
{
    if (job->global_batch == 0) return (struct batch_share){0};
    int64_t samples = (int64_t)job->global_batch, most = divide_up(samples, job->world);
    int64_t micro_steps = divide_up(most, job->batch_size);
    return (struct batch_share){.samples = samples,
                                .world = job->world,
                                .rank = rank,
                                .batch = divide_up(most, micro_steps),
                                .micro_steps = (uint32_t)micro_steps};
}

static int64_t step_rows(const struct batch_share *share)
{
    return share->batch * share->micro_steps;
}

int64_t batch_share_rows(const struct batch_share *share, int64_t samples)
{
    return divide_up(samples, share->samples) * step_rows(share);
}

/* The samples of a step. */
static int64_t step_size(const struct batch_share *share, int64_t step, int64_t limit)
{
    int64_t left = limit - step * share->samples;
    return limit > 0 && left < share->samples ? left : share->samples;
}

/* Where the samples of `rank` start in a step of this size. */
static int64_t start_of(const struct batch_share *share, int64_t size, int rank)
{
    int64_t each = size / share->world, rest = size % share->world;
    return each * rank + rest * rank / share->world;
}

int64_t batch_share_find(const struct batch_share *share, int64_t row, int64_t limit)
{
    int64_t step = row / step_rows(share), own = row % step_rows(share);
    int64_t size = step_size(share, step, limit), start = start_of(share, size, share->rank);
    if (start + own >= start_of(share, size, share->rank + 1)) return -1;
    return step * share->samples + start + own;
}

int64_t batch_share_first(const struct batch_share *share, int64_t step, uint32_t micro,
                          int64_t limit)
{
    int64_t size = step_size(share, step, limit);
    return start_of(share, size, share->rank) + micro * share->batch;
}

int64_t batch_share_position(const struct train_job *job, uint64_t samples)
{
    const struct batch_share share = batch_share_of(job, 0);
    if (share.samples == 0) return (int64_t)(samples / (uint64_t)job->world);
    return (int64_t)(samples / job->global_batch) * step_rows(&share);
}
