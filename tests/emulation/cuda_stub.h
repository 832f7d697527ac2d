/* A CUDA runtime for tests; see cuda_stub.cc. */
#ifndef FSDPD_TESTS_CUDA_STUB_H
#define FSDPD_TESTS_CUDA_STUB_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Called before a test; `seed`: of the order in which streams and threads run. */
void cuda_stub_reset(uint64_t seed);
/* Records calls from now on, a line each: "launch compute", "record comm e3"; a product with the
 * type it is computed in: "matmul compute tf32". */
void cuda_stub_record(bool on);
char *cuda_stub_text(void); /* caller frees */
/* The number of recorded calls of that name. */
int cuda_stub_count(const char *call);
/* The kernels launched while calls were recorded, a line each with their number: "norm_kernel 25";
 * products and graphs of libraries, copies within the device and memsets among them. Caller frees.
 */
char *cuda_stub_launches(int *total);
/* From now on nothing that is enqueued runs, and the device's memory takes no room and is as large
 * as an H100's: for steps of large models, whose calls are counted. */
void cuda_stub_idle(void);
/* From now on executors open four lanes: they have offloaded units. */
void cuda_stub_offloads(void);
/* Devices have that compute capability from now on, instead of 8.0. */
void cuda_stub_capability(int major);
/* And that model, instead of an A100's. */
void cuda_stub_model(const char *model);
/* cuBLASLt proposes that many algorithms for a product, instead of one; each is faster than those
 * before it. */
void cuda_stub_candidates(int count);
/* The device has that much memory from now on, and it is taken: by what is allocated, by kernels,
 * which are loaded at the first launch and stay (CUDA_STUB_MODULES), and by every NCCL communicator
 * of its own from its first collective on (CUDA_STUB_NCCL). */
void cuda_stub_memory(uint64_t bytes);
enum { CUDA_STUB_MODULES = 300 << 20, CUDA_STUB_NCCL = 90 << 20 };
/* cuDNN computes every second row wrongly from now on, without an error. */
void cuda_stub_wrong(void);
/* When a graph has made its copies to the host, and done what comes directly after them, the rest
 * of it... */
enum stub_hold {
    STUB_RUN,          /* ...continues */
    STUB_HOLD_SHORTLY, /* ...waits until another graph was launched on its stream, or the device was
                        * asked a few times whether it is done */
    STUB_HOLD          /* ...waits for cuda_stub_release */
};
/* For graphs that are launched from now on. A launch behind a graph that is not done is recorded as
 * "overlap", too. */
void cuda_stub_hold(enum stub_hold hold);
/* All graphs continue. */
void cuda_stub_release(void);
/* NCCL has that version from now on, instead of the one that the stub was built with; 0: that
 * one. */
void nccl_stub_version(int version);
/* Bytes of the device allocated by ncclMemAlloc and not freed, with its granularity. */
uint64_t nccl_stub_taken(void);
/* NCCL's thread does not end with that collective of those that are captured from now on, as if a
 * peer did not answer, until its communicator is aborted; `number` counts from 1, 0: with none. */
void nccl_stub_hang(int number);
/* Registrations with NCCL wait for a peer without end from now on. */
void nccl_stub_hang_registering(void);
/* How many communicators with buffers and threads of their own were made since the last call: parts
 * of a group have none if the group's configuration shares its own. */
int nccl_stub_owners(void);
/* How many communicators were aborted and wait for graphs that refer to them. */
int nccl_stub_unfreed(void);
/* The most bytes of the host that were pinned since the reset, by all threads together. */
uint64_t cuda_stub_pinned_peak(void);
/* Call number `number` of that name from now on fails with `error`. */
void cuda_stub_fail(const char *call, int number, int error);
/* The same, but only the calling thread's calls count: a rank's, while other ranks run beside it. */
void cuda_stub_fail_here(const char *call, int number, int error);

#ifdef __cplusplus
}

#include <functional>

#include <memory>
#include <string>

/* For nccl_stub.cc: work of a stream, which may report that it cannot continue yet, or that it did
 * a part. It is created again for every run: once, or at every launch of a graph. */
enum { STUB_NOT_YET = -1, STUB_MOVED = -2 };
typedef std::function<std::function<int()>()> stub_work_maker;
/* Kept by a capture, and by its graph, for as long as it has the work. */
struct stub_held {
    virtual ~stub_held() {}
    virtual void capture_failed() = 0;
};
/* `holds` may be null. Returns an error of CUDA. */
int stub_enqueue(void *stream, stub_work_maker make, std::shared_ptr<stub_held> holds);
/* What synchronizes the device invalidates every capture of the process: cudaDeviceSynchronize, and
 * what destroys a library's handle. Returns an error of CUDA if there is one. */
int stub_synchronize_device();
/* For a thread that may launch into the stream's capture: keeps it open, while held. Null if the
 * stream is not captured. */
std::shared_ptr<void> stub_join_capture(void *stream);
bool stub_is_capturing(); /* this thread */
uint64_t stub_random();
int stub_note(const char *call, const void *stream);
int stub_candidates();
bool stub_is_wrong();
/* Takes memory that no pointer leads to, or with a negative number gives it back; false: there is
 * not that much, of a device whose memory is counted. */
bool stub_take_outside(int64_t bytes);
void stub_count_launch(const std::string &kernel);
bool stub_is_of_device(const void *address);
/* Does a little of the device's pending work. */
void stub_proceed();
void *stub_take_memory(size_t bytes);
void stub_give_memory(void *memory);
bool stub_is_nccl_memory(const void *memory); /* its first byte */
#endif

#endif
