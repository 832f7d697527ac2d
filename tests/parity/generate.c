/*
 * generate DIRECTORY PROMPTS COUNT CONTEXT WORLD: continues prompts ("5,17,3;4") greedily by COUNT
 * tokens, with a model of Hugging Face's transformers, between two steps of an executor of WORLD
 * ranks that are threads. Writes to stdout the tokens (int32, by prompt), then the logits before
 * each (float32). For tests/parity/test_generated.py.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#include "../engine/engine.h"
#include "../engine/generated.h"
#include "base/mem.h"
#include "directory.h"
#include "parameters.h"

static struct engine_job job; /* of the test */
static struct generated generated;
static int world;

static void make(struct executor *executor, struct comm *comm, int step)
{
    struct generated own = generated;
    (void)comm;
    status_t status = step == 0 ? generated_make(executor, &own) : NULL;
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

/* The engine's harness asserts, so this is a test of Check's. */
START_TEST(generate)
{
    engine_outcome_free(engine_train(&job, GROUP_LOCAL, world));
    fwrite(generated.tokens, sizeof(int32_t), (size_t)(generated.sequences * generated.count),
           stdout);
}
END_TEST

static void read_prompts(char *text)
{
    for (char *at = text; *at != '\0' && generated.sequences < GENERATED_MAX;) {
        struct decoder_prompt *prompt = &generated.prompts[generated.sequences++];
        int32_t *tokens = mem_alloc_array(512, sizeof *tokens);
        do tokens[prompt->count++] = (int32_t)strtol(at, &at, 10);
        while (*at++ == ',' && prompt->count < 512);
        prompt->tokens = tokens;
        if (at[-1] == '\0') return;
    }
}

static status_t run(char **argv)
{
    struct model *model = NULL;
    char *text = NULL;
    float **parameters = NULL;
    TRY(directory_read(argv[1], false, &text, &model, &parameters));
    read_prompts(argv[2]);
    generated.count = atoi(argv[3]);
    generated.context = atoi(argv[4]);
    world = atoi(argv[5]);
    size_t made = (size_t)(generated.sequences * generated.count);
    size_t logits = made * (size_t)model->vocabulary;
    generated.tokens = mem_alloc_array(made, sizeof *generated.tokens);
    generated.logits = mem_alloc_array(logits, sizeof *generated.logits);
    job = (struct engine_job){.model = text,
                              .parameters = parameters,
                              .strategy = STRATEGY_FULL_SHARD,
                              .policy = {.kind = WRAP_SIZE, .min_num_params = 1000},
                              .prefetch = PREFETCH_PRE,
                              .optimizer = {.kind = OPTIMIZER_SGD},
                              .global_batch = world,
                              .steps = 1,
                              .poison = true,
                              .before_step = make};
    Suite *suite = suite_create("generate");
    TCase *tests = tcase_create("generate");
    tcase_add_test(tests, generate);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_SILENT);
    int failed = srunner_ntests_failed(runner);
    if (failed > 0) srunner_print(runner, CK_NORMAL);
    srunner_free(runner);
    fwrite(generated.logits, sizeof(float), logits, stdout);
    for (int s = 0; s < generated.sequences; s++) free((void *)generated.prompts[s].tokens);
    free(generated.tokens);
    free(generated.logits);
    parameters_free(parameters, model);
    model_free(model);
    free(text);
    return failed == 0 ? NULL : status_new(STATUS_INTERNAL, "it failed");
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "Usage: generate DIRECTORY PROMPTS COUNT CONTEXT WORLD\n");
        return 2;
    }
    status_t status = run(argv);
    if (status == NULL && fflush(stdout) == 0) return 0;
    fprintf(stderr, "generate: %s\n", status_message(status));
    status_free(status);
    return 1;
}
