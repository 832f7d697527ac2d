/* See cuda_fixture.h. */
#include "cuda_fixture.h"

#include <check.h>
#include <stdlib.h>

#include "../emulation/cuda_stub.h"
#include "runtime/backend.h"

/* The store in memory serves a directory, too: ranks are threads, tests are processes. */
static char *directory;

int64_t cuda_fixture_timeout_ms = 60000;

status_t cuda_fixture_join(struct device *device, int rank, int world, struct comm **comm)
{
    struct rendezvous store = group_file_store(directory);
    return comm_nccl_new(device, rank, world, "train", &store, cuda_fixture_timeout_ms, comm);
}

status_t cuda_fixture_join_staged(struct device *device, int rank, int world, struct comm **comm)
{
    struct rendezvous store = group_file_store(directory);
    return backend_join(device, rank, world, "127.0.0.1", "staged", &store, cuda_fixture_timeout_ms,
                        true, true, comm);
}

void cuda_fixture_set_up(void)
{
    directory = group_make_directory();
    cuda_stub_reset(1);
}

void cuda_fixture_tear_down(void)
{
    group_remove_directory(directory);
    free(directory);
    cuda_fixture_timeout_ms = 60000;
    unsetenv("FSDPD_CUDA_GRAPHS");
    unsetenv("FSDPD_CUDA_SYNC");
    unsetenv("FSDPD_CUDA_TF32");
}

struct engine_job cuda_fixture_job(int which)
{
    static const char *const blocks[] = {"GPT2Block", "LlamaDecoderLayer", "BertLayer"};
    struct engine_job job = {
        .policy = {.kind = WRAP_TYPE, .types = {.items = &blocks[which], .count = 1}},
        .strategy = STRATEGY_FULL_SHARD,
        .prefetch = PREFETCH_PRE,
        .model = tiny_model_text(which),
        .optimizer = {.kind = OPTIMIZER_ADAMW,
                      .lr = 0.01,
                      .beta1 = 0.9,
                      .beta2 = 0.999,
                      .eps = 1e-3, /* keeps gradients that are pure rounding errors small */
                      .weight_decay = 0.1},
        .global_batch = 6,
        .steps = 2,
        .norm = NORM_2,
        .max_norm = 0.5,
        .dropout = true,
        .poison = true,
    };
    return job;
}

void cuda_fixture_begin(uint64_t seed)
{
    const struct backend_table *table = NULL;
    cuda_fixture_tear_down();
    cuda_fixture_set_up();
    ck_assert_ptr_null(backend_load(&table)); /* which resets the stub when it is first opened */
    cuda_stub_reset(seed);
    cuda_stub_record(true);
}

struct engine_job cuda_fixture_run(int which, int steps)
{
    struct engine_job job = cuda_fixture_job(which);
    job.device = "cuda:0";
    job.join = cuda_fixture_join;
    job.steps = steps;
    job.lr_decay = 0.7;
    return job;
}
