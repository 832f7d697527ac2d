/*
 * From the program to a graph: every call gets its shapes, is checked (op_desc_check), and becomes
 * an op; what does nothing at these options (dropout in evaluation, flatten of what is flat)
 * becomes none. Then fusion, dropping, gradients.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/graph_builder.h"
#include "model/program.h"

struct forward {
    struct graph_builder builder;
    const struct model *model;
    const struct graph_options *options;
    int *value_of;           /* by program value */
    int *value_of_parameter; /* by parameter; -1 before its first use */
};

/* "net.yaml:12: module conv2: ..." */
static status_t wrap_call(const struct forward *forward, const struct program_call *call,
                          status_t status)
{
    if (!status) return NULL;
    const char *path = forward->model->modules[call->module].path;
    if (call->leaf) status = status_wrap(status, "module %s", path);
    else if (*path) status = status_wrap(status, "in %s", path);
    return status_wrap(status, "%s:%d", forward->model->program->file_name, call->line);
}

static int parameter_value(struct forward *forward, int parameter)
{
    if (parameter < 0) return -1;
    const struct parameter *parameters = forward->model->parameters;
    if (parameters[parameter].tied_to >= 0) parameter = parameters[parameter].tied_to;
    int *value = &forward->value_of_parameter[parameter];
    if (*value < 0) {
        *value = builder_add_value(&forward->builder, VALUE_PARAMETER, &parameters[parameter].type,
                                   mem_strdup(parameters[parameter].name));
        forward->builder.graph->values[*value].parameter = parameter;
    }
    return *value;
}

/* A dimension counted from the end if negative; -1 if there is none such. */
static int normal_dim(int dim, int dim_count)
{
    if (dim < 0) dim += dim_count;
    return dim >= 0 && dim < dim_count ? dim : -1;
}

static status_t flatten_shape(const struct layer *layer, const struct tensor_type *x,
                              struct tensor_type *y)
{
    int start = normal_dim(layer->start_dim, x->dim_count);
    int end = normal_dim(layer->end_dim, x->dim_count);
    char shape[128];
    if (start == 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "flatten: start_dim=%d would join the batch dimension of %s; use "
                          "start_dim=1",
                          layer->start_dim, tensor_format_shape(x, shape));
    if (start < 0 || end < start)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "flatten: start_dim=%d, end_dim=%d do not name dimensions of %s",
                          layer->start_dim, layer->end_dim, tensor_format_shape(x, shape));
    struct tensor_type made = {.dtype = x->dtype, .dim_count = x->dim_count - (end - start)};
    for (int i = 0, out = 0; i < x->dim_count; i++) {
        bool joined = i > start && i <= end;
        if (joined) made.dims[out - 1] *= x->dims[i];
        else made.dims[out++] = x->dims[i];
    }
    *y = made;
    return NULL;
}

/*
 * The shape of a window op's output. Where the input cannot be taken at all, some shape: the check
 * of the whole op then says why.
 */
static struct tensor_type window_shape(const struct tensor_type *x, int64_t channels,
                                       const int64_t kernel[2], const int64_t stride[2],
                                       const int64_t padding[2], const int64_t dilation[2])
{
    struct tensor_type y = *x;
    if (x->dim_count != 4) return y;
    y.dims[1] = channels;
    for (int i = 0; i < 2; i++) {
        int64_t size =
            op_window_output(x->dims[2 + i], kernel[i], stride[i], padding[i], dilation[i]);
        y.dims[2 + i] = size > 0 ? size : 1;
    }
    return y;
}

static status_t output_shape(const struct forward *forward, const struct program_call *call,
                             const struct tensor_type *x, struct tensor_type *y)
{
    const struct layer *layer = &call->layer;
    const struct tensor_type *weight =
        call->weight >= 0 ? &forward->model->parameters[call->weight].type : NULL;
    *y = *x;
    switch (layer->kind) {
    case OP_CONV2D:
        *y = window_shape(x, weight->dims[0], weight->dims + 2, layer->attrs.conv.stride,
                          layer->attrs.conv.padding, layer->attrs.conv.dilation);
        return NULL;
    case OP_MAX_POOL2D:
        *y = window_shape(x, x->dims[1], layer->attrs.pool.kernel, layer->attrs.pool.stride,
                          layer->attrs.pool.padding, (int64_t[]){1, 1});
        return NULL;
    case OP_LINEAR: y->dims[x->dim_count - 1] = weight->dims[0]; return NULL;
    case OP_RESHAPE: return flatten_shape(layer, x, y);
    case OP_LOG_SOFTMAX:
        if (normal_dim(layer->dim, x->dim_count) != x->dim_count - 1) {
            char shape[128];
            return status_new(STATUS_INVALID_ARGUMENT,
                              "log_softmax: dim=%d is not the last dimension of %s", layer->dim,
                              tensor_format_shape(x, shape));
        }
        return NULL;
    default: return NULL;
    }
}

static bool does_nothing(const struct forward *forward, const struct layer *layer,
                         const struct tensor_type *x, const struct tensor_type *y)
{
    if (layer->kind == OP_DROPOUT)
        return !forward->options->train || !forward->options->dropout ||
               layer->attrs.dropout.p == 0;
    return layer->kind == OP_RESHAPE && tensor_same_shape(x, y);
}

static status_t check_last_op(const struct forward *forward, const struct program_call *call)
{
    const struct graph *graph = forward->builder.graph;
    struct op_desc desc;
    graph_describe_op(graph, graph->op_count - 1, &desc);
    return wrap_call(forward, call, op_desc_check(&desc));
}

static status_t add_call(struct forward *forward, const struct program_call *call, int *result)
{
    struct graph_builder *builder = &forward->builder;
    int inputs[OP_MAX_INPUTS];
    for (int i = 0; i < OP_MAX_INPUTS; i++) inputs[i] = -1;
    for (int i = 0; i < 2; i++)
        if (call->inputs[i] >= 0) inputs[i] = forward->value_of[call->inputs[i]];
    const struct tensor_type x = builder->graph->values[inputs[0]].type;
    struct tensor_type y;
    TRY(wrap_call(forward, call, output_shape(forward, call, &x, &y)));
    if (does_nothing(forward, &call->layer, &x, &y)) {
        *result = inputs[0];
        return NULL;
    }
    if (call->weight >= 0) {
        inputs[1] = parameter_value(forward, call->weight);
        inputs[2] = parameter_value(forward, call->bias);
    }
    struct graph_op *op = builder_add_op(builder, call->layer.kind, &call->layer.attrs,
                                         call->module, mem_strdup(call->name));
    memcpy(op->inputs, inputs, sizeof inputs);
    *result = builder_add_value(builder, VALUE_ACTIVATION, &y, mem_printf("%s.output", call->name));
    builder_set_output(builder, 0, *result);
    return check_last_op(forward, call);
}

static status_t check_output(const struct forward *forward, const struct program_call *call,
                             const struct tensor_type *output)
{
    struct tensor_type expected =
        tensor_type_make(DTYPE_F32, 2,
                         (int64_t[]){forward->options->batch_size, forward->model->class_count});
    if (tensor_same_shape(output, &expected)) return NULL;
    char found[128], wanted[128];
    return wrap_call(forward, call,
                     status_new(STATUS_INVALID_ARGUMENT,
                                "%s: input is %s, but with classes: %lld it must be %s", call->name,
                                tensor_format_shape(output, found),
                                (long long)forward->model->class_count,
                                tensor_format_shape(&expected, wanted)));
}

static status_t add_loss(struct forward *forward, const struct program_call *call)
{
    struct graph_builder *builder = &forward->builder;
    struct graph *graph = builder->graph;
    int input = forward->value_of[call->inputs[0]];
    const struct tensor_type type = graph->values[input].type;
    TRY(check_output(forward, call, &type));
    struct graph_op *op =
        builder_add_op(builder, call->layer.kind, &call->layer.attrs, 0, mem_strdup(call->name));
    op->inputs[0] = input;
    op->inputs[1] = graph->target;
    struct tensor_type one = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    graph->loss = builder_add_value(builder, VALUE_LOSS, &one, mem_strdup("loss"));
    builder_set_output(builder, 0, graph->loss);
    if (call->layer.kind == OP_CROSS_ENTROPY)
        builder_set_output(builder, 1,
                           builder_add_value(builder, VALUE_ACTIVATION, &type,
                                             mem_printf("%s.output", call->name)));
    return check_last_op(forward, call);
}

/* Counts on the log-probabilities, or whatever else the loss was given. */
static void add_count(struct forward *forward)
{
    struct graph_builder *builder = &forward->builder;
    struct graph *graph = builder->graph;
    const struct graph_op *loss = &graph->ops[graph->values[graph->loss].producer];
    int scores = loss->kind == OP_CROSS_ENTROPY ? loss->outputs[1] : loss->inputs[0];
    struct graph_op *op = builder_add_op(builder, OP_COUNT_CORRECT, &(union op_attrs){0}, 0,
                                         mem_strdup("count_correct"));
    op->inputs[0] = scores;
    op->inputs[1] = graph->target;
    struct tensor_type one = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    graph->correct = builder_add_value(builder, VALUE_CORRECT, &one, mem_strdup("correct"));
    builder_set_output(builder, 0, graph->correct);
}

static status_t add_inputs(struct forward *forward)
{
    struct graph_builder *builder = &forward->builder;
    const struct tensor_type *sample = &forward->model->input;
    struct tensor_type input = {.dtype = sample->dtype, .dim_count = sample->dim_count + 1};
    input.dims[0] = forward->options->batch_size;
    memcpy(input.dims + 1, sample->dims, (size_t)sample->dim_count * sizeof *sample->dims);
    if (tensor_element_count(&input) < 0) {
        char shape[128];
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: a batch of %lld samples of %s: every dimension must be positive and "
                          "all together at most 2^40 elements",
                          forward->model->program->file_name,
                          (long long)forward->options->batch_size,
                          tensor_format_shape(sample, shape));
    }
    struct tensor_type target = tensor_type_make(DTYPE_I32, 1, input.dims);
    builder->graph->input = builder_add_value(builder, VALUE_INPUT, &input, mem_strdup("input"));
    builder->graph->target =
        builder_add_value(builder, VALUE_TARGET, &target, mem_strdup("target"));
    return NULL;
}

static status_t build_forward(struct forward *forward)
{
    const struct model_program *program = forward->model->program;
    struct graph *graph = forward->builder.graph;
    TRY(add_inputs(forward));
    forward->value_of[0] = graph->input;
    for (int i = 0; i + 1 < program->call_count; i++)
        TRY(add_call(forward, &program->calls[i], &forward->value_of[i + 1]));
    TRY(add_loss(forward, &program->calls[program->call_count - 1]));

    /* Twice: what nothing needs must be gone before uses are counted, or it would prevent fusion.
     */
    bool *dead = mem_alloc_array((size_t)graph->op_count + 1, sizeof *dead);
    graph_compact(graph, dead);
    graph_fuse(graph, dead);
    if (forward->options->count_correct) add_count(forward);
    graph_compact(graph, dead);
    free(dead);
    graph_lower_precision(&forward->builder, forward->options);
    graph->forward_op_count = graph->op_count;
    return NULL;
}

status_t graph_build(const struct model *model, const struct graph_options *options,
                     struct graph **graph)
{
    struct graph *made = mem_alloc(sizeof *made);
    made->model = model;
    made->loss = made->correct = -1;
    struct forward forward = {.builder = {.graph = made}, .model = model, .options = options};
    size_t values = (size_t)model->program->call_count + 1;
    size_t parameters = (size_t)model->parameter_count;
    forward.value_of = mem_alloc_array(values, sizeof *forward.value_of);
    forward.value_of_parameter = mem_alloc_array(parameters, sizeof *forward.value_of_parameter);
    for (size_t i = 0; i < parameters; i++) forward.value_of_parameter[i] = -1;
    status_t status = build_forward(&forward);
    if (!status && options->train) status = graph_add_gradients(&forward.builder, options);
    if (!status && options->train) status = graph_checkpoint(&forward.builder, options);
    free(forward.value_of);
    free(forward.value_of_parameter);
    if (status) {
        graph_free(made);
        return status;
    }
    *graph = made;
    return NULL;
}
