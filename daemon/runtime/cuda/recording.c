/*
 * Recordings as CUDA graphs: a step's calls are captured from the lanes' streams, NCCL's among
 * them, and launched as one from then on. What changes from step to step cannot be in a graph,
 * which has its arguments by value: it lies in pinned memory, written before every launch. The
 * first node copies what kernels take (steps, arguments of optimizers) to the device, others copy
 * the batch. MEASURE finds out how much memory that is, as none may be taken while a stream is
 * captured.
 *
 * A graph holds on to the communicators in it. It is destroyed before them, and before they are
 * aborted; one that runs is then freed when it is done (cudaGraphExecDestroy).
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "runtime/cuda/device_cuda.h"

enum { ALIGNMENT = 64 };

/* Pinned memory that is given out in the order of the calls, the same in every pass. */
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
    char *live;            /* the values on the device; the step comes first */
    cudaGraphExec_t graph; /* NULL before it was captured; changes under the device's lock */
    bool dropped;
    const void *group; /* whose collectives it has; NULL: none */
    cudaEvent_t fork, joins[LANE_COUNT], done;
    struct cuda_recording *next;
};

static struct cuda_recording *cuda_recording(struct recording *recording)
{
    return (struct cuda_recording *)recording;
}

/* ---- what calls hand over ---- */

bool cuda_does_enqueue(const struct cuda_lane *lane)
{
    return lane->recording == NULL || lane->recording->pass == RECORDING_CAPTURE;
}

/* The next place of the block; what was measured does not change later. */
static status_t take(struct cuda_recording *recording, struct block *block, size_t bytes,
                     size_t *place)
{
    *place = block->used;
    block->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (recording->pass == RECORDING_MEASURE || block->used <= block->bytes) return STATUS_OKAY;
    return status_new(STATUS_INTERNAL, "a recording's calls are not those that were measured");
}

status_t cuda_take_value(struct cuda_lane *lane, const void *value, size_t bytes, const void **live)
{
    struct cuda_recording *recording = lane->recording;
    size_t place = 0;
    *live = NULL;
    if (recording == NULL) return STATUS_OKAY;
    TRY(take(recording, &recording->values, bytes, &place));
    if (recording->pass == RECORDING_REPLAY) memcpy(recording->values.host + place, value, bytes);
    if (recording->pass != RECORDING_MEASURE) *live = recording->live + place;
    return STATUS_OKAY;
}

const void *cuda_take_step(struct cuda_lane *lane, uint64_t step)
{
    struct cuda_recording *recording = lane->recording;
    if (recording == NULL) return NULL;
    if (recording->pass == RECORDING_REPLAY) memcpy(recording->values.host, &step, sizeof step);
    return recording->live;
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
    return STATUS_OKAY;
}

void cuda_record_group(struct cuda_lane *lane, const void *group)
{
    lane->recording->group = group;
}

/* ---- life ---- */

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
    return STATUS_OKAY;
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
    if (status != STATUS_OKAY) {
        cuda_recording_free(&recording->base);
        return status;
    }
    *result = &recording->base;
    return STATUS_OKAY;
}

/* ---- passes ---- */

/* All streams take part from the start, behind the copy of the values. */
static status_t begin_capture(struct cuda_recording *recording)
{
    cudaStream_t first = recording->lanes[0]->stream;
    /* Of this thread: what others do meanwhile, to memory say, is no part of it and no error. */
    TRY_CUDA(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    TRY_CUDA(cudaMemcpyAsync(recording->live, recording->values.host, recording->values.bytes,
                             cudaMemcpyHostToDevice, first));
    TRY_CUDA(cudaEventRecord(recording->fork, first));
    for (int i = 1; i < recording->lane_count; i++)
        TRY_CUDA(cudaStreamWaitEvent(recording->lanes[i]->stream, recording->fork, 0));
    return STATUS_OKAY;
}

static status_t join(struct cuda_recording *recording)
{
    for (int i = 0; i < recording->lane_count; i++) {
        struct cuda_lane *lane = recording->lanes[i];
        recording->worked[i] = lane->busy;
        if (lane->busy) TRY(cuda_record_clock(lane, lane->ended));
        if (i == 0) continue;
        TRY_CUDA(cudaEventRecord(recording->joins[i], lane->stream));
        TRY_CUDA(cudaStreamWaitEvent(recording->lanes[0]->stream, recording->joins[i], 0));
    }
    return STATUS_OKAY;
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
    const char *why = result < sizeof results / sizeof *results ? results[result] : "unknown";
    TRY(status_wrap(cuda_status(error, "cudaGraphInstantiateWithParams"),
                    "a graph of %zu nodes, %s", nodes, why));
    recording->graph = graph;
    return STATUS_OKAY;
}

/* Ends the capture whatever happened in it: else the streams would stay in it. */
static status_t end_capture(struct cuda_recording *recording, status_t walked)
{
    cudaGraph_t captured = NULL;
    status_t status = walked;
    if (status == STATUS_OKAY) status = join(recording);
    status_t ended = cuda_status(cudaStreamEndCapture(recording->lanes[0]->stream, &captured),
                                 "cudaStreamEndCapture");
    status = status_first(status, ended);
    if (status == STATUS_OKAY) status = instantiate(recording, captured);
    if (captured != NULL) cudaGraphDestroy(captured);
    if (status != STATUS_OKAY)
        cudaGetLastError(); /* it is told; later launches are not to find it */
    return status;
}

static void enter(struct cuda_recording *recording, enum recording_pass pass)
{
    recording->pass = pass;
    recording->values.used = ALIGNMENT; /* the step's place */
    recording->copies.used = 0;
    for (int i = 0; i < recording->lane_count; i++) {
        recording->lanes[i]->recording = recording;
        recording->lanes[i]->base.rehearses = pass != RECORDING_REPLAY;
    }
}

/* A rehearsal leaves nothing on the lanes; what failed in it failed there alone. */
static status_t leave(struct cuda_recording *recording)
{
    status_t status = STATUS_OKAY;
    for (int i = 0; i < recording->lane_count; i++) {
        struct cuda_lane *lane = recording->lanes[i];
        lane->recording = NULL;
        lane->base.rehearses = false;
        if (recording->pass == RECORDING_REPLAY) continue;
        lane->busy = false;
        lane->arrival_count = 0;
        lane->arrival_bytes = 0;
        status = status_first(status, lane->failure);
        lane->failure = NULL;
    }
    return status;
}

/* After a pass that went well. */
static status_t check_sizes(struct cuda_recording *recording)
{
    if (recording->values.used == recording->values.bytes &&
        recording->copies.used == recording->copies.bytes)
        return STATUS_OKAY;
    return status_new(STATUS_INTERNAL, "a recording's calls are not those that were measured");
}

static status_t take_memory(struct cuda_recording *recording)
{
    recording->values.bytes = recording->values.used;
    recording->copies.bytes = recording->copies.used;
    TRY_CUDA(cudaMallocHost((void **)&recording->values.host, recording->values.bytes));
    TRY_CUDA(cudaMalloc((void **)&recording->live, recording->values.bytes));
    memset(recording->values.host, 0, recording->values.bytes);
    if (recording->copies.bytes == 0) return STATUS_OKAY;
    TRY_CUDA(cudaMallocHost((void **)&recording->copies.host, recording->copies.bytes));
    return STATUS_OKAY;
}

/* The other lanes are done when the graph is. */
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
    return STATUS_OKAY;
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
    if (pass != RECORDING_CAPTURE) return STATUS_OKAY;
    status_t status = begin_capture(recording);
    if (status == STATUS_OKAY) return STATUS_OKAY;
    status = end_capture(recording, status);
    return status_first(status, leave(recording));
}

status_t cuda_recording_end(struct recording *base, status_t walked)
{
    struct cuda_recording *recording = cuda_recording(base);
    status_t status = walked;
    if (recording->pass == RECORDING_CAPTURE) {
        if (status == STATUS_OKAY) status = check_sizes(recording);
        status = end_capture(recording, status);
        return status_first(status, leave(recording));
    }
    status = status_first(status, leave(recording));
    if (recording->pass == RECORDING_MEASURE)
        return status == STATUS_OKAY ? take_memory(recording) : status;
    if (status == STATUS_OKAY) status = check_sizes(recording);
    return status == STATUS_OKAY ? launch(recording) : status;
}
