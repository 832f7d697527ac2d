/* The stub of CUDA's runtime (tests/emulation) enforces CUDA's rules of captures and graphs. */
#include <cuda_runtime_api.h>

#include "../emulation/cuda_stub.h"
#include "base/array.h"
#include "cuda_fixture.h"
#include "tests/testing.h"

TESTS_BELOW(.timeout = 60, .set_up = cuda_fixture_set_up, .tear_down = cuda_fixture_tear_down);

struct streams {
    cudaStream_t first, second;
    cudaEvent_t fork, join, outside;
    float *memory;
};

static void set_up_streams(struct streams *s)
{
    ck_assert_int_eq(cudaStreamCreateWithPriority(&s->first, cudaStreamNonBlocking, 0), 0);
    ck_assert_int_eq(cudaStreamCreateWithPriority(&s->second, cudaStreamNonBlocking, 0), 0);
    ck_assert_int_eq(cudaEventCreateWithFlags(&s->fork, cudaEventDefault), 0);
    ck_assert_int_eq(cudaEventCreateWithFlags(&s->join, cudaEventDisableTiming), 0);
    ck_assert_int_eq(cudaEventCreateWithFlags(&s->outside, cudaEventDefault), 0);
    ck_assert_int_eq(cudaMalloc((void **)&s->memory, 64), 0);
    ck_assert_int_eq(cudaEventRecord(s->outside, s->second), 0);
    ck_assert_int_eq(cudaStreamBeginCapture(s->first, cudaStreamCaptureModeThreadLocal), 0);
    ck_assert_int_eq(cudaEventRecord(s->fork, s->first), 0);
    ck_assert_int_eq(cudaStreamWaitEvent(s->second, s->fork, 0), 0);
    ck_assert_int_eq(cudaMemsetAsync(s->memory, 0, 64, s->second), 0);
}

static void tear_down_streams(struct streams *s)
{
    cudaStreamDestroy(s->first);
    cudaStreamDestroy(s->second);
    cudaEventDestroy(s->fork);
    cudaEventDestroy(s->join);
    cudaEventDestroy(s->outside);
    cudaFree(s->memory);
}

LOOP_TEST(rules_of_captures, 0, 7)
{
    enum { UNJOINED, WAITS, TAKES_MEMORY, ASKS_EVENT, FROM_OUTSIDE, PAGEABLE, JOINED };
    struct streams s;
    cudaGraph_t graph = NULL;
    void *more = NULL;
    float here[16] = {0};
    int wanted = cudaErrorStreamCaptureInvalidated;
    set_up_streams(&s);
    switch (_i) {
    case UNJOINED: wanted = cudaErrorStreamCaptureUnjoined; break;
    case WAITS:
        ck_assert_int_eq(cudaStreamSynchronize(s.second), cudaErrorStreamCaptureUnsupported);
        break;
    case TAKES_MEMORY:
        ck_assert_int_eq(cudaMalloc(&more, 64), cudaErrorStreamCaptureUnsupported);
        break;
    case ASKS_EVENT: ck_assert_int_eq(cudaEventSynchronize(s.fork), cudaErrorCapturedEvent); break;
    case FROM_OUTSIDE:
        ck_assert_int_eq(cudaStreamWaitEvent(s.first, s.outside, 0),
                         cudaErrorStreamCaptureIsolation);
        break;
    case PAGEABLE:
        ck_assert_int_eq(cudaMemcpyAsync(s.memory, here, sizeof here, cudaMemcpyHostToDevice,
                                         s.first),
                         cudaErrorStreamCaptureUnsupported);
        wanted = cudaErrorStreamCaptureUnjoined;
        break;
    case JOINED: wanted = cudaSuccess; break;
    }
    if (_i != UNJOINED && wanted != cudaErrorStreamCaptureUnjoined) {
        cudaEventRecord(s.join, s.second);
        cudaStreamWaitEvent(s.first, s.join, 0);
    }
    ck_assert_int_eq(cudaStreamEndCapture(s.first, &graph), wanted);
    ck_assert((graph != NULL) == (wanted == cudaSuccess));
    ck_assert_int_eq(cudaMemsetAsync(s.memory, 0, 64, s.second), 0); /* as before */
    ck_assert_int_eq(cudaStreamSynchronize(s.second), 0);
    if (graph != NULL) cudaGraphDestroy(graph);
    tear_down_streams(&s);
}

/* A graph's launches record the event that its node was given last; a node lives with the captured
 * graph. */
TEST(events_of_nodes)
{
    struct streams s;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cudaGraphNode_t nodes[8], recorder = NULL, other = NULL;
    cudaGraphInstantiateParams params = {0};
    size_t count = COUNT_OF(nodes);
    set_up_streams(&s);
    ck_assert_int_eq(cudaEventRecordWithFlags(s.outside, s.second, cudaEventRecordExternal), 0);
    ck_assert_int_eq(cudaEventRecord(s.join, s.second), 0);
    ck_assert_int_eq(cudaStreamWaitEvent(s.first, s.join, 0), 0);
    ck_assert_int_eq(cudaStreamEndCapture(s.first, &graph), 0);
    ck_assert_int_eq(cudaGraphInstantiateWithParams(&exec, graph, &params), 0);
    ck_assert_int_eq(cudaGraphGetNodes(graph, nodes, &count), 0);
    ck_assert_uint_eq(count, 2);
    for (size_t i = 0; i < count; i++) {
        enum cudaGraphNodeType type;
        ck_assert_int_eq(cudaGraphNodeGetType(nodes[i], &type), 0);
        if (type == cudaGraphNodeTypeEventRecord) recorder = nodes[i];
        else other = nodes[i];
    }
    cudaEvent_t event = NULL;
    ck_assert_int_eq(cudaGraphEventRecordNodeGetEvent(recorder, &event), 0);
    ck_assert_ptr_eq(event, s.outside);
    ck_assert_int_eq(cudaGraphEventRecordNodeGetEvent(other, &event), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaGraphLaunch(exec, s.first), 0);
    ck_assert_int_eq(cudaGraphExecEventRecordNodeSetEvent(exec, recorder, s.fork), 0);
    ck_assert_int_eq(cudaGraphLaunch(exec, s.first), 0);
    ck_assert_int_eq(cudaStreamSynchronize(s.first), 0);
    float ms = -1; /* from the first launch to the second */
    ck_assert_int_eq(cudaEventElapsedTime(&ms, s.outside, s.fork), 0);
    ck_assert_float_gt(ms, 0);
    cudaGraphDestroy(graph);
    ck_assert_int_eq(cudaGraphExecEventRecordNodeSetEvent(exec, recorder, s.outside),
                     cudaErrorInvalidValue);
    cudaGraphExecDestroy(exec);
    tear_down_streams(&s);
}
