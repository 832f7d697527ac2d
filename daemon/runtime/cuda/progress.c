/*
 * How far a lane is with its collectives, told by the lane itself: before and after each of them it
 * counts, in memory of the device, and writes the count to pinned memory, where the host reads it
 * at any time. The count is odd while a collective is at work, or waits for its peers, and even
 * while the lane waits for other lanes, so that a step's own arithmetic is nobody's delay. Because
 * the counting is work of the stream, it becomes part of a capture, and a replayed graph goes on
 * counting: events would not do, as one that a graph records still says of the launch before that
 * it has fired.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "runtime/cuda/device_cuda.h"

/* A collective that was enqueued, for errors. A step has fewer, or the oldest names are lost. */
struct named {
    uint32_t number; /* among the lane's, from 1 */
    const char *kind, *label;
    uint64_t sequence;
};

enum { NAMES = 4096 };

struct cuda_progress {
    uint32_t *count;         /* of the device */
    volatile uint32_t *told; /* the count as the host sees it: at the end of the lane's staging */
    uint32_t enqueued;       /* collectives, also those of graphs that were replayed */
    uint32_t seen;           /* the count when somebody last looked, and since when: */
    int64_t since_ns;
    struct named names[NAMES];
};

status_t cuda_progress_open(struct cuda_lane *lane)
{
    struct cuda_progress *progress = lane->progress = mem_alloc(sizeof *progress);
    TRY_CUDA(cudaMalloc((void **)&progress->count, sizeof *progress->count));
    progress->told = (uint32_t *)(void *)(lane->staging + LANE_HOST_BYTES - PROGRESS_BYTES);
    *progress->told = 0;
    TRY_CUDA(cudaMemsetAsync(progress->count, 0, sizeof *progress->count, lane->stream));
    return STATUS_OKAY;
}

void cuda_progress_close(struct cuda_lane *lane)
{
    struct cuda_progress *progress = lane->progress;
    if (progress == NULL) return;
    if (progress->count != NULL) cudaFree(progress->count);
    free(progress);
}

static status_t count(struct cuda_lane *lane, bool begins)
{
    struct cuda_launch launch = cuda_launch_of(lane);
    struct cuda_progress *progress = lane->progress;
    int error = cuda_count(&launch, progress->count, (uint32_t *)progress->told, begins);
    status_t status = cuda_status((cudaError_t)error, "counting a collective");
    return lane->base.label != NULL ? status_wrap(status, "%s", lane->base.label) : status;
}

status_t cuda_progress_begin(struct cuda_lane *lane)
{
    return count(lane, true);
}

status_t cuda_progress_end(struct cuda_lane *lane)
{
    return count(lane, false);
}

void cuda_progress_name(struct cuda_lane *lane, const char *kind, uint64_t sequence)
{
    struct cuda_progress *progress = lane->progress;
    uint32_t number = ++progress->enqueued;
    progress->names[number % NAMES] = (struct named){number, kind, lane->base.label, sequence};
}

int64_t cuda_progress_waits_ns(struct cuda_lane *lane)
{
    struct cuda_progress *progress = lane->progress;
    uint32_t told = *progress->told;
    int64_t now = clock_monotonic_ns();
    if (told != progress->seen || progress->since_ns == 0) progress->since_ns = now;
    progress->seen = told;
    return told % 2 == 1 ? now - progress->since_ns : 0;
}

char *cuda_progress_describe(const struct cuda_lane *lane)
{
    const struct cuda_progress *progress = lane->progress;
    uint32_t number = progress->seen / 2 + 1;
    const struct named *named = &progress->names[number % NAMES];
    if (named->number != number) return mem_printf("a collective");
    if (named->label == NULL)
        return mem_printf("%s number %llu", named->kind, (unsigned long long)named->sequence);
    return mem_printf("%s: %s number %llu", named->label, named->kind,
                      (unsigned long long)named->sequence);
}
