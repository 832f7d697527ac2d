/*
 * Turns the program into a graph. Every call gets its shapes, is checked (op_desc_check), and
 * becomes an op, unless it has no effect with these options (dropout in evaluation, flatten of a
 * flat tensor). Fusion, the removal of unused ops, and gradients follow.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/forward.h"
#include "model/generation.h"
#include "model/layers_internal.h"
#include "model/program.h"

status_t forward_wrap(const struct forward *forward, const struct program_call *call,
                      status_t status)
{
    if (!status) return NULL;
    const char *path = forward->model->modules[call->module].path;
    if (call->leaf) status = status_wrap(status, "module %s", path);
    else if (*path) status = status_wrap(status, "in %s", path);
    return status_wrap(status, "%s:%d", forward->model->program->file_name, call->line);
}

/* A parameter as `seen`, a type of as many elements; NULL: its own. */
static int parameter_value(struct forward *forward, int parameter, const struct tensor_type *seen)
{
    if (parameter < 0) return -1;
    const struct parameter *parameters = forward->model->parameters;
    if (parameters[parameter].tied_to >= 0) parameter = parameters[parameter].tied_to;
    int *value = &forward->value_of_parameter[parameter];
    if (*value < 0) {
        if (seen == NULL) seen = &parameters[parameter].type;
        *value = builder_add_value(&forward->builder, VALUE_PARAMETER, seen,
                                   mem_strdup(parameters[parameter].name));
        forward->builder.graph->values[*value].parameter = parameter;
    }
    return *value;
}

static bool drops(const struct forward *forward)
{
    return forward->options->train && forward->options->dropout;
}

static bool does_nothing(const struct forward *forward, const struct layer *layer,
                         const struct tensor_type *x, const struct tensor_type *y)
{
    if (layer->kind == OP_DROPOUT)
        return !layer->attrs.dropout.normal && (!drops(forward) || layer->attrs.dropout.p == 0);
    if (layer->kind == OP_SCALE)
        return layer->attrs.scale.factor == 1 && layer->attrs.scale.offset == 0;
    return layer->kind == OP_RESHAPE && tensor_same_shape(x, y);
}

/* The op's attributes: those of dropout stay 0 unless the graph drops anything. */
static union op_attrs attributes(const struct forward *forward, const struct layer *layer)
{
    union op_attrs attrs = layer->attrs;
    if (layer->kind == OP_ATTENTION && (!drops(forward) || attrs.attention.p == 0)) {
        attrs.attention.p = 0;
        attrs.attention.stream = 0;
    }
    return attrs;
}

/* Gives an op whose result depends on the documents their starts. */
static status_t add_starts(const struct graph *graph, const struct layer *layer, int *inputs)
{
    if (graph->starts < 0) return NULL;
    if (layer->kind == OP_TOKEN_POSITIONS)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "token_positions() counts through the window, so it cannot hold several "
                          "documents (data.windows: packed)");
    bool positions = layer->kind == OP_ARANGE && layer->attrs.arange.step != 0;
    if (positions || layer->kind == OP_ROPE) inputs[1] = graph->starts;
    if (layer->kind == OP_ATTENTION) inputs[5] = graph->starts;
    return NULL;
}

/* Puts the larger operand of a broadcasting sum or product first. */
static void order_operands(const struct graph *graph, enum op_kind kind, int *inputs)
{
    if ((kind != OP_ADD && kind != OP_MUL) ||
        graph->values[inputs[0]].type.dim_count >= graph->values[inputs[1]].type.dim_count)
        return;
    int smaller = inputs[0];
    inputs[0] = inputs[1];
    inputs[1] = smaller;
}

bool forward_is_constant(const struct forward *forward, int value)
{
    return value > 0 && forward->model->program->calls[value - 1].parametric; /* 0 is the input */
}

/* Adds an op of one input, of which `call` has several. */
static int add_part(struct forward *forward, const struct program_call *call, enum op_kind kind,
                    const union op_attrs *attrs, const struct tensor_type *type, int value,
                    const char *suffix)
{
    struct graph_builder *builder = &forward->builder;
    int number = builder->graph->op_count; /* makes the name unique */
    struct graph_op *op = builder_add_op(builder, kind, attrs, call->module,
                                         mem_printf("%s.%s_%d", call->name, suffix, number));
    op->inputs[0] = value;
    op->exact = call->data || call->exact;
    int made = builder_add_value(builder, VALUE_ACTIVATION, type,
                                 mem_printf("%s.%s_%d.output", call->name, suffix, number));
    builder_set_output(builder, 0, made);
    return made;
}

/* Adds `value` with dimension `dim`, of size 1, repeated `count` times; -1: a new first one. */
static int repeat_dim(struct forward *forward, const struct program_call *call, int value, int dim,
                      int64_t count)
{
    struct tensor_type part = forward->builder.graph->values[value].type, whole;
    const union op_attrs none = {0}, repeat = {.mean = {.dim = dim < 0 ? 0 : dim, .sum = true}};
    if (dim >= 0) {
        part.dim_count--;
        for (int i = dim; i < part.dim_count; i++) part.dims[i] = part.dims[i + 1];
        value = add_part(forward, call, OP_RESHAPE, &none, &part, value, "repeat");
    } else dim = 0;
    whole = part;
    for (int i = whole.dim_count++; i > dim; i--) whole.dims[i] = whole.dims[i - 1];
    whole.dims[dim] = count;
    return add_part(forward, call, OP_MEAN_BACKWARD, &repeat, &whole, value, "repeat");
}

/*
 * Repeats the dimensions of size 1 of a sum's, product's or quotient's operands, as PyTorch does;
 * and of what is taken by a mask, whose operands become of one shape.
 * With fewer dimensions only what depends on no sample may be repeated: where its first dimension
 * is the batch, this would meet another dimension.
 */
static void repeat_operands(struct forward *forward, const struct program_call *call, int *inputs)
{
    const struct graph *graph = forward->builder.graph;
    enum op_kind kind = call->layer.kind;
    if (kind != OP_ADD && kind != OP_MUL && kind != OP_DIV && kind != OP_RELU_BACKWARD) return;
    int ranks[] = {graph->values[inputs[0]].type.dim_count,
                   graph->values[inputs[1]].type.dim_count};
    for (int i = 0; i < 2; i++) {
        int from = call->inputs[i];
        bool constant = forward_is_constant(forward, from);
        int smaller = ranks[0] < ranks[1] ? inputs[0] : inputs[1];
        if (ranks[0] != ranks[1] && forward->value_of[from] == smaller && !constant) return;
    }
    for (int k = 1; k <= ranks[0] && k <= ranks[1]; k++)
        for (int i = 0; i < 2; i++) {
            const struct tensor_type *one = &graph->values[inputs[i]].type;
            const struct tensor_type *other = &graph->values[inputs[1 - i]].type;
            int64_t count = other->dims[other->dim_count - k];
            int dim = one->dim_count - k;
            bool batch = dim == 0 && one->dim_count == other->dim_count;
            if (one->dims[dim] == 1 && count > 1 && !batch)
                inputs[i] = repeat_dim(forward, call, inputs[i], dim, count);
        }
    for (int i = 0; i < 2 && kind == OP_RELU_BACKWARD; i++)
        for (int rank = ranks[i]; rank < ranks[1 - i]; rank++) {
            int64_t count = graph->values[inputs[1 - i]].type.dims[ranks[1 - i] - rank - 1];
            inputs[i] = repeat_dim(forward, call, inputs[i], -1, count);
        }
}

/* What joins rows may not join those of others. A matrix that is in each product may not be one of
 * the samples: their first dimension is the batch, and a product over it would mix them. */
static status_t check_mixing(const struct forward *forward, const struct program_call *call,
                             const int *inputs)
{
    const struct graph *graph = forward->builder.graph;
    if (call->layer.kind == OP_RECURRENT && forward->options->documents)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "an LSTM or GRU runs through the window, so it cannot hold several "
                          "documents (data.windows: packed)");
    if (call->layer.kind == OP_RELU_BACKWARD) {
        const struct tensor_type *x = &graph->values[inputs[0]].type;
        const struct tensor_type *mask = &graph->values[inputs[1]].type;
        char found[128], wanted[128];
        if (tensor_same_shape(x, mask)) return NULL;
        return status_new(STATUS_INVALID_ARGUMENT, "where: the condition is %s, the input %s",
                          tensor_format_shape(mask, wanted), tensor_format_shape(x, found));
    }
    bool draws = call->layer.kind == OP_DROPOUT && call->layer.attrs.dropout.normal;
    const struct program_call *calls = forward->model->program->calls;
    if (draws && call->inputs[0] > 0 && calls[call->inputs[0] - 1].parametric)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "randn_like: a tensor that depends on no sample; each draws by itself");
    if (call->layer.kind != OP_MATMUL) return NULL;
    bool first = graph->values[inputs[0]].type.dim_count == 2;
    bool second = graph->values[inputs[1]].type.dim_count == 2;
    bool fine = (!second || forward_is_constant(forward, call->inputs[1])) &&
                (!first || second || forward_is_constant(forward, call->inputs[0]));
    if (!second && forward->options->documents)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "matmul() of two values joins the tokens of a window, so it cannot hold "
                          "several documents (data.windows: packed)");
    if (fine) return NULL;
    return status_new(
        STATUS_INVALID_ARGUMENT,
        "matmul: a tensor of 2 dimensions, of which the first is the batch, would mix "
        "samples");
}

status_t forward_check_op(const struct forward *forward, const struct program_call *call)
{
    const struct graph *graph = forward->builder.graph;
    struct op_desc desc;
    graph_describe_op(graph, graph->op_count - 1, &desc);
    return forward_wrap(forward, call, op_desc_check(&desc));
}

/* The largest index that a value can hold, -1 for a value of unknown origin. */
static int64_t largest_index(const struct forward *forward, int value)
{
    const struct graph *graph = forward->builder.graph;
    if (value == graph->input) return forward->model->vocabulary - 1;
    const struct graph_op *op = &graph->ops[graph->values[value].producer];
    const struct tensor_type *type = &graph->values[value].type;
    int64_t last = type->dim_count > 0 ? type->dims[type->dim_count - 1] : 0;
    if (op->kind == OP_ARANGE) return op->attrs.arange.start + op->attrs.arange.step * (last - 1);
    if (op->kind == OP_DISTANCE_BUCKETS) return op->attrs.buckets.count - 1;
    if (op->kind == OP_TOKEN_POSITIONS) return op->attrs.padding_mask.id + last;
    if (op->kind == OP_TOKENS) return op->attrs.tokens.count - 1;
    return -1;
}

/* Kernels do not check indices: every index must have a row. */
static status_t check_indices(const struct forward *forward, const struct program_call *call,
                              int indices)
{
    int64_t rows = forward->model->parameters[call->weight].type.dims[0];
    int64_t largest = largest_index(forward, indices);
    if (largest < rows) return NULL;
    return forward_wrap(forward, call,
                        status_new(STATUS_INVALID_ARGUMENT,
                                   "embedding: weight has %lld rows, but indices reach %lld",
                                   (long long)rows, (long long)largest));
}

/*
 * A norm over the batch: in training it says its running statistics, otherwise it reads them. Rows
 * that fill up a short batch must not count, so there must be a target per row.
 */
static status_t check_batch_norm(const struct forward *forward, const struct program_call *call,
                                 const struct tensor_type *x)
{
    const struct graph *graph = forward->builder.graph;
    const struct tensor_type *target = &graph->values[graph->target].type;
    status_t status = NULL;
    bool fits = call->layer.line ? x->dim_count == 2 || x->dim_count == 3 : x->dim_count == 4;
    if (!fits)
        status = status_new(STATUS_INVALID_ARGUMENT, "batch_norm: input must have %s dimensions",
                            call->layer.line ? "2 or 3" : "4");
    else if (target->dtype != DTYPE_I32 || target->dim_count != 1)
        status = status_new(STATUS_UNIMPLEMENTED,
                            "batch_norm: only in a model of images with 'classes', yet");
    for (int i = 0; i < graph->op_count && status == NULL; i++)
        if (graph->ops[i].kind == OP_BATCH_NORM && graph->ops[i].module == call->module)
            status = status_new(STATUS_UNIMPLEMENTED,
                                "batch_norm: called twice; its statistics would be of either call");
    return forward_wrap(forward, call, status);
}

/* What the batch `x` is to the other ranks, and theirs, if the norm is over all ranks. */
static void add_moments(struct forward *forward, const struct program_call *call, int x,
                        int *inputs)
{
    struct graph_builder *builder = &forward->builder;
    int64_t world = forward->options->world, size = 1 + 2 * builder->graph->values[x].type.dims[1];
    if (!call->layer.attrs.batch_norm.sync || !forward->options->train || world <= 1) return;
    struct tensor_type one = tensor_type_make(DTYPE_F32, 1, &size);
    struct tensor_type all = tensor_type_make(DTYPE_F32, 2, (int64_t[]){world, size});
    struct graph_op *op = builder_add_op(builder, OP_BATCH_MOMENTS, &(union op_attrs){0},
                                         call->module, mem_printf("%s.moments", call->name));
    op->inputs[0] = x;
    op->inputs[1] = builder->graph->target;
    int own =
        builder_add_value(builder, VALUE_ACTIVATION, &one, mem_printf("%s.moments", call->name));
    builder_set_output(builder, 0, own);
    op = builder_add_op(builder, OP_GATHER_RANKS, &(union op_attrs){0}, call->module,
                        mem_printf("%s.all_moments", call->name));
    op->inputs[0] = own;
    inputs[4] = builder_add_value(builder, VALUE_ACTIVATION, &all,
                                  mem_printf("%s.all_moments", call->name));
    builder_set_output(builder, 0, inputs[4]);
}

static int buffer_value(struct forward *forward, int parameter)
{
    const struct parameter *of = &forward->model->parameters[parameter];
    int made = builder_add_value(&forward->builder, VALUE_BUFFER, &of->type, mem_strdup(of->name));
    forward->builder.graph->values[made].parameter = parameter;
    return made;
}

/* Makes the op that was added last one that reads its statistics, or one that moves them. */
static void set_statistics(struct forward *forward, const struct program_call *call)
{
    struct graph_builder *builder = &forward->builder;
    int last = builder->graph->op_count - 1;
    if (forward->options->train) {
        builder->graph->ops[last].inputs[3] = builder->graph->target;
        for (int i = 0; i < LAYER_MAX_BUFFERS; i++)
            builder_set_output(builder, 3 + i, buffer_value(forward, call->buffers[i]));
        return;
    }
    for (int i = 0; i < 2; i++) {
        int value = parameter_value(forward, call->buffers[i], NULL);
        builder->graph->ops[last].inputs[3 + i] = value;
    }
    builder->graph->ops[last].kind = OP_BATCH_NORM_RUNNING;
}

/* Adds the bias of a transposed convolution to its result: the op has none. */
static int add_channel_bias(struct forward *forward, const struct program_call *call, int value)
{
    struct graph_builder *builder = &forward->builder;
    const struct tensor_type y = builder->graph->values[value].type;
    struct tensor_type seen = tensor_type_make(DTYPE_F32, 3, (int64_t[]){y.dims[1], 1, 1});
    int bias = parameter_value(forward, call->bias, &seen);
    for (int i = 1; i <= 2; i++)
        if (y.dims[1 + i] > 1) bias = repeat_dim(forward, call, bias, i, y.dims[1 + i]);
    struct graph_op *op = builder_add_op(builder, OP_ADD, &(union op_attrs){0}, call->module,
                                         mem_printf("%s.bias", call->name));
    op->inputs[0] = value;
    op->inputs[1] = bias;
    value =
        builder_add_value(builder, VALUE_ACTIVATION, &y, mem_printf("%s.bias.output", call->name));
    builder_set_output(builder, 0, value);
    return value;
}

/* The largest of dimension `dim`, of the type `y`: of windows, and of these, until one is left. */
static int add_largest(struct forward *forward, const struct program_call *call, int value,
                       int64_t dim, const struct tensor_type *y)
{
    enum { WINDOW = 255 }; /* the most that a pool takes */
    const struct op_dim view = op_dim_of(&forward->builder.graph->values[value].type, dim);
    const union op_attrs none = {0};
    int64_t count = view.count;
    struct tensor_type image =
        tensor_type_make(y->dtype, 4, (int64_t[]){view.outer, 1, count, view.inner});
    value = add_part(forward, call, OP_RESHAPE, &none, &image, value, "rows");
    do {
        int64_t windows = (count + WINDOW - 1) / WINDOW, size = windows > 1 ? WINDOW : count;
        int64_t padding = (windows * size - count + 1) / 2;
        const union op_attrs pool = {
            .pool = {.kernel = {size, 1}, .stride = {size, 1}, .padding = {padding, 0}}};
        image.dims[2] = count = windows;
        value = add_part(forward, call, OP_MAX_POOL2D, &pool, &image, value, "pool");
    } while (count > 1);
    return add_part(forward, call, OP_RESHAPE, &none, y, value, "largest");
}

static status_t add_call(struct forward *forward, const struct program_call *call, int *result)
{
    struct graph_builder *builder = &forward->builder;
    int inputs[OP_MAX_INPUTS];
    if (call->target) {
        *result = builder->graph->target;
        return NULL;
    }
    if (call->reads) {
        const struct tensor_type *type = &forward->model->parameters[call->weight].type;
        struct tensor_type rest =
            tensor_type_make(type->dtype, type->dim_count - 1, type->dims + 1);
        *result = parameter_value(forward, call->weight, call->without_batch ? &rest : NULL);
        return NULL;
    }
    for (int i = 0; i < OP_MAX_INPUTS; i++) inputs[i] = -1;
    for (int i = 0; i < LAYER_MAX_TENSORS; i++)
        if (call->inputs[i] >= 0) inputs[i] = forward->value_of[call->inputs[i]];
    order_operands(builder->graph, call->layer.kind, inputs);
    repeat_operands(forward, call, inputs);
    TRY(forward_wrap(forward, call, check_mixing(forward, call, inputs)));
    TRY(forward_wrap(forward, call, add_starts(builder->graph, &call->layer, inputs)));
    const struct tensor_type *types[LAYER_MAX_TENSORS];
    for (int i = 0; i < LAYER_MAX_TENSORS; i++)
        types[i] = inputs[i] >= 0 ? &builder->graph->values[inputs[i]].type : NULL;
    const struct tensor_type x = *types[0];
    struct tensor_type y;
    union op_attrs attrs = attributes(forward, &call->layer);
    TRY(forward_wrap(forward, call, shape_infer(forward->model, call, types, &attrs, &y)));
    if (call->layer.kind == OP_ROPE) attrs.rope.positions = forward->options->cache;
    if (call->layer.kind == OP_LINEAR) attrs.linear.rows_apart = forward->options->cache > 0;
    if (does_nothing(forward, &call->layer, &x, &y)) {
        *result = inputs[0];
        return NULL;
    }
    if (call->layer.largest) {
        *result = add_largest(forward, call, inputs[0], attrs.mean.dim, &y);
        return forward_check_op(forward, call);
    }
    if (call->weight >= 0) {
        const struct tensor_type weight = shape_of_weight(forward->model, call);
        inputs[1] = parameter_value(forward, call->weight, &weight);
        if (call->layer.kind != OP_CONV2D_BACKWARD_DATA)
            inputs[2] = parameter_value(forward, call->bias, NULL);
    }
    if (call->layer.kind == OP_BATCH_NORM) {
        TRY(check_batch_norm(forward, call, &x));
        add_moments(forward, call, inputs[0], inputs);
    }
    if (call->layer.kind == OP_EMBEDDING && x.dtype == DTYPE_I32)
        TRY(check_indices(forward, call, inputs[0]));
    enum op_kind kind = call->layer.kind;
    struct graph_op *op =
        builder_add_op(builder, kind, &attrs, call->module, mem_strdup(call->name));
    memcpy(op->inputs, inputs, sizeof inputs);
    op->exact = call->data || call->exact;
    *result = builder_add_value(builder, VALUE_ACTIVATION, &y, mem_printf("%s.output", call->name));
    builder_set_output(builder, 0, *result);
    if (forward->options->cache > 0) generation_add_cache(builder, forward->options);
    if (kind == OP_BATCH_NORM) set_statistics(forward, call);
    TRY(forward_check_op(forward, call));
    if (kind == OP_CONV2D_BACKWARD_DATA && call->bias >= 0)
        *result = add_channel_bias(forward, call, *result);
    return NULL;
}

/* The targets of a batch of samples or windows. */
static struct tensor_type target_type(const struct forward *forward,
                                      const struct tensor_type *input)
{
    const struct model *model = forward->model;
    const struct tensor_type *own = &model->targets;
    if (model->target == TARGET_PAIR)
        return tensor_type_make(DTYPE_I32, 1, &forward->options->batch_size);
    if (model_has_token_targets(model)) return *input;
    if (own->dim_count == 0) return tensor_type_make(DTYPE_I32, 1, input->dims);
    struct tensor_type target = {.dtype = own->dtype, .dim_count = own->dim_count + 1};
    target.dims[0] = input->dims[0];
    memcpy(target.dims + 1, own->dims, (size_t)own->dim_count * sizeof *own->dims);
    return target;
}

/* One sample, or a window of as many tokens as were asked for. */
static status_t sample_type(const struct forward *forward, struct tensor_type *sample)
{
    const struct model *model = forward->model;
    *sample = model->input;
    if (!model->tokens) return NULL;
    int64_t time = forward->options->time == 0 ? model->context : forward->options->time;
    sample->dims[0] = time;
    if (time >= 1 && time <= model->context) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: windows of %lld tokens: the model takes 1 to %lld",
                      model->program->file_name, (long long)time, (long long)model->context);
}

static status_t add_inputs(struct forward *forward)
{
    struct graph_builder *builder = &forward->builder;
    struct tensor_type sample;
    TRY(sample_type(forward, &sample));
    struct tensor_type input = {.dtype = sample.dtype, .dim_count = sample.dim_count + 1};
    input.dims[0] = forward->options->batch_size * forward->model->texts;
    memcpy(input.dims + 1, sample.dims, (size_t)sample.dim_count * sizeof *sample.dims);
    struct tensor_type target = target_type(forward, &input);
    if (tensor_element_count(&input) < 0 || tensor_element_count(&target) < 0) {
        char shape[128];
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: a batch of %lld samples of %s: every dimension must be positive and "
                          "all together at most 2^40 elements",
                          forward->model->program->file_name,
                          (long long)forward->options->batch_size,
                          tensor_format_shape(&sample, shape));
    }
    builder->graph->input = builder_add_value(builder, VALUE_INPUT, &input, mem_strdup("input"));
    builder->graph->target =
        builder_add_value(builder, VALUE_TARGET, &target, mem_strdup("target"));
    if (forward->model->tokens && (forward->options->documents || forward->options->cache > 0))
        builder->graph->starts =
            builder_add_value(builder, VALUE_STARTS, &input, mem_strdup("starts"));
    const struct tensor_type sums =
        tensor_type_make(DTYPE_F32, builder->graph->starts >= 0 ? 2 : 1, input.dims);
    if (forward->model->precomputed && forward->options->cache == 0)
        builder->graph->reference =
            builder_add_value(builder, VALUE_REFERENCE, &sums, mem_strdup("reference"));
    return NULL;
}

static status_t build_forward(struct forward *forward)
{
    if (forward->options->cache > 0) TRY(generation_check(forward->model, forward->options));

    const struct model_program *program = forward->model->program;
    struct graph *graph = forward->builder.graph;
    TRY(add_inputs(forward));
    forward->value_of[0] = graph->input;
    bool selects = forward->options->cache > 0 && !forward->options->every_row;
    int head = selects ? generation_head(program) : -1;
    for (int i = 0; i + 1 < program->call_count; i++) {
        if (forward->options->cache > 0 && program->calls[i].other) continue;
        if (i == head)
            generation_select(&forward->builder, &forward->value_of[program->calls[i].inputs[0]]);
        if (layer_is_loss(program->calls[i].layer.kind))
            TRY(forward_add_loss(forward, &program->calls[i], &forward->value_of[i + 1]));
        else TRY(add_call(forward, &program->calls[i], &forward->value_of[i + 1]));
    }
    const struct program_call *loss = &program->calls[program->call_count - 1];
    if (forward->options->cache > 0)
        TRY(generation_set_logits(graph, forward->options, forward->value_of[loss->inputs[0]]));
    else TRY(forward_add_losses(forward, loss));

    /* The graph is compacted twice: unused values must be gone before uses are counted, or they
     * would prevent fusion. */
    enum { COUNT_AND_TALLY = 2 };
    AUTO_FREE bool *dead = mem_alloc_array((size_t)graph->op_count + COUNT_AND_TALLY, sizeof *dead);
    graph_compact(graph, dead);
    graph_fuse(graph, forward->options, dead);
    if (forward->options->count_correct) forward_add_count(forward);
    if (forward->options->tally) forward_add_tally(forward);
    graph_compact(graph, dead);
    graph_lower_precision(&forward->builder, forward->options);
    graph->forward_op_count = graph->op_count;
    return forward->options->cache > 0 ? generation_check_ops(graph, forward->options) : NULL;
}

status_t graph_build(const struct model *model, const struct graph_options *options,
                     struct graph **graph)
{
    struct graph *made = mem_alloc(sizeof *made);
    made->model = model;
    made->loss = made->correct = made->tally = made->starts = made->reference = made->logits = -1;
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
