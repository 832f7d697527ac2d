/*
 * The plan's fingerprint, which ranks compare before the first step: everything that must be equal
 * on all of them, and nothing that may differ (the rank, a host's scratch sizes, layouts, offsets;
 * but those of collectives' buffers must be equal where these are registered).
 * 64-bit FNV-1a, fed with fields, never with raw structs. Pure functions; any thread.
 */
#include <string.h>

#include "fsdp/plan_internal.h"

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

static void hash_real(uint64_t *hash, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    hash_u64(hash, bits);
}

static void hash_attrs(uint64_t *hash, const struct graph_op *op)
{
    const union op_attrs *attrs = &op->attrs;
    switch (op->kind) {
    case OP_CONV2D:
    case OP_CONV2D_BACKWARD_DATA:
    case OP_CONV2D_BACKWARD_WEIGHTS:
        for (int i = 0; i < 2; i++) {
            hash_u64(hash, (uint64_t)attrs->conv.stride[i]);
            hash_u64(hash, (uint64_t)attrs->conv.padding[i]);
            hash_u64(hash, (uint64_t)attrs->conv.dilation[i]);
        }
        hash_u64(hash, (uint64_t)attrs->conv.groups);
        hash_u64(hash, attrs->conv.activation);
        break;
    case OP_LINEAR:
    case OP_LINEAR_BACKWARD_DATA:
        hash_u64(hash, attrs->linear.activation);
        hash_u64(hash, attrs->linear.transposed);
        break;
    case OP_MAX_POOL2D:
    case OP_MAX_POOL2D_BACKWARD:
        for (int i = 0; i < 2; i++) {
            hash_u64(hash, (uint64_t)attrs->pool.kernel[i]);
            hash_u64(hash, (uint64_t)attrs->pool.stride[i]);
            hash_u64(hash, (uint64_t)attrs->pool.padding[i]);
        }
        break;
    case OP_DROPOUT:
    case OP_DROPOUT_BACKWARD:
        hash_real(hash, attrs->dropout.p);
        hash_u64(hash, attrs->dropout.stream);
        break;
    case OP_NLL_LOSS:
    case OP_NLL_LOSS_BACKWARD:
    case OP_CROSS_ENTROPY:
    case OP_CROSS_ENTROPY_BACKWARD:
    case OP_LINEAR_CROSS_ENTROPY:
    case OP_LINEAR_CROSS_ENTROPY_BACKWARD: hash_u64(hash, attrs->loss.reduction); break;
    case OP_GELU:
    case OP_GELU_BACKWARD: hash_u64(hash, attrs->gelu.tanh); break;
    case OP_EMBEDDING:
    case OP_EMBEDDING_BACKWARD: hash_u64(hash, (uint64_t)attrs->embedding.padding_index); break;
    case OP_ARANGE:
        hash_u64(hash, (uint64_t)attrs->arange.start);
        hash_u64(hash, (uint64_t)attrs->arange.step);
        break;
    case OP_PADDING_MASK: hash_u64(hash, (uint64_t)attrs->padding_mask.id); break;
    case OP_LAYER_NORM:
    case OP_LAYER_NORM_BACKWARD:
    case OP_RMS_NORM:
    case OP_RMS_NORM_BACKWARD: hash_real(hash, attrs->norm.eps); break;
    case OP_ROPE:
    case OP_ROPE_BACKWARD:
        hash_u64(hash, (uint64_t)attrs->rope.head_dim);
        hash_real(hash, attrs->rope.theta);
        hash_u64(hash, attrs->rope.scaling);
        hash_real(hash, attrs->rope.factor);
        hash_real(hash, attrs->rope.low_freq_factor);
        hash_real(hash, attrs->rope.high_freq_factor);
        hash_u64(hash, (uint64_t)attrs->rope.original_context);
        break;
    case OP_ATTENTION:
    case OP_ATTENTION_BACKWARD:
        hash_u64(hash, (uint64_t)attrs->attention.heads);
        hash_u64(hash, (uint64_t)attrs->attention.kv_heads);
        hash_u64(hash, attrs->attention.causal);
        hash_real(hash, attrs->attention.scale);
        hash_real(hash, attrs->attention.p);
        hash_u64(hash, attrs->attention.stream);
        break;
    default: break;
    }
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
    if (options->accumulation != ACCUMULATION_NONE) {
        hash_u64(&hash, options->accumulation);
        hash_u64(&hash, options->micro_steps);
    }
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
    return hash;
}

/* An all_reduce in which each rank sums one slice of ceil(elements / world), the last ones shorter,
 * and sends it, in f32, to all the others; `size` is of an element of what is summed. */
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
        return elements * plan_parameter_size(plan, instruction->unit) * (world - 1);
    case INSTRUCTION_REDUCE_SCATTER: return elements * size * (world - 1);
    case INSTRUCTION_ALL_REDUCE: return all_reduce_bytes(elements, size, world, rank);
    case INSTRUCTION_REDUCE_STATS: return all_reduce_bytes(elements, sizeof(float), world, rank);
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
