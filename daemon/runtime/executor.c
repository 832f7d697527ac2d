/*
 * The executor. When it is made it allocates the plan's two arenas, opens the lanes, makes one
 * event per instruction that another lane waits for, and works out every instruction's addresses. A
 * step then only walks the list, enqueues, and waits for the lanes; device memory is reached
 * through lanes alone, so that any device will do.
 *
 * One thread owns an executor; executor_abort may come from any.
 */
#include "runtime/executor.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "kernels/kernels.h"
#include "runtime/recorder.h"

enum {
    MAX_SLOTS = 2,
    LOOK_MS = 500 /* how often a wait for a lane looks whether the step was aborted */
};

/* An instruction with everything that does not change from step to step. */
struct action {
    char *label;         /* for errors */
    struct event *fires; /* NULL unless another lane waits for it */
    char *source, *target, *workspace;
    struct comm *comm; /* a collective's */
    float scale;       /* a reduction's */
    bool low;          /* bf16 on the wire */
    size_t count;      /* elements that a collective or the optimizer works on */
    float *slots[MAX_SLOTS];
    struct plan_range *ranges; /* of the unit's kept elements */
    int range_count;
    struct kernel_call call;
};

struct program {
    const struct plan_program *plan;
    struct device_graph *graph;
    struct action *actions;
    char *input, *target, *stats;
    uint64_t input_bytes, target_bytes;
    const struct action *first_norm; /* which starts this rank's part; NULL without norms */
    enum lane stats_lane;            /* that has the last word on the statistics */
    struct recorder recorder;
};

/* The parts of the group that units sharded, or resharded, over `ranks` ranks need. */
struct shard_groups {
    int ranks;
    struct comm *shard, *replica;
};

struct executor {
    struct device *device;
    struct comm *comm; /* NULL for one rank */
    struct shard_groups *groups;
    int group_count;
    const struct plan *plan;
    uint64_t seed;
    char *state, *work; /* the arenas */
    bool released;      /* the work arena was given back */
    struct lane_queue *lanes[LANE_COUNT];
    struct program train, accumulate, evaluate;
    float stats_in[PLAN_STATS_COUNT], stats_out[PLAN_STATS_COUNT]; /* host side of a step */
    uint64_t allocated_before, peak;                               /* the device's books */
    struct trace *trace;                                           /* being filled; NULL: off */
    void *poison;         /* NaNs, as large as the work arena; NULL: off */
    char *note;           /* why steps are not recorded, once; NULL: nothing to say */
    bool noted;
    pthread_mutex_t lock; /* guards what follows */
    status_t aborted;
};

static char *buffer_memory(const struct executor *executor, const struct plan_program *program,
                           int buffer)
{
    if (buffer < 0) return NULL;
    const struct plan_buffer *b = &program->buffers[buffer];
    return (b->state ? executor->state : executor->work) + b->offset;
}

static char *value_memory(const struct executor *executor, const struct plan_program *program,
                          int value)
{
    if (value < 0 || program->buffer_of_value[value] < 0) return NULL;
    return buffer_memory(executor, program, program->buffer_of_value[value]) +
           program->offset_of_value[value];
}

static int find_buffer(const struct plan_program *program, enum buffer_class class, int unit,
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
               program == &executor->evaluate ? "evaluation" : "training", i,
               plan_instruction_name(instruction->kind));
    if (instruction->op >= 0)
        buf_printf(&text, " of op %d, %s", instruction->op,
                   program->plan->graph->ops[instruction->op].name);
    if (instruction->unit >= 0)
        buf_printf(&text, " of unit %s", executor->plan->units->units[instruction->unit].name);
    return buf_take(&text);
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
    action->call.rank = (uint32_t)executor->plan->options.rank;
}

static const struct shard_groups *find_groups(const struct executor *executor, int ranks)
{
    for (int g = 0; g < executor->group_count; g++)
        if (executor->groups[g].ranks == ranks) return &executor->groups[g];
    return NULL;
}

/* Who takes part in a collective, and what sums are multiplied with: the last reduction of a
 * gradient makes the mean over all ranks of it. */
static void prepare_collective(const struct executor *executor,
                               const struct plan_instruction *instruction, struct action *action)
{
    const struct plan *plan = executor->plan;
    bool mean = instruction->kind != INSTRUCTION_REDUCE_STATS && instruction->group != GROUP_SHARD;
    action->scale = mean ? 1.0f / (float)plan->options.world : 1.0f;
    action->comm = executor->comm;
    if (instruction->unit >= 0)
        action->low = (instruction->kind == INSTRUCTION_ALL_GATHER
                           ? plan_param_dtype(plan, instruction->unit)
                           : plan_reduce_dtype(plan, instruction->unit)) == DTYPE_BF16;
    if (instruction->group == GROUP_WORLD) return;
    int ranks = plan->units->units[instruction->unit].shard_world;
    if (instruction->group == GROUP_RESHARD) ranks = plan_ranks_between(plan, instruction->unit);
    const struct shard_groups *groups = find_groups(executor, ranks);
    action->comm = instruction->group == GROUP_REPLICA ? groups->replica : groups->shard;
}

static void prepare_action(const struct executor *executor, const struct program *program, int i)
{
    const struct plan_program *plan = program->plan;
    const struct plan_instruction *instruction = &plan->instructions[i];
    const struct plan_options *options = &executor->plan->options;
    struct action *action = &program->actions[i];
    action->label = label_of(executor, program, i);
    action->source = buffer_memory(executor, plan, instruction->source);
    action->target = buffer_memory(executor, plan, instruction->target);
    action->workspace = buffer_memory(executor, plan, instruction->workspace);
    switch (instruction->kind) {
    case INSTRUCTION_COMPUTE: prepare_compute(executor, program, instruction, action); break;
    case INSTRUCTION_ALL_GATHER:
    case INSTRUCTION_REDUCE_SCATTER:
    case INSTRUCTION_ALL_REDUCE:
    case INSTRUCTION_REDUCE_STATS:
        action->target += (size_t)instruction->from * sizeof(float);
        action->count = (size_t)instruction->count;
        prepare_collective(executor, instruction, action);
        break;
    case INSTRUCTION_REDUCE_NORM:
    case INSTRUCTION_GATE: break;
    case INSTRUCTION_RESHARD:
        action->count = plan->buffers[instruction->target].bytes;
        action->source +=
            action->count *
            (uint64_t)(options->rank % plan_ranks_between(executor->plan, instruction->unit));
        break;
    case INSTRUCTION_ACCUMULATE:
    case INSTRUCTION_ZERO: action->count = plan->buffers[instruction->target].bytes; break;
    case INSTRUCTION_NORM:
        action->target += (size_t)options->rank * sizeof(double);
        if (plan_counts_in_norm(executor->plan, instruction->unit))
            action->range_count =
                plan_find_ranges(executor->plan, instruction->unit, false, &action->ranges);
        break;
    case INSTRUCTION_OPTIMIZER:
        action->range_count =
            plan_find_ranges(executor->plan, instruction->unit, true, &action->ranges);
        for (int slot = 0; slot < options->optimizer_slots && slot < MAX_SLOTS; slot++)
            action->slots[slot] = (float *)buffer_memory(executor, plan,
                                                         find_buffer(plan, BUFFER_OPTIMIZER,
                                                                     instruction->unit, slot));
        break;
    case INSTRUCTION_FREE: action->count = plan->buffers[instruction->source].bytes; break;
    case INSTRUCTION_COPY_BATCH: break;
    }
}

static status_t prepare_program(struct executor *executor, struct program *program,
                                const struct plan_program *plan, struct device_graph *graph)
{
    if (plan->graph == NULL) return STATUS_OKAY;
    program->plan = plan;
    program->graph = graph;
    program->actions = mem_alloc_array((size_t)plan->instruction_count, sizeof *program->actions);
    program->input = value_memory(executor, plan, plan->graph->input);
    program->target = value_memory(executor, plan, plan->graph->target);
    program->input_bytes = tensor_bytes(&plan->graph->values[plan->graph->input].type);
    program->target_bytes = tensor_bytes(&plan->graph->values[plan->graph->target].type);
    program->stats = buffer_memory(executor, plan, find_buffer(plan, BUFFER_STATS, -1, 0));
    program->stats_lane = LANE_COMPUTE;
    for (int i = 0; i < plan->instruction_count; i++) {
        const struct plan_instruction *instruction = &plan->instructions[i];
        prepare_action(executor, program, i);
        if (instruction->kind == INSTRUCTION_REDUCE_STATS || instruction->kind == INSTRUCTION_GATE)
            program->stats_lane = instruction->lane;
        if (instruction->kind == INSTRUCTION_NORM && program->first_norm == NULL)
            program->first_norm = &program->actions[i];
        for (int w = 0; w < instruction->wait_count; w++) {
            struct action *awaited = &program->actions[instruction->waits[w]];
            if (awaited->fires == NULL) TRY(event_new(executor->device, &awaited->fires));
        }
    }
    return STATUS_OKAY;
}

static status_t check_arguments(const struct plan *plan, const struct comm *comm,
                                const struct device_graph *train,
                                const struct device_graph *evaluate)
{
    int world = comm != NULL ? comm_world(comm) : 1, rank = comm != NULL ? comm_rank(comm) : 0;
    if (world != plan->options.world || rank != plan->options.rank)
        return status_new(STATUS_INTERNAL, "the plan is for rank %d of %d, the group's is %d of %d",
                          plan->options.rank, plan->options.world, rank, world);
    if (plan->options.optimizer_slots > MAX_SLOTS)
        return status_new(STATUS_INTERNAL, "the plan has %d optimizer slots; at most %d are known",
                          plan->options.optimizer_slots, MAX_SLOTS);
    if ((plan->train.graph != NULL && train == NULL) ||
        (plan->evaluate.graph != NULL && evaluate == NULL))
        return status_new(STATUS_INTERNAL, "a graph of the plan was not lowered");
    return STATUS_OKAY;
}

static void note_memory(struct executor *executor)
{
    uint64_t allocated = device_allocated_bytes(executor->device);
    if (allocated > executor->allocated_before + executor->peak)
        executor->peak = allocated - executor->allocated_before;
}

/* First of all, so that the ranks make their parts in the same order whatever fails later. */
static status_t make_groups(struct executor *executor)
{
    const struct plan *plan = executor->plan;
    int world = plan->options.world, rank = plan->options.rank;
    int *ranks = mem_alloc_array((size_t)world, sizeof *ranks);
    executor->groups =
        mem_alloc_array(2 * (size_t)plan->units->unit_count, sizeof *executor->groups);
    status_t status = STATUS_OKAY;
    for (int k = 0; k < 2 * plan->units->unit_count && status == STATUS_OKAY; k++) {
        int u = k / 2;
        int size = k % 2 ? plan_ranks_between(plan, u) : plan->units->units[u].shard_world;
        if (size == 1 || size == world || find_groups(executor, size) != NULL) continue;
        struct shard_groups *groups = &executor->groups[executor->group_count++];
        groups->ranks = size;
        for (int i = 0; i < size; i++) ranks[i] = rank / size * size + i;
        status = comm_split(executor->comm, ranks, size, &groups->shard);
        if (status != STATUS_OKAY) break;
        for (int i = 0; i < world / size; i++) ranks[i] = rank % size + i * size;
        status = comm_split(executor->comm, ranks, world / size, &groups->replica);
    }
    free(ranks);
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

/* How many collectives lie in the queue at once depends on who is slow. A step is over before the
 * one after the next begins. */
static void reserve_calls(struct executor *executor)
{
    const struct plan_program *programs[] = {&executor->plan->train, &executor->plan->accumulate,
                                             &executor->plan->evaluate};
    int most = 0;
    for (size_t p = 0; p < sizeof programs / sizeof *programs; p++) {
        int calls = 0;
        for (int i = 0; i < programs[p]->instruction_count; i++)
            calls += programs[p]->instructions[i].lane == LANE_COMM;
        if (calls > most) most = calls;
    }
    if (executor->comm != NULL) comm_reserve(executor->comm, 2 * most);
    for (int g = 0; g < executor->group_count; g++) {
        if (executor->groups[g].shard != NULL) comm_reserve(executor->groups[g].shard, 2 * most);
        if (executor->groups[g].replica != NULL)
            comm_reserve(executor->groups[g].replica, 2 * most);
    }
}

static status_t prepare(struct executor *executor, struct device_graph *train,
                        struct device_graph *evaluate)
{
    const struct plan *plan = executor->plan;
    TRY(make_groups(executor));
    reserve_calls(executor);
    executor->allocated_before = device_allocated_bytes(executor->device);
    TRY(device_allocate(executor->device, plan->state_bytes, (void **)&executor->state));
    TRY(device_allocate(executor->device, plan->work_bytes, (void **)&executor->work));
    note_memory(executor);
    for (int lane = 0; lane < LANE_COUNT; lane++)
        TRY(lane_open(executor->device, (enum lane)lane, &executor->lanes[lane]));
    TRY(prepare_program(executor, &executor->train, &plan->train, train));
    TRY(prepare_program(executor, &executor->accumulate, &plan->accumulate, train));
    return prepare_program(executor, &executor->evaluate, &plan->evaluate, evaluate);
}

status_t executor_new(struct device *device, struct comm *comm, const struct plan *plan,
                      struct device_graph *train, struct device_graph *evaluate, uint64_t seed,
                      struct executor **result)
{
    TRY(check_arguments(plan, comm, train, evaluate));
    struct executor *executor = mem_alloc(sizeof *executor);
    executor->device = device;
    executor->comm = comm;
    executor->plan = plan;
    executor->seed = seed;
    pthread_mutex_init(&executor->lock, NULL);
    status_t status = prepare(executor, train, evaluate);
    if (status != NULL) {
        executor_free(executor);
        return status;
    }
    *result = executor;
    return STATUS_OKAY;
}

static void program_deinit(struct program *program)
{
    recorder_deinit(&program->recorder);
    for (int i = 0; program->actions != NULL && i < program->plan->instruction_count; i++) {
        event_free(program->actions[i].fires);
        free(program->actions[i].label);
        free(program->actions[i].ranges);
    }
    free(program->actions);
}

void executor_free(struct executor *executor)
{
    if (executor == NULL) return;
    for (int lane = 0; lane < LANE_COUNT; lane++) lane_close(executor->lanes[lane]);
    program_deinit(&executor->train);
    program_deinit(&executor->accumulate);
    program_deinit(&executor->evaluate);
    for (int g = 0; g < executor->group_count; g++) {
        comm_free(executor->groups[g].shard);
        comm_free(executor->groups[g].replica);
    }
    free(executor->groups);
    device_release(executor->device, executor->work);
    device_release(executor->device, executor->state);
    status_free(executor->aborted);
    pthread_mutex_destroy(&executor->lock);
    free(executor->poison);
    free(executor->note);
    free(executor);
}

void executor_set_poison(struct executor *executor, bool on)
{
    recorder_forget(&executor->train.recorder);
    recorder_forget(&executor->accumulate.recorder);
    recorder_forget(&executor->evaluate.recorder);
    free(executor->poison);
    executor->poison = NULL;
    if (!on || executor->plan->work_bytes == 0) return;
    executor->poison = mem_alloc(executor->plan->work_bytes);
    memset(executor->poison, 0xff, executor->plan->work_bytes); /* as floats: NaN */
}

void executor_set_trace(struct executor *executor, struct trace *trace)
{
    executor->trace = trace;
}

bool executor_is_tracing(const struct executor *executor, const struct trace *trace)
{
    return trace != NULL && executor->trace == trace;
}

/* Where the instructions of this program's next run leave their times; NULL if nobody asked. */
static struct trace_stamp *trace_stamps(const struct executor *executor,
                                        const struct program *program)
{
    if (executor->trace == NULL || program == &executor->evaluate) return NULL;
    return trace_next_run(executor->trace, program == &executor->accumulate)->stamps;
}

static void note_run(struct executor *executor, int64_t begin_ns, int64_t end_ns)
{
    struct trace *trace = executor->trace;
    trace_run_done(trace, (struct trace_stamp){begin_ns, end_ns});
    if (trace_is_full(trace)) executor->trace = NULL;
}

static status_t aborted(struct executor *executor)
{
    pthread_mutex_lock(&executor->lock);
    status_t status = status_copy(executor->aborted);
    pthread_mutex_unlock(&executor->lock);
    return status;
}

/* Each range with the settings of its group. */
static status_t optimize(struct lane_queue *lane, const struct action *action,
                         const struct optimizer_step *optimizer, const float *gate)
{
    for (int r = 0; r < action->range_count; r++) {
        const struct plan_range *range = &action->ranges[r];
        struct optimizer_step step = *optimizer;
        float *slots[MAX_SLOTS] = {NULL};
        if (range->group > 0 && range->group <= optimizer->group_count) {
            step.lr *= optimizer->groups[range->group - 1].lr_scale;
            step.weight_decay = optimizer->groups[range->group - 1].weight_decay;
        }
        for (int slot = 0; slot < MAX_SLOTS; slot++)
            if (action->slots[slot] != NULL) slots[slot] = action->slots[slot] + range->from;
        TRY(lane_optimize(lane, &step, (size_t)range->count, (float *)action->target + range->from,
                          (float *)action->source + range->from, slots, gate));
    }
    return STATUS_OKAY;
}

/* What this rank counts of a unit's gradient. */
static status_t add_norm(const struct executor *executor, const struct program *program,
                         const struct action *action, struct lane_queue *lane)
{
    if (action == program->first_norm) TRY(lane_zero(lane, action->target, sizeof(double)));
    for (int r = 0; r < action->range_count; r++)
        TRY(lane_norm(lane, executor->plan->options.norm, (size_t)action->ranges[r].count,
                      (float *)action->source + action->ranges[r].from, (double *)action->target));
    return STATUS_OKAY;
}

static status_t issue(struct executor *executor, struct program *program, int i,
                      const struct step_input *input)
{
    const struct plan_instruction *instruction = &program->plan->instructions[i];
    struct action *action = &program->actions[i];
    struct lane_queue *lane = executor->lanes[instruction->lane];
    switch (instruction->kind) {
    case INSTRUCTION_COPY_BATCH:
        TRY(lane_copy(lane, program->input, input->input, program->input_bytes));
        TRY(lane_copy(lane, program->target, input->target, program->target_bytes));
        return lane_copy(lane, program->stats, executor->stats_in, sizeof executor->stats_in);
    case INSTRUCTION_ALL_GATHER:
        if (action->low && instruction->group == GROUP_RESHARD)
            return comm_all_gather_rounded(action->comm, lane, (uint16_t *)action->source,
                                           (uint16_t *)action->target, action->count);
        if (action->low)
            return comm_all_gather_bf16(action->comm, lane, (float *)action->source,
                                        (uint16_t *)action->target, action->count);
        return comm_all_gather(action->comm, lane, (float *)action->source, (float *)action->target,
                               action->count);
    case INSTRUCTION_COMPUTE:
        action->call.step =
            input->step * (input->micro_steps > 0 ? input->micro_steps : 1) + input->micro;
        return lane_launch(lane, program->graph, instruction->op, &action->call);
    case INSTRUCTION_FREE:
        if (executor->poison == NULL) return STATUS_OKAY;
        return lane_copy(lane, action->source, executor->poison, action->count);
    case INSTRUCTION_REDUCE_SCATTER:
        if (action->low)
            return comm_reduce_scatter_bf16(action->comm, lane, (float *)action->source,
                                            (float *)action->target, action->count, action->scale,
                                            action->workspace);
        return comm_reduce_scatter(action->comm, lane, (float *)action->source,
                                   (float *)action->target, action->count, action->scale,
                                   action->workspace);
    case INSTRUCTION_ALL_REDUCE:
        if (action->low)
            return comm_all_reduce_bf16(action->comm, lane, (float *)action->target, action->count,
                                        action->scale, action->workspace);
        return comm_all_reduce(action->comm, lane, (float *)action->target, action->count,
                               action->scale, action->workspace);
    case INSTRUCTION_REDUCE_STATS:
        return comm_all_reduce(action->comm, lane, (float *)action->target, action->count,
                               action->scale, action->workspace);
    case INSTRUCTION_OPTIMIZER:
        return optimize(lane, action, &input->optimizer,
                        program->first_norm != NULL ? (float *)program->stats : NULL);
    case INSTRUCTION_ACCUMULATE:
        return lane_add(lane, action->count / sizeof(float), (float *)action->target,
                        (float *)action->source);
    case INSTRUCTION_RESHARD: return lane_copy(lane, action->target, action->source, action->count);
    case INSTRUCTION_ZERO: return lane_zero(lane, action->target, action->count);
    case INSTRUCTION_NORM: return add_norm(executor, program, action, lane);
    case INSTRUCTION_REDUCE_NORM:
        return comm_all_gather(executor->comm, lane,
                               (float *)(action->source +
                                         (size_t)executor->plan->options.rank * sizeof(double)),
                               (float *)action->target, sizeof(double) / sizeof(float));
    case INSTRUCTION_GATE: {
        const struct gate_args args = {.kind = executor->plan->options.norm,
                                       .max_norm = input->max_norm,
                                       .gradient_scale = input->optimizer.gradient_scale,
                                       .skip = input->skip};
        return lane_gate(lane, &args, (double *)action->source, executor->plan->options.world,
                         (float *)action->target);
    }
    }
    return status_new(STATUS_INTERNAL, "unknown kind of instruction %d", (int)instruction->kind);
}

/* `stamps`: where instructions leave their times; may be NULL. */
static status_t issue_all(struct executor *executor, struct program *program,
                          const struct step_input *input, struct trace_stamp *stamps)
{
    const struct plan_program *plan = program->plan;
    for (int i = 0; i < plan->instruction_count; i++) {
        const struct plan_instruction *instruction = &plan->instructions[i];
        struct lane_queue *lane = executor->lanes[instruction->lane];
        lane_label(lane, program->actions[i].label);
        for (int w = 0; w < instruction->wait_count; w++)
            lane_wait_event(lane, program->actions[instruction->waits[w]].fires);
        if (stamps != NULL) TRY(lane_stamp(lane, &stamps[i].begin_ns));
        TRY(issue(executor, program, i, input));
        if (stamps != NULL) TRY(lane_stamp(lane, &stamps[i].end_ns));
        if (program->actions[i].fires != NULL) lane_record(lane, program->actions[i].fires);
    }
    struct lane_queue *lane = executor->lanes[program->stats_lane];
    lane_label(lane, NULL);
    return lane_copy(lane, executor->stats_out, program->stats, sizeof executor->stats_out);
}

/* As long as it takes: a kernel that runs is no lost peer, and for those the collectives have
 * deadlines. Only an abort ends it early, and may leave the lane at work. */
static status_t wait_lane(struct executor *executor, enum lane kind)
{
    struct lane_queue *lane = executor->lanes[kind];
    for (;;) {
        status_t status = lane_wait(lane, LOOK_MS);
        if (!lane_is_running(lane)) return status;
        status_free(status);
        TRY(aborted(executor));
    }
}

/*
 * Waits for every lane, also after an error: nothing may be running when a step returns that was
 * not aborted. Collectives know more of the cause of a failure, so theirs comes first.
 */
static status_t wait_all(struct executor *executor)
{
    static const enum lane order[] = {LANE_COMM, LANE_COPY, LANE_COMPUTE};
    status_t status = STATUS_OKAY;
    for (int i = 0; i < LANE_COUNT; i++) {
        status_t failed = wait_lane(executor, order[i]);
        if (failed != NULL && executor->comm != NULL)
            comm_abort(executor->comm, status_message(failed));
        status = status_first(status, failed);
    }
    return status;
}

/* ---- recorded runs ---- */

struct run_to_record {
    struct executor *executor;
    struct program *program;
    const struct step_input *input;
};

static status_t issue_recorded(void *user)
{
    const struct run_to_record *run = user;
    return issue_all(run->executor, run->program, run->input, NULL);
}

/* Takes ownership of `why`. */
static void note_unrecorded(struct executor *executor, status_t why)
{
    if (!executor->noted && status_code(why) != STATUS_OK)
        executor->note = mem_printf("steps are enqueued call by call, with the same results: %s",
                                    status_message(why));
    executor->noted = executor->noted || why != NULL;
    status_free(why);
}

/* A device that records nothing has nothing to be said about it. */
static status_t check_group(const struct executor *executor)
{
    if (executor->comm == NULL || comm_is_repeatable(executor->comm)) return STATUS_OKAY;
    return status_new(STATUS_UNIMPLEMENTED, "the host takes part in the group's collectives");
}

static void prepare_recording(struct executor *executor, struct program *program,
                              const struct recorder_walk *walk)
{
    struct lane_queue *const lanes[] = {executor->lanes[LANE_COMPUTE], executor->lanes[LANE_COMM],
                                        executor->lanes[LANE_COPY]};
    if (!device_records(executor->device) || !recorder_is_due(&program->recorder)) return;
    status_t status = check_group(executor);
    if (status == STATUS_OKAY)
        status = recorder_record(&program->recorder, executor->device, lanes, LANE_COUNT, walk);
    note_unrecorded(executor, status);
}

/* After a run that went well, by `stamps` with the times of its instructions, which no recording
 * has: all ranks trace the same steps. */
static void settle_recording(struct executor *executor, struct program *program, bool traced)
{
    float everybody = (float)executor->plan->options.world;
    bool recorded = executor->stats_out[PLAN_STAT_RECORDED] == everybody;
    executor->stats_out[PLAN_STAT_RECORDED] = 0; /* nobody else's */
    if (traced || recorder_replays(&program->recorder)) return;
    if (recorder_has(&program->recorder) && !recorded)
        note_unrecorded(executor, status_new(STATUS_UNIMPLEMENTED, "another rank cannot record"));
    recorder_note_run(&program->recorder, recorded);
}

/* Enqueues a whole run, by one call if it can be. */
static status_t enqueue(struct executor *executor, struct program *program,
                        const struct step_input *input, struct trace_stamp *stamps)
{
    struct run_to_record run = {executor, program, input};
    const struct recorder_walk walk = {issue_recorded, &run};
    if (stamps == NULL && recorder_replays(&program->recorder))
        return status_wrap(recorder_replay(&program->recorder, &walk), "a recorded %s step",
                           program == &executor->evaluate ? "evaluation" : "training");
    if (stamps == NULL) prepare_recording(executor, program, &walk);
    executor->stats_in[PLAN_STAT_RECORDED] = recorder_has(&program->recorder) ? 1 : 0;
    return issue_all(executor, program, input, stamps);
}

char *executor_take_note(struct executor *executor)
{
    char *note = executor->note;
    executor->note = NULL;
    return note;
}

static status_t run_program(struct executor *executor, struct program *program,
                            const struct step_input *input, struct step_result *result)
{
    if (program->plan == NULL)
        return status_new(STATUS_FAILED_PRECONDITION, "the plan has no program for this step");
    if (executor->released)
        return status_new(STATUS_FAILED_PRECONDITION, "the executor's work memory was given back");
    TRY(aborted(executor));
    int64_t start = clock_monotonic_ns();
    int64_t compute = lane_busy_ns(executor->lanes[LANE_COMPUTE]);
    int64_t comm = lane_busy_ns(executor->lanes[LANE_COMM]);
    executor->stats_in[PLAN_STAT_SAMPLES] = (float)input->samples;
    executor->stats_in[PLAN_STAT_SIGNAL] = input->signal;
    if (executor->poison != NULL) {
        lane_label(executor->lanes[LANE_COPY], NULL);
        TRY(lane_copy(executor->lanes[LANE_COPY], executor->work, executor->poison,
                      executor->plan->work_bytes));
        TRY(wait_all(executor));
    }
    struct trace_stamp *stamps = trace_stamps(executor, program);
    status_t status = enqueue(executor, program, input, stamps);
    status = status_first(status, wait_all(executor));
    note_memory(executor);
    if (status != NULL) {
        /* Aborted: that is the reason, whatever a lane says. */
        status_t reason = aborted(executor);
        return reason != NULL ? status_first(reason, status) : status;
    }
    struct step_result measured = {.step_ns = clock_monotonic_ns() - start,
                                   .compute_ns =
                                       lane_busy_ns(executor->lanes[LANE_COMPUTE]) - compute,
                                   .comm_ns = lane_busy_ns(executor->lanes[LANE_COMM]) - comm};
    int64_t idle = measured.step_ns - measured.compute_ns;
    if (idle > 0) measured.exposed_comm_ns = idle < measured.comm_ns ? idle : measured.comm_ns;
    if (stamps != NULL) note_run(executor, start, start + measured.step_ns);
    settle_recording(executor, program, stamps != NULL);
    memcpy(measured.stats, executor->stats_out, sizeof measured.stats);
    *result = measured;
    return STATUS_OKAY;
}

status_t executor_train_step(struct executor *executor, const struct step_input *input,
                             struct step_result *result)
{
    return run_program(executor, &executor->train, input, result);
}

status_t executor_accumulate_step(struct executor *executor, const struct step_input *input,
                                  struct step_result *result)
{
    return run_program(executor, &executor->accumulate, input, result);
}

status_t executor_evaluate_step(struct executor *executor, const struct step_input *input,
                                struct step_result *result)
{
    return run_program(executor, &executor->evaluate, input, result);
}

/* The unit's parameter shard; its elements and where in the flat parameter it starts. */
static char *shard_memory(const struct executor *executor, int unit, int64_t *start, int64_t *count)
{
    const struct plan *plan = executor->plan;
    const struct flat_parameter *flat = &plan->units->units[unit].flat;
    const struct plan_program *program = plan->train.graph != NULL ? &plan->train : &plan->evaluate;
    *start = flat->shard * (plan->options.rank % plan->units->units[unit].shard_world);
    *count = flat->shard;
    return buffer_memory(executor, program, find_buffer(program, BUFFER_SHARD, unit, 0));
}

size_t executor_shard_elements(const struct executor *executor, int unit)
{
    int64_t start, count;
    return shard_memory(executor, unit, &start, &count) != NULL ? (size_t)count : 0;
}

/* This rank's part of a parameter, and where in the shard's memory it lies; NULL if it has none. */
static float *find_part(const struct executor *executor, int parameter, struct parameter_part *part)
{
    const struct plan *plan = executor->plan;
    const struct parameter *info = &plan->model->parameters[parameter];
    int owner = info->tied_to >= 0 ? info->tied_to : parameter;
    int unit = plan->units->unit_of_parameter[owner];
    const struct flat_parameter *flat = &plan->units->units[unit].flat;
    int64_t shard_start, shard_count;
    char *shard = shard_memory(executor, unit, &shard_start, &shard_count);
    *part = (struct parameter_part){0};
    for (int i = 0; i < flat->parameter_count && shard != NULL; i++) {
        if (flat->parameters[i] != owner) continue;
        int64_t start = flat->offsets[i], end = start + tensor_element_count(&info->type);
        int64_t from = start > shard_start ? start : shard_start;
        int64_t to = end < shard_start + shard_count ? end : shard_start + shard_count;
        if (from >= to) return NULL; /* another rank's */
        *part = (struct parameter_part){.offset = from - start, .count = to - from};
        return (float *)(void *)shard + (from - shard_start);
    }
    return NULL;
}

struct parameter_part executor_parameter_part(const struct executor *executor, int parameter)
{
    struct parameter_part part;
    find_part(executor, parameter, &part);
    return part;
}

status_t executor_set_state_part(struct executor *executor, int parameter, int slot,
                                 struct parameter_part part, const float *values)
{
    struct parameter_part mine;
    const struct plan *plan = executor->plan;
    float *memory = find_part(executor, parameter, &mine);
    if (part.count == 0) return STATUS_OKAY;
    if (memory == NULL || part.offset < mine.offset ||
        part.offset + part.count > mine.offset + mine.count)
        return status_new(STATUS_INTERNAL, "this rank does not hold this part of parameter %d",
                          parameter);
    if (slot >= 0) { /* laid out as the shard is */
        int unit = plan->units->unit_of_parameter[parameter];
        float *state = executor_unit_state(executor, unit, slot);
        if (state == NULL)
            return status_new(STATUS_INTERNAL, "parameter %d has no optimizer slot %d", parameter,
                              slot);
        memory = state + (memory - executor_unit_state(executor, unit, -1));
    }
    struct lane_queue *lane = executor->lanes[LANE_COPY];
    lane_label(lane, NULL);
    TRY(lane_copy(lane, memory + (part.offset - mine.offset), values,
                  (size_t)part.count * sizeof(float)));
    return wait_lane(executor, LANE_COPY);
}

status_t executor_set_parameter_part(struct executor *executor, int parameter,
                                     struct parameter_part part, const float *values)
{
    return executor_set_state_part(executor, parameter, -1, part, values);
}

status_t executor_set_parameter(struct executor *executor, int parameter, const float *values)
{
    const struct plan *plan = executor->plan;
    if (parameter < 0 || parameter >= plan->model->parameter_count)
        return status_new(STATUS_INTERNAL, "parameter %d of %d", parameter,
                          plan->model->parameter_count);
    struct parameter_part part = executor_parameter_part(executor, parameter);
    return executor_set_parameter_part(executor, parameter, part, values + part.offset);
}

status_t executor_read_slot(struct executor *executor, int unit, int slot, float *values)
{
    const float *state = executor_unit_state(executor, unit, slot);
    size_t count = executor_shard_elements(executor, unit);
    struct lane_queue *lane = executor->lanes[LANE_COPY];
    if (state == NULL || count == 0) return STATUS_OKAY;
    lane_label(lane, NULL);
    TRY(lane_copy(lane, values, state, count * sizeof(float)));
    return wait_lane(executor, LANE_COPY);
}

status_t executor_read_shard(struct executor *executor, int unit, float *values)
{
    return executor_read_slot(executor, unit, -1, values);
}

float *executor_unit_state(const struct executor *executor, int unit, int slot)
{
    const struct plan *plan = executor->plan;
    const struct plan_program *program = plan->train.graph != NULL ? &plan->train : &plan->evaluate;
    enum buffer_class class = slot < 0 ? BUFFER_SHARD : BUFFER_OPTIMIZER;
    return (float *)(void *)buffer_memory(executor, program,
                                          find_buffer(program, class, unit, slot));
}

void executor_release_work(struct executor *executor)
{
    device_release(executor->device, executor->work);
    executor->work = NULL;
    executor->released = true;
}

const struct plan *executor_plan(const struct executor *executor)
{
    return executor->plan;
}

void executor_abort(struct executor *executor, const char *why)
{
    pthread_mutex_lock(&executor->lock);
    if (executor->aborted == NULL)
        executor->aborted = status_new(STATUS_ABORTED, "the step was aborted: %s", why);
    pthread_mutex_unlock(&executor->lock);
    if (executor->comm != NULL) comm_abort(executor->comm, why);
}

uint64_t executor_memory(const struct executor *executor)
{
    uint64_t allocated = device_allocated_bytes(executor->device);
    return allocated > executor->allocated_before ? allocated - executor->allocated_before : 0;
}

void executor_replaced(struct executor *executor, uint64_t bytes)
{
    executor->allocated_before -= bytes;
}

uint64_t executor_memory_peak(const struct executor *executor)
{
    return executor->peak;
}

uint64_t executor_memory_touched(const struct executor *executor)
{
    return device_touched_bytes(executor->device, executor->state) +
           device_touched_bytes(executor->device, executor->work);
}
