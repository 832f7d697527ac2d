/* A CUDA runtime for tests; see cuda_stub.cc. */
#ifndef FSDPD_TESTS_CUDA_STUB_H
#define FSDPD_TESTS_CUDA_STUB_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Before a test; `seed`: of the order in which streams and threads go on. */
void cuda_stub_reset(uint64_t seed);
/* What is called from now on is written down, a line each: "launch compute", "record comm e3"; a
 * product with what it is computed in: "matmul compute tf32". */
void cuda_stub_record(bool on);
char *cuda_stub_text(void); /* caller frees */
/* How often a call of that name was written down. */
int cuda_stub_count(const char *call);
/* From now on executors open four lanes: theirs have offloaded units. */
void cuda_stub_offloads(void);
/* Devices are of that compute capability from now on, in place of 8.0. */
void cuda_stub_capability(int major);
/* And of that model, in place of an A100's. */
void cuda_stub_model(const char *model);
/* NCCL is of that version from now on, in place of the one that the stub was built with; 0: of that. */
void nccl_stub_version(int version);
/* Bytes of the device that ncclMemAlloc has taken and not given back, with its granularity. */
uint64_t nccl_stub_taken(void);
/* Bytes of the host that were pinned at most since the reset, by all threads together. */
uint64_t cuda_stub_pinned_peak(void);
/* Call number `number` of that name from now on fails with `error`. */
void cuda_stub_fail(const char *call, int number, int error);

#ifdef __cplusplus
}

#include <functional>

#include <memory>

/* For nccl_stub.cc: work of a stream, which may say that it cannot go on yet, or that it did a
 * part. It is made anew every time that it is to be done: once, or at every launch of a graph. */
enum { STUB_NOT_YET = -1, STUB_MOVED = -2 };
typedef std::function<std::function<int()>()> stub_work_maker;
/* `holds`: kept by a graph for as long as it has the work; may be null. Returns an error of CUDA.
 */
int stub_enqueue(void *stream, stub_work_maker make, std::shared_ptr<void> holds);
int stub_note(const char *call, const void *stream);
bool stub_is_of_device(const void *address);
/* What the device has to do goes on a little. */
void stub_go_on();
void *stub_take_memory(size_t bytes);
void stub_give_memory(void *memory);
bool stub_is_nccl_memory(const void *memory); /* the start of it */
#endif

#endif
