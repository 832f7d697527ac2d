/*
 * train_transformer MODEL WEIGHTS WINDOWS BATCH STEPS: trains a model of tokens with AdamW, without
 * dropout, on 1, 2 and 3 ranks that are threads, in every strategy, with units of its own for each
 * block and without, and prints for each "STRATEGY UNITS RANKS: LOSS ...", one loss per step. For
 * tests/parity/test_transformers.py.
 *
 * WEIGHTS is a safetensors file with a F32 tensor for every parameter's name. WINDOWS holds int32:
 * for every step BATCH x context tokens, then as many targets.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../engine/engine.h"
#include "base/file.h"
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

static const char *const blocks[] = {"GPT2Block", "LlamaDecoderLayer", "BertLayer"};

static const char *find_block(const struct model *model)
{
    for (int m = 0; m < model->module_count; m++)
        for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++)
            if (strcmp(model->modules[m].type, blocks[b]) == 0) return blocks[b];
    return NULL;
}

static struct engine_job job; /* of the test */
static const char *block;

static void train(int world, const char *name)
{
    struct engine_outcome *outcome = engine_train(&job, GROUP_LOCAL, world);
    printf("%s %s %d:", name, job.policy.kind == WRAP_TYPE ? "blocks" : "one", world);
    for (int i = 0; i < job.steps; i++)
        printf(" %.9g", (double)outcome->loss[i] / world); /* a mean on every rank */
    printf("\n");
    engine_outcome_free(outcome);
}

/* The engine's harness asserts, so this is a test of Check's. */
START_TEST(train_in_every_way)
{
    job.policy.types = (struct wrap_names){.items = &block, .count = 1};
    for (size_t s = 0; s < sizeof strategies / sizeof strategies[0]; s++)
        for (int world = 1; world <= 3; world++)
            for (int units = 0; units < 2; units++) {
                if (strategies[s].shard_size > 0 && world % strategies[s].shard_size != 0) continue;
                job.strategy = strategies[s].strategy;
                job.shard_size = strategies[s].shard_size;
                job.policy.kind = units ? WRAP_TYPE : WRAP_NONE;
                train(world, strategies[s].name);
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
    if (status == NULL &&
        windows.length != (uint64_t)(steps * batch * model->context * 2) * sizeof(int32_t))
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
        .global_batch = batch,
        .steps = (int)steps,
        .poison = true,
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
