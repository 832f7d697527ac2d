/*
 * CUDA graphs for tests: work enqueued on captured streams becomes nodes; a launch is one task of
 * its stream that runs them in a random order that events allow. The rules of captures are CUDA's:
 * a call that would wait, or allocate, is refused and invalidates the capture; participating
 * streams must be joined at its end; host memory in it must be pinned.
 */
#include "stub_streams.h"

#include <algorithm>

namespace
{

thread_local std::vector<std::shared_ptr<stub_capture>> my_captures;

struct stub_graph {
    std::shared_ptr<std::vector<stub_node>> nodes;
};

/* A launch: it does not refer to the graph, which may be destroyed meanwhile. */
struct graph_run {
    struct part {
        std::function<int()> work;
        std::vector<int> after;
        bool done = false;
    };
    std::vector<part> parts;
    size_t left = 0;

    bool is_ready(const part &p) const
    {
        return !p.done && std::all_of(p.after.begin(), p.after.end(),
                                      [&](int i) { return parts[(size_t)i].done; });
    }
    /* Runs a few parts that may run. */
    int proceed()
    {
        uint64_t burst = 1 + stub_random() % 8;
        bool moved = false;
        for (size_t first = stub_random() % parts.size(), i = 0; i < parts.size() && burst > 0;
             i++) {
            part &p = parts[(first + i) % parts.size()];
            if (!is_ready(p)) continue;
            int error = p.work();
            if (error == STUB_NOT_YET) continue;
            if (error != 0) return error;
            p.done = moved = true;
            left--, burst--;
        }
        return left == 0 ? 0 : moved ? (int)STUB_MOVED : (int)STUB_NOT_YET;
    }
};

void add_missing(std::vector<int> *to, const std::vector<int> &from)
{
    for (int i : from)
        if (std::find(to->begin(), to->end(), i) == to->end()) to->push_back(i);
}

int spoil(stub_capture *capture, int error)
{
    capture->valid = false;
    return error;
}

/* Whether the origin finally comes after everything. */
bool is_joined(const stub_capture &capture, const std::vector<int> &tails)
{
    std::vector<bool> before(capture.nodes.size(), false);
    std::vector<int> open = tails;
    while (!open.empty()) {
        size_t i = (size_t)open.back();
        open.pop_back();
        if (before[i]) continue;
        before[i] = true;
        open.insert(open.end(), capture.nodes[i].after.begin(), capture.nodes[i].after.end());
    }
    return std::all_of(before.begin(), before.end(), [](bool b) { return b; });
}

} // namespace

int stub_check_unsafe()
{
    for (const auto &capture : my_captures) capture->valid = false;
    return my_captures.empty() ? 0 : cudaErrorStreamCaptureUnsupported;
}

int stub_check_stream(stub_stream *stream)
{
    if (stream->capture == nullptr) return 0;
    return spoil(stream->capture.get(), cudaErrorStreamCaptureUnsupported);
}

int stub_check_event(const stub_event *event)
{
    if (event->captured == nullptr) return 0;
    return spoil(event->captured.get(), cudaErrorCapturedEvent);
}

int stub_add_node(stub_stream *stream, stub_work_maker make, std::shared_ptr<void> holds)
{
    stub_capture *capture = stream->capture.get();
    if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
    capture->nodes.push_back({std::move(make), stream->tails, std::move(holds)});
    stream->tails = {(int)capture->nodes.size() - 1};
    return 0;
}

std::shared_ptr<void> stub_join_capture(void *on)
{
    std::shared_ptr<stub_capture> capture = ((stub_stream *)on)->capture;
    if (capture == nullptr) return nullptr;
    capture->guests++;
    return std::shared_ptr<void>(capture.get(), [capture](void *) { capture->guests--; });
}

bool stub_is_capturing()
{
    return !my_captures.empty();
}

int stub_capture_record(stub_stream *stream, stub_event *event, bool external)
{
    if (!stream->capture->valid) return cudaErrorStreamCaptureInvalidated;
    if (external)
        return stub_add_node(
            stream,
            [=] {
                return [=] {
                    event->fired = ++event->recorded;
                    event->when = std::chrono::steady_clock::now();
                    return 0;
                };
            },
            nullptr);
    event->captured = stream->capture;
    event->nodes = stream->tails;
    return 0;
}

int stub_capture_wait(stub_stream *stream, stub_event *event)
{
    if (event->captured == nullptr) /* recorded outside */
        return spoil(stream->capture.get(), cudaErrorStreamCaptureIsolation);
    if (event->captured->over) return cudaErrorCapturedEvent;
    if (!event->captured->valid) return cudaErrorStreamCaptureInvalidated;
    if (stream->capture == nullptr) stream->capture = event->captured;
    if (stream->capture != event->captured)
        return spoil(stream->capture.get(), cudaErrorStreamCaptureMerge);
    add_missing(&stream->tails, event->nodes);
    return 0;
}

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    stub_stream *origin = (stub_stream *)stream;
    int error = stub_note_text("cudaStreamBeginCapture", stub_name(stream));
    /* Other threads' calls would disturb another mode. */
    if (error == 0 && mode != cudaStreamCaptureModeThreadLocal) error = cudaErrorInvalidValue;
    if (error == 0 && origin->capture != nullptr) error = cudaErrorIllegalState;
    if (error != 0) return stub_result(error);
    origin->capture = std::make_shared<stub_capture>();
    origin->capture->origin = stream;
    origin->capture->thread = std::this_thread::get_id();
    origin->tails.clear();
    my_captures.push_back(origin->capture);
    return stub_result(0);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    stub_stream *origin = (stub_stream *)stream;
    *graph = nullptr;
    int error = stub_note_text("cudaStreamEndCapture", stub_name(stream));
    std::shared_ptr<stub_capture> capture = origin->capture;
    if (capture == nullptr) return stub_result(cudaErrorIllegalState);
    if (capture->origin != stream) return stub_result(cudaErrorStreamCaptureUnmatched);
    if (capture->thread != std::this_thread::get_id())
        return stub_result(cudaErrorStreamCaptureWrongThread);
    if (capture->guests > 0) {
        fprintf(stderr, "graph_stub: a capture ends while another thread may launch into it\n");
        abort();
    }
    if (error == 0 && !capture->valid) error = cudaErrorStreamCaptureInvalidated;
    if (error == 0 && !is_joined(*capture, origin->tails)) error = cudaErrorStreamCaptureUnjoined;
    capture->over = true;
    my_captures.erase(std::find(my_captures.begin(), my_captures.end(), capture));
    for (stub_stream *s : stub_my_streams) {
        if (s->capture != capture) continue;
        s->capture = nullptr;
        s->tails.clear();
    }
    if (error != 0) return stub_result(error);
    *graph = (cudaGraph_t) new stub_graph{
        std::make_shared<std::vector<stub_node>>(std::move(capture->nodes))};
    return stub_result(0);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    if (nodes != nullptr) return stub_result(cudaErrorNotSupported);
    *count = ((stub_graph *)graph)->nodes->size();
    return stub_result(0);
}

cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *exec, cudaGraph_t graph,
                                           cudaGraphInstantiateParams *params)
{
    int error = stub_note_text("cudaGraphInstantiateWithParams", "");
    params->result_out =
        error != 0 ? cudaGraphInstantiateNodeOperationNotSupported : cudaGraphInstantiateSuccess;
    if (error != 0) return stub_result(error);
    *exec = (cudaGraphExec_t) new stub_graph{((stub_graph *)graph)->nodes};
    return stub_result(0);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete (stub_graph *)graph;
    return stub_result(0);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    stub_note_text("cudaGraphExecDestroy", "");
    delete (stub_graph *)exec;
    return stub_result(0);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    int error = stub_note_text("cudaGraphLaunch", stub_name(stream));
    if (error == 0) error = stub_check_stream((stub_stream *)stream);
    if (error != 0) return stub_result(error);
    auto run = std::make_shared<graph_run>();
    for (const stub_node &node : *((stub_graph *)exec)->nodes)
        run->parts.push_back({node.make(), node.after});
    run->left = run->parts.size();
    return stub_result(stub_enqueue(
        stream, [=] { return [=] { return run->proceed(); }; }, nullptr));
}

} /* extern "C" */
