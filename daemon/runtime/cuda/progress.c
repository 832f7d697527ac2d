/*
 * A lane's progress through its collectives, reported by the lane itself: before and after each of
 * them it increments a counter in device memory and writes it to pinned memory, which the host can
 * read at any time. The count is odd while a collective runs or waits for its peers, and even while
 * the lane waits for other lanes, so a rank's own arithmetic does not count as a delay. Because
 * counting is work on the stream, captures include it, and a replayed graph keeps counting. Events
 * would not do: an event recorded by a graph still reports the previous launch as fired.
 *
 * A second counter advances when a graph has copied what it delivers (lane_deliver) to pinned
 * memory, where the host reads it while the graph continues.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "runtime/cuda/device_cuda.h"

/* An enqueued collective, for errors. If two steps, of which the second is enqueued behind the
 * first, have more, the oldest names are lost. */
struct named_progress {
    uint32_t number; /* among the lane's, from 1 */
    const char *kind, *label;
    uint64_t sequence;
};

enum { NAMES = 4096 };

enum { COLLECTIVES, DELIVERIES, COUNTERS };

struct cuda_progress {
    uint32_t *count; /* (COUNTERS), of the device */
    volatile uint32_t
        *host_count; /* the counts as the host sees them: at the end of the lane's staging */
    uint32_t enqueued;       /* collectives, also those of graphs that were replayed */
    uint32_t deliveries;     /* of graphs that were launched */
    uint32_t seen;           /* the count at the last check, and the time since it has that
                              * value: */
    int64_t since_ns;
    struct named_progress names[NAMES];
};

status_t cuda_progress_open(struct cuda_lane *lane)
{
    struct cuda_progress *progress = lane->progress = mem_alloc(sizeof *progress);
    const size_t bytes = COUNTERS * sizeof *progress->count;
    TRY_CUDA(cudaMalloc((void **)&progress->count, bytes));
    progress->host_count = (uint32_t *)(void *)(lane->staging + LANE_HOST_BYTES - PROGRESS_BYTES);
    for (int i = 0; i < COUNTERS; i++) progress->host_count[i] = 0;
    TRY_CUDA(cudaMemsetAsync(progress->count, 0, bytes, lane->stream));
    return NULL;
}

void cuda_progress_close(struct cuda_lane *lane)
{
    struct cuda_progress *progress = lane->progress;
    if (progress == NULL) return;
    cuda_release(progress->count);
    free(progress);
}

status_t cuda_progress_count(struct cuda_lane *lane, enum cuda_progress_kind kind)
{
    struct cuda_launch launch = cuda_launch_of(lane);
    struct cuda_progress *progress = lane->progress;
    const bool delivers = kind == CUDA_DELIVERS;
    const int counter = delivers ? DELIVERIES : COLLECTIVES;
    int error = cuda_count(&launch, progress->count + counter,
                           (uint32_t *)progress->host_count + counter, kind);
    if (delivers) return cuda_status((cudaError_t)error, "counting a delivery");
    return cuda_named(lane, cuda_status((cudaError_t)error, "counting a collective"));
}

void cuda_progress_expect(struct cuda_lane *lane)
{
    lane->progress->deliveries++;
}

bool cuda_progress_has_delivered(const struct cuda_lane *lane)
{
    const struct cuda_progress *progress = lane->progress;
    bool delivered = progress->host_count[DELIVERIES] == progress->deliveries;
    atomic_thread_fence(memory_order_acquire); /* what was copied is read after this */
    return delivered;
}

void cuda_progress_name(struct cuda_lane *lane, const char *kind, uint64_t sequence)
{
    struct cuda_progress *progress = lane->progress;
    uint32_t number = ++progress->enqueued;
    progress->names[number % NAMES] =
        (struct named_progress){number, kind, lane->base.label, sequence};
}

int64_t cuda_progress_waits_ns(struct cuda_lane *lane)
{
    struct cuda_progress *progress = lane->progress;
    uint32_t current = *progress->host_count;
    int64_t now = clock_monotonic_ns();
    if (current != progress->seen || progress->since_ns == 0) progress->since_ns = now;
    progress->seen = current;
    return current % 2 == 1 ? now - progress->since_ns : 0;
}

char *cuda_progress_describe(const struct cuda_lane *lane)
{
    const struct cuda_progress *progress = lane->progress;
    uint32_t number = progress->seen / 2 + 1;
    const struct named_progress *named = &progress->names[number % NAMES];
    if (named->number != number) return mem_printf("a collective");
    if (named->label == NULL)
        return mem_printf("%s number %llu", named->kind, (unsigned long long)named->sequence);
    return mem_printf("%s: %s number %llu", named->label, named->kind,
                      (unsigned long long)named->sequence);
}

/* The lane's owner may be adding names: one that is just replaced is missing, not wrong. */
struct lane_now cuda_progress_look(struct lane_queue *base)
{
    const struct cuda_progress *progress = ((struct cuda_lane *)base)->progress;
    if (progress == NULL) return (struct lane_now){0};
    uint32_t current = *progress->host_count, number = current / 2 + 1;
    if (current % 2 == 0) return (struct lane_now){0};
    const struct named_progress *named = &progress->names[number % NAMES];
    return (struct lane_now){.busy = true,
                             .label = named->number == number ? named->label : NULL,
                             .since_ns = current == progress->seen ? progress->since_ns
                                                                   : clock_monotonic_ns()};
}
