/*
 * The launches of a training step of GPT-2 124M in bf16, counted by kernel: the step is enqueued on
 * a stub of the runtime that runs nothing and whose memory takes no room. Golden texts are
 * tests/golden/launches-*.txt; FSDPD_UPDATE_GOLDEN=1 rewrites them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../emulation/cuda_stub.h"
#include "../unit/family_files.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "memory_store.h"
#include "runtime/backend.h"
#include "runtime/cuda/comm_nccl.h"
#include "runtime/cuda/device_cuda.h"
#include "setup/session.h"
#include "tests/testing.h"

enum { CONTEXT = 1024 };

static const char config[] =
    "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", \"vocab_size\": 50257,"
    " \"n_positions\": 1024, \"n_embd\": 768, \"n_layer\": 12, \"n_head\": 12,"
    " \"activation_function\": \"gelu_new\", \"attn_pdrop\": 0.0, \"embd_pdrop\": 0.0,"
    " \"resid_pdrop\": 0.0}";

static const struct {
    const char *golden;
    uint32_t batch;
    int world;
    int most; /* the bound that launches must keep, whatever the golden text says */
} cases[] = {{"tests/golden/launches-gpt2-16.txt", 16, 1, 330},
             {"tests/golden/launches-gpt2-64.txt", 64, 1, 420},
             {"tests/golden/launches-gpt2-16-world-2.txt", 16, 2, 440}};

static void set_up(void)
{
    const struct backend_table *table = NULL;
    ck_assert_ptr_null(backend_load(&table)); /* which resets the stub when it is first opened */
    cuda_stub_reset(1);
    cuda_stub_idle();
}

static void expect_success(status_t status)
{
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

/* The job of scripts/gpu-gpt2.py. */
static struct train_job job_of(const char *model, uint32_t batch, int world)
{
    return (
        struct train_job){.id = "gpt2",
                          .model_text = model,
                          .model_length = strlen(model),
                          .model_file = "config.json",
                          .data_format = DATA_TOKENS,
                          .context = CONTEXT,
                          .batch_size = batch,
                          .test_batch_size = batch,
                          .seed = 1,
                          .log_interval = 1,
                          .max_steps = 2,
                          .dropout = true,
                          .accumulation_steps = 1,
                          .optimizer = {.kind = OPTIMIZER_ADAMW,
                                        .lr = 1e-4,
                                        .beta1 = 0.9,
                                        .beta2 = 0.95,
                                        .eps = 1e-6,
                                        .weight_decay = 0.1},
                          .wrap = {.kind = WRAP_AUTO},
                          .plan = {.gathered_dtype = DTYPE_BF16, .backward_prefetch = PREFETCH_PRE},
                          .world = world};
}

/* Rank 0's; nothing that is enqueued waits for the others. */
static struct comm *join(struct device *device, int world)
{
    const struct rendezvous store = memory_store();
    struct comm *group = NULL;
    if (world > 1)
        expect_success(comm_nccl_new(device, 0, world, "train", &store, 20000, NULL, &group));
    return group;
}

static void take_step(struct train_session *session, const struct train_job *job,
                      struct comm *group)
{
    struct executor *executor = NULL;
    size_t tokens = (size_t)job->batch_size * CONTEXT;
    int32_t *words = mem_alloc_array(tokens, sizeof *words);
    struct step_input input = {.input = words,
                               .target = words,
                               .samples = (int64_t)tokens,
                               .optimizer = job->optimizer};
    struct step_result result;
    expect_success(train_session_open_executor(session, group, &executor));
    cuda_stub_record(true);
    expect_success(executor_train_step(executor, &input, &result));
    executor_free(executor);
    free(words);
}

static void expect_golden(const char *found, const char *name)
{
    const char *root = getenv("srcdir"), *update = getenv("FSDPD_UPDATE_GOLDEN");
    char *path = file_path_join(root != NULL ? root : ".", name);
    if (update != NULL && strcmp(update, "1") == 0)
        expect_success(file_write_atomic(path, found, strlen(found), 0644));
    struct buf expected = {0};
    expect_success(file_read(path, 1 << 20, &expected));
    ck_assert_msg(strcmp(buf_text(&expected), found) == 0, "%s differs; found:\n%s", name, found);
    buf_deinit(&expected);
    free(path);
}

TESTS_BELOW(.timeout = 60, .set_up = set_up);

LOOP_TEST(gpt2, 0, COUNT_OF(cases))
{
    char *model = NULL;
    struct device *device = NULL;
    struct train_session *session = NULL;
    int total = 0;
    expect_success(
        hf_config_to_model(family_file("gpt2"), config, strlen(config), "config.json", &model));
    struct train_job job = job_of(model, cases[_i].batch, cases[_i].world);
    expect_success(device_open("cuda:0", 1, &device));
    expect_success(train_session_new(&job, device, 0, true, &session));
    struct comm *group = join(device, job.world);
    take_step(session, &job, group);
    char *launches = cuda_stub_launches(&total);
    char *text = mem_printf("%s%d launches\n", launches, total);
    printf("batch %u, rank 0 of %d: %d launches, %llu bytes for activations and scratch\n",
           cases[_i].batch, cases[_i].world, total,
           (unsigned long long)train_session_plan(session)->work_bytes);
    expect_golden(text, cases[_i].golden);
    ck_assert_int_le(total, cases[_i].most);
    free(text);
    free(launches);
    train_session_free(session);
    comm_free(group);
    memory_store_reset();
    device_close(device);
    free(model);
}

/* The head of GPT-2 on an H100, whose memory allows 13,340 rows of bf16 logits: 264 tiles
 * of dx are two whole rounds of 132 multiprocessors. Half the memory allows three equal blocks of
 * 129 tiles, a round each. */
TEST(blocks_of_a_head_fill_rounds)
{
    static const struct {
        int64_t rows, columns, most, block;
    } heads[] = {{16384, 768, 13340, 11264}, {65536, 768, 13340, 11264},
                 {16384, 768, 6670, 5504},   {16384, 0, 13340, 8192},
                 {8192, 768, 13340, 8192},   {300, 768, 130, 128},
                 {300, 768, 100, 100},       {3, 768, 0, 1},
                 {256, 16, 200, 128}};
    for (size_t i = 0; i < COUNT_OF(heads); i++)
        ck_assert_int_eq(cuda_head_rows(heads[i].rows, heads[i].columns, heads[i].most, 132),
                         heads[i].block);
}
