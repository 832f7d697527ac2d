/* Durations from rates; see plan_estimate.h. Pure functions; any thread. */
#include "fsdp/plan_estimate.h"

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
    if (kind == INSTRUCTION_ALL_GATHER || kind == INSTRUCTION_REDUCE_SCATTER)
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

static double op_seconds(const struct plan_program *program, int op, const struct plan_rates *rates,
                         double *flops)
{
    struct op_desc desc;
    *flops = 0;
    if (is_view(program, &program->graph->ops[op])) return 0;
    graph_describe_op(program->graph, op, &desc);
    *flops = op_desc_flops(&desc);
    bool half = dtype_size(desc.inputs[0].dtype) == 2;
    double arithmetic = *flops / (half ? rates->flops_bf16 : rates->flops_f32);
    double traffic = (double)op_desc_bytes(&desc) / rates->memory_bandwidth;
    return rates->op_seconds + (arithmetic > traffic ? arithmetic : traffic);
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
    const struct graph *graph = program->graph;
    return value_bytes(program, graph->input) + value_bytes(program, graph->target) +
           value_bytes(program, graph->starts);
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

/* A ring that spans hosts uses links of both kinds. */
static double collective_seconds(const struct plan *plan, const struct plan_instruction *it,
                                 const struct plan_rates *rates)
{
    int ranks = plan_group_ranks(plan, it->group, it->unit);
    double inside = plan_collective_seconds(it->kind, ranks, it->communicated, &rates->inside);
    if (in_one_host(plan, it, ranks, rates->devices_per_host)) return inside;
    double between = plan_collective_seconds(it->kind, ranks, it->communicated, &rates->between);
    return between > inside ? between : inside;
}

static double instruction_seconds(const struct plan *plan, const struct plan_program *program,
                                  int i, const struct plan_rates *rates, double *flops)
{
    const struct plan_instruction *it = &program->instructions[i];
    *flops = 0;
    if (it->lane == LANE_COMM) return collective_seconds(plan, it, rates);
    switch (it->kind) {
    case INSTRUCTION_COMPUTE: return op_seconds(program, it->op, rates, flops);
    case INSTRUCTION_COPY_BATCH: return link_seconds(&rates->batch, batch_bytes(program));
    case INSTRUCTION_UPLOAD:
    case INSTRUCTION_DOWNLOAD: /* as many bytes are read as written */
        return link_seconds(&rates->batch, buffer_bytes(program, it->source));
    case INSTRUCTION_DOWNLOAD_STATS: return rates->batch.latency;
    case INSTRUCTION_FREE: return 0;
    case INSTRUCTION_GATE: return rates->op_seconds;
    case INSTRUCTION_NORM:
        return rates->op_seconds +
               (double)buffer_bytes(program, it->source) / rates->memory_bandwidth;
    case INSTRUCTION_ACCUMULATE: /* two are read, one is written */
        return rates->op_seconds +
               3 * (double)buffer_bytes(program, it->source) / rates->memory_bandwidth;
    case INSTRUCTION_RESHARD: /* as many bytes are read as kept and written */
        return rates->op_seconds +
               2 * (double)buffer_bytes(program, it->target) / rates->memory_bandwidth;
    case INSTRUCTION_ZERO:
        return rates->op_seconds +
               (double)buffer_bytes(program, it->target) / rates->memory_bandwidth;
    case INSTRUCTION_OPTIMIZER: {
        /* the parameter and its state are read and written, the gradient read */
        uint64_t bytes =
            buffer_bytes(program, it->source) +
            (uint64_t)(2 + 2 * plan->options.optimizer_slots) * buffer_bytes(program, it->target);
        if (it->lane == LANE_HOST) return (double)bytes / rates->host_bandwidth;
        return rates->op_seconds + (double)bytes / rates->memory_bandwidth;
    }
    default: /* other work on this rank: the bytes it reads and writes */
        return rates->op_seconds +
               (double)(buffer_bytes(program, it->source) + buffer_bytes(program, it->target)) /
                   rates->memory_bandwidth;
    }
}

double plan_estimate_instructions(const struct plan *plan, const struct plan_program *program,
                                  const struct plan_rates *rates, struct plan_timing *timings)
{
    double sum = 0, flops;
    for (int i = 0; i < program->instruction_count; i++) {
        timings[i] =
            (struct plan_timing){.seconds = instruction_seconds(plan, program, i, rates, &flops)};
        sum += flops;
    }
    return sum;
}

void plan_estimate_program(const struct plan *plan, const struct plan_program *program,
                           const struct plan_rates *rates, struct plan_timing *timings,
                           struct plan_estimate *estimate)
{
    double flops = plan_estimate_instructions(plan, program, rates, timings);
    plan_simulate(program, timings, estimate);
    estimate->flops = flops;
}
