/*
 * Recordings as CUDA graphs: a step's calls, including NCCL's, are captured from the lanes' streams
 * and launched as one from then on. Values that change from step to step cannot be in a graph,
 * which holds its arguments by value: they lie in pinned memory, written before every launch. The
 * first node copies the kernels' values (steps, arguments of optimizers) to the device; others copy
 * the batch. MEASURE determines the size of that memory, because none may be allocated during a
 * capture.
 *
 * A graph holds references to its communicators. It is destroyed before they are freed or aborted;
 * a running graph is then freed when it has finished (cudaGraphExecDestroy).
 *
 * A graph that delivers (lane_deliver) is launched again behind itself, or behind another one of
 * the same lanes, while the first launch still runs. This overwrites nothing that the first one
 * needs:
 *
 * - Pinned memory for values and batches: by the time of the delivery the first launch has copied
 *   all of it to the device, because the delivery depends on these copies (a step's statistics on
 *   its batch). If copies follow the delivery, the recording is `late`, and no replay follows it.
 * - Pinned memory for what is delivered: the host has taken it from there.
 * - Memory of the device, the values' included: the second launch begins when the first has ended,
 *   by the order of the stream.
 * - The lanes' events for busy times: two sets take turns. A launch records those that its nodes
 *   had when it was launched. The captured graph is kept because only its nodes name them.
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/mem.h"
#include "runtime/cuda/device_cuda.h"

enum { ALIGNMENT = 64 };

/* Pinned memory allocated in the order of the calls, the same in every pass. */
struct block {
    char *host;
    size_t bytes; /* measured */
    size_t used;  /* in this pass */
};

struct cuda_recording {
    struct recording base;
    struct cuda_lane *lanes[LANE_COUNT]; /* the first one is the graph's */
    bool worked[LANE_COUNT];             /* they have a part in it */
    int lane_count;
    enum recording_pass pass;
    struct block values, copies;
    char *live;            /* the values on the device; struct cuda_live comes first */
    cudaGraphExec_t graph; /* NULL before it was captured; changes under the device's lock, as does
                            * the next one: */
    cudaGraph_t captured;  /* that the nodes below are of; NULL unless it delivers */
    cudaGraphNode_t began[LANE_COUNT], ended[LANE_COUNT]; /* record the lane's clock... */
    int clocks[LANE_COUNT];                               /* ...of this number */
    struct cuda_lane *sends; /* what the recording delivers, in this pass; NULL: not yet */
    bool late;               /* copies from pinned memory follow it */
    bool dropped;
    const void *group; /* whose collectives it contains; NULL: none */
    cudaEvent_t fork, joins[LANE_COUNT], done;
    struct cuda_recording *next;
};

static struct cuda_recording *cuda_recording(struct recording *recording)
{
    return (struct cuda_recording *)recording;
}

/* ---- values from calls ---- */

bool cuda_does_enqueue(const struct cuda_lane *lane)
{
    return lane->recording == NULL || lane->recording->pass == RECORDING_CAPTURE;
}

/* The next place in the block; a measured size does not change later. */
static status_t take(struct cuda_recording *recording, struct block *block, size_t bytes,
                     size_t *place)
{
    *place = block->used;
    block->used += round_up(bytes, ALIGNMENT);
    if (recording->pass == RECORDING_MEASURE || block->used <= block->bytes) return NULL;
    return status_new(STATUS_INTERNAL, "a recording's calls are not those that were measured");
}

status_t cuda_take_value(struct cuda_lane *lane, const void *value, size_t bytes, const void **live)
{
    struct cuda_recording *recording = lane->recording;
    size_t place = 0;
    *live = NULL;
    if (recording == NULL) return NULL;
    TRY(take(recording, &recording->values, bytes, &place));
    if (recording->pass == RECORDING_REPLAY) memcpy(recording->values.host + place, value, bytes);
    if (recording->pass != RECORDING_MEASURE) *live = recording->live + place;
    return NULL;
}

const struct cuda_live *cuda_take_live(struct cuda_lane *lane, const struct kernel_call *call)
{
    struct cuda_recording *recording = lane->recording;
    const struct cuda_live live = {call->step, call->first_sample};
    if (recording == NULL) return NULL;
    if (recording->pass == RECORDING_REPLAY) memcpy(recording->values.host, &live, sizeof live);
    return (const struct cuda_live *)recording->live;
}

status_t cuda_take_copy(struct cuda_lane *lane, char *to, const char *from, uint64_t bytes)
{
    struct cuda_recording *recording = lane->recording;
    size_t place = 0;
    TRY(take(recording, &recording->copies, bytes, &place));
    recording->late = recording->late || recording->sends != NULL;
    if (recording->pass == RECORDING_REPLAY) memcpy(recording->copies.host + place, from, bytes);
    if (recording->pass == RECORDING_CAPTURE)
        TRY_CUDA(cudaMemcpyAsync(to, recording->copies.host + place, bytes, cudaMemcpyHostToDevice,
                                 lane->stream));
    return NULL;
}

/* ---- deliveries ---- */

status_t cuda_check_arrival(const struct cuda_lane *lane)
{
    if (lane->recording->sends == NULL) return NULL;
    return status_new(STATUS_UNIMPLEMENTED, "a recording copies to host memory after its delivery");
}

status_t cuda_take_delivery(struct cuda_lane *lane)
{
    struct cuda_recording *recording = lane->recording;
    for (int i = 0; i < recording->lane_count; i++)
        if (recording->lanes[i] != lane && recording->lanes[i]->arrival_count > 0)
            return status_new(STATUS_UNIMPLEMENTED, "a recording delivers by two lanes");
    recording->sends = lane;
    recording->base.delivers = true;
    return cuda_does_enqueue(lane) ? cuda_progress_count(lane, CUDA_DELIVERS) : NULL;
}

/* Polls what a wait for each of the lanes would poll. */
static status_t poll_lanes(struct cuda_recording *recording)
{
    for (int i = 0; i < recording->lane_count; i++) {
        struct cuda_lane *lane = recording->lanes[i];
        if (lane->poll != NULL) TRY(lane->poll(lane->poll_user));
    }
    return NULL;
}

/* When it delivers, all that was launched before has ended. */
static status_t wait_for_delivery(struct cuda_recording *recording, int64_t deadline_ns,
                                  bool *delivered)
{
    for (int polls = 0;; polls++) {
        cudaError_t error = cudaStreamQuery(recording->lanes[0]->stream);
        bool works = error == cudaSuccess || error == cudaErrorNotReady;
        *delivered = works && cuda_progress_has_delivered(recording->sends);
        if (*delivered) return NULL;
        TRY(poll_lanes(recording));
        if (!works) return status_wrap(cuda_status(error, "cudaStreamQuery"), "a replay's lanes");
        if (error == cudaSuccess)
            return status_new(STATUS_INTERNAL, "a replay ended, but has delivered nothing");
        if (clock_monotonic_ns() > deadline_ns) return NULL;
        cuda_pause(polls);
    }
}

status_t cuda_recording_wait(struct recording *base, int64_t timeout_ms, bool *delivered)
{
    struct cuda_recording *recording = cuda_recording(base);
    *delivered = false;
    TRY(cuda_use(cuda_device(base->device)));
    TRY(wait_for_delivery(recording, clock_monotonic_ns() + timeout_ms * 1000000, delivered));
    for (int i = 0; i < recording->lane_count && *delivered; i++) {
        struct cuda_lane *lane = recording->lanes[i];
        cuda_lane_delivered(lane, lane == recording->sends);
        lane->delivered = !recording->late;
    }
    return NULL;
}

bool cuda_is_replaying(struct cuda_device *device, const void *group)
{
    bool replays = false;
    pthread_mutex_lock(&device->base.lock);
    for (const struct cuda_recording *r = device->recordings; r != NULL; r = r->next)
        for (int i = 0; i < r->lane_count && r->group == group; i++)
            replays = replays || r->lanes[i]->replayed;
    pthread_mutex_unlock(&device->base.lock);
    return replays;
}

void cuda_record_group(struct cuda_lane *lane, const void *group)
{
    lane->recording->group = group;
}

/* ---- creating and freeing ---- */

/* The device's lock is held. */
static void destroy_graph(struct cuda_recording *recording)
{
    if (recording->graph != NULL) cudaGraphExecDestroy(recording->graph);
    if (recording->captured != NULL) cudaGraphDestroy(recording->captured);
    recording->graph = NULL;
    recording->captured = NULL;
}

void cuda_drop_recordings(struct cuda_device *device, const void *group)
{
    pthread_mutex_lock(&device->base.lock);
    for (struct cuda_recording *r = device->recordings; r != NULL; r = r->next) {
        if (r->group != group) continue;
        destroy_graph(r);
        r->dropped = true;
    }
    pthread_mutex_unlock(&device->base.lock);
}

void cuda_recording_free(struct recording *base)
{
    struct cuda_recording *recording = cuda_recording(base);
    struct cuda_device *device = cuda_device(base->device);
    status_free(cuda_use(device));
    pthread_mutex_lock(&device->base.lock);
    destroy_graph(recording);
    struct cuda_recording **at = &device->recordings;
    while (*at != recording) at = &(*at)->next;
    *at = recording->next;
    pthread_mutex_unlock(&device->base.lock);
    if (recording->fork != NULL) cudaEventDestroy(recording->fork);
    if (recording->done != NULL) cudaEventDestroy(recording->done);
    for (int i = 0; i < LANE_COUNT; i++)
        if (recording->joins[i] != NULL) cudaEventDestroy(recording->joins[i]);
    const bool lost = device_is_lost();
    if (recording->values.host != NULL && !lost) cudaFreeHost(recording->values.host);
    if (recording->copies.host != NULL && !lost) cudaFreeHost(recording->copies.host);
    cuda_release(recording->live);
    free(recording);
}

static status_t make_events(struct cuda_recording *recording)
{
    TRY(cuda_use(cuda_device(recording->base.device)));
    TRY_CUDA(cudaEventCreateWithFlags(&recording->fork, cudaEventDisableTiming));
    TRY_CUDA(cudaEventCreateWithFlags(&recording->done, cudaEventDisableTiming));
    for (int i = 1; i < recording->lane_count; i++)
        TRY_CUDA(cudaEventCreateWithFlags(&recording->joins[i], cudaEventDisableTiming));
    return NULL;
}

status_t cuda_recording_new(struct device *base, struct lane_queue *const *lanes, int count,
                            struct recording **result)
{
    struct cuda_device *device = cuda_device(base);
    if (!device->graphs)
        return status_new(STATUS_UNIMPLEMENTED, "CUDA graphs are turned off by FSDPD_CUDA_GRAPHS");
    if (device->wait_after_each)
        return status_new(STATUS_UNIMPLEMENTED, "with FSDPD_CUDA_SYNC every call is waited for");
    if (count < 1 || count > LANE_COUNT)
        return status_new(STATUS_INTERNAL, "a recording of %d lanes", count);
    struct cuda_recording *recording = mem_alloc(sizeof *recording);
    recording->base.device = base;
    recording->lane_count = count;
    for (int i = 0; i < count; i++) recording->lanes[i] = cuda_lane(lanes[i]);
    pthread_mutex_lock(&base->lock);
    recording->next = device->recordings;
    device->recordings = recording;
    pthread_mutex_unlock(&base->lock);
    status_t status = make_events(recording);
    if (status != NULL) {
        cuda_recording_free(&recording->base);
        return status;
    }
    *result = &recording->base;
    return NULL;
}

/* ---- passes ---- */

/* All streams take part from the start, after the copy of the values. */
static status_t begin_capture(struct cuda_recording *recording)
{
    cudaStream_t first = recording->lanes[0]->stream;
    pthread_rwlock_rdlock(&cuda_captures);
    /* Thread-local mode: calls of other threads, e.g. to allocate memory, are neither captured nor
     * errors; to synchronize the device is one (cuda_captures). */
    TRY_CUDA(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    TRY_CUDA(cudaMemcpyAsync(recording->live, recording->values.host, recording->values.bytes,
                             cudaMemcpyHostToDevice, first));
    TRY_CUDA(cudaEventRecord(recording->fork, first));
    for (int i = 1; i < recording->lane_count; i++)
        TRY_CUDA(cudaStreamWaitEvent(recording->lanes[i]->stream, recording->fork, 0));
    return NULL;
}

static status_t join(struct cuda_recording *recording)
{
    for (int i = 0; i < recording->lane_count; i++) {
        struct cuda_lane *lane = recording->lanes[i];
        recording->worked[i] = lane->busy;
        TRY(cuda_lane_join(lane));
        if (lane->busy) TRY(cuda_record_clock(lane, lane->clocks[lane->clock].ended));
        if (i == 0) continue;
        TRY_CUDA(cudaEventRecord(recording->joins[i], lane->stream));
        TRY_CUDA(cudaStreamWaitEvent(recording->lanes[0]->stream, recording->joins[i], 0));
    }
    return NULL;
}

/* Finds the nodes that record the lanes' clocks. */
static status_t find_clocks(struct cuda_recording *recording, cudaGraph_t captured, size_t count)
{
    AUTO_FREE cudaGraphNode_t *nodes = mem_resize_array(NULL, count, sizeof *nodes);
    TRY_CUDA(cudaGraphGetNodes(captured, nodes, &count));
    for (size_t n = 0; n < count; n++) {
        enum cudaGraphNodeType type;
        cudaEvent_t event = NULL;
        TRY_CUDA(cudaGraphNodeGetType(nodes[n], &type));
        if (type != cudaGraphNodeTypeEventRecord) continue;
        TRY_CUDA(cudaGraphEventRecordNodeGetEvent(nodes[n], &event));
        for (int i = 0; i < recording->lane_count; i++) {
            const struct cuda_lane *lane = recording->lanes[i];
            recording->clocks[i] = lane->clock;
            if (event == lane->clocks[lane->clock].began) recording->began[i] = nodes[n];
            if (event == lane->clocks[lane->clock].ended) recording->ended[i] = nodes[n];
        }
    }
    return NULL;
}

/* From the next launch on, the lane's times go to the clock of this number. */
static status_t set_clock(struct cuda_recording *recording, int i, int number)
{
    const struct cuda_clock *clock = &recording->lanes[i]->clocks[number];
    if (recording->clocks[i] == number) return NULL;
    TRY_CUDA(
        cudaGraphExecEventRecordNodeSetEvent(recording->graph, recording->began[i], clock->began));
    TRY_CUDA(
        cudaGraphExecEventRecordNodeSetEvent(recording->graph, recording->ended[i], clock->ended));
    recording->clocks[i] = number;
    return NULL;
}

static status_t instantiate(struct cuda_recording *recording, cudaGraph_t captured)
{
    static const char *const results[] = {
        [cudaGraphInstantiateSuccess] = "success",
        [cudaGraphInstantiateError] = "an error that the call names",
        [cudaGraphInstantiateInvalidStructure] = "its structure is not valid",
        [cudaGraphInstantiateNodeOperationNotSupported] = "an operation of it is not supported",
        [cudaGraphInstantiateMultipleDevicesNotSupported] = "it has several devices",
    };
    /* Collectives and copies keep the priority of their lanes. */
    cudaGraphInstantiateParams params = {.flags = cudaGraphInstantiateFlagUseNodePriority};
    size_t nodes = 0;
    cudaError_t error = cudaGraphGetNodes(captured, NULL, &nodes);
    cudaGraphExec_t graph = NULL;
    if (error == cudaSuccess) error = cudaGraphInstantiateWithParams(&graph, captured, &params);
    size_t result = (size_t)params.result_out;
    const char *why = result < COUNT_OF(results) ? results[result] : "unknown";
    TRY(status_wrap(cuda_status(error, "cudaGraphInstantiateWithParams"),
                    "a graph of %zu nodes, %s", nodes, why));
    recording->graph = graph;
    /* Otherwise the first launch does it, and that step is slower than the others. */
    TRY_CUDA(cudaGraphUpload(graph, recording->lanes[0]->stream));
    return recording->base.delivers ? find_clocks(recording, captured, nodes) : NULL;
}

/* Always ends the capture, whatever happened in it; otherwise the streams would stay in it. */
static status_t end_capture(struct cuda_recording *recording, status_t walked)
{
    cudaGraph_t captured = NULL;
    status_t status = walked;
    if (status == NULL) status = join(recording);
    cudaError_t ended = cudaStreamEndCapture(recording->lanes[0]->stream, &captured);
    pthread_rwlock_unlock(&cuda_captures);
    recording->base.disturbed = ended == cudaErrorStreamCaptureInvalidated;
    status = status_first(status, cuda_status(ended, "cudaStreamEndCapture"));
    if (status == NULL) status = instantiate(recording, captured);
    if (status == NULL && recording->base.delivers) recording->captured = captured;
    else if (captured != NULL) cudaGraphDestroy(captured);
    return status;
}

static void enter(struct cuda_recording *recording, enum recording_pass pass)
{
    recording->pass = pass;
    recording->values.used = ALIGNMENT; /* the place of struct cuda_live */
    recording->copies.used = 0;
    recording->sends = NULL;
    for (int i = 0; i < recording->lane_count; i++) {
        recording->lanes[i]->recording = recording;
        recording->lanes[i]->base.is_dry_run = pass != RECORDING_REPLAY;
    }
}

/* A dry run leaves nothing on the lanes; its failures affect only itself. */
static status_t leave(struct cuda_recording *recording)
{
    status_t status = NULL;
    for (int i = 0; i < recording->lane_count; i++) {
        struct cuda_lane *lane = recording->lanes[i];
        lane->recording = NULL;
        lane->base.is_dry_run = false;
        if (recording->pass == RECORDING_REPLAY) continue;
        lane->busy = false;
        lane->beside = -1;
        lane->arrival_count = 0;
        lane->arrival_bytes = 0;
        status = status_first(status, lane->failure);
        lane->failure = NULL;
    }
    return status;
}

/* After a successful pass. */
static status_t check_sizes(struct cuda_recording *recording)
{
    if (recording->values.used == recording->values.bytes &&
        recording->copies.used == recording->copies.bytes)
        return NULL;
    return status_new(STATUS_INTERNAL, "a recording's calls are not those that were measured");
}

static status_t take_memory(struct cuda_recording *recording)
{
    recording->values.bytes = recording->values.used;
    recording->copies.bytes = recording->copies.used;
    TRY_CUDA(cudaMallocHost((void **)&recording->values.host, recording->values.bytes));
    TRY_CUDA(cudaMalloc((void **)&recording->live, recording->values.bytes));
    memset(recording->values.host, 0, recording->values.bytes);
    if (recording->copies.bytes == 0) return NULL;
    TRY_CUDA(cudaMallocHost((void **)&recording->copies.host, recording->copies.bytes));
    return NULL;
}

/* A lane with times that are still to be read gets its other clock. */
static status_t wind_clocks(struct cuda_recording *recording)
{
    for (int i = 0; i < recording->lane_count && recording->captured != NULL; i++) {
        const struct cuda_lane *lane = recording->lanes[i];
        if (recording->worked[i]) TRY(set_clock(recording, i, lane->clock ^ (int)lane->busy));
    }
    return NULL;
}

static void note_launch(struct cuda_recording *recording, int i)
{
    struct cuda_lane *lane = recording->lanes[i];
    lane->delivered = false;
    if (!recording->worked[i] && i != 0) return;
    if (recording->worked[i] && lane->busy) {
        lane->clock ^= 1;
        lane->earlier = true;
    }
    lane->busy = lane->replayed = true;
}

/* The other lanes have finished when the graph has. */
static status_t launch(struct cuda_recording *recording)
{
    struct cuda_lane *first = recording->lanes[0];
    for (int i = 0; i < recording->lane_count; i++)
        if (recording->lanes[i]->failure != NULL) return status_copy(recording->lanes[i]->failure);
    TRY(wind_clocks(recording));
    TRY_CUDA(cudaGraphLaunch(recording->graph, first->stream));
    for (int i = 0; i < recording->lane_count; i++) note_launch(recording, i);
    if (recording->sends != NULL) cuda_progress_expect(recording->sends);
    TRY_CUDA(cudaEventRecord(recording->done, first->stream));
    for (int i = 1; i < recording->lane_count; i++)
        TRY_CUDA(cudaStreamWaitEvent(recording->lanes[i]->stream, recording->done, 0));
    return NULL;
}

status_t cuda_recording_begin(struct recording *base, enum recording_pass pass)
{
    struct cuda_recording *recording = cuda_recording(base);
    TRY(cuda_use(cuda_device(base->device)));
    if (recording->dropped) return status_new(STATUS_ABORTED, "the group was aborted");
    if (pass == RECORDING_REPLAY && recording->graph == NULL)
        return status_new(STATUS_INTERNAL, "nothing was recorded that could be replayed");
    for (int i = 0; i < recording->lane_count; i++) {
        const struct cuda_lane *lane = recording->lanes[i];
        if (lane->busy && !(pass == RECORDING_REPLAY && lane->delivered))
            return status_new(STATUS_INTERNAL, "a recording's pass began while a lane had work");
    }
    enter(recording, pass);
    if (pass != RECORDING_CAPTURE) return NULL;
    status_t status = begin_capture(recording);
    if (status == NULL) return NULL;
    status = end_capture(recording, status);
    return status_first(status, leave(recording));
}

status_t cuda_recording_end(struct recording *base, status_t walked)
{
    struct cuda_recording *recording = cuda_recording(base);
    status_t status = walked;
    if (recording->pass == RECORDING_CAPTURE) {
        if (status == NULL) status = check_sizes(recording);
        status = end_capture(recording, status);
        return status_first(status, leave(recording));
    }
    status = status_first(status, leave(recording));
    if (recording->pass == RECORDING_MEASURE)
        return status == NULL ? take_memory(recording) : status;
    if (status == NULL) status = check_sizes(recording);
    return status == NULL ? launch(recording) : status;
}
