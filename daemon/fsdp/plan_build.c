/*
 * Building a plan: schedule, memory, figures, validation, for each program. Pure functions; any
 * thread. A plan owns its programs and borrows model, units and graphs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "fsdp/plan_internal.h"

/* Groups must have equal sizes, otherwise some ranks would have no group. */
static status_t check_shard_world(const char *what, int shard_world, int world)
{
    if (shard_world >= 1 && shard_world <= world && world % shard_world == 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s sharded over %d ranks, but %d rank%s cannot be divided into groups of %d",
                      what, shard_world, world, world == 1 ? "" : "s", shard_world);
}

static status_t check_options(const struct plan_options *options, const struct unit_set *units)
{
    if (options->world < 1 || options->rank < 0 || options->rank >= options->world)
        return status_new(STATUS_INVALID_ARGUMENT, "rank %d of %d ranks does not exist",
                          options->rank, options->world);
    if ((unsigned)options->strategy >= STRATEGY_COUNT)
        return status_new(STATUS_INVALID_ARGUMENT, "strategy %d is unknown", options->strategy);
    bool hybrid = options->strategy == STRATEGY_HYBRID_SHARD;
    int expected = options->strategy == STRATEGY_NO_SHARD ? 1 : options->world;
    if (!hybrid && units->shard_world != expected)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "the units are cut for %d ranks, but the plan is for %d",
                          units->shard_world, expected);
    TRY(check_shard_world("the units are", units->shard_world, options->world));
    for (int u = 0; u < units->unit_count; u++) {
        const struct unit *unit = &units->units[u];
        if (unit->shard_world == units->shard_world) continue;
        char *what = mem_printf("unit %s is", unit->name);
        status_t status = check_shard_world(what, unit->shard_world, options->world);
        free(what);
        TRY(status);
    }
    if ((options->gathered_dtype != DTYPE_F32 && options->gathered_dtype != DTYPE_BF16) ||
        (options->reduce_dtype != DTYPE_F32 && options->reduce_dtype != DTYPE_BF16))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "parameters are gathered, and gradients reduced, as f32 or bf16");
    if (options->gathered_limit < 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "the limit of gathered units is %d; expected at least 1",
                          options->gathered_limit);
    if (options->accumulation == ACCUMULATION_REDUCED && options->world == 1)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "one rank has nothing to reduce; its gradients accumulate locally");
    if (options->optimizer_slots < 0 || options->optimizer_slots > OPTIMIZER_MAX_SLOTS)
        return status_new(STATUS_INVALID_ARGUMENT, "%d optimizer slots; expected 0 to %d",
                          options->optimizer_slots, OPTIMIZER_MAX_SLOTS);
    return NULL;
}

/* Updates by whole matrices, or by sums over them, are made by the GPU. */
static status_t check_matrices(const struct plan *plan)
{
    for (int u = 0; u < plan->units->unit_count; u++) {
        const struct unit *unit = &plan->units->units[u];
        const struct plan_matrix *matrices;
        bool factors = optimizer_factors(plan->options.optimizer) && unit->flat.shard > 0;
        if (unit->frozen || !plan_offloads(plan, u)) continue;
        if (factors || plan_find_matrices(plan, u, &matrices) > 0)
            return status_new(
                STATUS_UNIMPLEMENTED,
                "optimizer.type: %s with fsdp.cpu_offload: the updates of unit %s are "
                "made on the GPU only",
                plan_optimizer_name(plan->options.optimizer), unit->name);
    }
    return NULL;
}

/* The smaller groups must evenly divide the ranks that a unit is sharded over. */
static status_t check_resharding(const struct plan *plan)
{
    for (int u = 0; u < plan->units->unit_count; u++) {
        const struct unit *unit = &plan->units->units[u];
        int ranks = plan_reshard_world(plan, u);
        if (ranks >= 1 && unit->shard_world % ranks == 0) continue;
        return status_new(STATUS_INVALID_ARGUMENT,
                          "unit %s is sharded over %d ranks, which cannot be resharded after "
                          "forward in groups of %d; expected a divisor",
                          unit->name, unit->shard_world, ranks);
    }
    return NULL;
}

/* Ops are prepared for one type of each parameter: the type in which they find it. */
static status_t check_dtype(const struct plan *plan, const struct graph *graph, int v)
{
    const struct graph_value *value = &graph->values[v];
    if (!plan_is_parameter(value)) return NULL;
    int unit = plan_unit_of_value(plan, graph, v);
    bool low = value->kind == VALUE_PARAMETER && plan_parameter_size(plan, unit) == 2;
    enum dtype stored = low ? DTYPE_BF16 : DTYPE_F32;
    if (value->type.dtype == stored) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "ops are prepared for %s as %s, but unit %s has it as %s: a change of policy "
                      "cannot change that",
                      value->name, dtype_name(value->type.dtype), plan->units->units[unit].name,
                      dtype_name(stored));
}

static status_t check_graph(const struct plan *plan, const struct graph *graph)
{
    const struct model *model = plan->model;
    for (int v = 0; v < graph->value_count; v++) {
        const struct graph_value *value = &graph->values[v];
        if (tensor_element_count(&value->type) < 0)
            return status_new(STATUS_INTERNAL, "the graph's value '%s' has no valid shape",
                              value->name);
        if (plan_is_parameter(value) &&
            (value->parameter < 0 || value->parameter >= model->parameter_count))
            return status_new(STATUS_INTERNAL, "the graph's value '%s' is of parameter %d of %d",
                              value->name, value->parameter, model->parameter_count);
        TRY(check_dtype(plan, graph, v));
    }
    bool result = graph->loss >= 0 || (graph->logits >= 0 && plan->options.lent != LENT_NOTHING);
    if (graph->input < 0 || graph->target < 0 || !result)
        return status_new(STATUS_INTERNAL, "the graph lacks an input, a target or a loss");
    return NULL;
}

void plan_program_deinit(struct plan_program *program)
{
    free(program->instructions);
    free(program->clocks);
    free(program->live_bytes);
    free(program->buffers);
    free(program->buffer_of_value);
    free(program->offset_of_value);
    *program = (struct plan_program){0};
}

void plan_free(struct plan *plan)
{
    if (plan == NULL) return;
    plan_program_deinit(&plan->train);
    plan_program_deinit(&plan->accumulate);
    plan_program_deinit(&plan->evaluate);
    plan_program_deinit(&plan->hold);
    free(plan->matrices);
    free(plan);
}

struct building {
    struct plan *plan;
    struct plan_buffer *state;
    int state_count;
};

static status_t build_program(const struct building *building, struct graph *graph,
                              const struct lowering *lowering, enum plan_role role,
                              bool no_prefetch, struct plan_program *program)
{
    struct plan_program built = {0};
    status_t status = plan_schedule(building->plan, graph, role, no_prefetch, &built);
    if (status == NULL)
        status =
            plan_memory(building->plan, lowering, building->state, building->state_count, &built);
    if (status != NULL) {
        plan_program_deinit(&built);
        static const char *const names[] = {"train", "accumulate", "evaluate", "hold"};
        return status_wrap(status, "%s", names[role]);
    }
    *program = built;
    return NULL;
}

/* Evaluation is a small part of a job and must not determine its memory: if its prefetched gathers
 * would, it gathers each unit only when needed. */
static status_t build_evaluate(const struct building *building, struct graph *graph,
                               const struct lowering *lowering)
{
    struct plan *plan = building->plan;
    TRY(build_program(building, graph, lowering, ROLE_EVALUATE, false, &plan->evaluate));
    if (plan->held_bytes > 0 && plan->options.lent == LENT_PARAMETERS)
        TRY(build_program(building, graph, lowering, ROLE_HOLD, false, &plan->hold));
    bool fetches = plan_is_sharded(plan) || plan_has_offloaded(plan);
    if (plan->options.lent != LENT_NOTHING) return NULL;
    if (!fetches || plan->evaluate.work_bytes <= plan->train.work_bytes) return NULL;
    struct plan_program no_prefetch;
    TRY(build_program(building, graph, lowering, ROLE_EVALUATE, true, &no_prefetch));
    if (no_prefetch.work_bytes < plan->evaluate.work_bytes) {
        struct plan_program other = plan->evaluate;
        plan->evaluate = no_prefetch;
        no_prefetch = other;
    }
    plan_program_deinit(&no_prefetch);
    return NULL;
}

status_t plan_build(const struct model *model, const struct unit_set *units,
                    struct graph *train_graph, const struct lowering *train_lowering,
                    struct graph *evaluate_graph, const struct lowering *evaluate_lowering,
                    const struct plan_options *options, struct plan **plan)
{
    TRY(check_options(options, units));
    struct plan *built = mem_alloc(sizeof *built);
    built->options = *options;
    if (built->options.gathered_limit == 0) built->options.gathered_limit = PLAN_GATHERED_LIMIT;
    if (built->options.bucket_bytes == 0) built->options.bucket_bytes = PLAN_BUCKET_BYTES;
    built->model = model;
    built->units = units;
    plan_assign_matrices(built);
    status_t status = check_resharding(built);
    if (status == NULL) status = check_matrices(built);
    if (status == NULL && train_graph != NULL) status = check_graph(built, train_graph);
    if (status == NULL && evaluate_graph != NULL) status = check_graph(built, evaluate_graph);
    if (status != NULL) {
        plan_free(built);
        return status;
    }
    struct building building = {.plan = built};
    uint64_t arenas[ARENA_HOST + 1];
    building.state =
        plan_state_buffers(built, train_graph, evaluate_graph, &building.state_count, arenas);
    built->state_bytes = arenas[ARENA_STATE];
    built->host_bytes = arenas[ARENA_HOST];
    for (int b = 0; b < building.state_count; b++) {
        uint64_t bytes = plan_align(building.state[b].bytes);
        if (building.state[b].class == BUFFER_CACHE) built->cache_bytes += bytes;
        if (building.state[b].class == BUFFER_GATHERED) built->held_bytes += bytes;
    }
    built->lent_bytes = plan_lent_bytes(built, building.state, building.state_count);
    if (train_graph != NULL)
        status =
            build_program(&building, train_graph, train_lowering, ROLE_TRAIN, false, &built->train);
    if (status == NULL && options->accumulation != ACCUMULATION_NONE)
        status = build_program(&building, train_graph, train_lowering, ROLE_ACCUMULATE, false,
                               &built->accumulate);
    if (status == NULL && evaluate_graph != NULL)
        status = build_evaluate(&building, evaluate_graph, evaluate_lowering);
    free(building.state);
    if (status == NULL) {
        built->work_bytes = built->train.work_bytes;
        if (built->accumulate.work_bytes > built->work_bytes)
            built->work_bytes = built->accumulate.work_bytes;
        if (built->evaluate.work_bytes > built->work_bytes)
            built->work_bytes = built->evaluate.work_bytes;
        if (built->hold.work_bytes > built->work_bytes) built->work_bytes = built->hold.work_bytes;
        built->peak_bytes = built->state_bytes + built->work_bytes;
        if (!options->sketch) {
            built->hash = plan_compute_hash(built);
            status = status_wrap(plan_validate(built), "the plan is wrong");
        }
    }
    if (status != NULL) {
        plan_free(built);
        return status;
    }
    *plan = built;
    return NULL;
}

status_t plan_check_fits(const struct plan *plan, uint64_t outside_bytes, uint64_t memory_bytes)
{
    if (plan->peak_bytes <= memory_bytes && outside_bytes <= memory_bytes - plan->peak_bytes)
        return NULL;
    const struct plan_program *program = &plan->train;
    if (plan->evaluate.work_bytes > program->work_bytes) program = &plan->evaluate;
    int class = 0, unit = 0;
    for (int c = 1; c < BUFFER_CLASS_COUNT; c++)
        if (program->class_bytes_at_peak[c] > program->class_bytes_at_peak[class]) class = c;
    for (int u = 1; u < plan->units->unit_count; u++)
        if (plan->units->units[u].flat.padded > plan->units->units[unit].flat.padded) unit = u;
    char needed[32], given[32], most[32], largest[32], own[32], outside[64] = "";
    if (outside_bytes > 0)
        snprintf(outside, sizeof outside, " and %s outside of it",
                 text_format_bytes(outside_bytes, own));
    uint64_t unit_bytes = (uint64_t)plan->units->units[unit].flat.padded * sizeof(float);
    return status_new(
        STATUS_RESOURCE_EXHAUSTED,
        "the plan needs %s of memory per rank%s, but %s are available; at the peak of "
        "%s most of it are %s (%s); the largest unit is %s with %s of parameters",
        text_format_bytes(plan->peak_bytes, needed), outside,
        text_format_bytes(memory_bytes, given), program == &plan->train ? "training" : "evaluation",
        plan_buffer_class_name(class), text_format_bytes(program->class_bytes_at_peak[class], most),
        plan->units->units[unit].name, text_format_bytes(unit_bytes, largest));
}

status_t plan_check_host_fits(const struct plan *plan, const struct plan_host *host)
{
    uint64_t rank = plan->host_bytes + host->staging_bytes, ranks = (uint64_t)host->ranks;
    if (rank <= host->memory_bytes / ranks) return NULL;
    bool offloads = plan->host_bytes > 0;
    uint64_t needed = rank > UINT64_MAX / ranks ? UINT64_MAX : rank * ranks;
    char units[32], copies[32], all[32], given[32], per_host[48] = "";
    text_format_bytes(plan->host_bytes, units);
    text_format_bytes(host->staging_bytes, copies);
    if (ranks > 1)
        snprintf(per_host, sizeof per_host, ", %s for the %d ranks of a host",
                 text_format_bytes(needed, all), host->ranks);
    text_format_bytes(host->memory_bytes, given);
    if (!offloads)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "copies need %s of host memory per rank%s, but %s are available there",
                          copies, per_host, given);
    return status_new(
        STATUS_RESOURCE_EXHAUSTED,
        "offloaded units need %s of host memory per rank, and copies %s%s, but %s are "
        "available there; offload fewer units, or use more hosts",
        units, copies, per_host, given);
}
