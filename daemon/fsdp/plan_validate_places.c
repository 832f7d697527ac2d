/*
 * A part of plan_validate: every buffer is in its arena, and every operand is the buffer that it
 * should be, of the right length. Pure functions; any thread.
 */
#include <string.h>

#include "base/mem.h"
#include "fsdp/plan_internal.h"
#include "fsdp/plan_validate.h"

/* The class of the unit's gradient when it is reduced; with one rank, when it is written. */
static enum buffer_class reduced_class(const struct validator *v, int unit)
{
    return validate_replicates(v, unit) ? BUFFER_GRADIENT : BUFFER_GRADIENT_SHARD;
}

/* The class of what ops write. */
static enum buffer_class written_class(const struct validator *v, int unit)
{
    return validate_gathers(v, unit) ? BUFFER_GRADIENT : reduced_class(v, unit);
}

/* The class of what the optimizer reads. */
static enum buffer_class final_class(const struct validator *v, int unit)
{
    return v->plan->options.accumulation == ACCUMULATION_REDUCED ? BUFFER_ACCUMULATED
                                                                 : reduced_class(v, unit);
}

/* Whether a gradient outlives the step: gradients written by ops, if they accumulate over
 * micro-steps; and whole ones, unless their sum does. */
bool validate_keeps_gradient(const struct validator *v, const struct plan_buffer *buffer)
{
    if (buffer->class != BUFFER_GRADIENT && buffer->class != BUFFER_GRADIENT_SHARD) return false;
    enum accumulation accumulation = v->plan->options.accumulation;
    if (accumulation == ACCUMULATION_REDUCED) return false;
    if (accumulation == ACCUMULATION_LOCAL) return buffer->class == written_class(v, buffer->unit);
    return buffer->class == BUFFER_GRADIENT && validate_replicates(v, buffer->unit) &&
           !validate_offloads(v, buffer->unit);
}

/* The arena that a buffer belongs in. */
static enum plan_arena arena_of(const struct validator *v, const struct plan_buffer *buffer)
{
    switch (buffer->class) {
    case BUFFER_HOST_GRADIENT:
    case BUFFER_HOST_STATS: return ARENA_HOST;
    case BUFFER_SHARD:
    case BUFFER_ROUNDED:
    case BUFFER_OPTIMIZER:
        return buffer->unit >= 0 && validate_offloads(v, buffer->unit) ? ARENA_HOST : ARENA_STATE;
    case BUFFER_BATCH:
    case BUFFER_STATS:
    case BUFFER_CACHE:
    case BUFFER_LOGITS:
    case BUFFER_ACCUMULATED: return ARENA_STATE;
    case BUFFER_GATHERED: return validate_held(v, buffer->unit) ? ARENA_STATE : ARENA_WORK;
    default: return validate_keeps_gradient(v, buffer) ? ARENA_STATE : ARENA_WORK;
    }
}

static uint64_t arena_bytes(const struct validator *v, enum plan_arena arena)
{
    if (arena == ARENA_WORK) return v->program->work_bytes;
    return arena == ARENA_STATE ? v->plan->state_bytes : v->plan->host_bytes;
}

status_t validate_buffers(const struct validator *v)
{
    for (int b = 0; b < v->program->buffer_count; b++) {
        const struct plan_buffer *buffer = &v->program->buffers[b];
        if ((unsigned)buffer->arena > ARENA_HOST)
            return validate_fail(v, -1, "buffer %d lies in arena %d", b, buffer->arena);
        uint64_t arena = arena_bytes(v, buffer->arena), end;
        if ((unsigned)buffer->class >= BUFFER_CLASS_COUNT)
            return validate_fail(v, -1, "buffer %d has class %d", b, buffer->class);
        if (buffer->offset % PLAN_ALIGN != 0)
            return validate_fail(v, -1, "buffer %d (%s) lies at %llu, not at a multiple of %d", b,
                                 plan_buffer_class_name(buffer->class),
                                 (unsigned long long)buffer->offset, PLAN_ALIGN);
        if (__builtin_add_overflow(buffer->offset, buffer->bytes, &end) || end > arena)
            return validate_fail(v, -1, "buffer %d (%s) leaves its arena of %llu bytes", b,
                                 plan_buffer_class_name(buffer->class), (unsigned long long)arena);
        if ((buffer->class == BUFFER_STATS || buffer->class == BUFFER_HOST_STATS) &&
            buffer->bytes !=
                4 * (uint64_t)(PLAN_STATS_COUNT + validate_sums(v->plan->evaluate.graph)))
            return validate_fail(v, -1, "buffer %d (statistics) has %llu bytes", b,
                                 (unsigned long long)buffer->bytes);
        if (buffer->unit >= v->plan->units->unit_count)
            return validate_fail(v, -1, "buffer %d is of unit %d", b, buffer->unit);
        if (buffer->class == BUFFER_NORM && buffer->bytes != 8 * (uint64_t)v->plan->options.world)
            return validate_fail(v, -1, "buffer %d (gradient norm) has %llu bytes", b,
                                 (unsigned long long)buffer->bytes);
        if (buffer->arena != arena_of(v, buffer))
            return validate_fail(v, -1, "buffer %d (%s) is in the wrong arena", b,
                                 plan_buffer_class_name(buffer->class));
    }
    return NULL;
}

static bool is_listed(const struct slot_layout *layout, int64_t offset)
{
    for (int i = 0; i < layout->packed_count; i++)
        if (layout->packed[i].offset == offset) return true;
    return false;
}

/* Words of the largest part of a slot in 8 bits, or of a base in blocks: one for each element, less
 * what blocks save; of a base in int8 and nf4 only elements of parameters have any. */
static int64_t longest_state(const struct validator *v, const struct flat_parameter *flat)
{
    enum base_dtype base = flat->slots.base;
    int64_t block = base == BASE_NF4 ? 16384 : base == BASE_FILE ? 2 : 256;
    int64_t longest = 0, saved = base == BASE_NF4 ? 16384 - 2114 : base == BASE_FILE ? 1 : 256 - 65;
    for (int64_t begin = 0, i = 0; begin < flat->padded; begin += flat->shard) {
        bool tight = base == BASE_INT8 || base == BASE_NF4;
        int64_t words = tight ? 0 : flat->shard;
        for (; i < flat->parameter_count; i++) {
            const struct tensor_type *type = &v->plan->model->parameters[flat->parameters[i]].type;
            int64_t elements = tensor_element_count(type), from = flat->offsets[i];
            bool packed = elements >= 4096 && (base == BASE_F32 || type->dim_count > 1);
            int64_t whole = (int64_t)round_up((size_t)elements, (size_t)block);
            int64_t to = from + (tight && !packed ? elements : whole);
            if (base == BASE_FILE) packed = is_listed(&flat->slots, from);
            if (from >= begin + flat->shard) break;
            int64_t first = from > begin ? from : begin;
            int64_t last = to < begin + flat->shard ? to : begin + flat->shard;
            if (tight) words += last - first;
            if (packed) words -= (last - first) / block * saved;
            if (to > begin + flat->shard) break; /* the next part has the rest */
        }
        if (words > longest) longest = words;
    }
    return longest;
}

int64_t validate_base_words(const struct validator *v, int unit)
{
    const struct flat_parameter *flat = &v->plan->units->units[unit].flat;
    return validate_base(v, unit) == BASE_BF16 ? flat->shard / 2 : longest_state(v, flat);
}

static int64_t words_of_shape(const struct validator *v, int parameter)
{
    const struct tensor_type *type = &v->plan->model->parameters[parameter].type;
    const int64_t *dims = type->dims;
    int64_t stacked = 1;
    if (v->plan->options.matrix_of_parameter != NULL)
        return v->plan->options.matrix_of_parameter[parameter] ? 0 : tensor_element_count(type);
    if (type->dim_count < 2) return tensor_element_count(type);
    for (int d = 0; d < type->dim_count - 2; d++) stacked *= dims[d];
    return stacked * (dims[type->dim_count - 2] + dims[type->dim_count - 1]);
}

/* Words of the largest part of a slot in which matrices have others than their elements. */
static int64_t longest_shaped(const struct validator *v, const struct flat_parameter *flat)
{
    int64_t longest = 0;
    for (int64_t begin = 0; begin < flat->padded; begin += flat->shard) {
        int64_t words = flat->shard, end = begin + flat->shard;
        for (int i = 0; i < flat->parameter_count; i++) {
            const struct tensor_type *type = &v->plan->model->parameters[flat->parameters[i]].type;
            int64_t from = flat->offsets[i], to = from + tensor_element_count(type);
            int64_t own = words_of_shape(v, flat->parameters[i]);
            if (own == to - from || from >= end || to <= begin) continue;
            words -= (to < end ? to : end) - (from > begin ? from : begin);
            if (from >= begin) words += own;
        }
        if (words > longest) longest = words;
    }
    return longest;
}

/* `slot`: of optimizer state. */
static uint64_t bytes_of_class(const struct validator *v, enum buffer_class class, int unit,
                               int slot)
{
    const struct flat_parameter *flat = &v->plan->units->units[unit].flat;
    bool whole = class == BUFFER_GATHERED || class == BUFFER_GRADIENT;
    bool low =
        class == BUFFER_ROUNDED ||
        ((class == BUFFER_SHARD || class == BUFFER_STAGED) && validate_keeps_rounded(v, unit)) ||
        ((class == BUFFER_GATHERED || class == BUFFER_RESHARDED) && validate_low(v, unit));
    int64_t elements = whole ? flat->padded : flat->shard;
    bool packs = v->plan->options.state == STATE_INT8 && optimizer_slot_packs(slot);
    bool halves = v->plan->options.state == STATE_BF16 && optimizer_slot_packs(slot);
    bool shaped = (flat->slots.shape == SHAPE_OTHERS && slot == 1) ||
                  (flat->slots.shape == SHAPE_FACTORS && slot == 0);
    if (class == BUFFER_OPTIMIZER && shaped) elements = longest_shaped(v, flat);
    if (class == BUFFER_OPTIMIZER && packs) elements = longest_state(v, flat);
    if (class == BUFFER_OPTIMIZER && halves) elements /= 2;
    if (class == BUFFER_MATRICES) return validate_matrix_bytes(v, unit);
    if (class == BUFFER_FACTORS) return validate_factor_bytes(v, unit);
    if ((class == BUFFER_SHARD || class == BUFFER_STAGED) && validate_base(v, unit) != BASE_F32)
        elements = validate_base_words(v, unit);
    if (class == BUFFER_RESHARDED) elements = flat->padded / validate_between(v, unit);
    return (uint64_t)elements * (low ? 2 : 4);
}

/* Checks that `buffer` is the unit's buffer of this class and large enough. */
status_t validate_unit_buffer(const struct validator *v, int i, int buffer,
                                  enum buffer_class class, int unit)
{
    if (buffer < 0 || buffer >= v->program->buffer_count)
        return validate_fail(v, i, "has no buffer for its %s", plan_buffer_class_name(class));
    const struct plan_buffer *found = &v->program->buffers[buffer];
    if (found->class != class || found->unit != unit)
        return validate_fail(v, i, "has buffer %d (%s) for its %s", buffer,
                             plan_buffer_class_name(found->class), plan_buffer_class_name(class));
    if (unit >= 0 && found->bytes != bytes_of_class(v, class, unit, found->slot))
        return validate_fail(v, i, "has %llu bytes for its %s; expected %llu",
                             (unsigned long long)found->bytes, plan_buffer_class_name(class),
                             (unsigned long long)bytes_of_class(v, class, unit, found->slot));
    return NULL;
}

/* A gather over all ranks reads and writes whole buffers: those of its op's values. */
static status_t check_gathered(const struct validator *v, int i)
{
    const struct plan_instruction *in = &v->program->instructions[i];
    const struct graph_op *op = &v->graph->ops[in->op];
    for (int k = 0; k < 2; k++) {
        int value = k == 0 ? op->inputs[0] : op->outputs[0];
        int buffer = k == 0 ? in->source : in->target;
        if (buffer < 0 || v->program->buffer_of_value[value] != buffer ||
            v->program->offset_of_value[value] != 0 ||
            v->program->buffers[buffer].bytes != tensor_bytes(&v->graph->values[value].type))
            return validate_fail(v, i, "has buffer %d for %s", buffer,
                                 v->graph->values[value].name);
    }
    return in->source != in->target ? NULL : validate_fail(v, i, "gathers in place");
}

static status_t factors_in_place(const struct validator *v, int i)
{
    const struct plan_instruction *in = &v->program->instructions[i];
    if (in->source != in->target) return validate_fail(v, i, "is not in place");
    return validate_unit_buffer(v, i, in->target, BUFFER_FACTORS, in->unit);
}

/* What arrives in another type than ops read is unpacked from scratch memory. */
static status_t check_unpacked(const struct validator *v, int i, uint64_t scratch)
{
    int unit = v->program->instructions[i].unit;
    uint64_t parts = (uint64_t)v->plan->units->units[unit].shard_world;
    if (!validate_unpacks(v, unit) || scratch == 4 * (uint64_t)validate_base_words(v, unit) * parts)
        return NULL;
    return validate_fail(v, i, "has %llu bytes for what it unpacks", (unsigned long long)scratch);
}

status_t validate_operands(const struct validator *v, int i)
{
    const struct plan_instruction *in = &v->program->instructions[i];
    enum buffer_class gradient = in->unit >= 0 ? reduced_class(v, in->unit) : BUFFER_GRADIENT;
    if (in->workspace >= v->program->buffer_count ||
        (in->workspace >= 0 && v->program->buffers[in->workspace].class != BUFFER_WORKSPACE))
        return validate_fail(v, i, "has buffer %d for its scratch memory", in->workspace);
    bool reduces = in->kind == INSTRUCTION_REDUCE_SCATTER || in->kind == INSTRUCTION_ALL_REDUCE ||
                   in->kind == INSTRUCTION_REDUCE_STATS;
    uint64_t scratch = in->workspace < 0 ? 0 : v->program->buffers[in->workspace].bytes;
    bool iterates = in->kind == INSTRUCTION_ORTHOGONALIZE;
    uint64_t expected = iterates ? validate_matrix_scratch(v, in->unit)
                                 : v->plan->options.collective_workspace_bytes;
    if ((reduces || iterates) && scratch != expected)
        return validate_fail(v, i, "has %llu bytes of scratch memory; expected %llu",
                             (unsigned long long)scratch, (unsigned long long)expected);
    switch (in->kind) {
    case INSTRUCTION_GATHER_VALUE: return check_gathered(v, i);
    case INSTRUCTION_ALL_GATHER:
        if (in->group != GROUP_RESHARD) TRY(check_unpacked(v, i, scratch));
        TRY(validate_unit_buffer(v, i, in->source,
                              in->group == GROUP_RESHARD       ? BUFFER_RESHARDED
                              : validate_offloads(v, in->unit) ? BUFFER_STAGED
                                                               : BUFFER_SHARD,
                              in->unit));
        return validate_unit_buffer(v, i, in->target, BUFFER_GATHERED, in->unit);
    case INSTRUCTION_UPLOAD:
        if (!validate_gathers(v, in->unit) && validate_offloads(v, in->unit))
            TRY(check_unpacked(v, i, scratch));
        TRY(validate_unit_buffer(v, i, in->source,
                              validate_rounds(v, in->unit) ? BUFFER_ROUNDED : BUFFER_SHARD,
                              in->unit));
        return validate_unit_buffer(v, i, in->target,
                                 validate_gathers(v, in->unit) ? BUFFER_STAGED : BUFFER_GATHERED,
                                 in->unit);
    case INSTRUCTION_DOWNLOAD:
        TRY(validate_unit_buffer(v, i, in->source, final_class(v, in->unit), in->unit));
        return validate_unit_buffer(v, i, in->target, BUFFER_HOST_GRADIENT, in->unit);
    case INSTRUCTION_DOWNLOAD_STATS:
        TRY(validate_unit_buffer(v, i, in->source, BUFFER_STATS, -1));
        return validate_unit_buffer(v, i, in->target, BUFFER_HOST_STATS, -1);
    case INSTRUCTION_RESHARD:
        TRY(validate_unit_buffer(v, i, in->source, BUFFER_GATHERED, in->unit));
        return validate_unit_buffer(v, i, in->target, BUFFER_RESHARDED, in->unit);
    case INSTRUCTION_FREE: return validate_unit_buffer(v, i, in->source, BUFFER_GATHERED, in->unit);
    case INSTRUCTION_REDUCE_SCATTER:
        TRY(validate_unit_buffer(v, i, in->source, BUFFER_GRADIENT, in->unit));
        return validate_unit_buffer(v, i, in->target, BUFFER_GRADIENT_SHARD, in->unit);
    case INSTRUCTION_ALL_REDUCE:
        TRY(validate_unit_buffer(v, i, in->source, gradient, in->unit));
        return validate_unit_buffer(v, i, in->target, gradient, in->unit);
    case INSTRUCTION_REDUCE_STATS:
        TRY(validate_unit_buffer(v, i, in->source, BUFFER_STATS, -1));
        return validate_unit_buffer(v, i, in->target, BUFFER_STATS, -1);
    case INSTRUCTION_ACCUMULATE:
        TRY(validate_unit_buffer(v, i, in->source, gradient, in->unit));
        return validate_unit_buffer(v, i, in->target, BUFFER_ACCUMULATED, in->unit);
    case INSTRUCTION_NORM:
        TRY(validate_unit_buffer(v, i, in->source, final_class(v, in->unit), in->unit));
        return validate_unit_buffer(v, i, in->target, BUFFER_NORM, -1);
    case INSTRUCTION_REDUCE_NORM:
        TRY(validate_unit_buffer(v, i, in->source, BUFFER_NORM, -1));
        return validate_unit_buffer(v, i, in->target, BUFFER_NORM, -1);
    case INSTRUCTION_GATE:
        TRY(validate_unit_buffer(v, i, in->source, BUFFER_NORM, -1));
        return validate_unit_buffer(v, i, in->target, BUFFER_STATS, -1);
    case INSTRUCTION_ZERO: {
        bool local = v->plan->options.accumulation == ACCUMULATION_LOCAL;
        if (in->source != -1) return validate_fail(v, i, "has a source");
        return validate_unit_buffer(v, i, in->target,
                                 local ? written_class(v, in->unit) : BUFFER_ACCUMULATED, in->unit);
    }
    case INSTRUCTION_MOMENTUM:
        TRY(validate_unit_buffer(v, i, in->source, final_class(v, in->unit), in->unit));
        return validate_unit_buffer(v, i, in->target, final_class(v, in->unit), in->unit);
    case INSTRUCTION_SQUARES:
        TRY(validate_unit_buffer(v, i, in->source, final_class(v, in->unit), in->unit));
        return validate_unit_buffer(v, i, in->target, BUFFER_FACTORS, in->unit);
    case INSTRUCTION_FACTOR:
    case INSTRUCTION_GATHER_SUMS: return factors_in_place(v, i);
    case INSTRUCTION_UPDATE:
    case INSTRUCTION_SCALE:
        TRY(validate_unit_buffer(v, i, in->source, BUFFER_FACTORS, in->unit));
        return validate_unit_buffer(v, i, in->target, final_class(v, in->unit), in->unit);
    case INSTRUCTION_COLLECT:
        if (validate_factors(v, in->unit)) return factors_in_place(v, i);
        TRY(validate_unit_buffer(v, i, in->source, final_class(v, in->unit), in->unit));
        return validate_unit_buffer(v, i, in->target, BUFFER_MATRICES, in->unit);
    case INSTRUCTION_ORTHOGONALIZE:
    case INSTRUCTION_DISTRIBUTE: {
        if (validate_factors(v, in->unit)) return factors_in_place(v, i);
        enum buffer_class whole =
            validate_gathers(v, in->unit) ? BUFFER_MATRICES : final_class(v, in->unit);
        bool here = in->kind == INSTRUCTION_ORTHOGONALIZE;
        TRY(validate_unit_buffer(v, i, in->source, whole, in->unit));
        return validate_unit_buffer(v, i, in->target, here ? whole : final_class(v, in->unit),
                                 in->unit);
    }
    case INSTRUCTION_OPTIMIZER:
        TRY(validate_unit_buffer(v, i, in->source,
                              validate_offloads(v, in->unit) ? BUFFER_HOST_GRADIENT
                                                             : final_class(v, in->unit),
                              in->unit));
        return validate_unit_buffer(v, i, in->target, BUFFER_SHARD, in->unit);
    default: return NULL;
    }
}

/* Checks that a value is in the right buffer, at the right offset, and ends inside it. */
status_t validate_value(const struct validator *v, int i, int value)
{
    const struct graph_value *it = &v->graph->values[value];
    int buffer = v->program->buffer_of_value[value];
    if (buffer < 0 || buffer >= v->program->buffer_count)
        return validate_fail(v, i, "touches %s, which has no buffer", it->name);
    const struct plan_buffer *found = &v->program->buffers[buffer];
    uint64_t offset = v->program->offset_of_value[value], bytes = tensor_bytes(&it->type), end;
    if (__builtin_add_overflow(offset, bytes, &end) || end > found->bytes)
        return validate_fail(v, i, "touches %s, which leaves its buffer %d", it->name, buffer);
    int unit = -1, expected = -1;
    uint64_t place = 0;
    switch (it->kind) {
    case VALUE_INPUT:
    case VALUE_TARGET:
    case VALUE_STARTS:
    case VALUE_REFERENCE: expected = BUFFER_BATCH; break;
    case VALUE_LOGITS: expected = BUFFER_LOGITS; break;
    case VALUE_CACHE: expected = BUFFER_CACHE; break;
    case VALUE_LOSS:
    case VALUE_CORRECT:
    case VALUE_TALLY:
    case VALUE_PREFERENCE:
        expected = BUFFER_STATS;
        place = 4 * (it->kind == VALUE_LOSS         ? PLAN_STAT_LOSS
                     : it->kind == VALUE_CORRECT    ? PLAN_STAT_CORRECT
                     : it->kind == VALUE_PREFERENCE ? PLAN_STAT_PREFERENCE
                                                    : PLAN_STATS_COUNT);
        break;
    case VALUE_PARAMETER:
    case VALUE_PARAMETER_GRADIENT:
    case VALUE_BUFFER: {
        int owner = validate_owner(v, value);
        unit = v->plan->units->unit_of_parameter[owner];
        const struct flat_parameter *flat = &v->plan->units->units[unit].flat;
        int at = 0;
        while (at < flat->parameter_count && flat->parameters[at] != owner) at++;
        if (at == flat->parameter_count)
            return validate_fail(v, i, "uses %s, which its unit does not hold", it->name);
        bool low = it->kind == VALUE_PARAMETER && validate_low(v, unit);
        if (it->type.dtype != (low ? DTYPE_BF16 : DTYPE_F32))
            return validate_fail(v, i, "touches %s, which lies there as another type", it->name);
        place = (uint64_t)flat->offsets[at] * (low ? 2 : 4);
        if (it->kind == VALUE_PARAMETER)
            expected = validate_fetches(v, unit) || validate_held(v, unit) ? BUFFER_GATHERED
                       : validate_rounds(v, unit)                          ? BUFFER_ROUNDED
                                                                           : BUFFER_SHARD;
        else if (it->kind == VALUE_BUFFER) expected = BUFFER_SHARD;
        else expected = (int)written_class(v, unit);
        break;
    }
    case VALUE_ACTIVATION:
    case VALUE_GRADIENT: return NULL;
    }
    bool batch = graph_is_batch(it->kind);
    if (it->kind == VALUE_CACHE && found->bytes != bytes)
        return validate_fail(v, i, "touches %s in a buffer of %llu bytes", it->name,
                             (unsigned long long)found->bytes);
    if ((int)found->class != expected || found->unit != unit || offset != place ||
        (batch && found->value != value))
        return validate_fail(v, i,
                             "touches %s at byte %llu of buffer %d (%s); expected byte %llu "
                             "of its %s",
                             it->name, (unsigned long long)offset, buffer,
                             plan_buffer_class_name(found->class), (unsigned long long)place,
                             plan_buffer_class_name(expected));
    return NULL;
}
