/*
 * The plan's fingerprint, which ranks compare before the first step. It covers everything that must
 * be equal on all ranks and nothing that may differ (the rank, a host's scratch sizes, layouts,
 * offsets; but it does cover the offsets of collectives' buffers if these are registered). 64-bit
 * FNV-1a over fields, never over raw structs. Pure functions; any thread.
 */
#include <string.h>

#include "fsdp/plan_internal.h"
#include "ops/op_attributes.h"

static void hash_u64(uint64_t *hash, uint64_t value)
{
    for (int i = 0; i < 8; i++) {
        *hash ^= (value >> (8 * i)) & 0xff;
        *hash *= UINT64_C(0x100000001b3);
    }
}

static void hash_text(uint64_t *hash, const char *text)
{
    size_t length = strlen(text);
    hash_u64(hash, length);
    for (size_t i = 0; i < length; i++) {
        *hash ^= (unsigned char)text[i];
        *hash *= UINT64_C(0x100000001b3);
    }
}

static void hash_type(uint64_t *hash, const struct tensor_type *type)
{
    hash_u64(hash, type->dtype);
    hash_u64(hash, (uint64_t)type->dim_count);
    for (int i = 0; i < type->dim_count; i++) hash_u64(hash, (uint64_t)type->dims[i]);
}

static void hash_attrs(uint64_t *hash, const struct graph_op *op)
{
    const struct op_attribute *attribute = op_info_get(op->kind)->attributes;
    for (; attribute != NULL && attribute->name != NULL; attribute++)
        for (int64_t i = 0; i < op_attribute_count(attribute, &op->attrs); i++)
            hash_u64(hash, op_attribute_bits(attribute, &op->attrs, i));
}

static void hash_place(uint64_t *hash, const struct plan_program *program, int buffer)
{
    if (buffer < 0) return;
    hash_u64(hash, program->buffers[buffer].arena);
    hash_u64(hash, program->buffers[buffer].offset);
}

static void hash_program(uint64_t *hash, const struct plan_program *program, bool places)
{
    const struct graph *graph = program->graph;
    for (int i = 0; i < program->instruction_count; i++) {
        const struct plan_instruction *instruction = &program->instructions[i];
        if (instruction->lane != LANE_COMM) continue;
        hash_u64(hash, instruction->kind);
        hash_u64(hash, (uint64_t)instruction->unit);
        hash_u64(hash, instruction->group);
        hash_u64(hash, (uint64_t)instruction->from);
        hash_u64(hash, (uint64_t)instruction->count);
        if (places) hash_place(hash, program, instruction->source);
        if (places) hash_place(hash, program, instruction->target);
    }
    if (graph == NULL) return;
    for (int o = 0; o < graph->op_count; o++) {
        const struct graph_op *op = &graph->ops[o];
        hash_u64(hash, op->kind);
        hash_attrs(hash, op);
        const struct op_info *info = op_info_get(op->kind);
        for (int i = 0; i < info->input_count; i++) hash_u64(hash, (uint64_t)op->inputs[i]);
        for (int i = 0; i < info->output_count; i++) {
            hash_u64(hash, (uint64_t)op->outputs[i]);
            hash_u64(hash, op->accumulate[i]);
        }
    }
    for (int v = 0; v < graph->value_count; v++) hash_type(hash, &graph->values[v].type);
}

uint64_t plan_compute_hash(const struct plan *plan)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    const struct plan_options *options = &plan->options;
    hash_u64(&hash, (uint64_t)options->world);
    hash_u64(&hash, options->strategy);
    hash_u64(&hash, options->reshard);
    if (options->reshard == RESHARD_GROUP) hash_u64(&hash, (uint64_t)options->reshard_ranks);
    hash_u64(&hash, options->bucket_bytes);
    hash_u64(&hash, options->backward_prefetch);
    hash_u64(&hash, options->forward_prefetch);
    hash_u64(&hash, (uint64_t)options->gathered_limit);
    if (options->gathered_dtype != DTYPE_F32 || options->reduce_dtype != DTYPE_F32) {
        hash_u64(&hash, options->gathered_dtype);
        hash_u64(&hash, options->reduce_dtype);
    }
    hash_u64(&hash, options->optimizer);
    hash_u64(&hash, (uint64_t)options->optimizer_slots);
    if (options->matrix_of_parameter != NULL) {
        hash_u64(&hash, options->others);
        hash_u64(&hash, (uint64_t)options->ns_steps);
        for (int m = 0; m < plan->matrix_count; m++) {
            hash_u64(&hash, (uint64_t)plan->matrices[m].parameter);
            hash_u64(&hash, (uint64_t)plan->matrices[m].owner);
        }
    }
    if (options->averages) hash_u64(&hash, options->averages);
    if (options->rounded) hash_u64(&hash, UINT64_C(1) << 24);
    if (options->state != STATE_F32) hash_u64(&hash, (uint64_t)options->state << 16);
    if (options->accumulation != ACCUMULATION_NONE) {
        hash_u64(&hash, options->accumulation);
        hash_u64(&hash, options->micro_steps);
    }
    if (options->lent != LENT_NOTHING) hash_u64(&hash, (uint64_t)options->lent << 24);
    if (options->holds) hash_u64(&hash, UINT64_C(1) << 32);
    if (options->norm != NORM_NONE) hash_u64(&hash, (uint64_t)options->norm << 8);
    for (int u = 0; u < plan->units->unit_count; u++)
        if (plan_offloads(plan, u)) hash_u64(&hash, UINT64_C(1) << 32 | (uint64_t)u);
    const struct model *model = plan->model;
    for (int p = 0; p < model->parameter_count; p++) {
        const struct parameter *parameter = &model->parameters[p];
        hash_text(&hash, parameter->name);
        hash_type(&hash, &parameter->type);
        hash_u64(&hash, parameter->trainable);
        if (options->group_of_parameter != NULL)
            hash_u64(&hash, (uint64_t)options->group_of_parameter[p]);
        hash_u64(&hash, (uint64_t)parameter->tied_to);
    }
    for (int u = 0; u < plan->units->unit_count; u++) {
        const struct unit *unit = &plan->units->units[u];
        hash_text(&hash, unit->name);
        hash_u64(&hash, (uint64_t)unit->shard_world);
        hash_u64(&hash, unit->reshard);
        if (unit->reshard == RESHARD_GROUP) hash_u64(&hash, (uint64_t)unit->reshard_ranks);
        if (unit->param_dtype != UNIT_DTYPE_DEFAULT || unit->reduce_dtype != UNIT_DTYPE_DEFAULT)
            hash_u64(&hash, (uint64_t)unit->param_dtype << 8 | unit->reduce_dtype);
        if (unit->flat.slots.base != BASE_F32) hash_u64(&hash, unit->flat.slots.base);
        hash_u64(&hash, (uint64_t)unit->flat.padded);
        hash_u64(&hash, (uint64_t)unit->flat.shard);
        for (int i = 0; i < unit->flat.parameter_count; i++) {
            hash_u64(&hash, (uint64_t)unit->flat.parameters[i]);
            hash_u64(&hash, (uint64_t)unit->flat.offsets[i]);
        }
    }
    hash_program(&hash, &plan->train, options->register_buffers);
    hash_program(&hash, &plan->accumulate, options->register_buffers);
    hash_program(&hash, &plan->evaluate, options->register_buffers);
    if (plan->hold.graph != NULL) hash_program(&hash, &plan->hold, options->register_buffers);
    return hash;
}
