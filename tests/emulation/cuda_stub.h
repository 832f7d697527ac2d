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
/* From now on executors open four lanes: they have offloaded units. */
void cuda_stub_offloads(void);
/* Devices have that compute capability from now on, instead of 8.0. */
void cuda_stub_capability(int major);
/* And that model, instead of an A100's. */
void cuda_stub_model(const char *model);
/* NCCL has that version from now on, instead of the one that the stub was built with; 0: that
 * one. */
void nccl_stub_version(int version);
/* Bytes of the device allocated by ncclMemAlloc and not freed, with its granularity. */
uint64_t nccl_stub_taken(void);
/* The most bytes of the host that were pinned since the reset, by all threads together. */
uint64_t cuda_stub_pinned_peak(void);
/* Call number `number` of that name from now on fails with `error`. */
void cuda_stub_fail(const char *call, int number, int error);

#ifdef __cplusplus
}

#include <functional>

#include <memory>

/* For nccl_stub.cc: work of a stream, which may report that it cannot continue yet, or that it did
 * a part. It is created again for every run: once, or at every launch of a graph. */
enum { STUB_NOT_YET = -1, STUB_MOVED = -2 };
typedef std::function<std::function<int()>()> stub_work_maker;
/* `holds`: kept by a graph for as long as it has the work; may be null. Returns an error of
 * CUDA. */
int stub_enqueue(void *stream, stub_work_maker make, std::shared_ptr<void> holds);
int stub_note(const char *call, const void *stream);
bool stub_is_of_device(const void *address);
/* Does a little of the device's pending work. */
void stub_proceed();
void *stub_take_memory(size_t bytes);
void stub_give_memory(void *memory);
bool stub_is_nccl_memory(const void *memory); /* its first byte */
#endif

#endif
