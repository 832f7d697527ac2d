/*
 * Properties derived from a plan's options and units, for its builder, validator, text and hash.
 * Pure functions; any thread.
 */
#include "fsdp/plan_internal.h"

int plan_reshard_world(const struct plan *plan, int unit)
{
    const struct unit *it = &plan->units->units[unit];
    enum reshard reshard = it->reshard != RESHARD_DEFAULT ? it->reshard : plan->options.reshard;
    int ranks = it->reshard != RESHARD_DEFAULT ? it->reshard_ranks : plan->options.reshard_ranks;
    switch (reshard) {
    case RESHARD_DEFAULT:
        return plan->options.strategy == STRATEGY_SHARD_GRAD_OP ? 1 : it->shard_world;
    case RESHARD_YES: return it->shard_world;
    case RESHARD_NO: return 1;
    case RESHARD_GROUP: return it->shard_world > 1 ? ranks : 1;
    }
    return it->shard_world;
}

enum dtype plan_param_dtype(const struct plan *plan, int unit)
{
    return unit_dtype_or(plan->units->units[unit].param_dtype, plan->options.gathered_dtype);
}

bool plan_keeps_rounded(const struct plan *plan, int unit)
{
    return plan->units->units[unit].flat.slots.rounded;
}

enum dtype plan_reduce_dtype(const struct plan *plan, int unit)
{
    return unit_dtype_or(plan->units->units[unit].reduce_dtype, plan->options.reduce_dtype);
}

bool plan_offloads(const struct plan *plan, int unit)
{
    if (!plan->options.host_apart || plan->units->units[unit].buffers) return false;
    return plan->options.cpu_offload || plan->units->units[unit].cpu_offload;
}

bool plan_has_offloaded(const struct plan *plan)
{
    for (int u = 0; u < plan->units->unit_count; u++)
        if (plan_offloads(plan, u)) return true;
    return false;
}

bool plan_is_sharded(const struct plan *plan)
{
    for (int u = 0; u < plan->units->unit_count; u++)
        if (plan_gathers(plan, u)) return true;
    return false;
}

bool plan_counts_in_norm(const struct plan *plan, int unit)
{
    return plan->options.rank < plan->units->units[unit].shard_world;
}

/* An all_reduce in which each rank sums one slice of ceil(elements / world), the last ones shorter,
 * and sends it in f32 to all the others; `size` is that of a summed element. */
static uint64_t all_reduce_bytes(uint64_t elements, uint64_t size, uint64_t world, uint64_t rank)
{
    uint64_t slice = (elements + world - 1) / world;
    uint64_t start = slice * rank < elements ? slice * rank : elements;
    uint64_t mine = elements - start < slice ? elements - start : slice;
    return (elements - mine) * size + mine * (world - 1) * sizeof(float);
}

uint64_t plan_communicated(const struct plan *plan, const struct plan_instruction *instruction)
{
    uint64_t world = (uint64_t)plan_group_ranks(plan, instruction->group, instruction->unit);
    uint64_t rank = (uint64_t)plan->options.rank, elements = (uint64_t)instruction->count;
    if (instruction->group == GROUP_SHARD) rank %= world;
    if (instruction->group == GROUP_REPLICA) rank /= (uint64_t)plan->options.world / world;
    uint64_t size = instruction->unit >= 0 ? dtype_size(plan_reduce_dtype(plan, instruction->unit))
                                           : sizeof(float);
    switch (instruction->kind) {
    case INSTRUCTION_ALL_GATHER:
        if (instruction->group != GROUP_RESHARD && plan_base(plan, instruction->unit) != BASE_F32)
            return elements * sizeof(float) * (world - 1);
        return elements * plan_parameter_size(plan, instruction->unit) * (world - 1);
    case INSTRUCTION_REDUCE_SCATTER: return elements * size * (world - 1);
    case INSTRUCTION_ALL_REDUCE: return all_reduce_bytes(elements, size, world, rank);
    case INSTRUCTION_REDUCE_STATS: return all_reduce_bytes(elements, sizeof(float), world, rank);
    case INSTRUCTION_COLLECT:
    case INSTRUCTION_DISTRIBUTE:
        return optimizer_factors(plan->options.optimizer) ? plan_moved_bytes(plan, instruction)
                                                          : plan_exchanged_bytes(plan, instruction);
    case INSTRUCTION_GATHER_SUMS:
    case INSTRUCTION_GATHER_VALUE:
    case INSTRUCTION_REDUCE_NORM: return elements * sizeof(float) * (world - 1);
    default: return 0;
    }
}

static uint64_t program_communicated(const struct plan_program *program)
{
    uint64_t bytes = 0;
    for (int i = 0; i < program->instruction_count; i++)
        bytes += program->instructions[i].communicated;
    return bytes;
}

uint64_t plan_communicated_per_step(const struct plan *plan)
{
    uint64_t earlier = plan->options.micro_steps > 1 ? plan->options.micro_steps - 1 : 0;
    return program_communicated(&plan->train) + earlier * program_communicated(&plan->accumulate);
}

int plan_average_slot(const struct plan *plan)
{
    return plan->options.averages ? plan->options.optimizer_slots - 1 : -1;
}

uint64_t plan_average_bytes(const struct plan *plan)
{
    int slot = plan_average_slot(plan);
    uint64_t bytes = 0;
    for (int b = 0; b < plan->train.buffer_count; b++) {
        const struct plan_buffer *buffer = &plan->train.buffers[b];
        if (buffer->class == BUFFER_OPTIMIZER && buffer->slot == slot &&
            buffer->arena == ARENA_STATE)
            bytes += plan_align(buffer->bytes);
    }
    return bytes;
}

uint64_t plan_lent_bytes(const struct plan *plan, const struct plan_buffer *state, int count)
{
    uint64_t end = 0;
    for (int b = 0; b < count && plan->options.lent != LENT_NOTHING; b++) {
        bool lent = state[b].class == BUFFER_SHARD || state[b].class == BUFFER_ROUNDED ||
                    ((state[b].class == BUFFER_CACHE || state[b].class == BUFFER_GATHERED) &&
                     plan->options.lent == LENT_CACHE);
        if (lent && state[b].arena == ARENA_STATE)
            end = state[b].offset + plan_align(state[b].bytes);
    }
    return end;
}

uint64_t plan_optimizer_bytes(const struct plan *plan)
{
    uint64_t words = 0;
    for (int u = 0; u < plan->units->unit_count; u++) {
        const struct unit *unit = &plan->units->units[u];
        for (int slot = 0; slot < plan->options.optimizer_slots && !unit->frozen; slot++) {
            struct slot_layout layout = slot_layout_of(&unit->flat.slots, slot);
            words += (uint64_t)slot_part(&layout, layout.parts);
        }
    }
    return words * sizeof(float);
}
