/* See engine.h. */
#include "engine.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "device_logged.h"
#include "runtime/base.h"

/* The state of one rank. */
struct rank {
    const struct engine_job *job;
    struct comm *comm, *joined; /* `joined`: made for this device */
    int index, world;
    int64_t batch;
    struct model *model;
    struct unit_set *units;
    struct device *device;
    struct graph *train, *evaluate;
    struct device_graph *train_lowered, *evaluate_lowered;
    struct plan *plan;
    struct executor *executor;
    void *input; /* floats, or tokens */
    int32_t *target;
};

/* In [-1, 1), the same on every machine. */
static float made_up(uint64_t stream, uint64_t i)
{
    uint64_t x = (stream << 40) + i * 0x9e3779b97f4a7c15ull + 0x1234567;
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    x ^= x >> 31;
    return (float)((double)(x >> 11) * 0x1p-52 - 1.0);
}

static status_t read_model(const char *text, struct model **model)
{
    return model_parse(text, strlen(text), "net.yaml", model);
}

static int micro_steps(const struct rank *rank)
{
    return rank->job->micro_steps > 1 ? rank->job->micro_steps : 1;
}

static enum accumulation adds_up(const struct rank *rank)
{
    if (micro_steps(rank) == 1) return ACCUMULATION_NONE;
    return rank->job->no_sync || rank->world == 1 ? ACCUMULATION_LOCAL : ACCUMULATION_REDUCED;
}

static status_t build_graph(struct rank *rank, bool train, struct graph **graph,
                            struct device_graph **lowered)
{
    struct graph_options options = {.batch_size = rank->batch,
                                    .world = rank->world,
                                    .train = train,
                                    .dropout = rank->job->dropout,
                                    .accumulate = train && adds_up(rank) == ACCUMULATION_LOCAL,
                                    .count_correct = !train,
                                    .checkpoint = rank->job->checkpoint,
                                    .checkpoint_count = rank->job->checkpoint_count,
                                    .recompute = rank->job->recompute,
                                    .compute_dtype = rank->job->param_dtype};
    enum dtype *parameters, *modules;
    units_find_dtypes(rank->units, rank->model, rank->job->param_dtype, &parameters, &modules);
    options.parameter_dtypes = parameters;
    options.module_dtypes = modules;
    status_t status = graph_build(rank->model, &options, graph);
    free(parameters);
    free(modules);
    TRY(status);
    return device_lower(rank->device, *graph, lowered);
}

static status_t set_up(struct rank *rank)
{
    const struct engine_job *job = rank->job;
    TRY(read_model(job->model, &rank->model));
    if (job->logged) rank->device = device_logged_open();
    else TRY(device_open(job->device != NULL ? job->device : "cpu", 1, &rank->device));
    if (job->join != NULL && rank->world > 1) {
        TRY(job->join(rank->device, rank->index, rank->world, &rank->joined));
        rank->comm = rank->joined;
    }
    int shard_world = job->strategy == STRATEGY_NO_SHARD       ? 1
                      : job->strategy == STRATEGY_HYBRID_SHARD ? job->shard_size
                                                               : rank->world;
    struct wrap_policy policy = job->policy;
    policy.shape = optimizer_step_shape(&job->optimizer);
    policy.matrices = job->matrices;
    policy.state = job->optimizer.state;
    policy.rounded = job->rounded;
    policy.param_dtype = job->param_dtype;
    TRY(units_build(rank->model, &policy, shard_world, &rank->units));
    TRY(build_graph(rank, true, &rank->train, &rank->train_lowered));
    TRY(build_graph(rank, false, &rank->evaluate, &rank->evaluate_lowered));
    struct plan_options options = {
        .rank = rank->index,
        .world = rank->world,
        .strategy = job->strategy,
        .reshard = job->reshard,
        .reshard_ranks = job->reshard_ranks,
        .bucket_bytes = job->bucket_bytes,
        .backward_prefetch = job->prefetch,
        .forward_prefetch = job->forward_prefetch,
        .gathered_limit = job->gathered_limit,
        .gathered_dtype = job->param_dtype,
        .reduce_dtype = job->reduce_dtype,
        .accumulation = adds_up(rank),
        .micro_steps = micro_steps(rank) > 1 ? (uint32_t)micro_steps(rank) : 0,
        .norm = job->norm,
        .optimizer = job->optimizer.kind,
        .optimizer_slots = optimizer_step_slots(&job->optimizer),
        .state = job->optimizer.state,
        .rounded = job->rounded,
        .matrix_of_parameter = job->matrices,
        .others = job->optimizer.others != NULL ? job->optimizer.others->kind : OPTIMIZER_SGD,
        .ns_steps = job->optimizer.ns_steps,
        .matrix_workspace_bytes = device_matrix_workspace_bytes(rank->device),
        .cpu_offload = job->cpu_offload,
        .host_apart = job->host_apart,
        .register_buffers = job->register_buffers,
        .collective_workspace_bytes = executor_collective_bytes(rank->units, rank->world)};
    TRY(plan_build(rank->model, rank->units, rank->train,
                   device_graph_lowering(rank->train_lowered), rank->evaluate,
                   device_graph_lowering(rank->evaluate_lowered), &options, &rank->plan));
    TRY(plan_validate(rank->plan));
    if (job->tamper != NULL) job->tamper(rank->plan);
    TRY(executor_new(rank->device, rank->world > 1 ? rank->comm : NULL, rank->plan,
                     rank->train_lowered, rank->evaluate_lowered, 42, &rank->executor));
    return executor_set_poison(rank->executor, job->poison);
}

static void tear_down(struct rank *rank)
{
    executor_free(rank->executor);
    plan_free(rank->plan);
    units_free(rank->units);
    device_graph_free(rank->evaluate_lowered);
    device_graph_free(rank->train_lowered);
    graph_free(rank->evaluate);
    graph_free(rank->train);
    model_free(rank->model);
    comm_free(rank->joined);
    device_close(rank->device);
    free(rank->input);
    free(rank->target);
}

static status_t set_parameters(struct rank *rank)
{
    for (int p = 0; p < rank->model->parameter_count; p++) {
        const struct parameter *parameter = &rank->model->parameters[p];
        if (parameter->tied_to >= 0) continue;
        if (rank->job->parameters != NULL) {
            TRY(executor_set_parameter(rank->executor, p, rank->job->parameters[p]));
            continue;
        }
        int64_t count = tensor_element_count(&parameter->type);
        float *values = mem_alloc_array((size_t)count, sizeof *values);
        /* about the size that PyTorch would choose */
        int64_t fan_in = count / parameter->type.dims[0];
        for (int64_t i = 0; i < count; i++)
            values[i] = made_up((uint64_t)p, (uint64_t)i) / sqrtf((float)(fan_in > 1 ? fan_in : 9));
        status_t status = executor_set_parameter(rank->executor, p, values);
        free(values);
        TRY(status);
    }
    return NULL;
}

/* The same for tokens: windows of the context, whose targets are other tokens, some ignored. */
static void make_windows(struct rank *rank, int step, int ignored_rows)
{
    int64_t context = rank->model->context;
    if (rank->input == NULL) {
        rank->input = mem_alloc_array((size_t)(rank->batch * context), sizeof(int32_t));
        rank->target = mem_alloc_array((size_t)(rank->batch * context), sizeof(int32_t));
    }
    int32_t *input = rank->input;
    uint64_t stream = 1000 + (uint64_t)step;
    float classes = (float)rank->model->class_count;
    for (int64_t i = 0; i < rank->batch * context; i++) {
        int64_t row = rank->index * rank->batch + i / context;
        uint64_t place = (uint64_t)(row * context + i % context);
        input[i] = (int32_t)((made_up(stream, place) * 0.5f + 0.5f) * classes);
        rank->target[i] = (int32_t)((made_up(stream + 5000, place) * 0.5f + 0.5f) * classes);
        bool ignored = row >= rank->job->global_batch - ignored_rows;
        if (ignored || i % context == context - 1) rank->target[i] = -100;
    }
}

/* The 4-byte words of a row's input, and of its targets. */
static int64_t input_words(const struct rank *rank)
{
    return tensor_element_count(&rank->model->input);
}

static int64_t target_words(const struct rank *rank)
{
    if (model_has_token_targets(rank->model)) return rank->model->context;
    return rank->model->targets.dim_count > 0 ? tensor_element_count(&rank->model->targets) : 1;
}

/* Copies the job's own rows; generated ones remain where this rank has no row of the batch. */
static void copy_windows(struct rank *rank, int batch)
{
    int64_t input = input_words(rank), target = target_words(rank), rows = rank->job->global_batch;
    int64_t from = rank->index * rank->batch, count = rank->batch;
    if (from + count > rows) count = from < rows ? rows - from : 0;
    const int32_t *whole = rank->job->windows + batch * rows * (input + target);
    memcpy(rank->input, whole + from * input, (size_t)(count * input) * sizeof *whole);
    memcpy(rank->target, whole + rows * input + from * target,
           (size_t)(count * target) * sizeof *whole);
}

/* Counts this rank's targets that are not ignored: neither below 0 nor, among floats, NaN. */
static int64_t count_targets(const struct rank *rank)
{
    int64_t targets = rank->batch * target_words(rank), counted = 0;
    bool real = rank->model->targets.dim_count > 0;
    for (int64_t i = 0; i < targets; i++) {
        float value;
        memcpy(&value, &rank->target[i], sizeof value);
        counted += real ? !isnan(value) : rank->target[i] >= 0;
    }
    return counted;
}

/* Float targets; -1 as an integer is a NaN as a float. */
static void make_targets(struct rank *rank, int64_t row, uint64_t stream, bool ignored)
{
    int64_t count = target_words(rank), local = row - rank->index * rank->batch;
    for (int64_t i = 0; i < count; i++) {
        float value = made_up(stream, (uint64_t)(row * count + i));
        memcpy(&rank->target[local * count + i], &value, sizeof value);
        if (ignored) rank->target[local * count + i] = -1;
    }
}

/* Makes this rank's rows of a global batch. */
static void make_batch(struct rank *rank, int step, int ignored_rows)
{
    if (rank->model->tokens) {
        make_windows(rank, step, ignored_rows);
        if (rank->job->windows != NULL && step < rank->job->steps * micro_steps(rank))
            copy_windows(rank, step);
        return;
    }
    int64_t sample = tensor_element_count(&rank->model->input);
    if (rank->input == NULL) {
        rank->input = mem_alloc_array((size_t)(rank->batch * sample), sizeof(float));
        rank->target =
            mem_alloc_array((size_t)(rank->batch * target_words(rank)), sizeof *rank->target);
    }
    float *input = rank->input;
    for (int64_t row = 0; row < rank->batch; row++) {
        int64_t global = rank->index * rank->batch + row;
        uint64_t stream = 1000 + (uint64_t)step;
        for (int64_t i = 0; i < sample; i++)
            input[row * sample + i] = made_up(stream, (uint64_t)(global * sample + i));
        bool ignored = global >= rank->job->global_batch - ignored_rows;
        if (rank->model->targets.dim_count > 0) {
            make_targets(rank, global, stream + 5000, ignored);
            continue;
        }
        float choice = made_up(stream + 5000, (uint64_t)global) * 0.5f + 0.5f;
        rank->target[row] = (int32_t)(choice * (float)rank->model->class_count);
        if (ignored) rank->target[row] = -1;
    }
    if (rank->job->windows != NULL && step < rank->job->steps * micro_steps(rank))
        copy_windows(rank, step);
}

/* Writes what the instructions say about the collectives of `times` runs of a program. */
static void write_program(const struct rank *rank, const struct plan_program *program, int times,
                          struct buf *text, uint64_t *bytes)
{
    for (int i = 0; i < program->instruction_count * times; i++) {
        const struct plan_instruction *instruction =
            &program->instructions[i % program->instruction_count];
        *bytes += instruction->communicated;
        if (instruction->lane != LANE_COMM) continue;
        const char *name = plan_instruction_name(instruction->kind);
        if (instruction->kind == INSTRUCTION_REDUCE_STATS) name = "all_reduce";
        if (instruction->kind == INSTRUCTION_REDUCE_NORM ||
            instruction->kind == INSTRUCTION_GATHER_VALUE)
            name = "all_gather";
        buf_printf(text, "%s%s(%lld)", text->length > 0 ? " " : "", name,
                   (long long)instruction->count);
        if (instruction->group == GROUP_WORLD) continue;
        int ranks = rank->units->units[instruction->unit].shard_world;
        if (instruction->group == GROUP_REPLICA) ranks = rank->world / ranks;
        if (instruction->group == GROUP_RESHARD)
            ranks = plan_reshard_world(rank->plan, instruction->unit);
        buf_printf(text, "x%d", ranks);
    }
}

static void write_planned(const struct rank *rank, struct engine_outcome *outcome)
{
    struct buf text = {0};
    uint64_t *bytes = &outcome->planned_bytes[rank->index];
    write_program(rank, &rank->plan->accumulate, micro_steps(rank) - 1, &text, bytes);
    write_program(rank, &rank->plan->train, 1, &text, bytes);
    ck_assert_uint_lt(text.length, sizeof outcome->planned);
    if (rank->index == 0)
        snprintf(outcome->planned, sizeof outcome->planned, "%s", buf_text(&text));
    buf_deinit(&text);
}

/* Makes and trains batch `micro` of the step. */
static status_t train_batch(struct rank *rank, int step, int micro, struct step_result *result)
{
    int count = micro_steps(rank);
    struct step_input input = {.input = rank->input,
                               .target = rank->target,
                               .samples = count_targets(rank),
                               .signal = (float)(rank->index + 1),
                               .step = (uint64_t)step,
                               .by_sample = rank->job->by_sample,
                               .first_sample = (uint64_t)(micro * rank->job->global_batch +
                                                          rank->index * rank->batch),
                               .micro = (uint32_t)micro,
                               .micro_steps = (uint32_t)count,
                               .optimizer = rank->job->optimizer,
                               .max_norm = rank->job->max_norm};
    input.optimizer.taken = (uint64_t)step;
    if (rank->job->lr_decay != 0) input.optimizer.lr *= pow(rank->job->lr_decay, step);
    return micro + 1 < count ? executor_accumulate_step(rank->executor, &input, result)
                             : executor_train_step(rank->executor, &input, result);
}

static status_t train(struct rank *rank, struct engine_outcome *outcome)
{
    int count = micro_steps(rank);
    for (int step = 0; step < rank->job->steps; step++) {
        if (rank->job->before_step != NULL)
            rank->job->before_step(rank->executor, rank->comm, step);
        if (step == rank->job->steps - 1) comm_log_enable(rank->comm);
        uint64_t sent = comm_bytes_sent(rank->comm);
        struct step_result result;
        float counted = 0;
        for (int micro = 0; micro < count; micro++) {
            int batch = step * count + micro, modulus = rank->job->ignored_modulus;
            make_batch(rank, batch, modulus > 0 ? batch % modulus : 0);
            TRY(train_batch(rank, step, micro, &result));
            float signal = (float)(rank->world * (rank->world + 1) / 2);
            bool real = !rank->job->logged;
            if (real && result.stats[PLAN_STAT_SIGNAL] != signal)
                return status_new(STATUS_INTERNAL, "signal %g",
                                  (double)result.stats[PLAN_STAT_SIGNAL]);
            counted += result.stats[PLAN_STAT_WEIGHT];
            bool scaled = rank->world == 1 || comm_scales(rank->comm);
            float divisor = scaled ? counted : counted * (float)rank->world;
            if (real && fabsf(result.stats[PLAN_STAT_COUNTED] - divisor) > 1e-6f * divisor)
                return status_new(STATUS_INTERNAL, "%g targets count, not %g",
                                  (double)result.stats[PLAN_STAT_COUNTED], (double)divisor);
            if (rank->index == 0) outcome->loss[step] += result.stats[PLAN_STAT_LOSS];
        }
        if (rank->index == 0) outcome->counted[step] = counted;
        outcome->sent_bytes[rank->index] = comm_bytes_sent(rank->comm) - sent;
        if (rank->index == 0) outcome->norm[step] = result.stats[PLAN_STAT_NORM];
        if (rank->index == 0) outcome->last = result;
    }
    if (rank->index == 0) {
        char *log = comm_log(rank->comm);
        ck_assert_uint_lt(strlen(log), sizeof outcome->collectives);
        snprintf(outcome->collectives, sizeof outcome->collectives, "%s", log);
        free(log);
    }
    return NULL;
}

static status_t evaluate(struct rank *rank, struct engine_outcome *outcome)
{
    make_batch(rank, 500, rank->job->ignored_rows);
    struct step_input input = {.input = rank->input,
                               .target = rank->target,
                               .samples = count_targets(rank),
                               .step = 99};
    struct step_result result;
    TRY(executor_evaluate_step(rank->executor, &input, &result));
    if (rank->index == 0) memcpy(outcome->evaluated, result.stats, sizeof outcome->evaluated);
    return NULL;
}

/* Copies this rank's shard of a unit to its places in the parameters; `starts`: where each
 * begins. */
static void place_shard(const struct rank *rank, int unit, const int64_t *starts,
                        const float *shard, float *parameters)
{
    const struct flat_parameter *flat = &rank->units->units[unit].flat;
    int64_t count = (int64_t)executor_shard_elements(rank->executor, unit);
    int shard_world = rank->units->units[unit].shard_world;
    int64_t first = count * (rank->index % shard_world);
    if (rank->index >= shard_world) return; /* the first ranks hold all of it */
    for (int i = 0; i < flat->parameter_count; i++) {
        int p = flat->parameters[i];
        int64_t elements = tensor_element_count(&rank->model->parameters[p].type);
        for (int64_t e = 0; e < elements; e++) {
            int64_t place = flat->offsets[i] + e - first;
            if (place >= 0 && place < count) parameters[starts[p] + e] = shard[place];
        }
    }
}

status_t engine_read_shard(struct executor *executor, int unit, float *values)
{
    const struct plan *plan = executor_plan(executor);
    const struct unit *of = &plan->units->units[unit];
    const struct slot_layout layout = slot_layout_of(&of->flat.slots, -1);
    float *words = mem_alloc_array(executor_slot_words(executor, unit, -1) + 1, sizeof *words);
    status_t status = executor_read_slot(executor, unit, -1, words);
    struct base_part part;
    base_part_init(&part, &layout, plan->options.rank % of->shard_world);
    int64_t count = (int64_t)executor_shard_elements(executor, unit);
    if (status == NULL) base_part_read(&part, words, 0, count, values);
    base_part_deinit(&part);
    free(words);
    return status;
}

/* In model order. */
static status_t read_parameters(struct rank *rank, float *parameters)
{
    int64_t *starts = mem_alloc_array((size_t)rank->model->parameter_count, sizeof *starts);
    int64_t total = 0;
    for (int p = 0; p < rank->model->parameter_count; p++) {
        starts[p] = total;
        if (rank->model->parameters[p].tied_to < 0)
            total += tensor_element_count(&rank->model->parameters[p].type);
    }
    status_t status = NULL;
    for (int u = 0; u < rank->units->unit_count && status == NULL; u++) {
        float *shard =
            mem_alloc_array(executor_shard_elements(rank->executor, u) + 1, sizeof *shard);
        status = engine_read_shard(rank->executor, u, shard);
        if (status == NULL) place_shard(rank, u, starts, shard, parameters);
        free(shard);
    }
    free(starts);
    return status;
}

static int count_computes(const struct plan_program *program)
{
    int count = 0;
    for (int i = 0; i < program->instruction_count; i++)
        count += program->instructions[i].kind == INSTRUCTION_COMPUTE;
    return count;
}

static status_t run(struct rank *rank, struct engine_outcome *outcome)
{
    TRY(set_up(rank));
    outcome->hash[rank->index] = rank->plan->hash;
    outcome->planned_peak[rank->index] = rank->plan->peak_bytes;
    outcome->planned_host[rank->index] = rank->plan->host_bytes;
    outcome->measured_host[rank->index] = device_host_allocated_bytes(rank->device);
    outcome->measured_peak[rank->index] = executor_memory_peak(rank->executor);
    if (rank->job->only_plan) return NULL;
    write_planned(rank, outcome);
    TRY(set_parameters(rank));
    TRY(train(rank, outcome));
    TRY(evaluate(rank, outcome));
    outcome->measured_peak[rank->index] = executor_memory_peak(rank->executor);
    if (rank->index == 0) {
        outcome->device_log = device_logged_text(rank->device);
        outcome->computes[0] = count_computes(&rank->plan->train);
        outcome->computes[1] = count_computes(&rank->plan->evaluate);
    }
    outcome->touched[rank->index] = executor_memory_touched(rank->executor);
    return read_parameters(rank, outcome->parameters);
}

status_t engine_rank(struct comm *comm, void *argument)
{
    const struct engine_run *what = argument;
    struct rank rank = {.job = what->job,
                        .comm = comm,
                        .index = comm_rank(comm),
                        .world = comm_world(comm),
                        .batch =
                            (what->job->global_batch + comm_world(comm) - 1) / comm_world(comm)};
    status_t status = run(&rank, what->outcome);
    if (what->job->finished != NULL) what->job->finished(comm);
    tear_down(&rank);
    return status;
}

struct engine_outcome *engine_outcome_new(const struct engine_job *job)
{
    struct model *model;
    status_t status = read_model(job->model, &model);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    struct engine_outcome *outcome = group_shared(sizeof *outcome);
    outcome->parameter_elements = model_parameter_elements(model);
    outcome->parameters = group_shared((size_t)outcome->parameter_elements * sizeof(float));
    model_free(model);
    return outcome;
}

void engine_outcome_free(struct engine_outcome *outcome)
{
    free(outcome->device_log);
    munmap(outcome->parameters, (size_t)outcome->parameter_elements * sizeof(float));
    munmap(outcome, sizeof *outcome);
}

struct engine_outcome *engine_train(const struct engine_job *job, enum group_kind kind, int world)
{
    ck_assert_int_le(job->steps, ENGINE_MAX_STEPS);
    struct engine_run what = {job, engine_outcome_new(job)};
    group_check(kind, world, engine_rank, &what);
    for (int r = 0; r < world; r++) {
        ck_assert_uint_eq(what.outcome->hash[r], what.outcome->hash[0]);
        ck_assert_uint_eq(what.outcome->measured_peak[r], what.outcome->planned_peak[r]);
        ck_assert_uint_le(what.outcome->touched[r], what.outcome->planned_peak[r]);
        ck_assert_uint_eq(what.outcome->measured_host[r], what.outcome->planned_host[r]);
    }
    return what.outcome;
}

const char *engine_mnist(void)
{
    static char *text;
    if (text != NULL) return text;
    const char *root = getenv("srcdir");
    char *path = file_path_join(root != NULL ? root : ".", "examples/mnist/net.yaml");
    struct buf bytes = {0};
    status_t status = file_read(path, 1 << 20, &bytes);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    free(path);
    return text = buf_take(&bytes);
}

char *engine_with_mean(const char *model)
{
    const char *sum = strstr(model, "\"sum\"");
    ck_assert_ptr_nonnull(sum);
    return mem_printf("%.*s\"mean\"%s", (int)(sum - model), model, sum + strlen("\"sum\""));
}
