/*
 * Linear layers as matrix products by oneDNN (program_matmul), on the parameters in place. Its
 * products of plain matrices, transposed or not, are as fast as those of its blocked weights, whose
 * reorder would cost most of a product at small batches.
 *
 *   forward           y  (rows, out) = x  (rows, in)  * weight^T (in, out)
 *   backward data     dx (rows, in)  = dy (rows, out) * weight   (out, in)
 *   backward weights  dw (out, in)   = dy^T (out, rows) * x      (rows, in)
 *
 * A transposed weight is stored as (in, out), and so is its gradient. GELU, or its gradient, is a
 * pass over the product, which is written to the preactivation's memory if there is one, or to the
 * result's. Rows that must not depend on each other are linear_rows.c's.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/program.h"
#include "kernels/linear_rows.h"

/* A dense matrix, or the transpose of one. */
static status_t describe(const struct kernel *kernel, const struct tensor_type *type, int64_t rows,
                         int64_t columns, bool transposed, dnnl_memory_desc_t *format)
{
    dnnl_data_type_t data_type = type->dtype == DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
    dnnl_dims_t dims = {rows, columns};
    dnnl_dims_t strides = {transposed ? 1 : columns, transposed ? rows : 1};
    TRY_DNNL(kernel, "describe memory",
             dnnl_memory_desc_init_by_strides(format, 2, dims, data_type, strides));
    return NULL;
}

/* One product c = a * b, with the numbers of its operands. */
struct linear_product {
    int a, b, bias; /* inputs; bias may be -1 */
    bool relu;
    dnnl_memory_desc_t formats[3], bias_format; /* of a, b, c */
};

static status_t describe_product(const struct kernel *kernel, struct linear_product *product)
{
    const struct op_desc *desc = &kernel->desc;
    const struct tensor_type *in = desc->inputs, *out = desc->outputs;
    product->bias = -1;
    product->relu = false;
    int64_t rows = tensor_element_count(&in[0]) / in[0].dims[in[0].dim_count - 1];
    bool transposed = desc->attrs.linear.transposed; /* the weight is (depth, features) */
    if (desc->kind == OP_LINEAR) {
        int64_t features = in[1].dims[transposed], depth = in[1].dims[!transposed];
        product->a = 0, product->b = 1;
        product->bias = desc->input_present[2] ? 2 : -1;
        product->relu = desc->attrs.linear.activation == ACTIVATION_RELU;
        TRY(describe(kernel, &in[0], rows, depth, false, &product->formats[0]));
        TRY(describe(kernel, &in[1], depth, features, !transposed, &product->formats[1]));
        TRY(describe(kernel, &in[1], 1, features, false, &product->bias_format));
        return describe(kernel, &out[0], rows, features, false, &product->formats[2]);
    }
    if (desc->kind == OP_LINEAR_BACKWARD_DATA) {
        int64_t features = in[1].dims[transposed], depth = in[1].dims[!transposed];
        product->a = 0, product->b = 1;
        TRY(describe(kernel, &in[0], rows, features, false, &product->formats[0]));
        TRY(describe(kernel, &in[1], features, depth, transposed, &product->formats[1]));
        return describe(kernel, &out[0], rows, depth, false, &product->formats[2]);
    }
    int64_t features = out[0].dims[transposed], depth = out[0].dims[!transposed];
    if (transposed) { /* dw (in, out) = x^T (in, rows) * dy (rows, out) */
        product->a = 0, product->b = 1;
        TRY(describe(kernel, &in[0], depth, rows, true, &product->formats[0]));
        TRY(describe(kernel, &in[1], rows, features, false, &product->formats[1]));
        return describe(kernel, &out[0], depth, features, false, &product->formats[2]);
    }
    product->a = 1, product->b = 0;
    TRY(describe(kernel, &in[1], features, rows, true, &product->formats[0]));
    TRY(describe(kernel, &in[0], rows, depth, false, &product->formats[1]));
    return describe(kernel, &out[0], features, depth, false, &product->formats[2]);
}

static status_t run_backward_weights(const struct kernel *kernel, const struct kernel_call *call)
{
    TRY(program_run(kernel, call));
    int64_t features = kernel->desc.outputs[1].dims[0];
    int64_t rows = tensor_element_count(&kernel->desc.inputs[1]) / features;
    const struct cpu_loops *loops = cpu_loops_get();
    bool add = kernel->desc.accumulate[1];
    if (kernel->desc.inputs[1].dtype == DTYPE_BF16)
        loops->sum_rows_bf16((size_t)rows, (size_t)features, call->outputs[1], call->inputs[1],
                             add);
    else loops->sum_rows((size_t)rows, (size_t)features, call->outputs[1], call->inputs[1], add);
    return NULL;
}

/* The activation after the product, as an op of its own. */
static struct op_desc gelu_of(const struct op_desc *desc)
{
    bool forward = desc->kind == OP_LINEAR;
    return (struct op_desc){.kind = forward ? OP_GELU : OP_GELU_BACKWARD,
                            .attrs.gelu.tanh = true,
                            .input_count = forward ? 1 : 2,
                            .output_count = 1,
                            .inputs = {desc->outputs[0], desc->outputs[0]},
                            .outputs = {desc->outputs[0]}};
}

static status_t run_gelu(const struct kernel *kernel, const struct kernel_call *call)
{
    struct op_desc gelu = gelu_of(&kernel->desc);
    void *y = call->outputs[0];
    struct kernel_call follow = {.inputs = {y, call->inputs[2]}, .outputs = {y}};
    if (kernel->desc.output_present[1]) follow.inputs[0] = call->outputs[1];
    TRY(program_run(kernel, call));
    cpu_run_element(&gelu, kernel->threads, &follow);
    return NULL;
}

status_t cpu_prepare_linear(struct kernel *kernel)
{
    struct linear_product product;
    const struct op_desc *desc = &kernel->desc;
    if (linear_keeps_rows_apart(desc)) return cpu_prepare_linear_rows(kernel);
    bool gelu = desc->attrs.linear.activation == ACTIVATION_GELU_TANH;
    bool kept = desc->kind == OP_LINEAR && desc->output_present[1];
    TRY(describe_product(kernel, &product));
    /* The product itself adds to the output, except before an activation. */
    bool add = desc->accumulate[0], sum = add && !product.relu;
    dnnl_primitive_desc_t primitive_desc = NULL;
    TRY(program_matmul(kernel, product.formats, product.bias >= 0 ? &product.bias_format : NULL,
                       sum, &primitive_desc));
    TRY(program_new(kernel, primitive_desc));
    TRY(program_bind(kernel, DNNL_ARG_SRC, product.a, &product.formats[0], false));
    TRY(program_bind(kernel, DNNL_ARG_WEIGHTS, product.b, &product.formats[1], false));
    if (product.bias >= 0)
        TRY(program_bind(kernel, DNNL_ARG_BIAS, product.bias, &product.bias_format, false));
    TRY(program_bind(kernel, DNNL_ARG_DST, PROGRAM_OUTPUT + kept, &product.formats[2],
                     add && !sum));
    if (product.relu) program_follow_with_relu(kernel);
    TRY(program_finish(kernel));
    if (gelu) kernel->run = run_gelu;
    if (desc->kind == OP_LINEAR_BACKWARD_WEIGHTS && desc->output_present[1])
        kernel->run = run_backward_weights;
    return NULL;
}
