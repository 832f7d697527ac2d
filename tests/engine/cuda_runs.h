/*
 * What tests of training runs on the stub's device share (tests/emulation/cuda_stub.h): how a test
 * begins and ends, and how the ranks of a group (session_group.h) join.
 */
#ifndef FSDPD_TESTS_ENGINE_CUDA_RUNS_H
#define FSDPD_TESTS_ENGINE_CUDA_RUNS_H

#include "session_group.h"

extern char cuda_runs_folder[96]; /* for checkpoints, below group_data */
/* Groups use host memory, as with workers that share a device. Each test begins without. */
extern bool cuda_runs_staged;

/* As a group's `join`: through NCCL or host memory, with a rendezvous in memory. */
status_t cuda_runs_join(struct device *device, int rank, int world, struct comm **comm);

/* Before and after each test. */
void cuda_runs_set_up(void);
void cuda_runs_tear_down(void);

/* Moves a group that is initialised, the next to run, to the device. A step that is replayed ends a
 * little after its statistics are known. */
void cuda_runs_move(struct group *group);

#endif
