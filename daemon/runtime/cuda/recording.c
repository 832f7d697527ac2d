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
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
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
    cudaGraphExec_t graph; /* NULL before it was captured; changes under the device's lock */
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
    if (recording->pass == RECORDING_REPLAY) memcpy(recording->copies.host + place, from, bytes);
    if (recording->pass == RECORDING_CAPTURE)
        TRY_CUDA(cudaMemcpyAsync(to, recording->copies.host + place, bytes, cudaMemcpyHostToDevice,
                                 lane->stream));
    return NULL;
}

void cuda_record_group(struct cuda_lane *lane, const void *group)
{
    lane->recording->group = group;
}

/* ---- creating and freeing ---- */

static void destroy_graph(struct cuda_recording *recording)
{
    struct device *device = recording->base.device;
    pthread_mutex_lock(&device->lock);
    cudaGraphExec_t graph = recording->graph;
    recording->graph = NULL;
    pthread_mutex_unlock(&device->lock);
    if (graph != NULL) cudaGraphExecDestroy(graph);
}

void cuda_drop_recordings(struct cuda_device *device, const void *group)
{
    pthread_mutex_lock(&device->base.lock);
    for (struct cuda_recording *r = device->recordings; r != NULL; r = r->next) {
        if (r->group != group) continue;
        if (r->graph != NULL) cudaGraphExecDestroy(r->graph);
        r->graph = NULL;
        r->dropped = true;
    }
    pthread_mutex_unlock(&device->base.lock);
}

void cuda_recording_free(struct recording *base)
{
    struct cuda_recording *recording = cuda_recording(base);
    struct cuda_device *device = cuda_device(base->device);
    status_free(cuda_use(device));
    destroy_graph(recording);
    pthread_mutex_lock(&device->base.lock);
    struct cuda_recording **at = &device->recordings;
    while (*at != recording) at = &(*at)->next;
    *at = recording->next;
    pthread_mutex_unlock(&device->base.lock);
    if (recording->fork != NULL) cudaEventDestroy(recording->fork);
    if (recording->done != NULL) cudaEventDestroy(recording->done);
    for (int i = 0; i < LANE_COUNT; i++)
        if (recording->joins[i] != NULL) cudaEventDestroy(recording->joins[i]);
    if (recording->values.host != NULL) cudaFreeHost(recording->values.host);
    if (recording->copies.host != NULL) cudaFreeHost(recording->copies.host);
    if (recording->live != NULL) cudaFree(recording->live);
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
    /* Thread-local mode: calls of other threads, e.g. to allocate memory, are neither captured nor
     * errors. */
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
        if (lane->busy) TRY(cuda_record_clock(lane, lane->ended));
        if (i == 0) continue;
        TRY_CUDA(cudaEventRecord(recording->joins[i], lane->stream));
        TRY_CUDA(cudaStreamWaitEvent(recording->lanes[0]->stream, recording->joins[i], 0));
    }
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
    return NULL;
}

/* Always ends the capture, whatever happened in it; otherwise the streams would stay in it. */
static status_t end_capture(struct cuda_recording *recording, status_t walked)
{
    cudaGraph_t captured = NULL;
    status_t status = walked;
    if (status == NULL) status = join(recording);
    status_t ended = cuda_status(cudaStreamEndCapture(recording->lanes[0]->stream, &captured),
                                 "cudaStreamEndCapture");
    status = status_first(status, ended);
    if (status == NULL) status = instantiate(recording, captured);
    if (captured != NULL) cudaGraphDestroy(captured);
    if (status != NULL) cudaGetLastError(); /* clear the error: it is already reported */
    return status;
}

static void enter(struct cuda_recording *recording, enum recording_pass pass)
{
    recording->pass = pass;
    recording->values.used = ALIGNMENT; /* the place of struct cuda_live */
    recording->copies.used = 0;
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

/* The other lanes have finished when the graph has. */
static status_t launch(struct cuda_recording *recording)
{
    struct cuda_lane *first = recording->lanes[0];
    for (int i = 0; i < recording->lane_count; i++)
        if (recording->lanes[i]->failure != NULL) return status_copy(recording->lanes[i]->failure);
    TRY_CUDA(cudaGraphLaunch(recording->graph, first->stream));
    for (int i = 0; i < recording->lane_count; i++)
        if (recording->worked[i] || i == 0)
            recording->lanes[i]->busy = recording->lanes[i]->replayed = true;
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
    for (int i = 0; i < recording->lane_count; i++)
        if (recording->lanes[i]->busy)
            return status_new(STATUS_INTERNAL, "a recording's pass began while a lane had work");
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
