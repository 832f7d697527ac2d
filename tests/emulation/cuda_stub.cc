/*
 * A CUDA runtime for tests of the device without a GPU: memory is the host's (memory_stub.cc),
 * kernels run under the emulation. Streams are queues whose work starts only when a caller waits;
 * then it runs in a random order that events allow, so a missing event gives wrong results sooner
 * or later. The stub records every call, and can make the n-th call of a name fail.
 *
 * A copy or a collective whose memory is on the other side is refused. Ranks may be threads: each
 * has its own streams. The libraries over it are in cublas_stub.cc, cudnn_stub.cc,
 * nccl_stub.cc and nccl_memory_stub.cc; graphs are in graph_stub.cc. There is
 * one device, or the number in FSDPD_STUB_DEVICES.
 */
#include "cuda_stub.h"
#include "memory_stub.h"
#include "stub_streams.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <thread>
#include <vector>

/* From emulation.h, whose other names are CUDA's too. */
extern int (*emulation_enqueue)(void *stream, const char *call, std::function<void()> work);
extern "C" void emulation_set_seed(uint64_t seed);

namespace
{

/* ---- the record, and requested failures ---- */

const char *const STUB_MODEL = "NVIDIA A100-SXM4-80GB";

struct record {
    std::mutex lock;
    std::string text;
    bool on = false;
    std::map<std::string, int> launches; /* while it is on, by kernel or call of a library */
    bool idle = false;                   /* nothing runs, and memory takes no room */
    std::string failing;                 /* a call's name */
    int countdown = 0;                   /* 1: the next one */
    std::thread::id thread;              /* whose calls count; none: all */
    int error = 0;
    std::map<const void *, std::string> names; /* of streams and events */
    int streams = 0, events = 0, lanes = 3;
    uint64_t random = 1;
    int major = 8; /* compute capability */
    std::string model = STUB_MODEL;
    int candidates = 1;
    bool wrong = false;
    std::atomic<stub_hold> hold{STUB_RUN};
    std::atomic<int> releases{0};
};

record &the_record()
{
    static record r;
    return r;
}

std::string name_of(const void *what)
{
    record &r = the_record();
    auto found = r.names.find(what);
    return found != r.names.end() ? found->second : "?";
}

thread_local bool is_host_function; /* this thread runs one for a stream */

/* Records a call; returns the error that it must have. */
int note(const char *call, const std::string &arguments)
{
    record &r = the_record();
    if (is_host_function) {
        fprintf(stderr, "cuda_stub: %s in a function of the host\n", call);
        abort();
    }
    std::lock_guard<std::mutex> guard(r.lock);
    if (r.on) r.text += std::string(call) + " " + arguments + "\n";
    if (r.failing != call || r.countdown == 0) return 0;
    if (r.thread != std::thread::id() && r.thread != std::this_thread::get_id()) return 0;
    return --r.countdown == 0 ? r.error : 0;
}

std::string named(const void *what)
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    return name_of(what);
}

uint64_t next_random()
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    uint64_t z = r.random += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* ---- streams and events ---- */

thread_local int last_error;
std::atomic<int> sticky_error; /* the process's: its device stays failed */
thread_local bool host_is_busy; /* with a function that a stream of this rank waits for */

/* Errors whose text in CUDA's header says that the process must end, and those of the memory and of
 * the links of a device. */
bool is_fatal(int error)
{
    switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak: return true;
    default: return false;
    }
}

void fail_device(int error)
{
    int none = 0;
    sticky_error.compare_exchange_strong(none, error);
}

/* Runs the first task of a stream, if it may run. */
bool step(stub_stream *stream)
{
    if (stream->tasks.empty()) return false;
    stub_task &t = stream->tasks.front();
    if (t.work) {
        int error = t.work();
        if (error == STUB_NOT_YET) return false;
        if (error == STUB_MOVED) return true;
        if (error != 0) fail_device(error);
    } else if (t.waits) {
        if (t.event->fired < t.recording) return false;
    } else {
        t.event->when = std::chrono::steady_clock::now();
        if (t.recording > t.event->fired) t.event->fired = t.recording;
    }
    stream->tasks.pop_front();
    return true;
}

/* Works until `done`, or until nothing can continue. */
template <typename F> bool work_until(F done)
{
    stub_as_device device;
    while (!done()) {
        if (sticky_error != 0) return false;
        size_t count = stub_my_streams.size(), first = count > 0 ? next_random() % count : 0;
        bool moved = false;
        for (size_t i = 0; i < count && !moved; i++) {
            stub_stream *stream = stub_my_streams[(first + i) % count];
            uint64_t burst = 1 + next_random() % 4;
            for (uint64_t k = 0; k < burst && step(stream); k++) moved = true;
        }
        if (!moved) return false;
    }
    return true;
}

/* Waits like a host: peers may have to continue first. A failed device is not waited for. */
template <typename F> void wait_for(F done)
{
    auto begin = std::chrono::steady_clock::now();
    while (!work_until(done) && sticky_error == 0) {
        if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(60)) {
            fprintf(stderr, "cuda_stub: a wait that never ends\n");
            abort();
        }
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
}

cudaError_t result(int error)
{
    if (is_fatal(error)) fail_device(error);
    if (sticky_error != 0) error = sticky_error;
    if (error != 0) last_error = error;
    return (cudaError_t)error;
}

/* Enqueues work that may run several times. Returns an error of CUDA. */
int put(void *on, std::function<int()> work)
{
    return stub_enqueue(
        on, [=] { return work; }, nullptr);
}

/* As CUDA's launch: an error that an earlier call left is not its own. But only queries may leave
 * one, as CUDA's guide does not exclude: other callers must have taken theirs. */
int enqueue_kernel(void *stream, const char *call, std::function<void()> work)
{
    if (last_error != sticky_error && last_error != cudaErrorNotReady) {
        fprintf(stderr, "cuda_stub: error %d of an earlier call is left at a launch\n", last_error);
        abort();
    }
    stub_count_launch(std::string(call, strcspn(call, "<,")));
    static std::atomic<bool> loaded{false};
    int error = note("launch", named(stream));
    if (error == 0 && !loaded.exchange(true) && !stub_take_outside(CUDA_STUB_MODULES))
        error = cudaErrorMemoryAllocation;
    if (error == 0)
        error = put(stream, [work] {
            work();
            return 0;
        });
    return result(error);
}

} // namespace

thread_local std::vector<stub_stream *> stub_my_streams;
thread_local bool stub_is_rank = false;

int stub_enqueue(void *on, stub_work_maker make, std::shared_ptr<stub_held> holds)
{
    stub_stream *stream = (stub_stream *)on;
    if (stream->capture != nullptr) return stub_add_node(stream, std::move(make), std::move(holds));
    if (the_record().idle) return 0;
    stream->tasks.push_back(stub_task{make()});
    return 0;
}

int stub_note_text(const char *call, const std::string &arguments)
{
    return note(call, arguments);
}

void stub_count_launch(const std::string &kernel)
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    if (r.on) r.launches[kernel]++;
}

std::string stub_name(const void *what)
{
    return named(what);
}

uint64_t stub_random()
{
    return next_random();
}

cudaError_t stub_result(int error)
{
    return result(error);
}

int stub_note(const char *call, const void *stream)
{
    return note(call, named(stream));
}

void stub_proceed()
{
    int left = 64;
    work_until([&] { return left-- == 0; });
}

void cuda_stub_reset(uint64_t seed)
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    r.text.clear();
    r.launches.clear();
    r.on = r.idle = false;
    r.countdown = 0;
    r.streams = r.events = 0;
    r.lanes = 3;
    r.random = seed;
    r.major = 8;
    r.model = STUB_MODEL;
    r.candidates = 1;
    r.wrong = false;
    r.hold = STUB_RUN;
    emulation_set_seed(seed);
    emulation_enqueue = enqueue_kernel;
    last_error = sticky_error = 0;
    stub_forget_pinned_peak();
}

void cuda_stub_record(bool on)
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    r.on = on;
    if (on) r.text.clear(), r.launches.clear();
}

char *cuda_stub_text(void)
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    return strdup(r.text.c_str());
}

char *cuda_stub_launches(int *total)
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    std::string text;
    *total = 0;
    for (const auto &kernel : r.launches) {
        text += kernel.first + " " + std::to_string(kernel.second) + "\n";
        *total += kernel.second;
    }
    return strdup(text.c_str());
}

void cuda_stub_idle(void)
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    r.idle = true;
}

void cuda_stub_candidates(int count)
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    r.candidates = count;
}

void cuda_stub_wrong(void)
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    r.wrong = true;
}

bool stub_is_wrong()
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    return r.wrong;
}

int stub_candidates()
{
    return the_record().candidates;
}

bool stub_is_idle()
{
    return the_record().idle;
}

int cuda_stub_count(const char *call)
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    const std::string line = std::string(call) + " ", text = "\n" + r.text;
    int count = 0;
    for (size_t at = 0; (at = text.find("\n" + line, at)) != std::string::npos; at++) count++;
    return count;
}

void cuda_stub_offloads(void)
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    r.lanes = 4;
}

void cuda_stub_capability(int major)
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    r.major = major;
}

void cuda_stub_model(const char *model)
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    r.model = model;
}

static void fail(const char *call, int number, int error, std::thread::id thread)
{
    record &r = the_record();
    std::lock_guard<std::mutex> guard(r.lock);
    r.failing = call;
    r.countdown = number;
    r.error = error;
    r.thread = thread;
}

void cuda_stub_fail(const char *call, int number, int error)
{
    fail(call, number, error, std::thread::id());
}

void cuda_stub_fail_here(const char *call, int number, int error)
{
    fail(call, number, error, std::this_thread::get_id());
}

void cuda_stub_hold(stub_hold hold)
{
    the_record().hold = hold;
}

void cuda_stub_release(void)
{
    cuda_stub_hold(STUB_RUN);
    the_record().releases++;
}

stub_hold stub_holding()
{
    return the_record().hold;
}

int stub_releases()
{
    return the_record().releases;
}

/* ---- CUDA ---- */

extern "C" {

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation           ? "cudaErrorMemoryAllocation"
           : error == cudaErrorLaunchFailure            ? "cudaErrorLaunchFailure"
           : error == cudaErrorStreamCaptureUnjoined    ? "cudaErrorStreamCaptureUnjoined"
           : error == cudaErrorStreamCaptureInvalidated ? "cudaErrorStreamCaptureInvalidated"
           : error == cudaErrorStreamCaptureUnsupported ? "cudaErrorStreamCaptureUnsupported"
           : error == cudaErrorIllegalAddress           ? "cudaErrorIllegalAddress"
                                                        : "cudaErrorOther";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorMemoryAllocation        ? "out of memory"
           : error == cudaErrorLaunchFailure         ? "unspecified launch failure"
           : error == cudaErrorStreamCaptureUnjoined ? "capturing stream has unjoined work"
           : error == cudaErrorStreamCaptureInvalidated
               ? "operation failed due to a previous error during capture"
           : error == cudaErrorStreamCaptureUnsupported
               ? "operation not permitted when stream is capturing"
           : error == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
                                              : "another error";
}

cudaError_t cudaGetLastError(void)
{
    int error = last_error;
    last_error = sticky_error;
    return (cudaError_t)error;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    int error = note("cudaGetDeviceCount", "");
    const char *devices = getenv("FSDPD_STUB_DEVICES");
    *count = error != 0 ? 0 : devices != nullptr ? atoi(devices) : 1;
    return result(error);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* FSDPD_STUB_EXCLUSIVE: another process has the device, which refuses a second context. */
cudaError_t cudaSetDevice(int)
{
    return result(getenv("FSDPD_STUB_EXCLUSIVE") != nullptr ? cudaErrorDevicesUnavailable : 0);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? the_record().major
             : stub_is_idle()                               ? 132
                                                            : 2;
    return result(0);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int)
{
    memset(properties, 0, sizeof *properties);
    properties->major = the_record().major;
    properties->totalGlobalMem = (size_t)1 << 34;
    snprintf(properties->name, sizeof properties->name, "%s", the_record().model.c_str());
    return result(0);
}

/* FSDPD_STUB_BUS: a directory, as seen from /sys/bus/pci/devices. */
cudaError_t cudaDeviceGetPCIBusId(char *bus, int bytes, int)
{
    const char *set = getenv("FSDPD_STUB_BUS");
    snprintf(bus, (size_t)bytes, "%s", set != nullptr ? set : "0000:FF:1F.7");
    return result(0);
}

cudaError_t cudaDeviceSynchronize(void)
{
    int error = stub_synchronize_device();
    if (error != 0) return result(error);
    wait_for([] {
        for (stub_stream *stream : stub_my_streams)
            if (!stream->tasks.empty()) return false;
        return true;
    });
    return result(0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0, *greatest = -5;
    return result(0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int priority)
{
    static const char *const lanes[] = {"compute", "comm", "copy", "download"};
    record &r = the_record();
    int error = note("cudaStreamCreateWithPriority", std::to_string(priority));
    if (error != 0) return result(error);
    stub_stream *made = new stub_stream;
    stub_my_streams.push_back(made);
    stub_is_rank = true;
    std::lock_guard<std::mutex> guard(r.lock);
    r.names[made] = lanes[r.streams++ % r.lanes]; /* the order in which an executor opens lanes */
    *stream = (cudaStream_t)made;
    return result(0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    record &r = the_record();
    int error = note("cudaStreamCreateWithFlags", "");
    if (error != 0) return result(error);
    stub_stream *made = new stub_stream;
    stub_my_streams.push_back(made);
    std::lock_guard<std::mutex> guard(r.lock);
    r.names[made] = "side"; /* of a lane */
    *stream = (cudaStream_t)made;
    return result(0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    stub_stream *old = (stub_stream *)stream;
    for (size_t i = 0; i < stub_my_streams.size(); i++)
        if (stub_my_streams[i] == old) stub_my_streams.erase(stub_my_streams.begin() + (long)i--);
    delete old;
    return result(0);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    stub_check_wait("cudaStreamSynchronize");
    int error = stub_check_stream((stub_stream *)stream);
    if (error != 0) return result(error);
    wait_for([=] { return ((stub_stream *)stream)->tasks.empty(); });
    return result(0);
}

/* Every query does a little work. */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    stub_stream *asked = (stub_stream *)stream;
    int error = note("cudaStreamQuery", "");
    if (error == cudaErrorNotReady) return result(error);
    int captured = stub_check_stream(asked);
    if (captured != 0) return result(captured);
    if (error != 0) fail_device(error);
    int left = 64;
    work_until([&] { return asked->tasks.empty() || left-- == 0; });
    if (sticky_error != 0) return result(0);
    return result(asked->tasks.empty() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    stub_event *awaited = (stub_event *)event;
    int error = note("wait", named(stream) + " " + named(event));
    stub_stream *waits = (stub_stream *)stream;
    if (error != 0) return result(error);
    if (waits->capture != nullptr || awaited->captured != nullptr)
        return result(stub_capture_wait(waits, awaited));
    waits->tasks.push_back(stub_task{nullptr, awaited, awaited->recorded, true});
    return result(0);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    record &r = the_record();
    int error = note("cudaEventCreateWithFlags", "");
    if (error != 0) return result(error);
    stub_event *made = new stub_event;
    made->timed = (flags & cudaEventDisableTiming) == 0;
    std::lock_guard<std::mutex> guard(r.lock);
    r.names[made] = flags == cudaEventDisableTiming ? "e" + std::to_string(r.events++) : "clock";
    *event = (cudaEvent_t)made;
    return result(0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    /* Like CUDA: the streams finish their use of it, and then it is freed. */
    static std::mutex lock;
    static std::vector<std::unique_ptr<stub_event>> pending;
    std::unique_ptr<stub_event> gone((stub_event *)event);
    for (const stub_stream *stream : stub_my_streams)
        for (const stub_task &task : stream->tasks)
            if (task.event == gone.get()) {
                std::lock_guard<std::mutex> guard(lock);
                pending.push_back(std::move(gone)); /* never freed: there are few */
                return result(0);
            }
    return result(0);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    stub_event *recorded = (stub_event *)event;
    stub_stream *records = (stub_stream *)stream;
    bool external = flags == cudaEventRecordExternal;
    int error = note("record", named(stream) + " " + named(event));
    if (error != 0) return result(error);
    if (records->capture != nullptr)
        return result(stub_capture_record(records, recorded, external));
    if (external) return result(cudaErrorInvalidValue);
    recorded->captured = nullptr;
    records->tasks.push_back(stub_task{nullptr, recorded, ++recorded->recorded, false});
    return result(0);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    stub_event *awaited = (stub_event *)event;
    stub_check_wait("cudaEventSynchronize");
    int error = stub_check_event(awaited);
    if (error != 0) return result(error);
    wait_for([=] { return awaited->fired >= awaited->recorded; });
    return result(0);
}

/* Callable from any thread; like a query of a stream it does a little of the thread's work. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    const stub_event *asked = (const stub_event *)event;
    int error = note("cudaEventQuery", "");
    if (error == 0) error = stub_check_event(asked);
    if (error != 0) return result(error);
    int left = 64;
    if (!stub_my_streams.empty())
        work_until([&] { return asked->fired >= asked->recorded || left-- == 0; });
    return result(asked->fired >= asked->recorded ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    const stub_event *first = (stub_event *)from, *last = (stub_event *)to;
    for (const stub_event *event : {first, last}) {
        if (!event->timed || event->recorded == 0) return result(cudaErrorInvalidResourceHandle);
        if (event->fired < event->recorded) return result(cudaErrorNotReady);
    }
    auto passed = last->when - first->when;
    *ms = std::chrono::duration<float, std::milli>(passed).count();
    return result(0);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    static const char *const kinds[] = {"host to host", "in", "out", "within"};
    bool in = kind == cudaMemcpyHostToDevice, out = kind == cudaMemcpyDeviceToHost;
    int error = note("copy", named(stream) + " " + kinds[kind] + " " + std::to_string(bytes));
    if (stub_is_of_device(to) == out || stub_is_of_device(from) == in)
        error = cudaErrorInvalidValue;
    if (kind == cudaMemcpyDeviceToDevice) stub_count_launch("(copy)");
    bool captured = ((stub_stream *)stream)->capture != nullptr;
    if (error == 0 && captured && (in || out) && !stub_is_pinned(in ? from : to, bytes))
        error = cudaErrorStreamCaptureUnsupported;
    if (error == 0)
        error = put(stream, [=] {
            memmove(to, from, bytes);
            return 0;
        });
    if (error == 0 && captured && out) stub_mark_copy((stub_stream *)stream);
    return result(error);
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    int error = note("memset", named(stream) + " " + std::to_string(bytes));
    stub_count_launch("(memset)");
    if (!stub_is_of_device(memory)) error = cudaErrorInvalidValue;
    if (error == 0)
        error = put(stream, [=] {
            memset(memory, value, bytes);
            return 0;
        });
    return result(error);
}

/*
 * Runs on a separate thread, one function at a time, like the driver's; the stream continues when
 * it has returned. The function may use neither device memory nor CUDA.
 */
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user)
{
    struct host_call {
        bool begun = false;
        std::atomic<bool> done{false};
        std::thread thread;
        ~host_call()
        {
            if (thread.joinable()) thread.join(); /* of a failed device */
        }
    };
    int error = note("host", named(stream));
    if (error != 0) return result(error);
    return result(stub_enqueue(
        stream,
        [=] {
            auto call = std::make_shared<host_call>();
            return [=] {
                if (!call->begun && host_is_busy) return (int)STUB_NOT_YET;
                if (!call->begun) {
                    call->begun = host_is_busy = true;
                    call->thread = std::thread([=] {
                        is_host_function = true;
                        function(user);
                        call->done = true;
                    });
                }
                if (!call->done) return (int)STUB_NOT_YET;
                call->thread.join();
                host_is_busy = false;
                return 0;
            };
        },
        nullptr));
}

} /* extern "C" */
