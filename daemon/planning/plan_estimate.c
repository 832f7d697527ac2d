/* Durations from rates; see plan_estimate.h. Pure functions; any thread. */
#include "planning/plan_estimate.h"

#include "fsdp/plan_internal.h"

static int tree_depth(int ranks)
{
    int depth = 0;
    while (depth < 31 && (1 << depth) < ranks) depth++;
    return depth;
}

double plan_collective_seconds(enum instruction_kind kind, int ranks, uint64_t bytes,
                               const struct plan_link *link)
{
    if (ranks < 2) return 0;
    double transfer = (double)bytes / link->bandwidth;
    if (kind == INSTRUCTION_ALL_GATHER || kind == INSTRUCTION_REDUCE_SCATTER ||
        kind == INSTRUCTION_COLLECT || kind == INSTRUCTION_DISTRIBUTE ||
        kind == INSTRUCTION_GATHER_SUMS)
        return (ranks - 1) * link->latency + transfer;
    /* Up a tree and down again, with all of the data in every step, pipelined. */
    double ring = 2.0 * (ranks - 1) * link->latency + transfer;
    double tree = 2.0 * tree_depth(ranks) * link->latency + transfer * ranks / (double)(ranks - 1);
    return tree < ring ? tree : ring;
}

static double link_seconds(const struct plan_link *link, uint64_t bytes)
{
    return link->latency + (double)bytes / link->bandwidth;
}

/* A reshape whose output is its input: nothing runs. */
static bool is_view(const struct plan_program *program, const struct graph_op *op)
{
    return op->kind == OP_RESHAPE && !op->accumulate[0] &&
           program->buffer_of_value[op->inputs[0]] == program->buffer_of_value[op->outputs[0]] &&
           program->offset_of_value[op->inputs[0]] == program->offset_of_value[op->outputs[0]];
}

static uint64_t buffer_bytes(const struct plan_program *program, int buffer)
{
    return buffer >= 0 ? program->buffers[buffer].bytes : 0;
}

static uint64_t value_bytes(const struct plan_program *program, int value)
{
    return value >= 0 ? tensor_bytes(&program->graph->values[value].type) : 0;
}

static uint64_t batch_bytes(const struct plan_program *program)
{
    uint64_t bytes = 0;
    for (int i = 0; i < GRAPH_BATCH_VALUES; i++)
        bytes += value_bytes(program, graph_batch_value(program->graph, i));
    return bytes;
}

/* Whether a group is on one host. Ranks that shard a unit are neighbours; those that hold the same
 * shard are spread over the world. */
static bool in_one_host(const struct plan *plan, const struct plan_instruction *it, int ranks,
                        int devices_per_host)
{
    if (plan->options.world <= devices_per_host) return true;
    bool neighbours = it->group == GROUP_SHARD || it->group == GROUP_RESHARD;
    return neighbours && devices_per_host % ranks == 0;
}

static double traffic_seconds(const struct plan_work *work, const struct plan_rates *rates)
{
    return rates->op_seconds + work->bytes / rates->memory_bandwidth;
}

static double op_seconds(const struct plan_work *work, const struct plan_rates *rates)
{
    double arithmetic = work->amount / (work->half ? rates->flops_bf16 : rates->flops_f32);
    double traffic = work->bytes / rates->memory_bandwidth;
    return rates->op_seconds + (arithmetic > traffic ? arithmetic : traffic);
}

static double instruction_seconds(enum instruction_kind kind, const struct plan_work *work,
                                  const struct plan_rates *rates)
{
    uint64_t bytes = (uint64_t)work->bytes;
    switch (kind) {
    case INSTRUCTION_ALL_GATHER:
    case INSTRUCTION_REDUCE_SCATTER:
    case INSTRUCTION_ALL_REDUCE:
    case INSTRUCTION_REDUCE_STATS:
    case INSTRUCTION_REDUCE_NORM:
    case INSTRUCTION_GATHER_VALUE:
    case INSTRUCTION_COLLECT:
    case INSTRUCTION_DISTRIBUTE:
    case INSTRUCTION_GATHER_SUMS:
        return plan_collective_seconds(kind, (int)work->amount, bytes, &rates->inside);
    case INSTRUCTION_COPY_BATCH:
    case INSTRUCTION_UPLOAD:
    case INSTRUCTION_DOWNLOAD: return link_seconds(&rates->batch, bytes);
    case INSTRUCTION_DOWNLOAD_STATS: return rates->batch.latency;
    case INSTRUCTION_FREE: return 0;
    case INSTRUCTION_ORTHOGONALIZE: return op_seconds(work, rates);
    case INSTRUCTION_OPTIMIZER: return work->bytes / rates->host_bandwidth; /* on the host */
    default: return traffic_seconds(work, rates);
    }
}

double plan_work_seconds(const struct plan_work *work, const struct plan_rates *rates)
{
    if (work->row < 0) return 0;
    if (work->row < PLAN_ROW_INSTRUCTION) return op_seconds(work, rates);
    if (work->row >= PLAN_ROW_OPTIMIZER) return traffic_seconds(work, rates);
    return instruction_seconds((enum instruction_kind)(work->row - PLAN_ROW_INSTRUCTION), work,
                               rates);
}

static void find_op_work(const struct plan_program *program, int op, struct plan_work *work)
{
    struct op_desc desc;
    work->row = -1;
    if (is_view(program, &program->graph->ops[op])) return;
    graph_describe_op(program->graph, op, &desc);
    work->row = (int)desc.kind;
    work->amount = op_desc_flops(&desc);
    work->bytes = (double)op_desc_bytes(&desc);
    work->half = dtype_size(desc.inputs[0].dtype) == 2;
}

static void find_optimizer_work(const struct plan *plan, const struct plan_program *program,
                                const struct plan_instruction *it, struct plan_work *work)
{
    /* the parameter and its state are read and written, the gradient read */
    work->bytes =
        (double)(buffer_bytes(program, it->source) + 2 * buffer_bytes(program, it->target));
    for (int b = 0; b < program->buffer_count; b++)
        if (program->buffers[b].class == BUFFER_OPTIMIZER && program->buffers[b].unit == it->unit)
            work->bytes += 2 * (double)program->buffers[b].bytes;
    if (plan_rounds(plan, it->unit)) /* half as many bytes */
        work->bytes += (double)buffer_bytes(program, it->target) / 2;
    const struct plan_matrix *matrices;
    bool other = plan->options.matrix_of_parameter != NULL &&
                 plan_find_matrices(plan, it->unit, &matrices) == 0;
    enum optimizer_kind kind = other ? plan->options.others : plan->options.optimizer;
    if (it->lane != LANE_HOST) work->row = PLAN_ROW_OPTIMIZER + (int)kind;
}

static void find_collective_work(const struct plan *plan, const struct plan_instruction *it,
                                 struct plan_work *work)
{
    work->amount = plan_group_ranks(plan, it->group, it->unit);
    work->bytes = (double)it->communicated;
    if (it->unit < 0) return;
    enum dtype sent = it->kind == INSTRUCTION_ALL_GATHER ? plan_param_dtype(plan, it->unit)
                                                         : plan_reduce_dtype(plan, it->unit);
    work->half = dtype_size(sent) == 2;
}

static double bytes_of(const struct plan_program *program, const struct plan_instruction *it)
{
    uint64_t source = buffer_bytes(program, it->source), target = buffer_bytes(program, it->target);
    switch (it->kind) {
    case INSTRUCTION_COPY_BATCH: return (double)batch_bytes(program);
    case INSTRUCTION_UPLOAD:
    case INSTRUCTION_DOWNLOAD: /* as many bytes are read as written */
    case INSTRUCTION_NORM: return (double)source;
    case INSTRUCTION_ACCUMULATE: return 3 * (double)source; /* two are read, one is written */
    case INSTRUCTION_RESHARD: return 2 * (double)target;    /* as many are read as written */
    case INSTRUCTION_ZERO: return (double)target;
    case INSTRUCTION_FREE:
    case INSTRUCTION_GATE:
    case INSTRUCTION_DOWNLOAD_STATS: return 0;
    default: return (double)(source + target); /* what it reads and writes */
    }
}

static double ranks_here(const struct plan *plan, const struct plan_rates *rates)
{
    int world = plan->options.world, most = rates->devices_per_host;
    return world < most ? world : most;
}

void plan_find_work(const struct plan *plan, const struct plan_program *program, int instruction,
                    const struct plan_rates *rates, struct plan_work *work)
{
    const struct plan_instruction *it = &program->instructions[instruction];
    *work = (struct plan_work){.row = PLAN_ROW_INSTRUCTION + (int)it->kind,
                               .ranks = ranks_here(plan, rates)};
    if (it->kind == INSTRUCTION_COMPUTE) find_op_work(program, it->op, work);
    else if (it->kind == INSTRUCTION_OPTIMIZER) find_optimizer_work(plan, program, it, work);
    else if (it->lane == LANE_COMM) find_collective_work(plan, it, work);
    else if (it->kind == INSTRUCTION_FREE) work->row = -1;
    else if (it->kind == INSTRUCTION_ORTHOGONALIZE)
        work->amount = plan_unit_matrix_flops(plan, it->unit);
    else work->bytes = bytes_of(program, it);
    work->seconds = plan_work_seconds(work, rates);
}

/* Repeated blocks have the same work: it is looked up in the tables once. */
enum { COSTED = 256 };

struct costed {
    struct plan_work work;
    double seconds;
};

static bool is_same(const struct plan_work *a, const struct plan_work *b)
{
    return a->row == b->row && a->half == b->half && a->amount == b->amount &&
           a->bytes == b->bytes && a->ranks == b->ranks;
}

static double measured_seconds(const struct plan_tables *tables, const struct plan_work *work,
                               struct costed *costed)
{
    uint64_t key = (uint64_t)work->bytes * 31 + (uint64_t)work->amount * 7 + (uint64_t)work->row;
    struct costed *known = &costed[key * UINT64_C(0x9e3779b97f4a7c15) >> 56];
    if (known->seconds == 0 || !is_same(&known->work, work)) {
        known->work = *work;
        known->seconds = plan_tables_seconds(tables, work);
    }
    return known->seconds;
}

/* A ring that spans hosts uses links of both kinds. */
static double between_seconds(const struct plan *plan, const struct plan_instruction *it,
                              const struct plan_work *work, const struct plan_rates *rates)
{
    if (it->lane != LANE_COMM || in_one_host(plan, it, (int)work->amount, rates->devices_per_host))
        return 0;
    return plan_collective_seconds(it->kind, (int)work->amount, it->communicated, &rates->between);
}

double plan_estimate_instructions(const struct plan *plan, const struct plan_program *program,
                                  const struct plan_rates *rates, struct plan_timing *timings)
{
    struct costed costed[COSTED] = {0};
    double sum = 0;
    for (int i = 0; i < program->instruction_count; i++) {
        struct plan_work work;
        plan_find_work(plan, program, i, rates, &work);
        double seconds = work.seconds;
        if (rates->tables != NULL && work.row >= 0)
            seconds = measured_seconds(rates->tables, &work, costed);
        double between = between_seconds(plan, &program->instructions[i], &work, rates);
        timings[i] = (struct plan_timing){.seconds = between > seconds ? between : seconds};
        if (program->instructions[i].kind == INSTRUCTION_COMPUTE) sum += work.amount;
    }
    return sum;
}

double plan_step_overhead(const struct plan *plan, const struct plan_program *program,
                          const struct plan_rates *rates)
{
    if (rates->tables == NULL || rates->tables->rows[PLAN_ROW_STEP][0].count == 0) return 0;
    struct plan_work work = {.row = PLAN_ROW_STEP,
                             .ranks = ranks_here(plan, rates),
                             .amount = program->instruction_count};
    work.seconds = plan_work_seconds(&work, rates);
    return plan_tables_seconds(rates->tables, &work);
}

void plan_simulate_lanes(const struct plan *plan, const struct plan_program *program,
                         const struct plan_rates *rates, struct plan_timing *timings,
                         struct plan_estimate *estimate)
{
    const struct plan_tables *tables = rates->tables;
    if (tables != NULL && tables->processors > 0)
        plan_simulate_shared(program,
                             tables->processors / (ranks_here(plan, rates) * tables->threads),
                             timings, estimate);
    else plan_simulate(program, timings, estimate);
}

void plan_estimate_program(const struct plan *plan, const struct plan_program *program,
                           const struct plan_rates *rates, struct plan_timing *timings,
                           struct plan_estimate *estimate)
{
    double flops = plan_estimate_instructions(plan, program, rates, timings);
    plan_simulate_lanes(plan, program, rates, timings, estimate);
    estimate->step_seconds += plan_step_overhead(plan, program, rates);
    estimate->flops = flops;
}
