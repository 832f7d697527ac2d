/*
 * CUDA graphs for tests: work enqueued on captured streams becomes nodes; a launch is one task of
 * its stream that runs them in a random order that events allow, and can be held back
 * (cuda_stub_hold). The rules of captures are CUDA's: a call that would wait, or allocate, is
 * refused and invalidates the capture; participating streams must be joined at its end; host memory
 * in it must be pinned.
 */
#include "stub_streams.h"

#include <algorithm>
#include <map>
#include <mutex>

namespace
{

/* Of the process: what synchronizes the device meets those of all threads. */
struct all_captures {
    std::mutex lock;
    std::vector<std::shared_ptr<stub_capture>> list;
};

all_captures &captures()
{
    static all_captures c;
    return c;
}

/* Invalidates them; returns whether there were any. */
bool spoil_captures(bool all_threads)
{
    bool any = false;
    std::lock_guard<std::mutex> guard(captures().lock);
    for (const auto &capture : captures().list) {
        if (!all_threads && capture->thread != std::this_thread::get_id()) continue;
        capture->valid = false;
        any = true;
    }
    return any;
}

struct stub_nodes {
    std::vector<stub_node> list;
    bool has_graph = true; /* it was not destroyed, so its nodes can be named */
};

struct stub_graph {
    std::shared_ptr<stub_nodes> nodes;
    std::vector<stub_event *> records; /* by node; of an executable graph */
    const void *origin = nullptr;      /* the stream that was captured; of one with collectives */
    bool uploaded = false;
};

enum { SHORTLY = 20 /* attempts to continue a graph that waits */ };

/* Launches with collectives that run: of the process, of this thread. */
std::atomic<int> flights{0};
thread_local int my_flights = 0;

/* A launch: it does not refer to the graph, which may be destroyed meanwhile. */
struct graph_run {
    struct part {
        std::function<int()> work;
        std::vector<int> after;
        bool done = false;
        bool early = false; /* one of those below */
    };
    std::vector<part> parts;
    size_t left = 0, early = 0;
    stub_hold hold = stub_holding();
    int releases = stub_releases(), attempts = 0;
    bool followed = false; /* by another launch */
    bool flies = false;    /* counts as a flight */

    void take_off()
    {
        flies = true;
        flights++, my_flights++;
    }
    void land()
    {
        if (flies) flights--, my_flights--;
        flies = false;
    }
    ~graph_run()
    {
        land();
    }
    /* What the copies to the host depend on, these copies, and what comes directly after them. */
    void find_early(const std::vector<stub_node> &nodes)
    {
        std::vector<int> open;
        for (size_t i = 0; i < nodes.size() && hold != STUB_RUN; i++) {
            const std::vector<int> &after = nodes[i].after;
            bool next = after.size() == 1 && nodes[(size_t)after[0]].to_host;
            if (nodes[i].to_host || next) open.push_back((int)i);
        }
        if (open.empty()) hold = STUB_RUN;
        while (!open.empty()) {
            part &p = parts[(size_t)open.back()];
            open.pop_back();
            if (p.early) continue;
            p.early = true;
            early++;
            open.insert(open.end(), p.after.begin(), p.after.end());
        }
    }
    bool is_held() const
    {
        if (hold == STUB_RUN || releases != stub_releases()) return false;
        return hold == STUB_HOLD || (!followed && attempts < SHORTLY);
    }
    bool is_ready(const part &p) const
    {
        return !p.done && std::all_of(p.after.begin(), p.after.end(),
                                      [&](int i) { return parts[(size_t)i].done; });
    }
    /* Runs a few parts that may run. */
    int proceed()
    {
        bool held = is_held();
        uint64_t burst = 1 + stub_random() % 8;
        bool moved = false;
        for (size_t first = stub_random() % parts.size(), i = 0; i < parts.size() && burst > 0;
             i++) {
            part &p = parts[(first + i) % parts.size()];
            if (!is_ready(p) || (held && !p.early)) continue;
            int error = p.work();
            if (error == STUB_NOT_YET) continue;
            if (error != 0) return error;
            p.done = moved = true;
            left--, burst--, early -= p.early;
        }
        if (early == 0 && !moved) attempts++;
        if (left == 0) land();
        return left == 0 ? 0 : moved ? (int)STUB_MOVED : (int)STUB_NOT_YET;
    }
};

/* The last launch that is on a stream. */
thread_local std::map<const stub_stream *, std::weak_ptr<graph_run>> last_runs;

std::function<int()> record_event(stub_event *event)
{
    return [=] {
        event->fired = ++event->recorded;
        event->when = std::chrono::steady_clock::now();
        return 0;
    };
}

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
    return spoil_captures(false) ? cudaErrorStreamCaptureUnsupported : 0;
}

void stub_check_wait(const char *call)
{
    if ((stub_is_rank ? my_flights : flights.load()) == 0) return;
    fprintf(stderr, "graph_stub: %s while a graph with collectives runs\n", call);
    abort();
}

int stub_synchronize_device()
{
    stub_check_wait("a synchronization of the device");
    return spoil_captures(true) ? cudaErrorStreamCaptureUnsupported : 0;
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

int stub_add_node(stub_stream *stream, stub_work_maker make, std::shared_ptr<stub_held> holds)
{
    stub_capture *capture = stream->capture.get();
    if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
    capture->nodes.push_back({std::move(make), stream->tails, std::move(holds)});
    stream->tails = {(int)capture->nodes.size() - 1};
    return 0;
}

void stub_mark_copy(stub_stream *stream)
{
    stream->capture->nodes.back().to_host = true;
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
    std::lock_guard<std::mutex> guard(captures().lock);
    const auto &list = captures().list;
    return std::any_of(list.begin(), list.end(), [](const auto &capture) {
        return capture->thread == std::this_thread::get_id();
    });
}

int stub_capture_record(stub_stream *stream, stub_event *event, bool external)
{
    if (!stream->capture->valid) return cudaErrorStreamCaptureInvalidated;
    if (external) {
        int error = stub_add_node(stream, nullptr, nullptr);
        if (error == 0) stream->capture->nodes.back().records = event;
        return error;
    }
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
    std::lock_guard<std::mutex> guard(captures().lock);
    captures().list.push_back(origin->capture);
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
    {
        std::lock_guard<std::mutex> guard(captures().lock);
        auto &list = captures().list;
        list.erase(std::find(list.begin(), list.end(), capture));
    }
    if (error == 0 && !capture->valid) error = cudaErrorStreamCaptureInvalidated;
    if (error == 0 && !is_joined(*capture, origin->tails)) error = cudaErrorStreamCaptureUnjoined;
    capture->over = true;
    for (stub_stream *s : stub_my_streams) {
        if (s->capture != capture) continue;
        s->capture = nullptr;
        s->tails.clear();
    }
    for (const stub_node &node : capture->nodes)
        if (error != 0 && node.holds != nullptr) node.holds->capture_failed();
    if (error != 0) capture->nodes.clear();
    if (error != 0) return stub_result(error);
    auto nodes = std::make_shared<stub_nodes>();
    nodes->list = std::move(capture->nodes);
    stub_graph *made = new stub_graph;
    made->nodes = nodes;
    for (const stub_node &node : nodes->list)
        if (node.holds != nullptr) made->origin = stream;
    *graph = (cudaGraph_t)made;
    return stub_result(0);
}

/* Nodes are named by their addresses. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    std::vector<stub_node> &list = ((stub_graph *)graph)->nodes->list;
    for (size_t i = 0; nodes != nullptr && i < *count && i < list.size(); i++)
        nodes[i] = (cudaGraphNode_t)&list[i];
    if (nodes == nullptr || *count > list.size()) *count = list.size();
    return stub_result(0);
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType *type)
{
    const stub_node *asked = (const stub_node *)node;
    *type = asked->records != nullptr ? cudaGraphNodeTypeEventRecord
            : asked->to_host          ? cudaGraphNodeTypeMemcpy
                                      : cudaGraphNodeTypeKernel;
    return stub_result(0);
}

cudaError_t cudaGraphEventRecordNodeGetEvent(cudaGraphNode_t node, cudaEvent_t *event)
{
    const stub_node *asked = (const stub_node *)node;
    if (asked->records == nullptr) return stub_result(cudaErrorInvalidValue);
    *event = (cudaEvent_t)asked->records;
    return stub_result(0);
}

/* For launches from now on. The graph of the node must still exist. */
cudaError_t cudaGraphExecEventRecordNodeSetEvent(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                 cudaEvent_t event)
{
    stub_graph *graph = (stub_graph *)exec;
    std::vector<stub_node> &list = graph->nodes->list;
    int error = stub_note_text("cudaGraphExecEventRecordNodeSetEvent", stub_name(event));
    if (error != 0) return stub_result(error);
    for (size_t i = 0; i < list.size() && graph->nodes->has_graph; i++) {
        if ((cudaGraphNode_t)&list[i] != node || list[i].records == nullptr) continue;
        graph->records[i] = (stub_event *)event;
        return stub_result(0);
    }
    return stub_result(cudaErrorInvalidValue);
}

cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *exec, cudaGraph_t graph,
                                           cudaGraphInstantiateParams *params)
{
    int error = stub_note_text("cudaGraphInstantiateWithParams", "");
    params->result_out =
        error != 0 ? cudaGraphInstantiateNodeOperationNotSupported : cudaGraphInstantiateSuccess;
    if (error != 0) return stub_result(error);
    stub_graph *made = new stub_graph;
    made->nodes = ((stub_graph *)graph)->nodes;
    made->origin = ((stub_graph *)graph)->origin;
    for (const stub_node &node : made->nodes->list) made->records.push_back(node.records);
    *exec = (cudaGraphExec_t)made;
    return stub_result(0);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    ((stub_graph *)graph)->nodes->has_graph = false;
    delete (stub_graph *)graph;
    return stub_result(0);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    stub_note_text("cudaGraphExecDestroy", "");
    delete (stub_graph *)exec;
    return stub_result(0);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    int error = stub_check_stream((stub_stream *)stream);
    if (error == 0) ((stub_graph *)exec)->uploaded = true;
    return stub_result(error);
}

/* Like CUDA, a launch uploads a graph that was not; that is recorded. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    int error = stub_note_text("cudaGraphLaunch", stub_name(stream));
    if (error == 0) error = stub_check_stream((stub_stream *)stream);
    if (error != 0) return stub_result(error);
    auto run = std::make_shared<graph_run>();
    stub_graph *graph = (stub_graph *)exec;
    if (graph->origin != nullptr && graph->origin != stream) { /* vllm#29207 */
        fprintf(stderr, "graph_stub: collectives are launched on a stream that was not captured\n");
        abort();
    }
    if (graph->origin != nullptr) run->take_off();
    if (!graph->uploaded) stub_note_text("upload", "at a launch");
    graph->uploaded = true;
    const std::vector<stub_node> &list = graph->nodes->list;
    for (size_t i = 0; i < list.size(); i++) {
        stub_event *records = graph->records[i];
        run->parts.push_back(
            {records != nullptr ? record_event(records) : list[i].make(), list[i].after});
    }
    run->left = run->parts.size();
    run->find_early(list);
    std::shared_ptr<graph_run> before = last_runs[(stub_stream *)stream].lock();
    if (before != nullptr && before->left > 0) {
        before->followed = true;
        stub_note_text("overlap", stub_name(stream));
    }
    last_runs[(stub_stream *)stream] = run;
    return stub_result(stub_enqueue(
        stream, [=] { return [=] { return run->proceed(); }; }, nullptr));
}

} /* extern "C" */
