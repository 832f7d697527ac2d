/* What tests of the CUDA device over the stub share: their group, and a job to train. */
#ifndef FSDPD_TESTS_ENGINE_CUDA_FIXTURE_H
#define FSDPD_TESTS_ENGINE_CUDA_FIXTURE_H

#include "../unit/tiny_models.h"
#include "engine.h"
#include "runtime/cuda/device_cuda.h"

extern int64_t cuda_fixture_timeout_ms; /* of groups; a minute unless a test says less */

/* Before and after a test: a stub without a history, and a place where groups meet. */
void cuda_fixture_set_up(void);
void cuda_fixture_tear_down(void);

/* A new one in the middle of a test: what is called from now on is written down. */
void cuda_fixture_begin(uint64_t seed);

/* A rank's communicator by NCCL; for engine_job.join. One group per set_up. */
status_t cuda_fixture_join(struct device *device, int rank, int world,
                           struct comm **comm) FSDPD_MUST_USE;

/* The same through host memory and Gloo, as workers that share a device do. */
status_t cuda_fixture_join_staged(struct device *device, int rank, int world,
                                  struct comm **comm) FSDPD_MUST_USE;

/* Two steps of one of the tiny models, sharded by block, clipped, on the CPU. */
struct engine_job cuda_fixture_job(int which);
/* So many steps of the same at a rate that falls, on the device, by NCCL. */
struct engine_job cuda_fixture_run(int which, int steps);

#endif
