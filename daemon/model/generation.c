/* Graphs that continue sequences; see generation.h. Pure. */
#include "model/generation.h"

#include <inttypes.h>

#include "base/mem.h"

status_t generation_check(const struct model *model, const struct graph_options *options)
{
    const char *file = model->program->file_name;
    if (!model->tokens || model->target != TARGET_TOKEN || model->texts != 1)
        return status_new(STATUS_UNIMPLEMENTED,
                          "%s: tokens can only be drawn from a model whose targets are the next "
                          "tokens",
                          file);
    if (options->train || options->cache > model->context || options->cache < options->time)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: sequences of %" PRId64 " tokens: the model takes %" PRId64
                          " to %" PRId64,
                          file, options->cache, options->time, model->context);
    for (int i = 0; i < model->program->call_count; i++) {
        const struct program_call *call = &model->program->calls[i];
        const char *why = NULL;
        if (call->other) continue;
        if (call->layer.kind == OP_TOKEN_POSITIONS) why = "token_positions() counts earlier tokens";
        if (call->layer.kind == OP_ATTENTION && !call->reads) {
            if (!call->layer.attrs.attention.causal) why = "attention() also sees later tokens";
            else if (call->inputs[3] >= 0 || call->inputs[4] >= 0)
                why = "attention() with a mask or a bias has no cache yet";
        }
        if (why != NULL)
            return status_new(STATUS_UNIMPLEMENTED,
                              "%s:%d: %s: its sequences cannot be continued token by token", file,
                              call->line, why);
    }
    return NULL;
}

int generation_head(const struct model_program *program)
{
    int value = program->calls[program->call_count - 1].inputs[0];
    while (value > 0 && !program->calls[value - 1].reads) {
        if (program->calls[value - 1].layer.kind == OP_LINEAR) return value - 1;
        value = program->calls[value - 1].inputs[0];
    }
    return -1;
}

void generation_select(struct graph_builder *builder, int *value)
{
    struct graph *graph = builder->graph;
    const struct tensor_type x = graph->values[*value].type;
    if (x.dim_count != 3) return; /* generation_set_logits refuses */
    struct tensor_type chosen = graph->values[graph->target].type;
    chosen.dtype = DTYPE_U8;
    struct graph_op *op =
        builder_add_op(builder, OP_PADDING_MASK, &(union op_attrs){.padding_mask.id = -1}, 0,
                       mem_strdup("chosen"));
    op->inputs[0] = graph->target;
    int mask = builder_add_value(builder, VALUE_ACTIVATION, &chosen, mem_strdup("chosen"));
    builder_set_output(builder, 0, mask);
    op = builder_add_op(builder, OP_MEAN, &(union op_attrs){.mean = {.dim = 1, .last = true}}, 0,
                        mem_strdup("chosen.rows"));
    op->inputs[0] = *value;
    op->inputs[1] = mask;
    struct tensor_type rows = tensor_type_make(x.dtype, 2, (int64_t[]){x.dims[0], x.dims[2]});
    *value = builder_add_value(builder, VALUE_ACTIVATION, &rows, mem_strdup("chosen.rows"));
    builder_set_output(builder, 0, *value);
}

void generation_add_cache(struct graph_builder *builder, const struct graph_options *options)
{
    const struct graph *graph = builder->graph;
    const struct graph_op op = graph->ops[graph->op_count - 1];
    if (op.kind != OP_ATTENTION) return;
    int64_t heads = op.attrs.attention.heads, kv_heads = op.attrs.attention.kv_heads;
    struct tensor_type type = graph->values[op.inputs[0]].type;
    bool packed = op.inputs[1] < 0;
    int64_t window = op.attrs.attention.window, ring = window + options->cache_rows;
    bool keeps_window = window > 0 && options->cache_rows > 0 && ring < options->cache;
    type.dims[1] = keeps_window ? ring : options->cache;
    type.dims[2] = type.dims[2] / (packed ? heads + 2 * kv_heads : heads) * kv_heads;
    static const char *const names[] = {"keys", "values"};
    for (int i = 0; i < 2; i++)
        builder_set_output(builder, 2 + i,
                           builder_add_value(builder, VALUE_CACHE, &type,
                                             mem_printf("%s.%s", op.name, names[i])));
}

status_t generation_set_logits(struct graph *graph, const struct graph_options *options, int logits)
{
    const struct model *model = graph->model;
    struct graph_value *value = &graph->values[logits];
    struct tensor_type expected =
        tensor_type_make(DTYPE_F32, 2, (int64_t[]){graph_samples(graph), model->class_count});
    if (options->every_row)
        expected =
            tensor_type_make(DTYPE_F32, 3,
                             (int64_t[]){graph_samples(graph), options->time, model->class_count});
    char found[128];
    if (value->kind != VALUE_ACTIVATION || !tensor_same_shape(&value->type, &expected))
        return status_new(STATUS_UNIMPLEMENTED,
                          "%s: the logits %s are not those of a linear layer at the model's end, "
                          "so tokens cannot be drawn",
                          model->program->file_name, tensor_format_shape(&value->type, found));
    value->kind = VALUE_LOGITS;
    graph->logits = logits;
    return NULL;
}

/* Whether the op moves elements over rows or sequences. */
static bool crosses_rows(const struct graph *graph, const struct graph_op *op)
{
    switch (op->kind) {
    case OP_SLICE: return op->attrs.slice.dim < 2;
    case OP_CONCAT: return op->attrs.concat.dim < 2;
    case OP_TRANSPOSE: return op->attrs.transpose.dims[0] < 2;
    case OP_MEAN: return !op->attrs.mean.last && op->attrs.mean.dim < 2;
    case OP_MEAN_BACKWARD: return op->attrs.mean.dim < 2;
    case OP_MATMUL: return graph->values[op->inputs[1]].type.dim_count > 2;
    case OP_RECURRENT:
    case OP_MAX_POOL2D:
    case OP_DISTANCE_BUCKETS: return true;
    default: return false;
    }
}

status_t generation_check_ops(const struct graph *graph, const struct graph_options *options)
{
    for (int i = 0; i < graph->op_count; i++) {
        const struct graph_op *op = &graph->ops[i];
        if (crosses_rows(graph, op))
            return status_new(STATUS_UNIMPLEMENTED,
                              "%s: %s puts tokens of a window together, so sequences cannot be "
                              "continued token by token",
                              graph->model->program->file_name, op->name);
        if (op->kind == OP_ROPE && op->attrs.rope.scaling == ROPE_SCALING_LONGROPE &&
            options->cache > op->attrs.rope.original_context)
            return status_new(STATUS_UNIMPLEMENTED,
                              "%s: %s turns all tokens by other angles from %" PRId64
                              " tokens on, so sequences are at most that long, not %" PRId64,
                              graph->model->program->file_name, op->name,
                              op->attrs.rope.original_context, options->cache);
    }
    return NULL;
}
