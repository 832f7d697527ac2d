/*
 * Reverse-mode differentiation: walks the forward ops back from the loss and appends the ops that
 * compute the gradients of all trainable parameters that reach it. One rule per op. Only gradients
 * that a trainable parameter needs are computed: the input has none, nor have values that depend on
 * frozen parameters alone.
 *
 * A layer's backward ops have an order: activation, then its parameters' gradient, then its
 * input's. So a unit's gradient is complete, and can be reduced on the other lane, as early as
 * possible; the price is that the incoming gradient lives for one more op.
 *
 * If several ops read a value, ADD sums its gradients; if several ops read a parameter, its
 * gradient accumulates in place.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "model/gradients.h"
#include "model/layers_internal.h"
#include "model/program.h"

/* The gradient before a ReLU with the result `y`, or with `y` as the largest of several results. */
static int pass_relu(struct backward *backward, const forward_op *op, int y, int dy)
{
    struct graph_op *made = backward_add_unary(backward, OP_RELU_BACKWARD, op, "backward_relu", dy);
    made->attrs = (union op_attrs){0};
    made->inputs[1] = y;
    return backward_add_gradient(backward, y, 0);
}

static int preactivation_of(struct backward *backward, const forward_op *op)
{
    const struct graph *graph = backward->builder->graph;
    int made = graph->ops[graph->values[op->outputs[0]].producer].outputs[1];
    if (made >= 0) return made;
    return backward_add_forward_output(backward, op, 1, graph->values[op->outputs[0]].type,
                                       "preactivation");
}

/* The gradient before the GELU of a linear layer. */
static int pass_gelu(struct backward *backward, const forward_op *op, int dy)
{
    int before = preactivation_of(backward, op);
    struct graph_op *made = backward_add_unary(backward, OP_GELU_BACKWARD, op, "backward_gelu", dy);
    made->attrs = (union op_attrs){.gelu.tanh = true};
    made->inputs[1] = before;
    return backward_add_gradient(backward, before, 0);
}

/* The gradient before the activation that a convolution or linear layer was fused with. */
static int activation_gradient(struct backward *backward, const forward_op *op,
                               enum op_activation activation, int dy)
{
    int y = op->outputs[0];
    if (activation == ACTIVATION_NONE || backward->past_activation[y]) return dy;
    if (activation == ACTIVATION_GELU_TANH) return pass_gelu(backward, op, dy);
    return pass_relu(backward, op, y, dy);
}

/* The activation that makes the op's result, on its own or fused with a layer. */
static enum op_activation activation_of(const struct graph_op *op)
{
    switch (op->kind) {
    case OP_RELU: return ACTIVATION_RELU;
    case OP_CONV2D: return op->attrs.conv.activation;
    case OP_LINEAR: return op->attrs.linear.activation;
    default: return ACTIVATION_NONE;
    }
}

/* Whether that activation made the value and exactly one op reads it. */
static bool is_activation_for_one(const struct graph *graph, int value,
                                  enum op_activation activation)
{
    int producer = graph->values[value].producer, readers = 0;
    if (producer < 0 || activation_of(&graph->ops[producer]) != activation) return false;
    for (int i = producer + 1; i < graph->forward_op_count; i++)
        for (int k = 0; k < OP_MAX_INPUTS; k++) readers += graph->ops[i].inputs[k] == value;
    return readers == 1;
}

/* If x is the GELU of a linear layer and only the layer being differentiated reads x, returns the
 * GELU's input, so that the layer's gradient of x passes through the GELU at once; otherwise -1. */
static int take_gelu(struct backward *backward, int x)
{
    const struct graph *graph = backward->builder->graph;
    if (!is_activation_for_one(graph, x, ACTIVATION_GELU_TANH)) return -1;
    forward_op before = graph->ops[graph->values[x].producer];
    backward->past_activation[x] = true;
    return preactivation_of(backward, &before);
}

/* The gradients of a layer's weight and bias, from its input and the gradient of its result. */
static void weights_gradient(struct backward *backward, const forward_op *op, enum op_kind kind,
                             int x, int dy)
{
    int weight = op->inputs[1], bias = op->inputs[2];
    if (!backward_needs(backward, weight) && !backward_needs(backward, bias)) return;
    struct graph_op *made = backward_add_op(backward, kind, op, "backward_weights");
    made->inputs[0] = x;
    made->inputs[1] = dy;
    /* The op always makes the weight's gradient; that of a frozen weight is not used. */
    if (backward_needs(backward, weight)) backward_add_parameter_gradient(backward, weight, 0);
    else {
        int unused = backward_add_gradient(backward, weight, 0);
        backward->builder->graph->values[unused].type.dtype = DTYPE_F32;
    }
    if (backward_needs(backward, bias)) backward_add_parameter_gradient(backward, bias, 1);
}

/* Serves convolution and linear; the activation of `op` is dealt with already. */
static void layer_gradient(struct backward *backward, const forward_op *op, enum op_kind weights,
                           enum op_kind data, int dy)
{
    int x = op->inputs[0], weight = op->inputs[1];
    weights_gradient(backward, op, weights, x, dy);
    if (backward_needs(backward, x)) {
        int before = data == OP_LINEAR_BACKWARD_DATA ? take_gelu(backward, x) : -1;
        struct graph_op *made = backward_add_unary(backward, data, op, "backward_data", dy);
        made->inputs[1] = weight;
        if (before >= 0) made->attrs.linear.activation = ACTIVATION_GELU_TANH;
        made->inputs[2] = before;
        backward_contribute(backward, x, backward_add_gradient(backward, x, 0));
    }
}

static void conv2d_gradient(struct backward *backward, const forward_op *op, int dy)
{
    forward_op plain = *op;
    plain.attrs.conv.activation = ACTIVATION_NONE;
    dy = activation_gradient(backward, op, op->attrs.conv.activation, dy);
    layer_gradient(backward, &plain, OP_CONV2D_BACKWARD_WEIGHTS, OP_CONV2D_BACKWARD_DATA, dy);
}

/* A transposed convolution is a convolution's gradient of its input; so its own gradients are that
 * convolution, and the weights' gradient with input and result exchanged. */
static void conv_transpose2d_gradient(struct backward *backward, const forward_op *op, int dy)
{
    int x = op->inputs[0], weight = op->inputs[1];
    weights_gradient(backward, op, OP_CONV2D_BACKWARD_WEIGHTS, dy, x);
    if (!backward_needs(backward, x)) return;
    backward_add_unary(backward, OP_CONV2D, op, "backward_data", dy)->inputs[1] = weight;
    backward_contribute(backward, x, backward_add_gradient(backward, x, 0));
}

static void linear_gradient(struct backward *backward, const forward_op *op, int dy)
{
    forward_op plain = *op;
    plain.attrs.linear.activation = ACTIVATION_NONE;
    dy = activation_gradient(backward, op, op->attrs.linear.activation, dy);
    layer_gradient(backward, &plain, OP_LINEAR_BACKWARD_WEIGHTS, OP_LINEAR_BACKWARD_DATA, dy);
}

static void relu_gradient(struct backward *backward, const forward_op *op, int dy)
{
    if (backward->past_activation[op->outputs[0]]) {
        backward_contribute(backward, op->inputs[0], dy);
        return;
    }
    backward_add_unary(backward, OP_RELU_BACKWARD, op, "backward", dy)->inputs[1] = op->outputs[0];
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

static int add_pool_indices(struct backward *backward, const forward_op *op)
{
    struct tensor_type type = backward->builder->graph->values[op->outputs[0]].type;
    type.dtype = DTYPE_U8;
    return backward_add_forward_output(backward, op, 1, type, "indices");
}

/*
 * With a ReLU before the pool, only the winners' gradients can be other than 0, and the pool's
 * output shows whether the ReLU let a winner pass. So the ReLU's gradient is taken first, at the
 * pool's output: it has fewer elements, and the ReLU's whole output need not be kept. The bits are
 * the same.
 */
static void max_pool2d_gradient(struct backward *backward, const forward_op *op, int dy)
{
    int x = op->inputs[0];
    if (is_activation_for_one(backward->builder->graph, x, ACTIVATION_RELU)) {
        dy = pass_relu(backward, op, op->outputs[0], dy);
        backward->past_activation[x] = true;
    }
    int indices = add_pool_indices(backward, op);
    backward_add_unary(backward, OP_MAX_POOL2D_BACKWARD, op, "backward", dy)->inputs[1] = indices;
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

static void dropout_gradient(struct backward *backward, const forward_op *op, int dy)
{
    backward_add_unary(backward, OP_DROPOUT_BACKWARD, op, "backward", dy);
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

static void reshape_gradient(struct backward *backward, const forward_op *op, int dy)
{
    backward_add_unary(backward, OP_RESHAPE, op, "backward", dy);
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

static bool is_parameter(const struct backward *backward, int value)
{
    return value >= 0 && backward->builder->graph->values[value].kind == VALUE_PARAMETER;
}

/* Writes the gradient of a parameter to its place. */
static void place_gradient(struct backward *backward, const forward_op *op, int parameter, int dy)
{
    backward_add_unary(backward, OP_CAST, op, "backward_parameter", dy)->attrs =
        (union op_attrs){0};
    backward_add_parameter_gradient(backward, parameter, 0);
}

static void cast_gradient(struct backward *backward, const forward_op *op, int dy)
{
    if (is_parameter(backward, op->inputs[0])) {
        place_gradient(backward, op, op->inputs[0], dy);
        return;
    }
    backward_add_unary(backward, OP_CAST, op, "backward", dy);
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

static bool is_first_reader(const struct graph *graph, int op, int value)
{
    for (int i = 0; i < op; i++)
        for (int k = 0; k < OP_MAX_INPUTS; k++)
            if (graph->ops[i].inputs[k] == value) return false;
    return true;
}

/* Ops other than layers give a parameter that they read a gradient like any value's; behind the
 * last of them it is complete. */
static void place_complete(struct backward *backward, const forward_op *op)
{
    for (int k = 0; k < OP_MAX_INPUTS; k++) {
        int value = op->inputs[k];
        if (!is_parameter(backward, value) || backward->gradient[value] < 0) continue;
        if (!is_first_reader(backward->builder->graph, backward->current, value)) continue;
        place_gradient(backward, op, value, backward->gradient[value]);
        backward->gradient[value] = -1;
    }
}

/* A sum may have broadcast the second operand over the first one's leading dimensions. */
static void add_gradient(struct backward *backward, const forward_op *op, int dy)
{
    for (int i = 0; i < 2; i++) {
        int value = op->inputs[i];
        if (!backward_needs(backward, value)) continue;
        const struct graph *graph = backward->builder->graph;
        if (tensor_same_shape(&graph->values[value].type, &graph->values[op->outputs[0]].type)) {
            backward_contribute(backward, value, dy);
            continue;
        }
        backward_add_unary(backward, OP_SUM_LEADING, op, "backward", dy);
        backward_contribute(backward, value, backward_add_gradient(backward, value, 0));
    }
}

/* Makes output 0 of the last op, of the shape `whole`, the gradient of an operand that may have
 * been broadcast to this shape. */
static void contribute_part(struct backward *backward, const forward_op *op, int value,
                            const struct tensor_type *whole)
{
    bool same = tensor_same_shape(&backward->builder->graph->values[value].type, whole);
    int made = backward_add_gradient(backward, value, 0);
    if (!same) {
        backward->builder->graph->values[made].type = *whole;
        backward_add_unary(backward, OP_SUM_LEADING, op, "backward_sum", made)->attrs =
            (union op_attrs){0};
        made = backward_add_gradient(backward, value, 0);
    }
    backward_contribute(backward, value, made);
}

/* The same of a gradient of the shape of y. */
static void contribute_broadcast(struct backward *backward, const forward_op *op, int value)
{
    const struct tensor_type whole = backward->builder->graph->values[op->outputs[0]].type;
    contribute_part(backward, op, value, &whole);
}

/* With both as they are multiplied: da = dy b^T, db = a^T dy; the transpose of an operand has the
 * transposed product as its gradient. One that is in all products has the sum of its gradients. */
static void matmul_gradient(struct backward *backward, const forward_op *op, int dy)
{
    static const char *const suffixes[] = {"backward_input", "backward_other"};
    bool first = op->attrs.matmul.first, second = op->attrs.matmul.second;
    for (int i = 0; i < 2; i++) {
        int value = op->inputs[i], other = op->inputs[1 - i];
        if (!backward_needs(backward, value)) continue;
        const struct tensor_type *type = &backward->builder->graph->values[value].type;
        struct tensor_type whole = backward->builder->graph->values[dy].type;
        for (int k = 1; k <= 2; k++)
            whole.dims[whole.dim_count - k] = type->dims[type->dim_count - k];
        bool transposed = i == 0 ? first : second, dy_first = (i == 0) != transposed;
        struct graph_op *made = backward_add_unary(backward, OP_MATMUL, op, suffixes[i], dy);
        made->inputs[0] = dy_first ? dy : other;
        made->inputs[1] = dy_first ? other : dy;
        made->attrs = (union op_attrs){0};
        made->attrs.matmul.first = i == 0 ? transposed && second : transposed || !first;
        made->attrs.matmul.second = i == 0 ? transposed || !second : transposed && first;
        contribute_part(backward, op, value, &whole);
    }
}

/* A repeated tensor has the sum over its repetitions. */
static void repeat_gradient(struct backward *backward, const forward_op *op, int dy)
{
    backward_add_unary(backward, OP_MEAN, op, "backward", dy);
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

static void transpose_gradient(struct backward *backward, const forward_op *op, int dy)
{
    backward_add_unary(backward, OP_TRANSPOSE, op, "backward", dy);
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

/* The op adds the gradient that x has from elsewhere, as of its other columns. */
static void slice_gradient(struct backward *backward, const forward_op *op, int dy)
{
    int x = op->inputs[0];
    backward_add_unary(backward, OP_SLICE_BACKWARD, op, "backward", dy)->inputs[1] =
        backward->gradient[x];
    backward->gradient[x] = backward_add_gradient(backward, x, 0);
}

static void mean_gradient(struct backward *backward, const forward_op *op, int dy)
{
    backward_add_unary(backward, OP_MEAN_BACKWARD, op, "backward", dy)->inputs[1] = op->inputs[1];
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

static void avg_pool2d_gradient(struct backward *backward, const forward_op *op, int dy)
{
    backward_add_unary(backward, OP_AVG_POOL2D_BACKWARD, op, "backward", dy);
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

/* A part that is repeated over first dimensions has the sum over these as its gradient. */
static void concat_gradient(struct backward *backward, const forward_op *op, int dy)
{
    int64_t dim = op->attrs.concat.dim, start = 0;
    for (int i = 0; i < 2; i++) {
        const struct graph *graph = backward->builder->graph;
        int value = op->inputs[i];
        struct tensor_type part = graph->values[value].type, whole = graph->values[dy].type;
        int64_t missing = whole.dim_count - part.dim_count, length = part.dims[dim - missing];
        whole.dims[dim] = length;
        if (backward_needs(backward, value)) {
            static const char *const suffixes[] = {"backward_first", "backward_second"};
            struct graph_op *made = backward_add_unary(backward, OP_SLICE, op, suffixes[i], dy);
            made->attrs = (union op_attrs){.slice = {.dim = dim, .start = start}};
            int cut = backward_add_gradient(backward, value, 0);
            backward->builder->graph->values[cut].type = whole;
            if (missing > 0) {
                backward_add_unary(backward, OP_SUM_LEADING, op, "backward_sum", cut)->attrs =
                    (union op_attrs){0};
                cut = backward_add_gradient(backward, value, 0);
            }
            backward_contribute(backward, value, cut);
        }
        start += length;
    }
}

static void mul_gradient(struct backward *backward, const forward_op *op, int dy)
{
    static const char *const suffixes[] = {"backward_input", "backward_other"};
    for (int i = 0; i < 2; i++) {
        if (!backward_needs(backward, op->inputs[i])) continue;
        backward_add_unary(backward, OP_MUL, op, suffixes[i], dy)->inputs[1] = op->inputs[1 - i];
        contribute_broadcast(backward, op, op->inputs[i]);
    }
}

/* The gradient of a divisor. */
static void divisor_gradient(struct backward *backward, const forward_op *op, int divisor, int dy)
{
    struct graph_op *made = backward_add_unary(backward, OP_DIV_BACKWARD, op, "backward_other", dy);
    made->attrs = (union op_attrs){0};
    made->inputs[1] = op->outputs[0];
    made->inputs[2] = divisor;
    contribute_broadcast(backward, op, divisor);
}

static void div_gradient(struct backward *backward, const forward_op *op, int dy)
{
    int a = op->inputs[0], b = op->inputs[1];
    if (backward_needs(backward, a)) {
        backward_add_unary(backward, OP_DIV, op, "backward_input", dy)->inputs[1] = b;
        backward_contribute(backward, a, backward_add_gradient(backward, a, 0));
    }
    if (backward_needs(backward, b)) divisor_gradient(backward, op, b, dy);
}

static void reciprocal_gradient(struct backward *backward, const forward_op *op, int dy)
{
    divisor_gradient(backward, op, op->inputs[0], dy);
}

static void scale_gradient(struct backward *backward, const forward_op *op, int dy)
{
    if (op->attrs.scale.factor == 1) {
        backward_contribute(backward, op->inputs[0], dy);
        return;
    }
    backward_add_unary(backward, OP_SCALE, op, "backward", dy)->attrs.scale.offset = 0;
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

/* dx = kind(dy, x) */
static void activation_rule(struct backward *backward, const forward_op *op, enum op_kind kind,
                            int dy)
{
    backward_add_unary(backward, kind, op, "backward", dy)->inputs[1] = op->inputs[0];
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

static void gelu_gradient(struct backward *backward, const forward_op *op, int dy)
{
    activation_rule(backward, op, OP_GELU_BACKWARD, dy);
}

static void silu_gradient(struct backward *backward, const forward_op *op, int dy)
{
    activation_rule(backward, op, OP_SILU_BACKWARD, dy);
}

static void function_gradient(struct backward *backward, const forward_op *op, int dy)
{
    activation_rule(backward, op, OP_FUNCTION_BACKWARD, dy);
}

/* What a mask took of x; the mask has none. */
static void taken_gradient(struct backward *backward, const forward_op *op, int dy)
{
    backward_add_unary(backward, OP_RELU_BACKWARD, op, "backward", dy)->inputs[1] = op->inputs[1];
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

static void squared_relu_gradient(struct backward *backward, const forward_op *op, int dy)
{
    activation_rule(backward, op, OP_SQUARED_RELU_BACKWARD, dy);
}

/* dx = kind(dy, y) */
static void output_rule(struct backward *backward, const forward_op *op, enum op_kind kind, int dy)
{
    backward_add_unary(backward, kind, op, "backward", dy)->inputs[1] = op->outputs[0];
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

static void tanh_gradient(struct backward *backward, const forward_op *op, int dy)
{
    output_rule(backward, op, OP_TANH_BACKWARD, dy);
}

static void sigmoid_gradient(struct backward *backward, const forward_op *op, int dy)
{
    output_rule(backward, op, OP_SIGMOID_BACKWARD, dy);
}

/* Makes the first `count` outputs of the last op gradients of `values`. */
static void contribute_all(struct backward *backward, const int *values, int count)
{
    int made[OP_MAX_OUTPUTS];
    for (int k = 0; k < count; k++)
        made[k] = values[k] < 0 ? -1 : backward_add_gradient(backward, values[k], k);
    for (int k = 0; k < count; k++)
        if (backward_needs(backward, values[k])) backward_contribute(backward, values[k], made[k]);
}

static void gate_gradient(struct backward *backward, const forward_op *op, int dy)
{
    enum op_kind kind = op->kind == OP_SILU_MUL ? OP_SILU_MUL_BACKWARD : OP_GELU_MUL_BACKWARD;
    struct graph_op *made = backward_add_unary(backward, kind, op, "backward", dy);
    made->inputs[1] = op->inputs[0];
    made->inputs[2] = op->inputs[1];
    contribute_all(backward, op->inputs, 2);
}

static void softmax_gradient(struct backward *backward, const forward_op *op, int dy)
{
    output_rule(backward, op, OP_SOFTMAX_BACKWARD, dy);
}

static void rope_gradient(struct backward *backward, const forward_op *op, int dy)
{
    backward_add_unary(backward, OP_ROPE_BACKWARD, op, "backward", dy)->inputs[1] = op->inputs[1];
    backward_contribute(backward, op->inputs[0], backward_add_gradient(backward, op->inputs[0], 0));
}

static void embedding_gradient(struct backward *backward, const forward_op *op, int dy)
{
    struct graph_op *made = backward_add_op(backward, OP_EMBEDDING_BACKWARD, op, "backward");
    made->inputs[0] = op->inputs[0];
    made->inputs[1] = dy;
    backward_add_parameter_gradient(backward, op->inputs[1], 0);
}
static void attention_gradient(struct backward *backward, const forward_op *op, int dy)
{
    const struct tensor_type *q = &backward->builder->graph->values[op->inputs[0]].type;
    struct tensor_type type =
        tensor_type_make(DTYPE_F32, 3,
                         (int64_t[]){q->dims[0], op->attrs.attention.heads, q->dims[1]});
    int lse = backward_add_forward_output(backward, op, 1, type, "lse");
    struct graph_op *made = backward_add_unary(backward, OP_ATTENTION_BACKWARD, op, "backward", dy);
    for (int k = 0; k < 3; k++) made->inputs[1 + k] = op->inputs[k];
    made->inputs[4] = op->outputs[0];
    made->inputs[5] = lse;
    made->inputs[6] = op->inputs[3];
    made->inputs[7] = op->inputs[4];
    made->inputs[8] = op->inputs[5];
    const int values[] = {op->inputs[0], op->inputs[1], op->inputs[2], op->inputs[4]};
    contribute_all(backward, values, 4);
}

/* The weight's is a product over all rows, each of which met the one before it. */
static void recurrent_gradient(struct backward *backward, const forward_op *op, int dy)
{
    int x = op->inputs[0], y = op->outputs[0];
    bool trains =
        backward_needs(backward, op->inputs[1]) || backward_needs(backward, op->inputs[2]);
    bool gru = op->attrs.recurrent.kind == RECURRENCE_GRU;
    struct tensor_type type = backward->builder->graph->values[y].type;
    type.dims[2] *= gru ? 4 : 5;
    int state = backward_add_forward_output(backward, op, 1, type, "state");
    struct graph_op *made = backward_add_unary(backward, OP_RECURRENT_BACKWARD, op, "backward", dy);
    made->inputs[1] = y;
    made->inputs[2] = op->inputs[1];
    made->inputs[3] = state;
    int dx = backward_add_gradient(backward, x, 0), hidden = dx;
    if (trains) {
        if (gru) hidden = backward_add_gradient(backward, x, 1);
        int previous = backward_add_gradient(backward, y, 2);
        forward_op plain = *op;
        plain.attrs = (union op_attrs){0};
        weights_gradient(backward, &plain, OP_LINEAR_BACKWARD_WEIGHTS, previous, hidden);
    }
    if (backward_needs(backward, x)) backward_contribute(backward, x, dx);
}

static void log_softmax_gradient(struct backward *backward, const forward_op *op, int dy)
{
    output_rule(backward, op, OP_LOG_SOFTMAX_BACKWARD, dy);
}

static void (*const rules[OP_KIND_COUNT])(struct backward *, const forward_op *, int) = {
    [OP_CONV2D] = conv2d_gradient,
    [OP_CONV2D_BACKWARD_DATA] = conv_transpose2d_gradient,
    [OP_LINEAR] = linear_gradient,
    [OP_RELU] = relu_gradient,
    [OP_RELU_BACKWARD] = taken_gradient,
    [OP_MAX_POOL2D] = max_pool2d_gradient,
    [OP_DROPOUT] = dropout_gradient,
    [OP_RESHAPE] = reshape_gradient,
    [OP_ADD] = add_gradient,
    [OP_LOG_SOFTMAX] = log_softmax_gradient,
    [OP_NLL_LOSS] = gradient_nll_loss,
    [OP_CROSS_ENTROPY] = gradient_cross_entropy,
    [OP_AVG_POOL2D] = avg_pool2d_gradient,
    [OP_GROUP_NORM] = gradient_group_norm,
    [OP_BATCH_NORM] = gradient_batch_norm,
    [OP_TRANSPOSE] = transpose_gradient,
    [OP_SLICE] = slice_gradient,
    [OP_CONCAT] = concat_gradient,
    [OP_MEAN] = mean_gradient,
    [OP_MEAN_BACKWARD] = repeat_gradient,
    [OP_MATMUL] = matmul_gradient,
    [OP_RECURRENT] = recurrent_gradient,
    [OP_FUNCTION] = function_gradient,
    [OP_CAST] = cast_gradient,
    [OP_MUL] = mul_gradient,
    [OP_GELU] = gelu_gradient,
    [OP_SILU] = silu_gradient,
    [OP_TANH] = tanh_gradient,
    [OP_SIGMOID] = sigmoid_gradient,
    [OP_SQUARED_RELU] = squared_relu_gradient,
    [OP_SCALE] = scale_gradient,
    [OP_RECIPROCAL] = reciprocal_gradient,
    [OP_DIV] = div_gradient,
    [OP_SILU_MUL] = gate_gradient,
    [OP_GELU_MUL] = gate_gradient,
    [OP_SOFTMAX] = softmax_gradient,
    [OP_EMBEDDING] = embedding_gradient,
    [OP_LAYER_NORM] = gradient_norm,
    [OP_RMS_NORM] = gradient_norm,
    [OP_ROPE] = rope_gradient,
    [OP_ATTENTION] = attention_gradient,
    [OP_ELEMENT_LOSS] = gradient_element_loss,
    [OP_CONTRASTIVE_LOSS] = gradient_contrastive_loss,
    [OP_SEQUENCE_LOG_PROBS] = gradient_sequence_log_probs,
    [OP_PREFERENCE_LOSS] = gradient_preference_loss,
};

/* Marks, from the first op on, every value that depends on something trainable: not comparisons,
 * which small changes do not change, nor draws, which none change. */
static void mark_needed(struct backward *backward)
{
    const struct graph *graph = backward->builder->graph;
    for (int i = 0; i < graph->value_count; i++) {
        const struct graph_value *value = &graph->values[i];
        if (value->kind == VALUE_PARAMETER)
            backward->needed[i] = graph->model->parameters[value->parameter].trainable;
    }
    for (int i = 0; i < graph->op_count; i++) {
        const struct graph_op *op = &graph->ops[i];
        bool needed = false,
             compares = op->kind == OP_FUNCTION && op->attrs.function.kind >= FUNCTION_ABOVE,
             draws = op->kind == OP_DROPOUT && op->attrs.dropout.normal;
        for (int k = 0; k < OP_MAX_INPUTS; k++)
            needed |= !compares && !draws && backward_needs(backward, op->inputs[k]);
        for (int k = 0; k < OP_MAX_OUTPUTS; k++)
            if (op->outputs[k] >= 0) backward->needed[op->outputs[k]] = needed;
    }
}

static void differentiate(struct backward *backward)
{
    const struct graph *graph = backward->builder->graph;
    for (int i = 0; i < graph->forward_op_count; i++) graph->ops[i].forward = i;
    gradient_turn_head(backward);
    for (int i = graph->forward_op_count - 1; i >= 0; i--) {
        forward_op op = graph->ops[i];
        backward->current = i;
        int y = op.outputs[0];
        int dy = backward->gradient[y];
        if (backward->needed[y] && (layer_is_loss(op.kind) || dy >= 0))
            rules[op.kind](backward, &op, dy);
        place_complete(backward, &op);
    }
}

/* A value that a loss compares with has a gradient only where both count alike. */
static status_t check_references(const struct backward *backward)
{
    const struct graph *graph = backward->builder->graph;
    for (int i = 0; i < graph->op_count; i++) {
        const struct graph_op *op = &graph->ops[i];
        if (op->kind != OP_ELEMENT_LOSS || !backward_needs(backward, op->inputs[1]) ||
            op->attrs.element_loss.difference <= DIFFERENCE_HUBER)
            continue;
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %s: what it compares with may not depend on what is trained",
                          graph->model->program->file_name, op->name);
    }
    return NULL;
}

status_t graph_add_gradients(struct graph_builder *builder, const struct graph_options *options)
{
    struct graph *graph = builder->graph;
    size_t values = (size_t)graph->value_count, parameters = (size_t)graph->model->parameter_count;
    struct backward backward = {.builder = builder,
                                .accumulate = options->accumulate,
                                .needed = mem_alloc_array(values, sizeof(bool)),
                                .gradient = mem_alloc_array(values, sizeof(int)),
                                .past_activation = mem_alloc_array(values, sizeof(bool)),
                                .parameter_gradient = mem_alloc_array(parameters, sizeof(int))};
    for (size_t i = 0; i < values; i++) backward.gradient[i] = -1;
    for (size_t i = 0; i < parameters; i++) backward.parameter_gradient[i] = -1;
    mark_needed(&backward);
    status_t status = check_references(&backward);
    if (status == NULL && backward.needed[graph->loss]) differentiate(&backward);
    else if (status == NULL)
        status = status_new(STATUS_INVALID_ARGUMENT,
                            "%s: there is nothing to train: no trainable parameter reaches the "
                            "loss",
                            graph->model->program->file_name);
    free(backward.needed);
    free(backward.gradient);
    free(backward.past_activation);
    free(backward.parameter_gradient);
    return status;
}
