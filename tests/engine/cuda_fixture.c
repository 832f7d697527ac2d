/* See cuda_fixture.h. */
#include "cuda_fixture.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "../emulation/cuda_stub.h"
#include "runtime/backend.h"

/* The store in memory serves a directory, too: ranks are threads, tests are processes. */
static char *directory;

int64_t cuda_fixture_timeout_ms = 60000;

status_t cuda_fixture_join(struct device *device, int rank, int world, struct comm **comm)
{
    struct rendezvous store = group_file_store(directory);
    return comm_nccl_new(device, rank, world, "train", &store, cuda_fixture_timeout_ms, NULL, comm);
}

status_t cuda_fixture_join_again(struct device *device, int rank, int world, const char *prefix,
                                 struct comm **kept, struct comm **comm)
{
    struct rendezvous store = group_file_store(directory);
    return comm_nccl_new(device, rank, world, prefix, &store, cuda_fixture_timeout_ms, kept, comm);
}

status_t cuda_fixture_join_staged(struct device *device, int rank, int world, struct comm **comm)
{
    struct rendezvous store = group_file_store(directory);
    return backend_join(device, rank, world, "127.0.0.1", "staged", &store, cuda_fixture_timeout_ms,
                        true, true, NULL, comm);
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
    unsetenv("FSDPD_CUDA_AHEAD");
    unsetenv("FSDPD_CUDA_BRANCHES");
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

struct engine_job cuda_fixture_muon(void)
{
    /* wte; of each block a norm, and weights and biases of q, k, v and c_proj; the head */
    static const bool matrices[] = {[3] = true,  [5] = true,  [7] = true,  [9] = true,  [13] = true,
                                    [15] = true, [17] = true, [19] = true, [22] = false};
    static const char *const blocks[] = {"Block"};
    static const struct optimizer_step others = {.kind = OPTIMIZER_ADAMW,
                                                 .lr = 0.5, /* of the other's */
                                                 .beta1 = 0.9,
                                                 .beta2 = 0.999,
                                                 .eps = 1e-3,
                                                 .weight_decay = 0.1};
    struct engine_job job = cuda_fixture_job(TINY_GPT2);
    job.model = cuda_fixture_attentive(false);
    job.policy.types.items = blocks;
    job.matrices = matrices;
    job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_MUON,
                                            .lr = 0.02,
                                            .weight_decay = 0.1,
                                            .momentum = 0.95,
                                            .nesterov = true,
                                            .ns_steps = 5,
                                            .others = &others};
    return job;
}

struct engine_job cuda_fixture_adafactor(void)
{
    struct engine_job job = cuda_fixture_muon();
    job.matrices = NULL;
    job.optimizer = (struct optimizer_step){.kind = OPTIMIZER_ADAFACTOR,
                                            .lr = 0.02,
                                            .weight_decay = 0.1,
                                            .eps1 = 0x1p-23,
                                            .eps2 = 1e-3,
                                            .clip = 1,
                                            .beta2_decay = -0.8};
    return job;
}

struct engine_job cuda_fixture_frozen(enum base_dtype base, enum dtype param_dtype)
{
    static const bool halved[] = {true, true, false, false, true, false, false};
    struct engine_job job = cuda_fixture_job(TINY_GPT2);
    job.model = "name: Frozen\n"
                "input: tokens\n"
                "vocabulary: 37\n"
                "context: 8\n"
                "modules:\n"
                "  wte: Embedding(37, 128)\n"
                "  wide: Linear(128, 136)\n" /* two groups of nf4 */
                "  back: Linear(136, 128)\n"
                "  head: Linear(128, 37)\n"
                "forward:\n"
                "  - x = wte(x)\n"
                "  - output = head(x + back(relu(wide(x))))\n"
                "loss: cross_entropy(output, target)\n"
                "freeze: [wte.weight, 'wide.*', back.weight]\n";
    job.policy = (struct wrap_policy){.kind = WRAP_SIZE,
                                      .min_num_params = 10000,
                                      .base = base,
                                      .halved = halved};
    job.param_dtype = param_dtype;
    return job;
}

const char *cuda_fixture_attentive(bool masked)
{
    static const char form[] =
        "name: Attentive\n"
        "input: tokens\n"
        "vocabulary: 13\n"
        "context: 10\n"
        "blocks:\n"
        "  Block:\n"
        "    inputs: [x, mask]\n"
        "    modules:\n"
        "      ln: LayerNorm(16)\n"
        "      q: Linear(16, 32)\n"
        "      k: Linear(16, 16)\n"
        "      v: Linear(16, 16)\n"
        "      c_proj: Linear(32, 16)\n"
        "    forward:\n"
        "      - y = ln(x)\n"
        "      - x += c_proj(attention(q(y), k(y), v(y), %snum_heads=4, num_kv_heads=2, "
        "is_causal=True))\n"
        "      - output = x\n"
        "modules:\n"
        "  wte: Embedding(13, 16)\n"
        "  h: 2 * Block()\n"
        "  head: Linear(16, 13)\n"
        "forward:\n"
        "  - y = wte(x)\n"
        "  - for block in h: y = block(y, padding_mask(x, 0))\n"
        "  - output = head(y)\n"
        "loss: cross_entropy(output, target)\n";
    static char text[1024];
    snprintf(text, sizeof text, form, masked ? "mask=mask, dropout_p=0.2, " : "");
    return text;
}
