/*
 * Traced training steps; see calibrate.h. The ladder of sizes is climbed, beyond its first rung,
 * until the time is up or the next step would need more time or memory than there is. Only rank 0's
 * times are kept. Each rank runs on its own thread.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "planning/calibrate_internal.h"
#include "runtime/executor.h"
#include "setup/session.h"

enum {
    STEPS_MAX = 24,
    STEPS_MIN = 5,
    WARM = 1,
    IMAGE_ROWS = 8 /* tokens that count as one image */
};
/* A step with fewer floating-point operations is repeated more often. */
static const double SMALL_FLOPS = 2e9;
/* Of the memory that is free now; of the time that is left. */
static const double MEMORY_SHARE = 0.5, TIME_SHARE = 0.5;

struct steps {
    struct calibrate_rank *rank;
    enum calibrate_model model;
    const struct calibrate_size *size;
    bool half;
    int count; /* of steps, with the warm-up */
    int run;   /* which of the ladder's: varies optimizer, clipping, accumulation */
    struct train_session *session;
    struct executor *executor;
    struct trace *trace;
    void *input;
    int32_t *target;
    int32_t *starts;
};

static void set_job(const struct steps *steps, const char *text, struct train_job *job)
{
    bool images = steps->model == CALIBRATE_IMAGES;
    uint32_t batch = (uint32_t)steps->size->batch;
    if (images) batch = batch * (uint32_t)steps->size->context / IMAGE_ROWS;
    *job = (struct train_job){.id = "calibrate",
                              .model_text = text,
                              .model_length = strlen(text),
                              .model_file = calibrate_model_name(steps->model),
                              .data_format = images ? DATA_IMAGES : DATA_TOKENS,
                              .context = images ? 0 : steps->size->context,
                              .batch_size = batch,
                              .test_batch_size = batch,
                              .seed = 1,
                              .epochs = 1,
                              .log_interval = 1,
                              .schedule = {.step_size = 1},
                              .max_steps = (uint64_t)steps->count,
                              .dropout = true,
                              .accumulation_steps = steps->run % 3 == 2 ? 2 : 1,
                              .max_norm = steps->run % 2 == 1 ? 1 : 0,
                              .optimizer = {.lr = 1e-6,
                                            .rho = 0.9,
                                            .eps = 1e-6,
                                            .momentum = 0.9,
                                            .beta1 = 0.9,
                                            .beta2 = 0.999},
                              .wrap = {.kind = WRAP_AUTO},
                              .world = steps->rank->group->world};
    job->optimizer.kind = (enum optimizer_kind)(steps->run % OPTIMIZER_COUNT);
    /* What they take beside follows from the rates. */
    if (!optimizer_is_elementwise(job->optimizer.kind)) job->optimizer.kind = OPTIMIZER_ADAMW;
    job->plan.gathered_dtype = steps->half ? DTYPE_BF16 : DTYPE_F32;
    job->plan.reduce_dtype = DTYPE_F32;
    job->plan.norm = job->max_norm > 0 ? NORM_2 : NORM_NONE;
    job->plan.backward_prefetch = PREFETCH_NONE;
}

/* ---- A step's input ---- */

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static size_t count_of(const struct graph *graph, int value)
{
    return value < 0 ? 0 : (size_t)tensor_element_count(&graph->values[value].type);
}

static void make_input(struct steps *steps)
{
    const struct plan *plan = train_session_plan(steps->session);
    const struct graph *graph = plan->train.graph;
    size_t inputs = count_of(graph, graph->input), targets = count_of(graph, graph->target);
    bool tokens = plan->model->tokens;
    uint32_t state = 1, classes = (uint32_t)plan->model->class_count;
    steps->input = mem_alloc_array(inputs + 1, sizeof(float));
    steps->target = mem_alloc_array(targets + 1, sizeof(int32_t));
    steps->starts = mem_alloc_array(count_of(graph, graph->starts) + 1, sizeof(int32_t));
    for (size_t i = 0; i < inputs; i++) {
        if (tokens) ((int32_t *)steps->input)[i] = (int32_t)(draw(&state) % (classes - 1) + 1);
        else ((float *)steps->input)[i] = (float)(draw(&state) % 1000) / 1000;
    }
    for (size_t i = 0; i < targets; i++) steps->target[i] = (int32_t)(draw(&state) % classes);
}

/* Small values, all different: power and speed of some devices depend on them. */
static status_t set_parameters(struct steps *steps)
{
    const struct model *model = train_session_model(steps->session);
    uint32_t state = 7;
    for (int p = 0; p < model->parameter_count; p++) {
        if (model->parameters[p].tied_to >= 0) continue;
        size_t count = (size_t)tensor_element_count(&model->parameters[p].type);
        float *values = mem_alloc_array(count, sizeof *values);
        for (size_t i = 0; i < count; i++)
            values[i] = ((float)(draw(&state) % 2001) - 1000) / 50000;
        status_t status = executor_set_parameter(steps->executor, p, values);
        free(values);
        TRY(status);
    }
    return NULL;
}

static status_t run_step(struct steps *steps, uint64_t step, const struct train_job *job)
{
    const struct graph *graph = train_session_plan(steps->session)->train.graph;
    uint32_t micro_steps = train_session_micro_steps(steps->session);
    struct step_result result;
    struct step_input input = {.input = steps->input,
                               .target = steps->target,
                               .starts = graph->starts >= 0 ? steps->starts : NULL,
                               .samples = (int64_t)count_of(graph, graph->target),
                               .step = step,
                               .micro_steps = micro_steps > 1 ? micro_steps : 0,
                               .optimizer = job->optimizer,
                               .max_norm = job->max_norm};
    input.optimizer.taken = step;
    for (; input.micro + 1 < micro_steps; input.micro++)
        TRY(executor_accumulate_step(steps->executor, &input, &result));
    return executor_train_step(steps->executor, &input, &result);
}

/* ---- What a trace says ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median over the runs of a program of an instruction's time; -1: of the whole, less what the
 * lanes take. */
static double median_seconds(const struct steps *steps, bool accumulate, int instruction,
                             double lanes)
{
    double seconds[STEPS_MAX];
    int count = 0;
    for (int r = 0; r < steps->trace->run_count && count < STEPS_MAX; r++) {
        const struct trace_run *run = &steps->trace->runs[r];
        if (run->accumulate != accumulate) continue;
        const struct trace_stamp *stamp =
            instruction >= 0 ? &run->stamps[instruction] : &run->whole;
        seconds[count++] = (double)(stamp->end_ns - stamp->begin_ns) * 1e-9 - lanes;
    }
    qsort(seconds, (size_t)count, sizeof *seconds, by_value);
    return count > 0 ? seconds[count / 2] : 0;
}

/* Whether the trace says how long such work takes: other collectives wait for other ranks. */
static bool counts(const struct plan_instruction *it)
{
    return it->lane != LANE_COMM || it->kind == INSTRUCTION_REDUCE_STATS ||
           it->kind == INSTRUCTION_REDUCE_NORM;
}

static void add_program(struct steps *steps, bool accumulate)
{
    const struct plan *plan = train_session_plan(steps->session);
    const struct plan_program *program = accumulate ? &plan->accumulate : &plan->train;
    const struct plan_rates rates = {.flops_f32 = 1,
                                     .flops_bf16 = 1,
                                     .memory_bandwidth = 1,
                                     .host_bandwidth = 1,
                                     .batch = {.bandwidth = 1},
                                     .inside = {.bandwidth = 1},
                                     .devices_per_host = PROFILE_WORLD_MAX};
    struct plan_timing *timings =
        mem_alloc_array((size_t)program->instruction_count + 1, sizeof *timings);
    struct plan_estimate lanes;
    for (int i = 0; i < program->instruction_count; i++) {
        struct plan_work work;
        plan_find_work(plan, program, i, &rates, &work);
        timings[i].seconds = median_seconds(steps, accumulate, i, 0);
        const struct plan_sample sample = {work.ranks,         work.amount, work.bytes,
                                           timings[i].seconds, {0},         0};
        if (work.row >= 0 && counts(&program->instructions[i]))
            calibrate_add(steps->rank, work.row, work.half, &sample);
    }
    plan_simulate(program, timings, &lanes);
    const struct plan_sample rest = {.ranks = plan->options.world,
                                     .amount = program->instruction_count,
                                     .seconds =
                                         median_seconds(steps, accumulate, -1, lanes.step_seconds)};
    if (rest.seconds > 0) calibrate_add(steps->rank, PLAN_ROW_STEP, false, &rest);
    free(timings);
}

/* ---- One network ---- */

static status_t measure(struct steps *steps, const struct train_job *job)
{
    const struct plan *plan = train_session_plan(steps->session);
    const struct trace_shape shape = {.instruction_count = plan->train.instruction_count,
                                      .accumulate_count = plan->accumulate.instruction_count,
                                      .batches = train_session_micro_steps(steps->session),
                                      .step_count = steps->count - WARM,
                                      .step = WARM};
    TRY(train_session_open_executor(steps->session, steps->rank->comm, &steps->executor));
    TRY(set_parameters(steps));
    make_input(steps);
    TRY(trace_new(&shape, &steps->trace));
    for (uint64_t step = 0; step < (uint64_t)steps->count; step++) {
        if (step == WARM) executor_set_trace(steps->executor, steps->trace);
        TRY(run_step(steps, step, job));
    }
    if (steps->rank->rank > 0) return NULL;
    add_program(steps, false);
    if (plan->accumulate.instruction_count > 0) add_program(steps, true);
    return NULL;
}

/* Whether all ranks have the memory, as rank 0 sees it. */
static bool has_room(const struct steps *steps)
{
    double needs = (double)train_session_plan(steps->session)->peak_bytes;
    double has = (double)device_memory_bytes(steps->rank->device) * MEMORY_SHARE;
    if (device_is_host(steps->rank->device)) needs *= steps->rank->group->world;
    return needs < has;
}

static void steps_deinit(struct steps *steps)
{
    executor_free(steps->executor);
    trace_free(steps->trace);
    train_session_free(steps->session);
    free(steps->input);
    free(steps->target);
    free(steps->starts);
}

static status_t measure_network(struct steps *steps, bool *fits)
{
    struct train_job job;
    char *text = calibrate_model_text(steps->model, steps->size);
    set_job(steps, text, &job);
    status_t status =
        train_session_new(&job, steps->rank->device, steps->rank->rank, true, &steps->session);
    *fits = calibrate_agree(steps->rank, status == NULL && has_room(steps));
    if (status == NULL && *fits) status = measure(steps, &job);
    steps_deinit(steps);
    free(text);
    return status_wrap(status, "%s of width %d", job.model_file, steps->size->width);
}

/* ---- The ladder ---- */

struct pace {
    double flops, seconds; /* of the last network of a model and type */
};

/* Whether there is time for it, judging by the last one. */
static bool has_time(const struct pace *pace, double flops, double left)
{
    double next = pace->flops > 0 ? pace->seconds * flops / pace->flops : 0;
    return left > 0 && next < left * TIME_SHARE;
}

static status_t climb(struct calibrate_rank *rank, enum calibrate_model model, bool half, int size,
                      int run, struct pace *pace, bool *went)
{
    double left = 0, flops = calibrate_model_flops(model, &calibrate_sizes[size]);
    TRY(calibrate_check(rank, &left));
    *went = calibrate_agree(rank, size == 0 || has_time(pace, flops, left));
    if (!*went) return NULL;
    struct steps steps = {.rank = rank,
                          .model = model,
                          .size = &calibrate_sizes[size],
                          .half = half,
                          .count = flops < SMALL_FLOPS ? STEPS_MAX : STEPS_MIN,
                          .run = run};
    int64_t began = clock_monotonic_ns();
    TRY(measure_network(&steps, went));
    *pace = (struct pace){flops, (double)(clock_monotonic_ns() - began) * 1e-9};
    return NULL;
}

status_t calibrate_steps(struct calibrate_rank *rank)
{
    struct pace paces[CALIBRATE_MODEL_COUNT][2] = {0};
    bool ended[CALIBRATE_MODEL_COUNT][2] = {0};
    int run = 0;
    for (int size = 0; size < calibrate_size_count; size++)
        for (int half = 0; half < 2; half++)
            for (int model = 0; model < CALIBRATE_MODEL_COUNT; model++, run++) {
                bool went = false;
                if (ended[model][half]) continue;
                TRY(climb(rank, (enum calibrate_model)model, half, size, run, &paces[model][half],
                          &went));
                ended[model][half] = !went;
            }
    return NULL;
}
