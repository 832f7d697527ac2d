/*
 * Tiny GPT-2 and Llama continue prompts between training steps: the logits are those of a whole
 * forward pass, the same bits whatever the world, the units, the pieces of prompts and the other
 * sequences are, and training's bits do not change. Compiled with TEST_CUDA, on the emulated
 * device, whose graphs of both programs are captured once.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/machine.h"
#include "../unit/tiny_models.h"
#include "base/array.h"
#include "base/mem.h"
#include "engine.h"
#include "generated.h"
#include "tests/testing.h"

#ifdef TEST_CUDA
#include "../emulation/cuda_stub.h"
#include "cuda_fixture.h"
enum { ON_CUDA = 1 };
TESTS_BELOW(.timeout = 240, .set_up = cuda_fixture_set_up, .tear_down = cuda_fixture_tear_down);
#else
enum { ON_CUDA = 0 };
TESTS_BELOW(.timeout = 60);
#endif

enum { SEQUENCES = 3, COUNT = 4, LOGITS = COUNT * TINY_VOCABULARY };

static const int32_t prompt_tokens[SEQUENCES][5] = {{5, 1, 12, 0, 7}, {3}, {9, 9, 2}};
static const int64_t prompt_counts[SEQUENCES] = {5, 1, 3};

static void expect_ok(status_t status)
{
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

/* What the ranks of the next engine_train make before these steps; NULL: nothing. */
static struct generated *wanted;
static unsigned steps_wanted = 1; /* a bit each */
static char failure[512];

static void before_step(struct executor *executor, struct comm *comm, int step)
{
    if (wanted == NULL || (steps_wanted >> step & 1) == 0) return;
    struct generated own = *wanted;
    (void)comm;
    status_t status = generated_make(executor, &own);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    if (executor_plan(executor)->options.rank != 0) return;
    wanted->bytes = own.bytes;
    wanted->measured = own.measured;
    wanted->allocated = own.allocated;
}

/* Of these prompts, from `first` on; the results are group_shared memory. */
static struct generated prompts(int first, int count)
{
    struct generated generated = {.sequences = count,
                                  .count = COUNT,
                                  .context = TINY_CONTEXT,
                                  .tokens = mem_alloc_array((size_t)count * COUNT, 4),
                                  .logits = mem_alloc_array((size_t)count * LOGITS, 4)};
    for (int s = 0; s < count; s++)
        generated.prompts[s] =
            (struct decoder_prompt){prompt_tokens[first + s], prompt_counts[first + s]};
    return generated;
}

static void generated_free(struct generated *generated)
{
    free(generated->tokens);
    free(generated->logits);
}

static struct engine_job tiny_job(int which, bool blocks)
{
    static const char *const types[] = {"GPT2Block", "LlamaDecoderLayer"};
    struct engine_job job = {.model = tiny_model_text(which),
                             .policy = {.kind = blocks ? WRAP_TYPE : WRAP_NONE,
                                        .types = {.items = (const char **)&types[which],
                                                  .count = 1}},
                             .strategy = STRATEGY_FULL_SHARD,
                             .prefetch = PREFETCH_PRE,
                             .optimizer = {.kind = OPTIMIZER_SGD, .lr = 0.01},
                             .global_batch = 2,
                             .steps = 2,
                             .poison = true,
                             .before_step = before_step};
#ifdef TEST_CUDA
    job.device = "cuda:0";
    job.join = cuda_fixture_join;
#endif
    return job;
}

/* Trains, and before that makes `generated`, unless it is NULL. The caller frees. */
static struct engine_outcome *train_with(const struct engine_job *job, int world,
                                         struct generated *generated)
{
    wanted = generated;
#ifdef TEST_CUDA
    static uint64_t seed;
    const char *graphs = getenv("FSDPD_CUDA_GRAPHS");
    AUTO_FREE char *kept = graphs != NULL ? mem_strdup(graphs) : NULL;
    cuda_fixture_begin(++seed); /* a group each */
    if (kept != NULL) setenv("FSDPD_CUDA_GRAPHS", kept, 1);
    if (job->cpu_offload) cuda_stub_offloads();
#endif
    struct engine_outcome *outcome = engine_train(job, GROUP_LOCAL, world);
    wanted = NULL;
    return outcome;
}

static void make(const struct engine_job *job, int world, struct generated *generated)
{
    engine_outcome_free(train_with(job, world, generated));
}

/* Values like those of the engine, by parameter. */
static float **make_parameters(const struct model *model)
{
    float **parameters = mem_alloc_array((size_t)model->parameter_count, sizeof *parameters);
    uint64_t state = 7;
    for (int p = 0; p < model->parameter_count; p++) {
        if (model->parameters[p].tied_to >= 0) continue;
        size_t count = (size_t)tensor_element_count(&model->parameters[p].type);
        parameters[p] = mem_alloc_array(count, sizeof(float));
        for (size_t i = 0; i < count; i++) {
            state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
            parameters[p][i] = ((float)(state >> 40) * 0x1p-24f - 0.5f) * 1.5f;
        }
    }
    return parameters;
}

static void free_parameters(float **parameters, const struct model *model)
{
    for (int p = 0; p < model->parameter_count; p++) free(parameters[p]);
    free(parameters);
}

/* The logits after the last of `count` tokens, by a whole forward pass. */
static void forward(const struct model *model, float *const *parameters, const int32_t *tokens,
                    int64_t count, float *logits)
{
    const struct graph_options options = {.batch_size = 1, .time = count, .keep_logits = true};
    struct graph *graph;
    struct machine machine = {0};
    expect_ok(graph_build(model, &options, &graph));
    expect_ok(machine_init(&machine, KERNELS_REFERENCE, graph));
    memcpy(machine.memory[graph->input], tokens, (size_t)count * sizeof *tokens);
    for (int v = 0; v < graph->value_count; v++)
        if (graph->values[v].kind == VALUE_PARAMETER)
            memcpy(machine.memory[v], parameters[graph->values[v].parameter],
                   tensor_bytes(&graph->values[v].type));
    expect_ok(machine_run(&machine));
    int made = graph->ops[graph->values[graph->loss].producer].inputs[0];
    memcpy(logits, (float *)machine.memory[made] + (count - 1) * TINY_VOCABULARY,
           TINY_VOCABULARY * sizeof *logits);
    machine_deinit(&machine);
    graph_free(graph);
}

static void expect_forward(const struct model *model, float *const *parameters,
                           const struct generated *generated, double bound)
{
    for (int s = 0; s < generated->sequences; s++) {
        int32_t tokens[TINY_CONTEXT];
        int64_t count = generated->prompts[s].count;
        memcpy(tokens, generated->prompts[s].tokens, (size_t)count * sizeof *tokens);
        for (int i = 0; i < COUNT; i++) {
            float expected[TINY_VOCABULARY];
            forward(model, parameters, tokens, count, expected);
            for (int v = 0; v < TINY_VOCABULARY; v++)
                ck_assert_double_eq_tol(generated->logits[(s * COUNT + i) * TINY_VOCABULARY + v],
                                        expected[v], bound);
            tokens[count++] = generated->tokens[s * COUNT + i];
        }
    }
}

TEST(cached_is_uncached)
{
    for (int which = TINY_GPT2; which <= TINY_LLAMA; which++)
        for (int kind = 0; kind < 2; kind++) {
            struct model *model = tiny_model(which);
            float **parameters = make_parameters(model);
            struct engine_job job = tiny_job(which, true);
            struct generated generated = prompts(0, SEQUENCES);
            job.parameters = parameters;
            if (kind == 1) job.param_dtype = DTYPE_BF16;
            make(&job, 1, &generated);
            expect_forward(model, parameters, &generated, kind == 1 ? 0.15 : 1e-5);
            generated_free(&generated);
            free_parameters(parameters, model);
            model_free(model);
        }
}

TEST(logits_depend_on_the_sequence_alone)
{
    static const struct {
        int world;
        bool blocks;
        int64_t chunk;
    } ways[] = {{1, false, 0}, {1, true, 2}, {2, true, 0}, {3, false, 4}};
    struct engine_job job = tiny_job(TINY_LLAMA, true);
    struct generated all = prompts(0, SEQUENCES);
    make(&job, 1, &all);
    for (size_t w = 0; w < COUNT_OF(ways); w++)
        for (int s = 0; s < SEQUENCES; s++) {
            struct engine_job other = tiny_job(TINY_LLAMA, ways[w].blocks);
            struct generated one = prompts(s, 1);
            one.chunk = ways[w].chunk;
            make(&other, ways[w].world, &one);
            ck_assert_mem_eq(one.tokens, all.tokens + s * COUNT, COUNT * sizeof *one.tokens);
            for (int i = 0; i < LOGITS; i++)
                ck_assert_msg(one.logits[i] == all.logits[s * LOGITS + i],
                              "way %zu, sequence %d: logit %d is %.9g, not %.9g", w, s, i,
                              (double)one.logits[i], (double)all.logits[s * LOGITS + i]);
            generated_free(&one);
        }
    generated_free(&all);
}

/* Also those of a prompt's own tokens, whatever the pieces; those of the next one stay the same. */
TEST(a_prompt_is_scored_token_by_token)
{
    static float scored[SEQUENCES * TINY_CONTEXT * TINY_VOCABULARY];
    for (int which = TINY_GPT2; which <= TINY_LLAMA; which++)
        for (int64_t chunk = ON_CUDA ? 2 : 0; chunk <= 4; chunk += 2) {
            struct model *model = tiny_model(which);
            float **parameters = make_parameters(model);
            struct engine_job job = tiny_job(which, true);
            struct generated plain = prompts(0, SEQUENCES), generated = prompts(0, SEQUENCES);
            job.parameters = parameters;
            make(&job, 1, &plain);
            generated.prompt_logits = scored;
            generated.vocabulary = TINY_VOCABULARY;
            generated.chunk = chunk;
            memset(scored, 0xff, sizeof scored); /* not a number */
            make(&job, 1, &generated);
            ck_assert_mem_eq(plain.logits, generated.logits, SEQUENCES * LOGITS * sizeof(float));
            for (int s = 0; s < SEQUENCES; s++)
                for (int64_t i = 0; i + 1 < prompt_counts[s]; i++) {
                    float expected[TINY_VOCABULARY];
                    forward(model, parameters, prompt_tokens[s], i + 1, expected);
                    for (int v = 0; v < TINY_VOCABULARY; v++)
                        ck_assert_double_eq_tol(
                            scored[(s * TINY_CONTEXT + i) * TINY_VOCABULARY + v], expected[v],
                            1e-5);
                }
            generated_free(&plain);
            generated_free(&generated);
            free_parameters(parameters, model);
            model_free(model);
        }
}

/* Whose client leaves while its prompt is read: what was read is scored, and training continues. */
TEST(a_prompt_ends_between_two_pieces)
{
    static float scored[TINY_CONTEXT * TINY_VOCABULARY];
    for (int world = 1; world <= 2; world++) {
        struct engine_job job = tiny_job(TINY_GPT2, true);
        struct generated generated = prompts(0, 1);
        generated.prompt_logits = scored;
        generated.vocabulary = TINY_VOCABULARY;
        generated.chunk = 1;
        generated.pieces = 2;                /* of five */
        memset(scored, 0xff, sizeof scored); /* not a number */
        struct engine_outcome *plain = train_with(&job, world, NULL),
                              *other = train_with(&job, world, &generated);
        for (int64_t i = 0; world == 1 && i + 1 < prompt_counts[0]; i++)
            ck_assert_int_eq(!isnan(scored[i * TINY_VOCABULARY]), i < 2);
        ck_assert_mem_eq(plain->parameters, other->parameters,
                         (size_t)plain->parameter_elements * sizeof(float));
        engine_outcome_free(plain);
        engine_outcome_free(other);
        generated_free(&generated);
    }
}

/* A token below 0 ends its sequence for good, and no other one. */
TEST(a_sequence_that_is_over_stays_so)
{
    enum { SIZE = TINY_VOCABULARY * sizeof(float) };
    static const int32_t fed[2 * COUNT] = {1, -1, 5, 5, 2, 3, 4, 5};
    struct engine_job job = tiny_job(TINY_GPT2, true);
    struct generated generated = prompts(1, 2);
    generated.forced = fed;
    make(&job, 1, &generated);
    const float *over = generated.logits + TINY_VOCABULARY, *other = over + LOGITS;
    ck_assert_mem_ne(over - TINY_VOCABULARY, over, SIZE);
    for (int i = 1; i < COUNT - 1; i++) {
        ck_assert_mem_eq(over + i * TINY_VOCABULARY, over, SIZE);
        ck_assert_mem_ne(other + i * TINY_VOCABULARY, other, SIZE);
    }
    generated_free(&generated);
}

static void count_scored(void *user, int sequence, int64_t position, const float *logits)
{
    (void)sequence;
    (void)position;
    (void)logits;
    ++*(int *)user;
}

enum { MANY = 257 };

static void read_many(struct executor *executor, struct comm *comm, int step)
{
    (void)comm;
    if (step > 0) return;
    static struct decoder_prompt many[MANY];
    static float logits[MANY * TINY_VOCABULARY];
    const struct plan *plan = executor_plan(executor);
    AUTO_FREE enum dtype *parameters = NULL;
    AUTO_FREE enum dtype *modules = NULL;
    units_find_dtypes(plan->units, plan->model, plan->options.gathered_dtype, &parameters,
                      &modules);
    int scored = 0;
    const struct decoder_settings settings = {.lender = executor,
                                              .compute_dtype = plan->options.gathered_dtype,
                                              .parameter_dtypes = parameters,
                                              .module_dtypes = modules,
                                              .sequences = MANY,
                                              .context = TINY_CONTEXT,
                                              .each = count_scored,
                                              .user = &scored};
    struct decoder *decoder = NULL;
    for (int s = 0; s < MANY; s++) many[s] = (struct decoder_prompt){prompt_tokens[2], 3};
    expect_ok(executor_settle(executor));
    expect_ok(decoder_new(&settings, &decoder));
    expect_ok(decoder_prefill(decoder, many, logits));
    ck_assert_int_eq(scored, MANY * 2);
    for (int s = 1; s < MANY; s++)
        ck_assert_mem_eq(logits + s * TINY_VOCABULARY, logits, TINY_VOCABULARY * sizeof *logits);
    decoder_free(decoder);
}

/* More sequences than rows whose logits are kept: their prompts are read token by token. */
TEST(many_prompts_are_scored, .unless = ON_CUDA)
{
    struct engine_job job = tiny_job(TINY_GPT2, true);
    job.before_step = read_many;
    make(&job, 1, NULL);
}

TEST(training_does_not_notice)
{
    for (int world = 1; world <= 2; world++) {
        struct engine_job job = tiny_job(TINY_GPT2, true);
        struct generated generated = prompts(0, SEQUENCES);
        struct engine_outcome *plain = train_with(&job, world, NULL),
                              *other = train_with(&job, world, &generated);
        ck_assert_mem_eq(plain->parameters, other->parameters,
                         (size_t)plain->parameter_elements * sizeof(float));
        engine_outcome_free(plain);
        engine_outcome_free(other);
        generated_free(&generated);
    }
}

/* Of layers, sequences, positions and columns, twice. */
TEST(bytes_of_the_cache_are_planned)
{
    struct engine_job job = tiny_job(TINY_LLAMA, true);
    struct generated generated = prompts(0, SEQUENCES);
    struct model *model = tiny_model(TINY_LLAMA);
    make(&job, 1, &generated);
    int key = model_find_parameter(model, "model.layers.0.self_attn.k_proj.weight");
    ck_assert_int_ge(key, 0);
    uint64_t one = (uint64_t)(SEQUENCES * TINY_CONTEXT * model->parameters[key].type.dims[0]) * 4;
    ck_assert_uint_eq(generated.bytes.cache, 2 * TINY_LAYERS * ((one + 255) / 256 * 256));
    ck_assert_uint_gt(generated.bytes.all, generated.bytes.cache);
    ck_assert_uint_eq(generated.measured.all, generated.bytes.all);
    ck_assert_uint_eq(generated.measured.cache, generated.bytes.cache);
    ck_assert_uint_eq(generated.allocated, generated.bytes.all);
    model_free(model);
    generated_free(&generated);
}

static uint64_t whole_bytes(const struct model *model, uint64_t size)
{
    uint64_t bytes = 0;
    for (int p = 0; p < model->parameter_count; p++)
        if (model->parameters[p].tied_to < 0)
            bytes += (uint64_t)tensor_element_count(&model->parameters[p].type) * size;
    return bytes;
}

/* The same bits as of units that are gathered for each token; the plan has their bytes, which are
 * what the device gives; and a rank that is alone holds nothing. */
TEST(units_are_held_for_a_call)
{
    for (int world = 1; world <= 3; world++)
        for (int kind = 0; kind < 2; kind++) {
            struct engine_job job = tiny_job(TINY_LLAMA, true);
            struct model *model = tiny_model(TINY_LLAMA);
            struct generated each = prompts(0, SEQUENCES), held = prompts(0, SEQUENCES);
            if (kind == 1) job.param_dtype = DTYPE_BF16;
            held.holds = true;
            each.chunk = held.chunk = 2; /* some prompts are read in three pieces */
            struct engine_outcome *plain = train_with(&job, world, NULL);
            make(&job, world, &each);
#ifdef TEST_CUDA
            int gathers = cuda_stub_count("ncclAllGather");
#endif
            struct engine_outcome *other = train_with(&job, world, &held);
            uint64_t whole = whole_bytes(model, kind == 1 ? 2 : 4);
            ck_assert_uint_eq(each.bytes.held, 0);
            if (world == 1) ck_assert_uint_eq(held.bytes.held, 0);
            else ck_assert_uint_ge(held.bytes.held, whole);
            ck_assert_uint_lt(held.bytes.held, world == 1 ? 1 : 2 * whole);
            ck_assert_uint_eq(each.allocated, each.bytes.all);
            ck_assert_uint_eq(held.allocated, held.bytes.all);
            ck_assert_uint_eq(held.measured.held, held.bytes.held);
#ifdef TEST_CUDA
            if (world > 1) ck_assert_int_lt(cuda_stub_count("ncclAllGather"), gathers);
#endif
            ck_assert_mem_eq(held.tokens, each.tokens, SEQUENCES * COUNT * sizeof(int32_t));
            ck_assert_mem_eq(held.logits, each.logits, SEQUENCES * LOGITS * sizeof(float));
            ck_assert_mem_eq(plain->parameters, other->parameters,
                             (size_t)plain->parameter_elements * sizeof(float));
            engine_outcome_free(plain);
            engine_outcome_free(other);
            generated_free(&each);
            generated_free(&held);
            model_free(model);
        }
}

/* A device that lacks a byte. */
static void limit_device(struct executor *executor, struct comm *comm, int step)
{
    struct device *device = executor_device(executor);
    struct generated own = *wanted;
    (void)comm;
    if (step != 0 || executor_plan(executor)->options.rank != 0) return;
    device_limit_memory(device, device_allocated_bytes(device) + own.bytes.all - 1);
    status_t status = generated_make(executor, &own);
    snprintf(failure, sizeof failure, "%s", status_message(status));
    status_free(status);
    device_limit_memory(device, 0);
}

TEST(what_cannot_be_held_is_refused)
{
    struct engine_job job = tiny_job(TINY_LLAMA, true);
    struct generated generated = prompts(0, SEQUENCES);
    generated.holds = true;
    make(&job, 2, &generated);
    job.before_step = limit_device;
    make(&job, 2, &generated);
    ck_assert_msg(strstr(failure, "are gathered parameters, but training leaves") != NULL, "%s",
                  failure);
    generated_free(&generated);
}

/* A ring of the window and the rows of a step: smaller, and with the numbers of a whole forward
 * pass, also of sequences that are longer than it. */
TEST(windows_keep_their_positions_only)
{
    enum { CHUNK = 2, WINDOW = 3 };
    const char *whole = tiny_model_text(TINY_LLAMA), *causal = strstr(whole, "is_causal=True");
    ck_assert_ptr_nonnull(causal);
    AUTO_FREE char *text =
        mem_printf("%.*swindow=%d, %s", (int)(causal - whole), whole, WINDOW, causal);
    struct model *model = NULL;
    expect_ok(model_parse(text, strlen(text), "model.yaml", &model));
    float **parameters = make_parameters(model);
    struct engine_job job = tiny_job(TINY_LLAMA, true);
    struct generated generated = prompts(0, SEQUENCES);
    generated.chunk = CHUNK;
    job.model = text;
    job.parameters = parameters;
    make(&job, 1, &generated);
    expect_forward(model, parameters, &generated, 1e-5);
    int key = model_find_parameter(model, "model.layers.0.self_attn.k_proj.weight");
    uint64_t one =
        (uint64_t)(SEQUENCES * (WINDOW + CHUNK) * model->parameters[key].type.dims[0]) * 4;
    ck_assert_uint_eq(generated.bytes.cache, 2 * TINY_LAYERS * ((one + 255) / 256 * 256));
    generated_free(&generated);
    free_parameters(parameters, model);
    model_free(model);
}

/* The error of a rank's decoder. */
static void note_refusal(struct executor *executor, struct comm *comm, int step)
{
    (void)comm;
    struct generated own = *wanted;
    status_t status = step == 0 ? generated_make(executor, &own) : NULL;
    if (step == 0) snprintf(failure, sizeof failure, "%s", status_message(status));
    status_free(status);
}

static void expect_refusal(struct engine_job job, struct generated *generated, const char *message)
{
    job.before_step = note_refusal;
    make(&job, 1, generated);
    ck_assert_msg(strstr(failure, message) != NULL, "%s", failure);
}

TEST(what_cannot_be_continued_is_refused)
{
    struct generated generated = prompts(0, SEQUENCES);
    struct engine_job bert = tiny_job(TINY_GPT2, false);
    bert.model = tiny_model_text(TINY_BERT);
    expect_refusal(bert, &generated, "attention() also sees later tokens");
    struct engine_job gpt2 = tiny_job(TINY_GPT2, false);
    generated.context = TINY_CONTEXT + 1;
    expect_refusal(gpt2, &generated, "sequences of 10 tokens: the model takes 1 to 9");
    generated.context = 5;
    expect_refusal(gpt2, &generated, "prompt 0 has 5 tokens; expected 1 to 4");
    generated.context = 6; /* a token is drawn, but not read any more */
    expect_refusal(gpt2, &generated, "after 5 of at most 6");
    generated.context = TINY_CONTEXT;
    const int32_t unknown[] = {0, TINY_VOCABULARY};
    generated.prompts[1] = (struct decoder_prompt){unknown, 2};
    expect_refusal(gpt2, &generated, "prompt 1 has the token 13; the model knows 0 to 12");
    generated_free(&generated);
}

#ifdef TEST_CUDA
/* A call captures its two programs, between replays of training's: the bits are those of calls
 * without graphs, and training's those of a run without samples. */
LOOP_TEST(graphs_are_captured_once, 1, 3)
{
    enum { STEPS = 6, CALLS = 2 };
    struct engine_job job = tiny_job(_i == 1 ? TINY_GPT2 : TINY_LLAMA, true);
    struct generated plain = prompts(0, SEQUENCES), replayed = prompts(0, SEQUENCES);
    job.steps = STEPS;
    job.poison = false;
    plain.chunk = replayed.chunk = 1;
    steps_wanted = 1 << (STEPS - 1) | 1 << (STEPS - 2);
    setenv("FSDPD_CUDA_GRAPHS", "off", 1);
    struct engine_outcome *alone = train_with(&job, _i, NULL);
    make(&job, _i, &plain);
    unsetenv("FSDPD_CUDA_GRAPHS");
    struct engine_outcome *found = train_with(&job, _i, &replayed);
    /* The first run of a program is enqueued, the second captured, and the others are replayed. */
    const int pieces = 5, tokens = COUNT - 1;
    ck_assert_int_eq(cuda_stub_count("cudaStreamBeginCapture"), _i * (1 + 2 * CALLS));
    ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch"),
                     _i * (STEPS - 2 + CALLS * (pieces - 2 + tokens - 2)));
    ck_assert_mem_eq(replayed.tokens, plain.tokens, SEQUENCES * COUNT * sizeof(int32_t));
    ck_assert_mem_eq(replayed.logits, plain.logits, SEQUENCES * LOGITS * sizeof(float));
    ck_assert_mem_eq(found->parameters, alone->parameters,
                     (size_t)alone->parameter_elements * sizeof(float));
    engine_outcome_free(alone);
    engine_outcome_free(found);
    generated_free(&plain);
    generated_free(&replayed);
}

static void fail_a_capture(struct executor *executor, struct comm *comm, int step)
{
    bool now = step == 3 && comm_rank(comm) == 0;
    if (now) cuda_stub_fail_here("cudaStreamEndCapture", 1, cudaErrorUnknown);
    before_step(executor, comm, step);
}

/* Its collectives end the group, and a new one is made: also training is captured again. */
TEST(a_capture_that_fails_changes_nothing)
{
    enum { STEPS = 7 };
    struct engine_job job = tiny_job(TINY_LLAMA, true);
    struct generated plain = prompts(0, SEQUENCES), found = prompts(0, SEQUENCES);
    job.steps = STEPS;
    job.poison = false;
    plain.chunk = found.chunk = 1;
    steps_wanted = 1 << 3;
    make(&job, 2, &plain);
    job.before_step = fail_a_capture;
    make(&job, 2, &found);
    ck_assert_int_eq(cuda_stub_count("ncclCommInitRankConfig"), 2 * 2);
    ck_assert_mem_eq(found.logits, plain.logits, SEQUENCES * LOGITS * sizeof(float));
    /* Training before and after it, and the call's tokens in the new group. */
    ck_assert_int_eq(cuda_stub_count("cudaStreamBeginCapture"), 2 * (2 + 2));
    ck_assert_int_eq(cuda_stub_count("cudaGraphLaunch"), 2 * (1 + 2 + COUNT - 1 - 2));
    generated_free(&plain);
    generated_free(&found);
}

TEST(offloaded_units_are_refused)
{
    struct generated generated = prompts(0, SEQUENCES);
    struct engine_job job = tiny_job(TINY_GPT2, true);
    job.cpu_offload = job.host_apart = true;
    expect_refusal(job, &generated, "while units are offloaded to the host");
    generated_free(&generated);
}
#endif
