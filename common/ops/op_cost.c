/* The cost of one run of an op, from its operands' shapes alone. */
#include "ops/op.h"

/* Every element of the output (or its gradient) meets every weight of its channel once. */
static double layer_flops(const struct tensor_type *y, const struct tensor_type *weight)
{
    double per_output = 2;
    for (int i = 1; i < weight->dim_count; i++) per_output *= (double)weight->dims[i];
    return per_output * (double)tensor_element_count(y);
}

/* A weight of (in, out) has as many elements as one of (out, in). */
static double linear_flops(const struct tensor_type *x, const struct tensor_type *weight)
{
    double rows = (double)tensor_element_count(x) / (double)x->dims[x->dim_count - 1];
    return 2 * rows * (double)tensor_element_count(weight);
}

/* Two products of (t, d) with (d, t) or similar per head; `y` is (b, t, h d). */
static double attention_flops(const struct op_desc *desc, const struct tensor_type *y)
{
    double t = (double)y->dims[1];
    double flops = 4 * (double)tensor_element_count(y),
           window = (double)desc->attrs.attention.window;
    if (window == 0 || window > t) window = t;
    double seen = window * (2 * t - window + 1) / 2; /* of all rows; each its own key and earlier */
    if (!desc->attrs.attention.causal) seen = 2 * seen - t;
    return flops * seen / t;
}

double op_desc_flops(const struct op_desc *desc)
{
    const struct tensor_type *in = desc->inputs, *out = desc->outputs;
    switch (desc->kind) {
    case OP_CONV2D: return layer_flops(&out[0], &in[1]);
    case OP_CONV2D_BACKWARD_DATA: return layer_flops(&in[0], &in[1]);
    case OP_CONV2D_BACKWARD_WEIGHTS: return layer_flops(&in[1], &out[0]);
    case OP_LINEAR: return linear_flops(&in[0], &in[1]);
    case OP_LINEAR_BACKWARD_DATA: return linear_flops(&out[0], &in[1]);
    case OP_LINEAR_BACKWARD_WEIGHTS: return linear_flops(&in[0], &out[0]);
    case OP_MATMUL:
        return 2 * (double)tensor_element_count(&out[0]) *
               (double)in[0].dims[in[0].dim_count - (desc->attrs.matmul.first ? 2 : 1)];
    case OP_RECURRENT: return linear_flops(&out[0], &in[1]);
    case OP_RECURRENT_BACKWARD: return linear_flops(&in[1], &in[2]);
    case OP_ATTENTION: return attention_flops(desc, &out[0]);
    /* The probabilities recomputed, and the gradients of these, of q, k and v. */
    case OP_ATTENTION_BACKWARD: return 2.5 * attention_flops(desc, &in[0]);
    case OP_LINEAR_CROSS_ENTROPY: return linear_flops(&in[0], &in[1]);
    case OP_LINEAR_CROSS_ENTROPY_BACKWARD:
        return linear_flops(&in[0], &in[1]) *
               (1 + desc->output_present[1] + desc->output_present[2]);
    default: return 0;
    }
}

/* An embedding reads the rows of its tokens, and its gradient adds to these; a gradient that is not
 * accumulated is zeroed as a whole. */
static uint64_t table_bytes(const struct op_desc *desc)
{
    bool forward = desc->kind == OP_EMBEDDING;
    const struct tensor_type *table = forward ? &desc->inputs[1] : &desc->outputs[0];
    uint64_t whole = tensor_bytes(table);
    uint64_t row = (uint64_t)table->dims[1] * dtype_size(table->dtype);
    uint64_t rows = (uint64_t)tensor_element_count(&desc->inputs[0]) * row;
    return (forward || desc->accumulate[0]) && rows < whole ? rows : whole;
}

uint64_t op_desc_bytes(const struct op_desc *desc)
{
    uint64_t bytes = 0;
    for (int i = 0; i < desc->input_count; i++)
        if (desc->input_present[i]) bytes += tensor_bytes(&desc->inputs[i]);
    for (int i = 0; i < desc->output_count; i++)
        if (desc->output_present[i]) bytes += tensor_bytes(&desc->outputs[i]);
    if (desc->kind == OP_EMBEDDING) bytes += table_bytes(desc) - tensor_bytes(&desc->inputs[1]);
    if (desc->kind == OP_EMBEDDING_BACKWARD)
        bytes += table_bytes(desc) - tensor_bytes(&desc->outputs[0]);
    return bytes;
}
