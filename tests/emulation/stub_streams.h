/*
 * Streams, events and captures of the stub of the CUDA runtime: shared by cuda_stub.cc and
 * graph_stub.cc, with the recording of calls. A captured stream gets nodes of a graph instead of
 * tasks.
 */
#ifndef FSDPD_TESTS_STUB_STREAMS_H
#define FSDPD_TESTS_STUB_STREAMS_H

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda_stub.h"

struct stub_event;

/* One piece of a graph. */
struct stub_node {
    stub_work_maker make;
    std::vector<int> after; /* nodes */
    std::shared_ptr<stub_held> holds;
    stub_event *records = nullptr; /* instead of the work; null: it has work */
    bool to_host = false;          /* a copy to the host */
};

struct stub_capture {
    void *origin;
    std::thread::id thread;
    std::atomic<bool> valid{true};
    bool over = false;
    std::atomic<int> guests{0}; /* other threads that may launch into it */
    std::vector<stub_node> nodes;
};

struct stub_event {
    /* A thread other than the rank's may query it. */
    std::atomic<uint64_t> recorded{0}; /* times it was enqueued */
    std::atomic<uint64_t> fired{0};
    std::chrono::steady_clock::time_point when;
    bool timed = false;
    std::shared_ptr<stub_capture> captured; /* which contains its last recording */
    std::vector<int> nodes;                 /* the nodes that it represents there */
};

struct stub_task {
    std::function<int()> work; /* an error; or empty: */
    stub_event *event = nullptr;
    uint64_t recording = 0;
    bool waits = false; /* waits for the event, else fires it */
};

struct stub_stream {
    std::deque<stub_task> tasks;
    std::shared_ptr<stub_capture> capture; /* the one in progress */
    std::vector<int> tails;                /* nodes that precede the next one */
};

/* Of this thread, which is a rank if it ever had a lane's. */
extern thread_local std::vector<stub_stream *> stub_my_streams;
extern thread_local bool stub_is_rank;

/* Records a call; returns the error that it must have. */
int stub_note_text(const char *call, const std::string &arguments);
std::string stub_name(const void *stream_or_event);
uint64_t stub_random();
/* The return value of a call, and of cudaGetLastError after it. */
cudaError_t stub_result(int error);

/* graph_stub.cc: these return an error of CUDA. */

/* Ends the test if the thread waits in the driver while a launch with collectives runs: a rank's,
 * its own; another thread's, which plans beside it, any. It may then never end (pytorch#196133). */
void stub_check_wait(const char *call);
/* Refuses an operation that must not happen while this thread captures. */
int stub_check_unsafe();
/* The same for a stream that is captured itself, or an event of it. */
int stub_check_stream(stub_stream *stream);
int stub_check_event(const stub_event *event);
int stub_add_node(stub_stream *stream, stub_work_maker make, std::shared_ptr<stub_held> holds);
/* The stream's last node is a copy to the host. */
void stub_mark_copy(stub_stream *stream);
stub_hold stub_holding();
int stub_releases(); /* so far */
int stub_capture_record(stub_stream *stream, stub_event *event, bool external);
int stub_capture_wait(stub_stream *stream, stub_event *event);

#endif
