/*
 * Lanes as streams: events, copies, waiting. Copies from host memory go through the lane's pinned
 * memory, so the caller may change its bytes at once; copies to host memory arrive in pinned memory
 * and are passed on when the lane is waited for.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "runtime/cuda/device_cuda.h"

static const char *const lane_names[LANE_COUNT] = {"compute", "comm", "copy", "download", "host"};

struct cuda_launch cuda_launch_of(const struct cuda_lane *lane)
{
    return (struct cuda_launch){.stream = lane->stream,
                                .processors = cuda_device(lane->base.device)->processors};
}

/* For the event, or for all of the lane's work if it is NULL. */
static status_t wait_until(struct cuda_lane *lane, cudaEvent_t event, int64_t timeout_ms);
static void take_stamps(struct cuda_lane *lane, bool done);
/* Waits, but not after `deadline_ns`. Returns whether the stream has nothing more to do. */
static bool run_out(cudaStream_t stream, int64_t deadline_ns);

status_t cuda_named(const struct cuda_lane *lane, status_t status)
{
    if (lane->base.label == NULL) return status;
    return status_wrap(status, "%s", lane->base.label);
}

/* During a capture the graph must record it, too. */
status_t cuda_record_clock(struct cuda_lane *lane, cudaEvent_t clock)
{
    unsigned flags = lane->recording != NULL ? cudaEventRecordExternal : cudaEventRecordDefault;
    cudaError_t error = cudaEventRecordWithFlags(clock, lane->stream, flags);
    return status_wrap(cuda_status(error, "cudaEventRecordWithFlags"), "the %s lane's clock",
                       lane_names[lane->base.kind]);
}

status_t cuda_lane_join(struct cuda_lane *lane)
{
    if (lane->beside < 0) return NULL;
    lane->beside = -1;
    TRY_CUDA(cudaStreamWaitEvent(lane->stream, lane->joined, 0));
    return NULL;
}

status_t cuda_enqueue(struct cuda_lane *lane)
{
    if (lane->failure != NULL) return status_copy(lane->failure);
    if (lane->replayed)
        return cuda_named(lane, status_new(STATUS_INTERNAL, "the %s lane has work while it replays",
                                      lane_names[lane->base.kind]));
    TRY(cuda_use(cuda_device(lane->base.device)));
    TRY(cuda_named(lane, cuda_lane_join(lane)));
    if (lane->busy) return NULL;
    TRY(cuda_named(lane, cuda_record_clock(lane, lane->clocks[lane->clock].began)));
    lane->busy = true;
    return NULL;
}

status_t cuda_enqueued(struct cuda_lane *lane, int error, const char *what)
{
    TRY(cuda_named(lane, cuda_status((cudaError_t)error, what)));
    if (!cuda_device(lane->base.device)->wait_after_each) return NULL;
    return cuda_named(lane, status_wrap(wait_until(lane, NULL, SYNC_TIMEOUT_MS), "%s", what));
}

/* ---- opening and closing ---- */

/* Longer than a step. What still runs then never ends, and uses the lane's memory. */
enum { CLOSE_MS = 60000 };

void cuda_lane_close(struct lane_queue *base)
{
    struct cuda_lane *lane = cuda_lane(base);
    status_free(cuda_use(cuda_device(base->device)));
    const int64_t deadline_ns = clock_monotonic_ns() + (int64_t)CLOSE_MS * 1000000;
    if ((lane->stream != NULL && !run_out(lane->stream, deadline_ns)) ||
        (lane->side != NULL && !run_out(lane->side, deadline_ns))) {
        device_lose();
        return;
    }
    for (int i = 0; i < STAGING_PARTS; i++)
        if (lane->staging_free[i] != NULL) cudaEventDestroy(lane->staging_free[i]);
    for (int i = 0; i < 2; i++) {
        if (lane->clocks[i].began != NULL) cudaEventDestroy(lane->clocks[i].began);
        if (lane->clocks[i].ended != NULL) cudaEventDestroy(lane->clocks[i].ended);
    }
    take_stamps(lane, false);
    for (int i = 0; i < lane->stamp_events; i++) cudaEventDestroy(lane->stamps[i].event);
    free(lane->stamps);
    if (lane->staging != NULL) cudaFreeHost(lane->staging);
    cuda_release(lane->norm_parts);
    cuda_progress_close(lane);
    if (lane->forked != NULL) cudaEventDestroy(lane->forked);
    if (lane->joined != NULL) cudaEventDestroy(lane->joined);
    if (lane->side != NULL) cudaStreamDestroy(lane->side);
    if (lane->stream != NULL) cudaStreamDestroy(lane->stream);
    status_free(lane->failure);
    status_free(lane->host_failure);
    pthread_mutex_destroy(&lane->host_lock);
    free(lane);
}

static status_t open_side(struct cuda_lane *lane)
{
    TRY_CUDA(cudaStreamCreateWithFlags(&lane->side, cudaStreamNonBlocking));
    TRY_CUDA(cudaEventCreateWithFlags(&lane->forked, cudaEventDisableTiming));
    TRY_CUDA(cudaEventCreateWithFlags(&lane->joined, cudaEventDisableTiming));
    return NULL;
}

static status_t set_up(struct cuda_lane *lane)
{
    int least = 0, greatest = 0;
    TRY(cuda_use(cuda_device(lane->base.device)));
    TRY_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    /* Other ranks wait for it, so it goes first. */
    int priority = lane->base.kind == LANE_COMPUTE ? least : greatest;
    TRY_CUDA(cudaStreamCreateWithPriority(&lane->stream, cudaStreamNonBlocking, priority));
    TRY_CUDA(cudaMallocHost((void **)&lane->staging, LANE_HOST_BYTES));
    for (int i = 0; i < STAGING_PARTS; i++)
        TRY_CUDA(cudaEventCreateWithFlags(&lane->staging_free[i], cudaEventDisableTiming));
    for (int i = 0; i < 2; i++) {
        TRY_CUDA(cudaEventCreateWithFlags(&lane->clocks[i].began, cudaEventDefault));
        TRY_CUDA(cudaEventCreateWithFlags(&lane->clocks[i].ended, cudaEventDefault));
    }
    TRY_CUDA(cudaMalloc((void **)&lane->norm_parts, (CUDA_NORM_PARTS + 1) * sizeof(double)));
    if (cuda_device(lane->base.device)->branches && lane->base.kind == LANE_COMPUTE)
        TRY(open_side(lane));
    return cuda_progress_open(lane);
}

status_t cuda_lane_open(struct device *device, enum lane kind, struct lane_queue **result)
{
    struct cuda_lane *lane = mem_alloc(sizeof *lane);
    lane->base.device = device;
    lane->base.kind = kind;
    lane->beside = -1;
    pthread_mutex_init(&lane->host_lock, NULL);
    status_t status = set_up(lane);
    if (status != NULL) {
        cuda_lane_close(&lane->base);
        return status_wrap(status, "the %s lane", lane_names[kind]);
    }
    *result = &lane->base;
    return NULL;
}

/* ---- events ---- */

status_t cuda_event_new(struct device *device, struct event **result)
{
    struct cuda_event *event = mem_alloc(sizeof *event);
    event->base.device = device;
    status_t status = cuda_use(cuda_device(device));
    if (status == NULL)
        status = cuda_status(cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming),
                             "cudaEventCreateWithFlags");
    if (status != NULL) {
        free(event);
        return status;
    }
    *result = &event->base;
    return NULL;
}

void cuda_event_free(struct event *base)
{
    struct cuda_event *event = (struct cuda_event *)base;
    status_free(cuda_use(cuda_device(base->device)));
    cudaEventDestroy(event->event);
    free(event);
}

/* These return nothing, and a failed call need not be an error of the stream: the lane keeps it. A
 * lane that waits for an event that was not recorded would continue at once, so it fails, too. */

static void keep(struct cuda_lane *lane, status_t status)
{
    if (status == NULL) return;
    if (lane->failure == NULL) lane->failure = cuda_named(lane, status);
    else status_free(status);
}

void cuda_lane_record(struct lane_queue *base, struct event *of)
{
    struct cuda_lane *lane = cuda_lane(base);
    struct cuda_event *event = (struct cuda_event *)of;
    if (!cuda_does_enqueue(lane)) return;
    keep(lane, cuda_use(cuda_device(base->device)));
    keep(lane, cuda_lane_join(lane));
    event->error = cudaEventRecord(event->event, lane->stream);
    keep(lane, cuda_status(event->error, "cudaEventRecord"));
}

void cuda_lane_wait_event(struct lane_queue *base, struct event *of)
{
    struct cuda_lane *lane = cuda_lane(base);
    struct cuda_event *event = (struct cuda_event *)of;
    if (!cuda_does_enqueue(lane)) return;
    keep(lane, cuda_use(cuda_device(base->device)));
    keep(lane, cuda_status(event->error, "cudaEventRecord"));
    keep(lane,
         cuda_status(cudaStreamWaitEvent(lane->stream, event->event, 0), "cudaStreamWaitEvent"));
}

status_t cuda_event_fired(struct event *of, bool *fired)
{
    struct cuda_event *event = (struct cuda_event *)of;
    TRY(cuda_use(cuda_device(of->device)));
    TRY(cuda_status(event->error, "cudaEventRecord"));
    cudaError_t error = cudaEventQuery(event->event);
    *fired = error == cudaSuccess;
    if (error == cudaErrorNotReady) return NULL;
    return cuda_status(error, "cudaEventQuery");
}

/* ---- copies ---- */

bool cuda_is_of_device(struct device *device, const void *address)
{
    bool found = false;
    pthread_mutex_lock(&device->lock);
    for (int i = 0; i < device->allocation_count && !found; i++) {
        const char *start = device->allocations[i].memory;
        uint64_t offset = (uint64_t)((const char *)address - start);
        found = !device->allocations[i].host && (const char *)address >= start &&
                offset < device->allocations[i].bytes;
    }
    pthread_mutex_unlock(&device->lock);
    return found;
}

/* Waits only if both parts are in flight. */
status_t cuda_copy_in(struct cuda_lane *lane, char *to, const char *from, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        size_t count = bytes - done < STAGING_BYTES ? (size_t)(bytes - done) : STAGING_BYTES;
        int part = lane->staging_next;
        char *pinned = lane->staging + (size_t)part * STAGING_BYTES;
        TRY(wait_until(lane, lane->staging_free[part], SYNC_TIMEOUT_MS));
        memcpy(pinned, from + done, count);
        TRY_CUDA(cudaMemcpyAsync(to + done, pinned, count, cudaMemcpyHostToDevice, lane->stream));
        TRY_CUDA(cudaEventRecord(lane->staging_free[part], lane->stream));
        lane->staging_next = (part + 1) % STAGING_PARTS;
        done += count;
    }
    return NULL;
}

static void hand_out(struct cuda_lane *lane)
{
    for (int i = 0; i < lane->arrival_count; i++)
        memcpy(lane->arrivals[i].to, lane->arrivals[i].from, lane->arrivals[i].bytes);
    lane->arrival_count = 0;
    lane->arrival_bytes = 0;
}

/* A small copy never waits; a whole shard goes through in parts. */
status_t cuda_copy_out(struct cuda_lane *lane, char *to, const char *from, uint64_t bytes)
{
    char *pinned = lane->staging + (size_t)STAGING_PARTS * STAGING_BYTES;
    for (uint64_t done = 0; done < bytes;) {
        size_t room = STAGING_BYTES - lane->arrival_bytes;
        if (room == 0 || lane->arrival_count == ARRIVALS_MAX) {
            if (lane->recording != NULL)
                return status_new(STATUS_UNIMPLEMENTED,
                                  "a recording that copies more than %d bytes to host memory",
                                  (int)STAGING_BYTES);
            TRY(wait_until(lane, NULL, SYNC_TIMEOUT_MS));
            hand_out(lane);
            continue;
        }
        size_t count = bytes - done < room ? (size_t)(bytes - done) : room;
        char *place = pinned + lane->arrival_bytes;
        if (cuda_does_enqueue(lane))
            TRY_CUDA(
                cudaMemcpyAsync(place, from + done, count, cudaMemcpyDeviceToHost, lane->stream));
        lane->arrivals[lane->arrival_count++] =
            (struct cuda_arrival){.to = to + done, .from = place, .bytes = count};
        lane->arrival_bytes += round_up(count, 64);
        if (lane->arrival_bytes > STAGING_BYTES) lane->arrival_bytes = STAGING_BYTES;
        done += count;
    }
    return NULL;
}

static status_t copy(struct cuda_lane *lane, void *to, const void *from, uint64_t bytes)
{
    struct device *device = lane->base.device;
    bool target = cuda_is_of_device(device, to), source = cuda_is_of_device(device, from);
    if (target && !source)
        return lane->recording != NULL ? cuda_take_copy(lane, to, from, bytes)
                                       : cuda_copy_in(lane, to, from, bytes);
    if (source && !target) {
        if (lane->recording != NULL) TRY(cuda_check_arrival(lane));
        return cuda_copy_out(lane, to, from, bytes);
    }
    if (!source) return status_new(STATUS_INTERNAL, "a copy from host memory to host memory");
    if (!cuda_does_enqueue(lane)) return NULL;
    TRY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, lane->stream));
    return NULL;
}

status_t cuda_lane_copy(struct lane_queue *base, void *to, const void *from, uint64_t bytes)
{
    struct cuda_lane *lane = cuda_lane(base);
    if (bytes == 0) return NULL;
    if (cuda_does_enqueue(lane)) TRY(cuda_enqueue(lane));
    TRY(cuda_named(lane, copy(lane, to, from, bytes)));
    return cuda_enqueued(lane, cudaSuccess, "a copy");
}

status_t cuda_lane_transfer(struct lane_queue *base, void *to, const void *from, uint64_t bytes)
{
    struct cuda_lane *lane = cuda_lane(base);
    bool up = cuda_is_of_device(base->device, to);
    if (bytes == 0) return NULL;
    if (lane->recording != NULL)
        return status_new(STATUS_UNIMPLEMENTED, "a recording with memory of the host in it");
    TRY(cuda_enqueue(lane));
    cudaError_t error =
        cudaMemcpyAsync(to, from, bytes, up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                        lane->stream);
    return cuda_enqueued(lane, error, "a transfer");
}

status_t cuda_lane_deliver(struct lane_queue *base, void *to, const void *from, uint64_t bytes)
{
    struct cuda_lane *lane = cuda_lane(base);
    TRY(cuda_lane_copy(base, to, from, bytes));
    if (lane->recording == NULL || !cuda_device(base->device)->ahead) return NULL;
    return cuda_named(lane, cuda_take_delivery(lane));
}

status_t cuda_lane_zero(struct lane_queue *base, void *memory, uint64_t bytes)
{
    struct cuda_lane *lane = cuda_lane(base);
    if (bytes == 0 || !cuda_does_enqueue(lane)) return NULL;
    TRY(cuda_enqueue(lane));
    return cuda_enqueued(lane, cudaMemsetAsync(memory, 0, bytes, lane->stream), "cudaMemsetAsync");
}

/* ---- functions of the host ---- */

void cuda_lane_fail(struct cuda_lane *lane, const char *label, status_t failure)
{
    if (label != NULL) failure = status_wrap(failure, "%s", label);
    pthread_mutex_lock(&lane->host_lock);
    lane->host_failure = status_first(lane->host_failure, failure);
    pthread_mutex_unlock(&lane->host_lock);
}

static status_t take_host_failure(struct cuda_lane *lane)
{
    pthread_mutex_lock(&lane->host_lock);
    status_t failure = lane->host_failure;
    lane->host_failure = NULL;
    pthread_mutex_unlock(&lane->host_lock);
    return failure;
}

/* ---- time ---- */

/* The device's clock at the first of the stamps that are pending. The lane is idle, so the event fires
 * when it is recorded, or some microseconds later: no stamp is too late by the host's clock. */
static status_t set_epoch(struct cuda_lane *lane)
{
    struct cuda_device *device = cuda_device(lane->base.device);
    if (device->stamps_pending > 0) return NULL;
    if (device->epoch == NULL)
        TRY_CUDA(cudaEventCreateWithFlags(&device->epoch, cudaEventDefault));
    device->epoch_ns = clock_monotonic_ns();
    TRY_CUDA(cudaEventRecord(device->epoch, lane->stream));
    return wait_until(lane, device->epoch, SYNC_TIMEOUT_MS);
}

/* A function of the host would stop the stream for longer than a small kernel runs. */
status_t cuda_lane_stamp(struct lane_queue *base, int64_t *ns)
{
    struct cuda_lane *lane = cuda_lane(base);
    if (lane->recording != NULL)
        return status_new(STATUS_UNIMPLEMENTED, "the times of a recording's parts");
    TRY(cuda_enqueue(lane));
    TRY(cuda_named(lane, set_epoch(lane)));
    if (lane->stamp_count == lane->stamp_events) {
        MEM_GROW(lane->stamps, lane->stamp_events, lane->stamp_capacity);
        struct cuda_stamp made = {0};
        TRY_CUDA(cudaEventCreateWithFlags(&made.event, cudaEventDefault));
        lane->stamps[lane->stamp_events++] = made;
    }
    TRY_CUDA(cudaEventRecord(lane->stamps[lane->stamp_count].event, lane->stream));
    lane->stamps[lane->stamp_count++].ns = ns;
    cuda_device(base->device)->stamps_pending++;
    return NULL;
}

/* Of a lane that was waited for; `done`: its events have fired. */
static void take_stamps(struct cuda_lane *lane, bool done)
{
    struct cuda_device *device = cuda_device(lane->base.device);
    for (int i = 0; i < lane->stamp_count && done; i++) {
        float ms = 0;
        if (cudaEventElapsedTime(&ms, device->epoch, lane->stamps[i].event) == cudaSuccess)
            *lane->stamps[i].ns = device->epoch_ns + (int64_t)((double)ms * 1e6);
        else cudaGetLastError();
    }
    device->stamps_pending -= lane->stamp_count;
    lane->stamp_count = 0;
}

/* The clock's events have fired. */
static void add_time(struct cuda_lane *lane, const struct cuda_clock *clock)
{
    float ms = 0;
    if (cudaEventElapsedTime(&ms, clock->began, clock->ended) == cudaSuccess)
        lane->busy_ns += (int64_t)((double)ms * 1e6);
    else cudaGetLastError();
}

static void add_earlier(struct cuda_lane *lane)
{
    if (lane->earlier) add_time(lane, &lane->clocks[lane->clock ^ 1]);
    lane->earlier = false;
}

void cuda_lane_delivered(struct cuda_lane *lane, bool sends)
{
    add_earlier(lane);
    if (sends) hand_out(lane);
}

int64_t cuda_lane_busy_ns(const struct lane_queue *lane)
{
    return cuda_lane(lane)->busy_ns;
}

/* ---- waiting ---- */

/* A step is thousands of times longer than this; a spin of a few is for short ones. */
enum { SPINS = 200, PAUSE_NS = 20000 };

void cuda_pause(int polls)
{
    if (polls < SPINS) sched_yield();
    else nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

static bool run_out(cudaStream_t stream, int64_t deadline_ns)
{
    cudaError_t error = cudaErrorNotReady;
    for (int polls = 0; error == cudaErrorNotReady && clock_monotonic_ns() <= deadline_ns;
         polls++) {
        error = cudaStreamQuery(stream);
        if (error == cudaErrorNotReady) cuda_pause(polls);
    }
    return error != cudaErrorNotReady;
}

static status_t wait_until(struct cuda_lane *lane, cudaEvent_t event, int64_t timeout_ms)
{
    const int64_t deadline_ns = clock_monotonic_ns() + timeout_ms * 1000000;
    for (int spins = 0;; spins++) {
        cudaError_t error = event != NULL ? cudaEventQuery(event) : cudaStreamQuery(lane->stream);
        if (error == cudaSuccess) return NULL;
        if (error != cudaErrorNotReady) {
            status_t status =
                cuda_status(error, event != NULL ? "cudaEventQuery" : "cudaStreamQuery");
            return status_wrap(status, "the %s lane, after it was given %s",
                               lane_names[lane->base.kind],
                               lane->base.label != NULL ? lane->base.label : "its work");
        }
        if (lane->poll != NULL) TRY(lane->poll(lane->poll_user));
        if (clock_monotonic_ns() > deadline_ns) {
            lane->base.unfinished = true;
            return status_new(STATUS_DEADLINE_EXCEEDED,
                              "the %s lane did not finish within %" PRId64 " ms",
                              lane_names[lane->base.kind], timeout_ms);
        }
        cuda_pause(spins);
    }
}

status_t cuda_lane_wait(struct lane_queue *base, int64_t timeout_ms)
{
    enum { MOST_MS = 1000 * 86400 };
    struct cuda_lane *lane = cuda_lane(base);
    int64_t wanted = timeout_ms < (int64_t)365 * MOST_MS ? timeout_ms : (int64_t)365 * MOST_MS;
    if (!lane->busy) return status_copy(lane->failure);
    TRY(cuda_use(cuda_device(base->device)));
    keep(lane, cuda_lane_join(lane));
    const struct cuda_clock *clock = &lane->clocks[lane->clock];
    status_t recorded = lane->replayed ? NULL : cuda_record_clock(lane, clock->ended);
    const int64_t deadline_ns = clock_monotonic_ns() + wanted * 1000000;
    status_t status = wait_until(lane, NULL, wanted);
    if (lane->base.unfinished) {
        status_free(recorded);
        return status; /* it still runs */
    }
    if (status == NULL) add_earlier(lane);
    if (status == NULL && recorded == NULL) add_time(lane, clock);
    if (status == NULL) hand_out(lane);
    take_stamps(lane, status == NULL);
    lane->earlier = false;
    lane->arrival_count = 0;
    lane->arrival_bytes = 0;
    /* After an abort, work behind the collectives still uses memory that is about to be released. */
    lane->busy = status != NULL && !run_out(lane->stream, deadline_ns);
    lane->replayed = lane->delivered = false;
    status = status_first(take_host_failure(lane), status_first(status, recorded));
    return status_first(status_copy(lane->failure), status);
}
