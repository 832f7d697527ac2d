/*
 * Preparation of an executor before its first step: parts of the group, the plan's arenas, lanes,
 * one event per instruction that another lane waits for, and every instruction's addresses.
 */

#include "base/array.h"
#include "base/buf.h"
#include "base/mem.h"
#include "runtime/executor_internal.h"

char *executor_state_at(const struct executor *executor, uint64_t offset)
{
    uint64_t lent = executor->plan->lent_bytes;
    if (offset < lent) return executor_state_at(executor->lender, offset);
    return executor->state + (offset - lent);
}

char *executor_buffer(const struct executor *executor, const struct plan_program *program,
                      int buffer)
{
    if (buffer < 0) return NULL;
    const struct plan_buffer *b = &program->buffers[buffer];
    switch (b->arena) {
    case ARENA_WORK: return executor->work + b->offset;
    case ARENA_STATE: return executor_state_at(executor, b->offset);
    case ARENA_HOST: return executor->host + b->offset;
    }
    return NULL;
}

static char *value_memory(const struct executor *executor, const struct plan_program *program,
                          int value)
{
    if (value < 0 || program->buffer_of_value[value] < 0) return NULL;
    return executor_buffer(executor, program, program->buffer_of_value[value]) +
           program->offset_of_value[value];
}

int executor_find_buffer(const struct plan_program *program, enum buffer_class class, int unit,
                         int slot)
{
    for (int b = 0; b < program->buffer_count; b++) {
        const struct plan_buffer *buffer = &program->buffers[b];
        if (buffer->class == class && buffer->unit == unit &&
            (class != BUFFER_OPTIMIZER || buffer->slot == slot))
            return b;
    }
    return -1;
}

static char *label_of(const struct executor *executor, const struct program *program, int i)
{
    const struct plan_instruction *instruction = &program->plan->instructions[i];
    struct buf text = {0};
    buf_printf(&text, "%s step, instruction %d, %s",
               program == &executor->evaluate || program == &executor->hold ? "evaluation"
                                                                            : "training",
               i, plan_instruction_name(instruction->kind));
    if (instruction->op >= 0)
        buf_printf(&text, " of op %d, %s", instruction->op,
                   program->plan->graph->ops[instruction->op].name);
    if (instruction->unit >= 0)
        buf_printf(&text, " of unit %s", executor->plan->units->units[instruction->unit].name);
    return buf_take(&text);
}

/* How many random numbers an op draws for a sample. */
static uint64_t random_elements(const struct graph *graph, int op)
{
    struct op_desc desc;
    graph_describe_op(graph, op, &desc);
    int64_t batch = graph_samples(graph), count = 0;
    bool attention = desc.kind == OP_ATTENTION || desc.kind == OP_ATTENTION_BACKWARD;
    if (attention) {
        int64_t time = desc.inputs[0].dims[1];
        count = desc.inputs[0].dims[0] * desc.attrs.attention.heads * time * time;
    } else if (desc.kind == OP_DROPOUT || desc.kind == OP_DROPOUT_BACKWARD) {
        count = tensor_element_count(&desc.inputs[0]);
    }
    return (uint64_t)(count / batch);
}

static void prepare_compute(const struct executor *executor, const struct program *program,
                            const struct plan_instruction *instruction, struct action *action)
{
    const struct graph_op *op = &program->plan->graph->ops[instruction->op];
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        action->call.inputs[i] = value_memory(executor, program->plan, op->inputs[i]);
    for (int i = 0; i < OP_MAX_OUTPUTS; i++)
        action->call.outputs[i] = value_memory(executor, program->plan, op->outputs[i]);
    action->call.workspace = action->workspace;
    action->call.seed = executor->seed;
    action->call.sample_elements = random_elements(program->plan->graph, instruction->op);
}

static const struct shard_groups *find_groups(const struct executor *executor, int ranks)
{
    for (int g = 0; g < executor->group_count; g++)
        if (executor->groups[g].ranks == ranks) return &executor->groups[g];
    return NULL;
}

/* The participants of a collective, and the factor for sums: the last reduction of a gradient
 * computes its mean over all ranks if it multiplies anyway (comm_scales). If not, the gradient's
 * scale, by which norms and optimizers multiply, divides by the ranks (set_stats). */
static void prepare_collective(const struct executor *executor,
                               const struct plan_instruction *instruction, struct action *action)
{
    const struct plan *plan = executor->plan;
    bool mean = instruction->kind != INSTRUCTION_REDUCE_STATS && instruction->group != GROUP_SHARD;
    action->scale = mean && comm_scales(executor->comm) ? 1.0f / (float)plan->options.world : 1.0f;
    action->comm = executor->comm;
    if (instruction->unit >= 0)
        action->low = (instruction->kind == INSTRUCTION_ALL_GATHER
                           ? plan_param_dtype(plan, instruction->unit)
                           : plan_reduce_dtype(plan, instruction->unit)) == DTYPE_BF16;
    if (instruction->group == GROUP_WORLD) return;
    int ranks = plan->units->units[instruction->unit].shard_world;
    if (instruction->group == GROUP_RESHARD) ranks = plan_reshard_world(plan, instruction->unit);
    const struct shard_groups *groups = find_groups(executor, ranks);
    action->comm = instruction->group == GROUP_REPLICA ? groups->replica : groups->shard;
}

/* The unit's matrices: of MOMENTUM this rank's part of them, of ORTHOGONALIZE its own. */
static void prepare_matrices(const struct executor *executor, const struct program *program,
                             const struct plan_instruction *instruction, struct action *action)
{
    const struct plan *plan = executor->plan;
    int unit = instruction->unit;
    bool moves = instruction->kind == INSTRUCTION_MOMENTUM;
    if (moves) action->range_count = plan_find_ranges(plan, unit, false, &action->ranges);
    action->change = (struct unit_change){executor, unit};
    action->matrices =
        (struct matrix_work){.kind = instruction->kind,
                             .values = (float *)(void *)action->target,
                             .average = (float *)(void *)executor_buffer(
                                 executor, program->plan,
                                 executor_find_buffer(program->plan, BUFFER_OPTIMIZER, unit, 0)),
                             .stats = (float *)(void *)program->stats,
                             .gated = plan->options.norm != NORM_NONE,
                             .ranges = action->ranges,
                             .range_count = action->range_count,
                             .rank = plan_matrix_rank(plan, unit),
                             .gathered = plan->units->units[unit].shard_world > 1,
                             .scratch = action->workspace};
    action->matrices.matrix_count = plan_find_matrices(plan, unit, &action->matrices.matrices);
}

static void prepare_factors(const struct executor *executor, const struct program *program,
                            const struct plan_instruction *instruction, struct action *action)
{
    int unit = instruction->unit;
    bool here = instruction->kind == INSTRUCTION_SQUARES;
    action->change = (struct unit_change){executor, unit};
    action->factors =
        (struct factor_work){.kind = instruction->kind,
                             .plan = executor->plan,
                             .unit = unit,
                             .values = (float *)(void *)(here ? action->source : action->target),
                             .room = (float *)(void *)(here ? action->target : action->source),
                             .state = executor_unit_state(executor, unit, 0),
                             .param = executor_unit_state(executor, unit, -1),
                             .stats = (const float *)(const void *)program->stats,
                             .gated = executor->plan->options.norm != NORM_NONE};
    factor_work_init(&action->factors);
}

/* Units of another type than f32 travel as they are kept, in words: from the host and between ranks
 * to scratch memory, whose bytes are `count` then. */
static void prepare_unpacking(const struct executor *executor, const struct plan_program *program,
                              const struct plan_instruction *instruction, struct action *action)
{
    const struct plan *plan = executor->plan;
    const struct unit *unit = &plan->units->units[instruction->unit];
    const struct slot_layout *layout = &unit->flat.slots;
    if (layout->base == BASE_F32 || instruction->group == GROUP_RESHARD) return;
    bool low = plan_param_dtype(plan, instruction->unit) == DTYPE_BF16;
    bool gathers = instruction->kind == INSTRUCTION_ALL_GATHER;
    action->low = false;
    if (layout->base == BASE_BF16 && low) return;
    if (!gathers && unit->shard_world > 1) return; /* the gather unpacks what was staged */
    bool travels = instruction->workspace >= 0;
    action->unpacking =
        (struct base_work){.kept = (const float *)(const void *)(travels ? action->workspace
                                                                         : action->source),
                           .target = executor_buffer(executor, program, instruction->target),
                           .low = low};
    base_work_init(&action->unpacking, layout);
    if (travels) action->target = action->workspace;
    if (!gathers) action->count = travels ? program->buffers[instruction->workspace].bytes : 0;
}

static void prepare_action(const struct executor *executor, const struct program *program, int i)
{
    const struct plan_program *plan = program->plan;
    const struct plan_instruction *instruction = &plan->instructions[i];
    const struct plan_options *options = &executor->plan->options;
    struct action *action = &program->actions[i];
    action->label = label_of(executor, program, i);
    action->source = executor_buffer(executor, plan, instruction->source);
    action->target = executor_buffer(executor, plan, instruction->target);
    action->workspace = executor_buffer(executor, plan, instruction->workspace);
    switch (instruction->kind) {
    case INSTRUCTION_COMPUTE: prepare_compute(executor, program, instruction, action); break;
    case INSTRUCTION_ALL_GATHER:
    case INSTRUCTION_REDUCE_SCATTER:
    case INSTRUCTION_ALL_REDUCE:
    case INSTRUCTION_REDUCE_STATS:
    case INSTRUCTION_GATHER_VALUE:
        action->target += (size_t)instruction->from * sizeof(float);
        action->count = (size_t)instruction->count;
        prepare_collective(executor, instruction, action);
        if (instruction->kind == INSTRUCTION_ALL_GATHER)
            prepare_unpacking(executor, plan, instruction, action);
        break;
    case INSTRUCTION_MOMENTUM:
    case INSTRUCTION_ORTHOGONALIZE: prepare_matrices(executor, program, instruction, action); break;
    case INSTRUCTION_SQUARES:
    case INSTRUCTION_FACTOR:
    case INSTRUCTION_UPDATE:
    case INSTRUCTION_SCALE: prepare_factors(executor, program, instruction, action); break;
    case INSTRUCTION_GATHER_SUMS:
        prepare_collective(executor, instruction, action);
        action->count = (size_t)instruction->count;
        action->target += sizeof(float) * factor_totals(executor->plan, instruction->unit, 0);
        action->source += sizeof(float) *
                          factor_totals(executor->plan, instruction->unit, comm_rank(action->comm));
        break;
    case INSTRUCTION_COLLECT:
    case INSTRUCTION_DISTRIBUTE: {
        bool collects = instruction->kind == INSTRUCTION_COLLECT;
        prepare_collective(executor, instruction, action);
        action->pieces = (optimizer_factors(options->optimizer)
                              ? factor_step_pieces
                              : matrix_step_pieces)(executor->plan, instruction->unit, collects,
                                                    &action->piece_count);
        break;
    }
    case INSTRUCTION_KIND_COUNT:
    case INSTRUCTION_REDUCE_NORM:
    case INSTRUCTION_GATE: break;
    case INSTRUCTION_RESHARD:
        action->count = plan->buffers[instruction->target].bytes;
        action->source +=
            action->count *
            (uint64_t)(options->rank % plan_reshard_world(executor->plan, instruction->unit));
        break;
    case INSTRUCTION_UPLOAD:
        action->count = plan->buffers[instruction->target].bytes;
        prepare_unpacking(executor, plan, instruction, action);
        break;
    case INSTRUCTION_DOWNLOAD:
    case INSTRUCTION_DOWNLOAD_STATS:
    case INSTRUCTION_ACCUMULATE:
    case INSTRUCTION_ZERO: action->count = plan->buffers[instruction->target].bytes; break;
    case INSTRUCTION_NORM:
        action->target += (size_t)options->rank * sizeof(double);
        if (plan_counts_in_norm(executor->plan, instruction->unit))
            action->range_count =
                plan_find_ranges(executor->plan, instruction->unit, false, &action->ranges);
        break;
    case INSTRUCTION_OPTIMIZER:
        action->low = plan_keeps_rounded(executor->plan, instruction->unit);
        action->change = (struct unit_change){executor, instruction->unit};
        action->range_count =
            plan_find_ranges(executor->plan, instruction->unit, true, &action->ranges);
        action->rounded = (uint16_t *)(void *)executor_buffer(
            executor, plan, executor_find_buffer(plan, BUFFER_ROUNDED, instruction->unit, 0));
        for (int slot = 0; slot < options->optimizer_slots; slot++)
            action->slots[slot] =
                (float *)executor_buffer(executor, plan,
                                         executor_find_buffer(plan, BUFFER_OPTIMIZER,
                                                              instruction->unit, slot));
        break;
    case INSTRUCTION_FREE: action->count = plan->buffers[instruction->source].bytes; break;
    case INSTRUCTION_COPY_BATCH: break;
    }
}

static bool writes_stats(const struct plan_program *plan, int i, int stats)
{
    const struct plan_instruction *instruction = &plan->instructions[i];
    if (instruction->kind == INSTRUCTION_COPY_BATCH) return true;
    if (instruction->kind != INSTRUCTION_COMPUTE) return instruction->target == stats;
    const struct graph_op *op = &plan->graph->ops[instruction->op];
    for (int o = 0; o < OP_MAX_OUTPUTS; o++)
        if (op->outputs[o] >= 0 && plan->buffer_of_value[op->outputs[o]] == stats) return true;
    return false;
}

static void prepare_loss(const struct graph *graph, struct program *program)
{
    if (graph->loss < 0) return;
    const struct graph_op *loss = &graph->ops[graph_loss_op(graph)];
    program->mean = loss->attrs.loss.reduction == REDUCTION_MEAN;
    bool pairs = loss->kind == OP_PREFERENCE_LOSS;
    if (pairs) program->target_count = graph_samples(graph);
    bool classes = loss->kind != OP_ELEMENT_LOSS && loss->kind != OP_CONTRASTIVE_LOSS && !pairs;
    bool focal = classes && loss->attrs.loss.gamma > 0; /* divides by the rows */
    if (classes && !focal) program->weights = loss->attrs.loss.weights;
}

static status_t prepare_program(struct executor *executor, struct program *program,
                                const struct plan_program *plan, struct device_graph *graph)
{
    if (plan->graph == NULL) return NULL;
    program->plan = plan;
    program->graph = graph;
    program->recorder.needs_peers = executor->registers && comm_enqueue_needs_peers(executor->comm);
    program->actions = mem_alloc_array((size_t)plan->instruction_count, sizeof *program->actions);
    program->input = value_memory(executor, plan, plan->graph->input);
    program->target = value_memory(executor, plan, plan->graph->target);
    program->starts =
        plan->graph->starts >= 0 ? value_memory(executor, plan, plan->graph->starts) : NULL;
    int reference = plan->graph->reference;
    if (reference >= 0) {
        program->reference = value_memory(executor, plan, reference);
        program->reference_bytes = tensor_bytes(&plan->graph->values[reference].type);
    }
    program->input_bytes = tensor_bytes(&plan->graph->values[plan->graph->input].type);
    program->target_bytes = tensor_bytes(&plan->graph->values[plan->graph->target].type);
    program->target_count = tensor_element_count(&plan->graph->values[plan->graph->target].type);
    program->stats_done = -1;
    prepare_loss(plan->graph, program);
    int stats = executor_find_buffer(plan, BUFFER_STATS, -1, 0);
    program->stats = executor_buffer(executor, plan, stats);
    program->host_stats =
        executor_buffer(executor, plan, executor_find_buffer(plan, BUFFER_HOST_STATS, -1, 0));
    for (int i = 0; i < plan->instruction_count; i++) {
        const struct plan_instruction *instruction = &plan->instructions[i];
        prepare_action(executor, program, i);
        if (writes_stats(plan, i, stats)) program->stats_done = i;
        program->summed = program->summed || instruction->kind == INSTRUCTION_REDUCE_STATS;
        if (instruction->kind == INSTRUCTION_NORM && program->first_norm == NULL)
            program->first_norm = &program->actions[i];
        for (int w = 0; w < instruction->wait_count; w++) {
            struct action *awaited = &program->actions[instruction->waits[w]];
            if (awaited->fires == NULL) TRY(event_new(executor->device, &awaited->fires));
        }
    }
    program->summed = program->summed || executor->comm == NULL;
    /* Before they agree, a rank that cannot record would leave the others waiting in a recording.
     */
    if (!program->summed && comm_enqueue_needs_peers(executor->comm))
        program->recorder.state = RECORDER_OFF;
    return NULL;
}

void executor_note_memory(struct executor *executor)
{
    uint64_t allocated = device_allocated_bytes(executor->device);
    if (allocated > executor->allocated_before + executor->peak)
        executor->peak = allocated - executor->allocated_before;
}

/* First of all, so that the ranks create their parts in the same order whatever fails later. */
static status_t make_groups(struct executor *executor)
{
    const struct plan *plan = executor->plan;
    int world = plan->options.world, rank = plan->options.rank;
    AUTO_FREE int *ranks = mem_alloc_array((size_t)world, sizeof *ranks);
    executor->groups =
        mem_alloc_array(2 * (size_t)plan->units->unit_count, sizeof *executor->groups);
    status_t status = NULL;
    for (int k = 0; k < 2 * plan->units->unit_count && status == NULL; k++) {
        int u = k / 2;
        int size = k % 2 ? plan_reshard_world(plan, u) : plan->units->units[u].shard_world;
        if (size == 1 || size == world || find_groups(executor, size) != NULL) continue;
        struct shard_groups *groups = &executor->groups[executor->group_count++];
        groups->ranks = size;
        for (int i = 0; i < size; i++) ranks[i] = rank / size * size + i;
        status = comm_split(executor->comm, ranks, size, &groups->shard);
        if (status != NULL) break;
        for (int i = 0; i < world / size; i++) ranks[i] = rank % size + i * size;
        status = comm_split(executor->comm, ranks, world / size, &groups->replica);
    }
    return status;
}

uint64_t executor_collective_bytes(const struct unit_set *units, int world)
{
    uint64_t most = world > 1 ? comm_workspace_bytes(world) : 0;
    for (int u = 0; u < units->unit_count; u++) {
        int size = units->units[u].shard_world;
        if (size <= 1 || size >= world) continue;
        uint64_t shard = comm_workspace_bytes(size), replica = comm_workspace_bytes(world / size);
        if (shard > most) most = shard;
        if (replica > most) most = replica;
    }
    return most;
}

/* The number of queued collectives depends on the slowest lane. A step has ended before the one
 * after the next begins. */
static void reserve_calls(struct executor *executor)
{
    const struct plan_program *programs[] = {&executor->plan->train, &executor->plan->accumulate,
                                             &executor->plan->evaluate, &executor->plan->hold};
    int most = 0;
    for (size_t p = 0; p < COUNT_OF(programs); p++) {
        int calls = 0;
        for (int i = 0; i < programs[p]->instruction_count; i++)
            calls += programs[p]->instructions[i].lane == LANE_COMM;
        if (calls > most) most = calls;
    }
    if (executor->comm != NULL) comm_reserve(executor->comm, 2 * most);
    for (int g = 0; g < executor->group_count; g++) {
        comm_reserve(executor->groups[g].shard, 2 * most);
        comm_reserve(executor->groups[g].replica, 2 * most);
    }
}

/* All ranks register their memory in the same order. */
static status_t allocate_arena(struct executor *executor, uint64_t bytes, char **arena)
{
    if (!executor->registers || bytes == 0)
        return device_allocate(executor->device, bytes, (void **)arena);
    TRY(device_allocate_registrable(executor->device, bytes, (void **)arena));
    return comm_register(executor->comm, *arena, bytes);
}

void executor_release_arena(struct executor *executor, char **arena)
{
    if (executor->registers && *arena != NULL) comm_deregister(executor->comm, *arena);
    device_release(executor->device, *arena);
    *arena = NULL;
}

status_t executor_prepare(struct executor *executor, struct device_graph *train,
                          struct device_graph *evaluate)
{
    const struct plan *plan = executor->plan;
    TRY(make_groups(executor));
    reserve_calls(executor);
    TRY(matrix_step_prepare(executor->device, plan));
    executor->allocated_before = device_allocated_bytes(executor->device);
    executor->registers =
        plan->options.register_buffers && executor->comm != NULL && comm_registers(executor->comm);
    TRY(allocate_arena(executor, plan->state_bytes - plan->lent_bytes, &executor->state));
    TRY(allocate_arena(executor, plan->work_bytes, &executor->work));
    executor_note_memory(executor);
    bool offloads = plan_has_offloaded(plan);
    if (offloads)
        TRY(device_allocate_host(executor->device, plan->host_bytes, (void **)&executor->host));
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (offloads || (lane != LANE_DOWNLOAD && lane != LANE_HOST))
            TRY(lane_open(executor->device, (enum lane)lane, &executor->lanes[lane]));
    TRY(prepare_program(executor, &executor->train, &plan->train, train));
    TRY(prepare_program(executor, &executor->accumulate, &plan->accumulate, train));
    TRY(prepare_program(executor, &executor->hold, &plan->hold, evaluate));
    return prepare_program(executor, &executor->evaluate, &plan->evaluate, evaluate);
}
