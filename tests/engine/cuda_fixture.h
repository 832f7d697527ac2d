/* Shared by tests of the CUDA device over the stub: their group, and a job to train. */
#ifndef FSDPD_TESTS_ENGINE_CUDA_FIXTURE_H
#define FSDPD_TESTS_ENGINE_CUDA_FIXTURE_H

#include "../unit/tiny_models.h"
#include "engine.h"
#include "runtime/cuda/device_cuda.h"

extern int64_t cuda_fixture_timeout_ms; /* of groups; a minute unless a test sets less */

/* Run before and after a test: a stub without a history, and a place where groups meet. */
void cuda_fixture_set_up(void);
void cuda_fixture_tear_down(void);

/* Replaces the stub in the middle of a test: it records the calls from now on. */
void cuda_fixture_begin(uint64_t seed);

/* Creates a rank's NCCL communicator; for engine_job.join. One group per set_up. */
status_t cuda_fixture_join(struct device *device, int rank, int world,
                           struct comm **comm) FSDPD_MUST_USE;

/* The same under another name, from what the ranks have kept; see backend_join. */
status_t cuda_fixture_join_again(struct device *device, int rank, int world, const char *prefix,
                                 struct comm **kept, struct comm **comm) FSDPD_MUST_USE;

/* The same through host memory and Gloo, like workers that share a device. */
status_t cuda_fixture_join_staged(struct device *device, int rank, int world,
                                  struct comm **comm) FSDPD_MUST_USE;

/* Two steps of one of the tiny models, sharded by block, clipped, on the CPU. */
struct engine_job cuda_fixture_job(int which);
/* The same model for this number of steps at a falling rate, on the device, by NCCL. */
struct engine_job cuda_fixture_run(int which, int steps);

/* Two steps of that model without a mask, whose blocks' matrices have Muon and all else AdamW, on
 * the CPU. */
struct engine_job cuda_fixture_muon(void);

/* The same model with Adafactor for all, on the CPU. */
struct engine_job cuda_fixture_adafactor(void);

/* A model whose matrices and most vectors are frozen, and kept in that type, on the CPU. Some are
 * in bf16 in files. */
struct engine_job cuda_fixture_frozen(enum base_dtype base, enum dtype param_dtype);

/* A model whose attention has heads of 8, the smallest of cuDNN's; `masked`: with a mask of keys,
 * in which causal rows may see nothing, and with dropout. The same memory every time. */
const char *cuda_fixture_attentive(bool masked);

#endif
