/*
 * The buffers of a plan: state, and one for every value, gathered unit, gradient and scratch area,
 * with their lifetimes. Pure functions; any thread.
 *
 * A view shares its input's buffer; an op that may run in place takes over its first input's buffer
 * if no later op reads that input. plan_place.c decides where the buffers lie.
 */
#include <stdlib.h>
#include <string.h>

#include "base/interrupt.h"
#include "base/mem.h"
#include "fsdp/plan_internal.h"

/* ---- State ---- */

struct state {
    struct plan_buffer *buffers;
    int count;
    uint64_t *end; /* by arena */
};

static void add_state(struct state *state, enum plan_arena arena, enum buffer_class class, int unit,
                      int slot, uint64_t bytes)
{
    state->buffers[state->count++] = (struct plan_buffer){.class = class,
                                                          .arena = arena,
                                                          .unit = unit,
                                                          .value = -1,
                                                          .slot = slot,
                                                          .bytes = bytes,
                                                          .offset = state->end[arena],
                                                          .first = -1,
                                                          .last = -1};
    state->end[arena] += plan_align(bytes);
}

/* Creates the parts of a gradient that outlive a program or are on the host. A whole gradient that
 * leaves for the host in the same step needs no lasting buffer. */
static void add_state_gradient(const struct plan *plan, int u, struct state *state)
{
    enum accumulation accumulation = plan->options.accumulation;
    uint64_t whole = (uint64_t)plan->units->units[u].flat.padded * sizeof(float);
    uint64_t kept = (uint64_t)plan_kept_elements(plan, u) * sizeof(float);
    bool local = accumulation == ACCUMULATION_LOCAL, offloaded = plan_offloads(plan, u);
    bool lasts = plan_replicates(plan, u) && (local || !offloaded);
    if (offloaded) add_state(state, ARENA_HOST, BUFFER_HOST_GRADIENT, u, 0, kept);
    if (accumulation == ACCUMULATION_REDUCED)
        add_state(state, ARENA_STATE, BUFFER_ACCUMULATED, u, 0, kept);
    else if (lasts || (local && plan_gathers(plan, u)))
        add_state(state, ARENA_STATE, BUFFER_GRADIENT, u, 0, whole);
    else if (local) add_state(state, ARENA_STATE, BUFFER_GRADIENT_SHARD, u, 0, kept);
}

static uint64_t value_bytes(const struct graph *graph, int value)
{
    return graph == NULL || value < 0 ? 0 : tensor_bytes(&graph->values[value].type);
}

static uint64_t gathered_bytes(const struct plan *plan, int u)
{
    return (uint64_t)plan->units->units[u].flat.padded * plan_parameter_size(plan, u);
}

/* One buffer for each value of a batch, for training and evaluation. */
static void add_state_batch(const struct graph *train, const struct graph *evaluate,
                            struct state *state)
{
    const struct graph *first = train != NULL ? train : evaluate;
    for (int i = 0; i < GRAPH_BATCH_VALUES; i++) {
        if (graph_batch_value(first, i) < 0) continue;
        uint64_t bytes = value_bytes(first, graph_batch_value(first, i)), other = 0;
        if (evaluate != NULL) other = value_bytes(evaluate, graph_batch_value(evaluate, i));
        add_state(state, ARENA_STATE, BUFFER_BATCH, -1, i, other > bytes ? other : bytes);
    }
}

/* What a graph that continues sequences leaves behind: first the caches, by their order. */
static void add_state_generation(const struct graph *graph, enum buffer_class class,
                                 struct state *state)
{
    int slot = 0;
    if (graph == NULL || graph->logits < 0) return;
    for (int v = 0; v < graph->value_count && class == BUFFER_CACHE; v++)
        if (graph->values[v].kind == VALUE_CACHE)
            add_state(state, ARENA_STATE, class, -1, slot++, value_bytes(graph, v));
    if (class == BUFFER_LOGITS)
        add_state(state, ARENA_STATE, class, -1, 0, value_bytes(graph, graph->logits));
}

static int count_caches(const struct graph *graph)
{
    int count = 0;
    for (int v = 0; graph != NULL && v < graph->value_count; v++)
        count += graph->values[v].kind == VALUE_CACHE;
    return count;
}

struct plan_buffer *plan_state_buffers(const struct plan *plan, const struct graph *train,
                                       const struct graph *evaluate, int *count,
                                       uint64_t bytes[ARENA_HOST + 1])
{
    int unit_count = plan->units->unit_count, slots = plan->options.optimizer_slots;
    struct state state = {.end = bytes};
    state.buffers =
        mem_alloc_array((size_t)unit_count * (6 + slots) + 7 + (size_t)count_caches(evaluate),
                        sizeof *state.buffers);
    memset(bytes, 0, (ARENA_HOST + 1) * sizeof *bytes);
    for (int kind = 0; kind < (train != NULL ? 3 : 1); kind++) {
        for (int u = 0; u < unit_count; u++) {
            const struct unit *unit = &plan->units->units[u];
            enum plan_arena arena = plan_offloads(plan, u) ? ARENA_HOST : ARENA_STATE;
            if (plan_kept_elements(plan, u) == 0) continue;
            if (kind == 0)
                add_state(&state, arena, BUFFER_SHARD, u, 0, plan_slot_bytes(plan, u, -1));
            if (kind == 0 && plan_rounds(plan, u))
                add_state(&state, arena, BUFFER_ROUNDED, u, 0,
                          (uint64_t)plan_kept_elements(plan, u) * dtype_size(DTYPE_BF16));
            if (unit->frozen) continue;
            if (kind == 1) add_state_gradient(plan, u, &state);
            for (int slot = 0; kind == 2 && slot < slots; slot++)
                add_state(&state, arena, BUFFER_OPTIMIZER, u, slot, plan_slot_bytes(plan, u, slot));
        }
    }
    int sums = graph_tally_count(evaluate);
    uint64_t stats = (uint64_t)(PLAN_STATS_COUNT + sums) * sizeof(float);
    for (int u = 0; u < unit_count; u++)
        if (plan_holds(plan, u))
            add_state(&state, ARENA_STATE, BUFFER_GATHERED, u, 0, gathered_bytes(plan, u));
    add_state_generation(evaluate, BUFFER_CACHE, &state);
    add_state_batch(train, evaluate, &state);
    add_state_generation(evaluate, BUFFER_LOGITS, &state);
    add_state(&state, ARENA_STATE, BUFFER_STATS, -1, 0, stats);
    if (plan_has_offloaded(plan)) add_state(&state, ARENA_HOST, BUFFER_HOST_STATS, -1, 0, stats);
    *count = state.count;
    return state.buffers;
}

/* ---- A program's buffers ---- */

struct mapper {
    const struct plan *plan;
    const struct lowering *lowering;
    struct plan_program *program;
    int capacity;
    /* Buffers by unit, -1 if none. */
    int *shard, *rounded, *gradient, *gradient_shard, *gathered, *accumulated, *resharded, *staged,
        *host_gradient, *matrices, *factors;
    int batch[GRAPH_BATCH_VALUES], stats, norm, host_stats; /* buffers */
    int cache, logits;                                  /* the first of the caches; -1: none */
    int *value_last;                                    /* by value: the last op that touches it */
    int *buffer_last; /* by buffer: the last op over its values so far; only work buffers of
                       * values */
    int buffer_last_capacity;
    bool *viewed; /* by value: it is a view, or a view of it exists */
};

static int add_buffer(struct mapper *mapper, enum buffer_class class, int unit, int value,
                      uint64_t bytes)
{
    struct plan_program *program = mapper->program;
    MEM_GROW(program->buffers, program->buffer_count, mapper->capacity);
    program->buffers[program->buffer_count] = (struct plan_buffer){
        .class = class, .unit = unit, .value = value, .bytes = bytes, .first = -1, .last = -1};
    return program->buffer_count++;
}

static int *unit_table(const struct plan *plan)
{
    int *table = mem_alloc_array(plan->units->unit_count, sizeof *table);
    for (int u = 0; u < plan->units->unit_count; u++) table[u] = -1;
    return table;
}

static void take_state(struct mapper *mapper, const struct plan_buffer *state, int state_count)
{
    struct plan_program *program = mapper->program;
    mapper->capacity = state_count + 64;
    program->buffers = mem_alloc_array(mapper->capacity, sizeof *program->buffers);
    memcpy(program->buffers, state, state_count * sizeof *state);
    program->buffer_count = state_count;
    for (int i = 0; i < GRAPH_BATCH_VALUES; i++) mapper->batch[i] = -1;
    mapper->cache = mapper->logits = -1;
    for (int b = 0; b < state_count; b++) {
        switch (state[b].class) {
        case BUFFER_SHARD: mapper->shard[state[b].unit] = b; break;
        case BUFFER_ROUNDED: mapper->rounded[state[b].unit] = b; break;
        case BUFFER_GATHERED: mapper->gathered[state[b].unit] = b; break;
        case BUFFER_GRADIENT: mapper->gradient[state[b].unit] = b; break;
        case BUFFER_GRADIENT_SHARD: mapper->gradient_shard[state[b].unit] = b; break;
        case BUFFER_ACCUMULATED: mapper->accumulated[state[b].unit] = b; break;
        case BUFFER_STATS: mapper->stats = b; break;
        case BUFFER_LOGITS: mapper->logits = b; break;
        case BUFFER_CACHE:
            if (state[b].slot == 0) mapper->cache = b;
            break;
        case BUFFER_HOST_GRADIENT: mapper->host_gradient[state[b].unit] = b; break;
        case BUFFER_HOST_STATS: mapper->host_stats = b; break;
        case BUFFER_BATCH: mapper->batch[state[b].slot] = b; break;
        default: break;
        }
    }
    for (int i = 0; i < GRAPH_BATCH_VALUES; i++)
        if (mapper->batch[i] >= 0)
            program->buffers[mapper->batch[i]].value = graph_batch_value(program->graph, i);
}

/* Where the unit's gradient is when it is reduced or, with one rank, when it is written. */
static int reduced_gradient(struct mapper *mapper, int u)
{
    const struct plan *plan = mapper->plan;
    bool whole = plan_replicates(plan, u);
    int *buffer = whole ? &mapper->gradient[u] : &mapper->gradient_shard[u];
    uint64_t bytes = (uint64_t)plan_kept_elements(plan, u) * sizeof(float);
    if (*buffer < 0)
        *buffer = add_buffer(mapper, whole ? BUFFER_GRADIENT : BUFFER_GRADIENT_SHARD, u, -1, bytes);
    return *buffer;
}

/* The optimizer's inputs. */
static int final_gradient(struct mapper *mapper, int u)
{
    return mapper->accumulated[u] >= 0 ? mapper->accumulated[u] : reduced_gradient(mapper, u);
}

/* Where a rank's own matrices are whole. */
static int whole_matrices(struct mapper *mapper, int u)
{
    return mapper->matrices[u] >= 0 ? mapper->matrices[u] : final_gradient(mapper, u);
}

static int factors_buffer(struct mapper *mapper, int u)
{
    if (mapper->factors[u] < 0)
        mapper->factors[u] =
            add_buffer(mapper, BUFFER_FACTORS, u, -1, plan_factor_bytes(mapper->plan, u));
    return mapper->factors[u];
}

/* Whether the exchange is of these, in place. */
static bool moves_factors(const struct mapper *mapper, struct plan_instruction *instruction)
{
    int factors = mapper->factors[instruction->unit];
    if (factors >= 0) instruction->source = instruction->target = factors;
    return factors >= 0;
}

static int gathered_buffer(struct mapper *mapper, int u)
{
    uint64_t bytes = gathered_bytes(mapper->plan, u);
    if (mapper->gathered[u] < 0)
        mapper->gathered[u] = add_buffer(mapper, BUFFER_GATHERED, u, -1, bytes);
    return mapper->gathered[u];
}

static int norm_buffer(struct mapper *mapper)
{
    uint64_t bytes = (uint64_t)mapper->plan->options.world * sizeof(double);
    if (mapper->norm < 0) mapper->norm = add_buffer(mapper, BUFFER_NORM, -1, -1, bytes);
    return mapper->norm;
}

/* What the unit has between steps for ops that do not gather it. */
static int kept_parameters(const struct mapper *mapper, int u)
{
    return mapper->rounded[u] >= 0 ? mapper->rounded[u] : mapper->shard[u];
}

static int unit_world(const struct plan *plan, int u)
{
    return plan->units->units[u].shard_world;
}

/* Assigns the buffers named by instructions. */
static void map_instructions(struct mapper *mapper)
{
    const struct plan *plan = mapper->plan;
    struct plan_program *program = mapper->program;
    for (int i = 0; i < program->instruction_count; i++) {
        struct plan_instruction *instruction = &program->instructions[i];
        int u = instruction->unit;
        uint64_t workspace = 0;
        uint64_t whole = u >= 0 ? (uint64_t)plan->units->units[u].flat.padded * sizeof(float) : 0;
        uint64_t kept = u >= 0 ? (uint64_t)plan_kept_elements(plan, u) * sizeof(float) : 0;
        switch (instruction->kind) {
        case INSTRUCTION_COPY_BATCH: break;
        case INSTRUCTION_GATHER_VALUE: break; /* see map_gathers */
        case INSTRUCTION_COMPUTE:
            if (mapper->lowering->workspace_bytes != NULL)
                workspace = mapper->lowering->workspace_bytes[instruction->op];
            break;
        case INSTRUCTION_ALL_GATHER:
            instruction->source = instruction->group == GROUP_RESHARD ? mapper->resharded[u]
                                  : plan_offloads(plan, u)            ? mapper->staged[u]
                                                                      : mapper->shard[u];
            instruction->target = gathered_buffer(mapper, u);
            if (plan_unpacks(plan, u) && instruction->group != GROUP_RESHARD)
                workspace = plan_slot_bytes(plan, u, -1) * (uint64_t)unit_world(plan, u);
            break;
        case INSTRUCTION_UPLOAD:
            instruction->source = kept_parameters(mapper, u);
            instruction->target = plan_gathers(plan, u) ? add_buffer(mapper, BUFFER_STAGED, u, -1,
                                                                     plan_slot_bytes(plan, u, -1))
                                                        : gathered_buffer(mapper, u);
            mapper->staged[u] = instruction->target;
            if (plan_offloads(plan, u) && plan_unpacks(plan, u) && !plan_gathers(plan, u))
                workspace = plan_slot_bytes(plan, u, -1);
            break;
        case INSTRUCTION_DOWNLOAD:
            instruction->source = final_gradient(mapper, u);
            instruction->target = mapper->host_gradient[u];
            break;
        case INSTRUCTION_DOWNLOAD_STATS:
            instruction->source = mapper->stats;
            instruction->target = mapper->host_stats;
            break;
        case INSTRUCTION_RESHARD:
            mapper->resharded[u] = add_buffer(mapper, BUFFER_RESHARDED, u, -1,
                                              (uint64_t)plan_resharded_elements(plan, u) *
                                                  plan_parameter_size(plan, u));
            instruction->source = mapper->gathered[u];
            instruction->target = mapper->resharded[u];
            break;
        case INSTRUCTION_FREE: instruction->source = mapper->gathered[u]; break;
        case INSTRUCTION_REDUCE_SCATTER:
            if (mapper->gradient[u] < 0)
                mapper->gradient[u] = add_buffer(mapper, BUFFER_GRADIENT, u, -1, whole);
            mapper->gradient_shard[u] = add_buffer(mapper, BUFFER_GRADIENT_SHARD, u, -1, kept);
            instruction->source = mapper->gradient[u];
            instruction->target = mapper->gradient_shard[u];
            workspace = plan->options.collective_workspace_bytes;
            break;
        case INSTRUCTION_ALL_REDUCE:
            instruction->source = instruction->target = reduced_gradient(mapper, u);
            workspace = plan->options.collective_workspace_bytes;
            break;
        case INSTRUCTION_REDUCE_STATS:
            instruction->source = instruction->target = mapper->stats;
            workspace = plan->options.collective_workspace_bytes;
            break;
        case INSTRUCTION_MOMENTUM:
            instruction->source = instruction->target = final_gradient(mapper, u);
            break;
        case INSTRUCTION_SQUARES:
            instruction->source = final_gradient(mapper, u);
            instruction->target = factors_buffer(mapper, u);
            break;
        case INSTRUCTION_FACTOR:
        case INSTRUCTION_GATHER_SUMS:
            instruction->source = instruction->target = factors_buffer(mapper, u);
            break;
        case INSTRUCTION_UPDATE:
        case INSTRUCTION_SCALE:
            instruction->source = factors_buffer(mapper, u);
            instruction->target = final_gradient(mapper, u);
            break;
        case INSTRUCTION_COLLECT:
            if (moves_factors(mapper, instruction)) break;
            instruction->source = final_gradient(mapper, u);
            mapper->matrices[u] =
                add_buffer(mapper, BUFFER_MATRICES, u, -1, plan_matrix_bytes(plan, u));
            instruction->target = mapper->matrices[u];
            break;
        case INSTRUCTION_ORTHOGONALIZE:
            instruction->source = instruction->target = whole_matrices(mapper, u);
            workspace = plan_matrix_scratch(plan, u);
            break;
        case INSTRUCTION_DISTRIBUTE:
            if (moves_factors(mapper, instruction)) break;
            instruction->source = whole_matrices(mapper, u);
            instruction->target = final_gradient(mapper, u);
            break;
        case INSTRUCTION_ACCUMULATE:
            instruction->source = reduced_gradient(mapper, u);
            instruction->target = mapper->accumulated[u];
            break;
        case INSTRUCTION_NORM:
            instruction->source = final_gradient(mapper, u);
            instruction->target = norm_buffer(mapper);
            break;
        case INSTRUCTION_REDUCE_NORM:
            instruction->source = instruction->target = norm_buffer(mapper);
            break;
        case INSTRUCTION_GATE:
            instruction->source = norm_buffer(mapper);
            instruction->target = mapper->stats;
            break;
        case INSTRUCTION_ZERO:
            instruction->target = mapper->accumulated[u] >= 0 ? mapper->accumulated[u]
                                  : mapper->gradient[u] >= 0  ? mapper->gradient[u]
                                                              : mapper->gradient_shard[u];
            break;
        case INSTRUCTION_OPTIMIZER:
            instruction->source =
                plan_offloads(plan, u) ? mapper->host_gradient[u] : final_gradient(mapper, u);
            instruction->target = mapper->shard[u];
            break;
        case INSTRUCTION_KIND_COUNT: break;
        }
        if (workspace > 0)
            instruction->workspace = add_buffer(mapper, BUFFER_WORKSPACE, u, -1, workspace);
    }
    /* One rank: gradients are written where the optimizer reads them. */
    for (int u = 0; u < plan->units->unit_count; u++)
        if (mapper->gradient[u] < 0) mapper->gradient[u] = mapper->gradient_shard[u];
}

static void map_parameters(struct mapper *mapper)
{
    const struct plan *plan = mapper->plan;
    struct plan_program *program = mapper->program;
    const struct graph *graph = program->graph;
    int caches = 0;
    for (int i = 0; i < GRAPH_BATCH_VALUES; i++)
        if (graph_batch_value(graph, i) >= 0)
            program->buffer_of_value[graph_batch_value(graph, i)] = mapper->batch[i];
    for (int v = 0; v < graph->value_count; v++) {
        const struct graph_value *value = &graph->values[v];
        if (value->kind == VALUE_LOGITS) program->buffer_of_value[v] = mapper->logits;
        if (value->kind == VALUE_CACHE) program->buffer_of_value[v] = mapper->cache + caches++;
        if (value->kind == VALUE_LOSS || value->kind == VALUE_CORRECT ||
            value->kind == VALUE_TALLY || value->kind == VALUE_PREFERENCE) {
            size_t stat = value->kind == VALUE_LOSS         ? PLAN_STAT_LOSS
                          : value->kind == VALUE_CORRECT    ? PLAN_STAT_CORRECT
                          : value->kind == VALUE_PREFERENCE ? PLAN_STAT_PREFERENCE
                                                            : PLAN_STATS_COUNT;
            program->buffer_of_value[v] = mapper->stats;
            program->offset_of_value[v] = stat * sizeof(float);
        }
        if (!plan_is_parameter(value)) continue;
        int u = plan_unit_of_value(plan, graph, v);
        int owner = flat_parameter_owner(plan->model, value->parameter);
        int64_t offset = flat_parameter_offset(&plan->units->units[u].flat, owner);
        program->offset_of_value[v] =
            (uint64_t)offset *
            (value->kind == VALUE_PARAMETER ? plan_parameter_size(plan, u) : sizeof(float));
        if (value->kind == VALUE_PARAMETER_GRADIENT)
            program->buffer_of_value[v] = mapper->gradient[u];
        else
            program->buffer_of_value[v] = plan_fetches(plan, u) || plan_holds(plan, u)
                                              ? mapper->gathered[u]
                                              : kept_parameters(mapper, u);
    }
}

static void find_last_touches(struct mapper *mapper)
{
    const struct graph *graph = mapper->program->graph;
    mapper->value_last = mem_alloc_array(graph->value_count, sizeof(int));
    for (int o = 0; o < graph->op_count; o++) {
        for (int i = 0; i < OP_MAX_INPUTS; i++)
            if (graph->ops[o].inputs[i] >= 0) mapper->value_last[graph->ops[o].inputs[i]] = o;
        for (int i = 0; i < OP_MAX_OUTPUTS; i++)
            if (graph->ops[o].outputs[i] >= 0) mapper->value_last[graph->ops[o].outputs[i]] = o;
    }
}

static void place_value(struct mapper *mapper, int v, int buffer)
{
    struct plan_program *program = mapper->program;
    program->buffer_of_value[v] = buffer;
    if (buffer >= mapper->buffer_last_capacity) {
        int capacity = program->buffer_count * 2;
        mapper->buffer_last = mem_resize_array(mapper->buffer_last, capacity, sizeof(int));
        for (int b = mapper->buffer_last_capacity; b < capacity; b++) mapper->buffer_last[b] = -1;
        mapper->buffer_last_capacity = capacity;
    }
    if (mapper->value_last[v] > mapper->buffer_last[buffer])
        mapper->buffer_last[buffer] = mapper->value_last[v];
}

/* Whether op `o` may write its first output over its first input. */
static bool may_take_over(const struct mapper *mapper, int o)
{
    const struct plan_program *program = mapper->program;
    const struct graph_op *op = &program->graph->ops[o];
    if (mapper->lowering->in_place == NULL || !mapper->lowering->in_place[o]) return false;
    if (op->inputs[0] < 0 || op->accumulate[0]) return false;
    int buffer = program->buffer_of_value[op->inputs[0]];
    enum buffer_class class = program->buffers[buffer].class;
    if (class != BUFFER_ACTIVATION && class != BUFFER_TEMPORARY) return false;
    if (mapper->buffer_last[buffer] > o) return false;
    for (int i = 1; i < OP_MAX_INPUTS; i++)
        if (op->inputs[i] >= 0 && program->buffer_of_value[op->inputs[i]] == buffer) return false;
    return tensor_bytes(&program->graph->values[op->outputs[0]].type) ==
           program->buffers[buffer].bytes;
}

static status_t check_view(const struct mapper *mapper, int o)
{
    const struct graph *graph = mapper->program->graph;
    const struct graph_op *op = &graph->ops[o];
    if (op->inputs[0] < 0 || op->outputs[0] < 0 || op->accumulate[0] ||
        plan_is_parameter(&graph->values[op->inputs[0]]) ||
        tensor_bytes(&graph->values[op->inputs[0]].type) !=
            tensor_bytes(&graph->values[op->outputs[0]].type))
        return status_new(STATUS_INTERNAL,
                          "op %d (%s) is lowered to a view, but its output cannot be its input", o,
                          op->name);
    return NULL;
}

static status_t map_values(struct mapper *mapper)
{
    struct plan_program *program = mapper->program;
    const struct graph *graph = program->graph;
    for (int o = 0; o < graph->op_count; o++) {
        const struct graph_op *op = &graph->ops[o];
        for (int i = 0; i < OP_MAX_INPUTS; i++)
            if (op->inputs[i] >= 0 && program->buffer_of_value[op->inputs[i]] < 0)
                return status_new(STATUS_INTERNAL, "op %d (%s) reads '%s', which nothing writes", o,
                                  op->name, graph->values[op->inputs[i]].name);
        bool view = mapper->lowering->view != NULL && mapper->lowering->view[o];
        if (view) TRY(check_view(mapper, o));
        for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
            int v = op->outputs[i];
            if (v < 0) continue;
            if (op->accumulate[i] && mapper->viewed[v])
                return status_new(STATUS_INTERNAL,
                                  "op %d (%s) adds to '%s', whose memory is also that of a view", o,
                                  op->name, graph->values[v].name);
            if (program->buffer_of_value[v] >= 0) {
                if (view && i == 0)
                    return status_new(STATUS_INTERNAL,
                                      "op %d (%s) is lowered to a view, but its output has a place "
                                      "of its own",
                                      o, op->name);
                continue;
            }
            if (i == 0 && view) mapper->viewed[v] = mapper->viewed[op->inputs[0]] = true;
            if (i == 0 && (view || may_take_over(mapper, o))) {
                program->offset_of_value[v] = program->offset_of_value[op->inputs[0]];
                place_value(mapper, v, program->buffer_of_value[op->inputs[0]]);
                continue;
            }
            enum buffer_class class =
                o < graph->forward_op_count ? BUFFER_ACTIVATION : BUFFER_TEMPORARY;
            place_value(mapper, v,
                        add_buffer(mapper, class, -1, v, tensor_bytes(&graph->values[v].type)));
        }
    }
    return NULL;
}

/* The operands of collectives that are ops. */
static void map_gathers(struct plan_program *program)
{
    for (int i = 0; i < program->instruction_count; i++) {
        struct plan_instruction *instruction = &program->instructions[i];
        if (instruction->kind != INSTRUCTION_GATHER_VALUE) continue;
        const struct graph_op *op = &program->graph->ops[instruction->op];
        instruction->source = program->buffer_of_value[op->inputs[0]];
        instruction->target = program->buffer_of_value[op->outputs[0]];
    }
}

/* ---- When buffers are alive ---- */

static void touch(struct plan_program *program, struct live_ranges *live, int buffer, int i,
                  bool is_new)
{
    if (buffer < 0 || program->buffers[buffer].arena != ARENA_WORK) return;
    int r = live->of_buffer[buffer];
    if (r < 0 || is_new) {
        MEM_GROW(live->ranges, live->count, live->capacity);
        live->ranges[live->count] = (struct live_range){.buffer = buffer, .begin = i, .next = r};
        r = live->of_buffer[buffer] = live->count++;
        for (int lane = 0; lane < LANE_COUNT; lane++)
            live->ranges[r].first[lane] = live->ranges[r].last[lane] = -1;
    }
    struct live_range *range = &live->ranges[r];
    enum lane lane = program->instructions[i].lane;
    if (range->first[lane] < 0) range->first[lane] = i;
    range->last[lane] = i;
    range->end = i;
    if (program->buffers[buffer].first < 0) program->buffers[buffer].first = i;
    program->buffers[buffer].last = i;
}

/* What an instruction uses must not be reused before instruction `i`, beside which it may run. */
static void hold(struct plan_program *program, struct live_ranges *live, int buffer, int i)
{
    if (buffer < 0 || live->of_buffer[buffer] < 0) return;
    live->ranges[live->of_buffer[buffer]].last[program->instructions[i].lane] = i;
}

static void hold_all(struct plan_program *program, struct live_ranges *live, int op, int i)
{
    const struct graph_op *before = &program->graph->ops[op];
    for (int k = 0; k < OP_MAX_INPUTS; k++)
        if (before->inputs[k] >= 0)
            hold(program, live, program->buffer_of_value[before->inputs[k]], i);
    for (int k = 0; k < OP_MAX_OUTPUTS; k++)
        if (before->outputs[k] >= 0)
            hold(program, live, program->buffer_of_value[before->outputs[k]], i);
    for (int b = i - 1; b >= 0; b--)
        if (program->instructions[b].kind == INSTRUCTION_COMPUTE &&
            program->instructions[b].op == op) {
            hold(program, live, program->instructions[b].workspace, i);
            return;
        }
}

static void find_live_ranges(struct plan_program *program, const struct lowering *lowering,
                             struct live_ranges *live)
{
    live->of_buffer = mem_alloc_array(program->buffer_count, sizeof(int));
    for (int b = 0; b < program->buffer_count; b++) live->of_buffer[b] = -1;
    for (int i = 0; i < program->instruction_count; i++) {
        const struct plan_instruction *instruction = &program->instructions[i];
        bool is_new =
            instruction->kind == INSTRUCTION_ALL_GATHER || instruction->kind == INSTRUCTION_UPLOAD;
        touch(program, live, instruction->source, i, false);
        touch(program, live, instruction->target, i, is_new);
        touch(program, live, instruction->workspace, i, false);
        if (instruction->kind != INSTRUCTION_COMPUTE) continue;
        if (lowering->beside != NULL && instruction->op > 0 &&
            lowering->beside[instruction->op - 1])
            hold_all(program, live, instruction->op - 1, i);
        const struct graph_op *op = &program->graph->ops[instruction->op];
        for (int k = 0; k < OP_MAX_INPUTS; k++)
            if (op->inputs[k] >= 0)
                touch(program, live, program->buffer_of_value[op->inputs[k]], i, false);
        for (int k = 0; k < OP_MAX_OUTPUTS; k++)
            if (op->outputs[k] >= 0)
                touch(program, live, program->buffer_of_value[op->outputs[k]], i, false);
    }
}

/* Of the state arena, as plan_account counts it. */
static uint64_t arena_bytes(const struct plan_program *program)
{
    uint64_t bytes = 0;
    for (int b = 0; b < program->buffer_count; b++)
        if (program->buffers[b].arena == ARENA_STATE)
            bytes += plan_align(program->buffers[b].bytes);
    return bytes;
}

status_t plan_memory(const struct plan *plan, const struct lowering *lowering,
                     const struct plan_buffer *state, int state_count, struct plan_program *program)
{
    struct mapper mapper = {.plan = plan,
                            .lowering = lowering,
                            .program = program,
                            .shard = unit_table(plan),
                            .rounded = unit_table(plan),
                            .gradient = unit_table(plan),
                            .gradient_shard = unit_table(plan),
                            .gathered = unit_table(plan),
                            .accumulated = unit_table(plan),
                            .resharded = unit_table(plan),
                            .staged = unit_table(plan),
                            .host_gradient = unit_table(plan),
                            .matrices = unit_table(plan),
                            .factors = unit_table(plan),
                            .host_stats = -1,
                            .norm = -1};
    int value_count = program->graph->value_count;
    program->buffer_of_value = mem_alloc_array(value_count, sizeof(int));
    program->offset_of_value = mem_alloc_array(value_count, sizeof(uint64_t));
    for (int v = 0; v < value_count; v++) program->buffer_of_value[v] = -1;
    mapper.viewed = mem_alloc_array(value_count, sizeof(bool));
    take_state(&mapper, state, state_count);
    map_instructions(&mapper);
    map_parameters(&mapper);
    find_last_touches(&mapper);
    bool computes = program->instructions[0].kind == INSTRUCTION_COPY_BATCH;
    status_t status = computes ? map_values(&mapper) : NULL;
    if (status == NULL) {
        struct live_ranges live = {0};
        if (computes) map_gathers(program);
        find_live_ranges(program, lowering, &live);
        plan_account(program, &live);
        program->work_bytes = program->live_peak - arena_bytes(program);
        if (!plan->options.sketch) plan_place(program, &live, program->work_bytes);
        status = interrupt_check();
        free(live.ranges);
        free(live.of_buffer);
    }
    free(mapper.viewed);
    free(mapper.value_last);
    free(mapper.buffer_last);
    free(mapper.shard);
    free(mapper.rounded);
    free(mapper.gradient);
    free(mapper.gradient_shard);
    free(mapper.gathered);
    free(mapper.accumulated);
    free(mapper.resharded);
    free(mapper.staged);
    free(mapper.host_gradient);
    free(mapper.matrices);
    free(mapper.factors);
    return status;
}
