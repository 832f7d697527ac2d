/*
 * train_transformer MODEL WEIGHTS WINDOWS BATCH STEPS: trains a model with AdamW, without dropout,
 * on 1 to 8 ranks that are threads, in every strategy, with one unit per block and without, with
 * one or several accumulated batches, and prints for each "STRATEGY UNITS RANKS BATCHES: LOSS ...",
 * one loss per step, a mean over the targets that count. If the number of ranks does not divide the
 * windows of a batch, the ranks have different numbers. For tests/parity/test_transformers.py and
 * tests/parity/test_networks.py.
 *
 * WEIGHTS is a safetensors file with a F32 tensor for every parameter's name. WINDOWS holds, for
 * every step, BATCH rows of input (int32 tokens or float32), then as many rows of targets (int32 or
 * float32).
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../engine/engine.h"
#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "parameters.h"

static const struct {
    const char *name;
    enum strategy strategy;
    int shard_size;
} strategies[] = {
    {"full_shard", STRATEGY_FULL_SHARD, 0},     {"shard_grad_op", STRATEGY_SHARD_GRAD_OP, 0},
    {"no_shard", STRATEGY_NO_SHARD, 0},         {"hybrid_shard", STRATEGY_HYBRID_SHARD, 1},
    {"hybrid_shard", STRATEGY_HYBRID_SHARD, 2},
};

static const char *const blocks[] = {"GPT2Block", "LlamaDecoderLayer", "BertLayer", "Block"};

static const char *find_block(const struct model *model)
{
    for (int m = 0; m < model->module_count; m++)
        for (size_t b = 0; b < COUNT_OF(blocks); b++)
            if (strcmp(model->modules[m].type, blocks[b]) == 0) return blocks[b];
    return NULL;
}

static struct engine_job job; /* of the test */
static const char *block;

static int64_t step_windows;
static int64_t row_words[2]; /* of a row's input, and of its targets */

/* A step's windows in `count` batches. The file has a step's inputs and then its targets. */
static int32_t *cut(const int32_t *windows, int count)
{
    size_t step = (size_t)(step_windows * (row_words[0] + row_words[1]));
    int32_t *batches = mem_alloc_array(step * (size_t)job.steps, sizeof *batches), *to = batches;
    for (int b = 0; b < job.steps * count; b++)
        for (int side = 0; side < 2; side++) {
            size_t part = (size_t)(step_windows * row_words[side]) / (size_t)count;
            size_t inputs = side ? (size_t)(step_windows * row_words[0]) : 0;
            memcpy(to, windows + (size_t)(b / count) * step + inputs + (size_t)(b % count) * part,
                   part * sizeof *windows);
            to += part;
        }
    return batches;
}

static void train(int world, int batches, const char *name)
{
    const int32_t *windows = job.windows;
    int32_t *mine = cut(windows, batches);
    job.windows = mine;
    job.global_batch = step_windows / batches;
    job.micro_steps = batches;
    struct engine_outcome *outcome = engine_train(&job, GROUP_LOCAL, world);
    printf("%s %s %d %d:", name, job.policy.kind == WRAP_TYPE ? "blocks" : "one", world, batches);
    /* Every rank divided a batch's losses by all its targets. */
    int64_t targets = (job.global_batch + world - 1) / world * row_words[1];
    for (int i = 0; i < job.steps; i++)
        printf(" %.9g", (double)outcome->loss[i] * (double)targets / (double)outcome->counted[i]);
    printf("\n");
    engine_outcome_free(outcome);
    job.windows = windows;
    free(mine);
}

/* The numbers of ranks and batches into which a step is divided. */
static const struct {
    int world, batches;
} cuts[] = {{8, 1}, {4, 2}, {2, 4}, {1, 8}, {2, 1}, {4, 1}, {3, 2}, {3, 1}};

/* The engine's harness asserts, so this is a test of Check's. */
START_TEST(train_in_every_way)
{
    enum wrap_kind by_block = block != NULL ? WRAP_TYPE : WRAP_NONE;
    job.policy.types = (struct wrap_names){.items = &block, .count = 1};
    for (size_t s = 0; s < COUNT_OF(strategies); s++)
        for (int world = 1; world <= 3; world++)
            for (int units = 0; units < (block != NULL ? 2 : 1); units++) {
                if (strategies[s].shard_size > 0 && world % strategies[s].shard_size != 0) continue;
                job.strategy = strategies[s].strategy;
                job.shard_size = strategies[s].shard_size;
                job.policy.kind = units ? by_block : WRAP_NONE;
                train(world, 1, strategies[s].name);
            }
    for (size_t c = 0; c < COUNT_OF(cuts); c++)
        for (int kind = 0; kind < 3; kind++) {
            if (step_windows % cuts[c].batches != 0) continue;
            job.strategy = kind < 2 ? STRATEGY_FULL_SHARD : STRATEGY_NO_SHARD;
            job.shard_size = 0;
            job.policy.kind = by_block;
            job.no_sync = kind == 1;
            job.norm = kind == 1 ? NORM_2 : NORM_NONE;
            train(cuts[c].world, cuts[c].batches,
                  kind == 0   ? "full_shard"
                  : kind == 1 ? "no_sync"
                              : "no_shard");
        }
}
END_TEST

static bool run_test(void)
{
    Suite *suite = suite_create("train");
    TCase *tests = tcase_create("train");
    tcase_add_test(tests, train_in_every_way);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_SILENT);
    int failed = srunner_ntests_failed(runner);
    TestResult **failures = srunner_failures(runner);
    for (int i = 0; i < failed; i++)
        fprintf(stderr, "train_transformer: %s\n", tr_msg(failures[i]));
    free(failures);
    srunner_free(runner);
    return failed == 0;
}

static status_t read_all(char **argv, struct model **model, float ***parameters, struct buf *text,
                         struct buf *windows)
{
    TRY(parameters_read_model(argv[1], model));
    TRY(parameters_read(argv[2], *model, parameters));
    TRY(file_read(argv[1], 1 << 20, text));
    return file_read(argv[3], 1 << 30, windows);
}

int main(int argc, char **argv)
{
    int64_t batch, steps;
    if (argc != 6 || !text_parse_i64(argv[4], &batch) || !text_parse_i64(argv[5], &steps) ||
        batch < 1 || steps < 1 || steps > ENGINE_MAX_STEPS) {
        fprintf(stderr, "Usage: train_transformer MODEL WEIGHTS WINDOWS BATCH STEPS\n");
        return 2;
    }
    struct model *model = NULL;
    float **parameters = NULL;
    struct buf text = {0}, windows = {0};
    status_t status = read_all(argv, &model, &parameters, &text, &windows);
    step_windows = batch;
    if (status == NULL) {
        row_words[0] = tensor_element_count(&model->input);
        row_words[1] = model->tokens                  ? model->context
                       : model->targets.dim_count > 0 ? tensor_element_count(&model->targets)
                                                      : 1;
    }
    if (status == NULL &&
        windows.length !=
            (uint64_t)(steps * batch * (row_words[0] + row_words[1])) * sizeof(int32_t))
        status = status_new(STATUS_INVALID_ARGUMENT, "%s: %zu bytes are not %lld steps", argv[3],
                            windows.length, (long long)steps);
    if (status != NULL) {
        fprintf(stderr, "train_transformer: %s\n", status_message(status));
        return 1;
    }
    job = (struct engine_job){
        .model = buf_text(&text),
        .prefetch = PREFETCH_PRE,
        .optimizer = {.kind = OPTIMIZER_ADAMW,
                      .lr = 1e-3,
                      .beta1 = 0.9,
                      .beta2 = 0.999,
                      .eps = 1e-8,
                      .weight_decay = 0.01},
        .steps = (int)steps,
        .poison = true,
        .by_sample = true,
        .parameters = parameters,
        .windows = (const int32_t *)(const void *)windows.data,
    };
    block = find_block(model);
    bool good = run_test();
    parameters_free(parameters, model);
    model_free(model);
    buf_deinit(&text);
    buf_deinit(&windows);
    return good ? 0 : 1;
}
