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
/* Devices are of that compute capability from now on, in place of 8.0. */
void cuda_stub_capability(int major);
/* And of that model, in place of an A100's. */
void cuda_stub_model(const char *model);
/* Call number `number` of that name from now on fails with `error`. */
void cuda_stub_fail(const char *call, int number, int error);

#ifdef __cplusplus
}

#include <functional>

/* For nccl_stub.cc: work of a stream, which may say that it cannot go on yet. */
enum { STUB_NOT_YET = -1 };
void stub_enqueue(void *stream, std::function<int()> work);
int stub_note(const char *call, const void *stream);
bool stub_is_of_device(const void *address);
#endif

#endif
