/*
 * Linear layers: products by cuBLASLt with the bias or its gradient in the epilogue. GELU or its
 * gradient is also in the epilogue if operands are rounded anyway (bf16, TF32): the accuracy of the
 * library's tanh is undocumented. If cuBLASLt has no such epilogue for a shape, our own kernels run
 * it. ReLU is always our own pass: the library's turns NaN into 0.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/linear_rows.h"
#include "runtime/cuda/matmul.h"

struct linear {
    struct cuda_prepared base;
    struct cuda_matmul matmul;
    int64_t sequences; /* of a prompt, each a product of its own; otherwise 1 */
    int64_t rows, in, out;
    bool own_bias; /* added, or summed, by our kernel */
    bool own_gelu; /* or its gradient */
    /* Activated in the workspace, at its start, and then added to y. */
    bool added;
    uint64_t products; /* where the product's own workspace begins */
};

static int64_t rows_of(const struct tensor_type *type)
{
    return tensor_element_count(type) / type->dims[type->dim_count - 1];
}

static status_t run_rows(struct cuda_prepared *prepared, struct cuda_lane *lane,
                         const struct kernel_call *call)
{
    struct linear *linear = (struct linear *)prepared;
    const struct op_desc *desc = &prepared->op.desc;
    struct cuda_launch launch = cuda_launch_of(lane);
    enum dtype dtype = desc->outputs[0].dtype;
    int64_t count = linear->rows * linear->out;
    void *y = linear->added ? call->workspace : call->outputs[0];
    struct matmul_extras extras = {.bias = linear->own_bias ? NULL : (void *)call->inputs[2]};
    void *product = linear->own_gelu && desc->output_present[1] ? call->outputs[1] : y;
    if (!linear->own_gelu) extras.kept = call->outputs[1];
    TRY(cuda_matmul_run(&linear->matmul, lane, call->inputs[1], call->inputs[0], product, &extras,
                        (char *)call->workspace + linear->products));
    int error = 0;
    if (linear->own_bias)
        error = cuda_add_bias(&launch, dtype, product, call->inputs[2], linear->rows, linear->out);
    if (error == 0 && desc->attrs.linear.activation == ACTIVATION_RELU)
        error = cuda_relu_in_place(&launch, dtype, y, count);
    if (error == 0 && linear->own_gelu) error = cuda_gelu(&launch, dtype, y, product, count);
    if (error == 0 && linear->added) error = cuda_add(&launch, (size_t)count, call->outputs[0], y);
    return cuda_status((cudaError_t)error, "a kernel of linear");
}

static status_t run_forward(struct cuda_prepared *prepared, struct cuda_lane *lane,
                            const struct kernel_call *call)
{
    const struct linear *linear = (struct linear *)prepared;
    const struct op_desc *desc = &prepared->op.desc;
    const int64_t x = linear->rows * linear->in * (int64_t)dtype_size(desc->inputs[0].dtype);
    const int64_t y = linear->rows * linear->out * (int64_t)dtype_size(desc->outputs[0].dtype);
    struct kernel_call one = *call;
    for (int64_t i = 0; i < linear->sequences; i++) {
        TRY(run_rows(prepared, lane, &one));
        one.inputs[0] = (const char *)one.inputs[0] + x;
        one.outputs[0] = (char *)one.outputs[0] + y;
    }
    return NULL;
}

static status_t run_data(struct cuda_prepared *prepared, struct cuda_lane *lane,
                         const struct kernel_call *call)
{
    struct linear *linear = (struct linear *)prepared;
    struct cuda_launch launch = cuda_launch_of(lane);
    void *dx = call->outputs[0], *preactivation = (void *)call->inputs[2];
    struct matmul_extras extras = {.kept = linear->own_gelu ? NULL : preactivation};
    TRY(cuda_matmul_run(&linear->matmul, lane, call->inputs[1], call->inputs[0], dx, &extras,
                        call->workspace));
    if (!linear->own_gelu) return NULL;
    int error = cuda_gelu_backward(&launch, prepared->op.desc.outputs[0].dtype, dx, dx,
                                   preactivation, linear->rows * linear->in);
    return cuda_status((cudaError_t)error, "the gradient of gelu");
}

static status_t run_weights(struct cuda_prepared *prepared, struct cuda_lane *lane,
                            const struct kernel_call *call)
{
    struct linear *linear = (struct linear *)prepared;
    const struct op_desc *desc = &prepared->op.desc;
    bool transposed = desc->attrs.linear.transposed;
    const void *x = call->inputs[0], *dy = call->inputs[1];
    struct matmul_extras extras = {.bias = linear->own_bias ? NULL : call->outputs[1]};
    TRY(cuda_matmul_run(&linear->matmul, lane, transposed ? dy : x, transposed ? x : dy,
                        call->outputs[0], &extras, call->workspace));
    if (!linear->own_bias) return NULL;
    struct cuda_launch launch = cuda_launch_of(lane);
    return cuda_status((cudaError_t)cuda_column_sum(&launch, desc->inputs[1].dtype, dy,
                                                    linear->rows, linear->out, call->outputs[1],
                                                    desc->accumulate[1], call->workspace),
                       "the gradient of a bias");
}

/* Lets our own kernels run the epilogues that cuBLASLt lacks: GELU first, then the bias. Returns a
 * note. */
static const char *do_without(struct linear *linear, enum matmul_epilogue *epilogue)
{
    switch (*epilogue) {
    case EPILOGUE_GELU_BIAS:
    case EPILOGUE_GELU_BIAS_KEPT:
        *epilogue = EPILOGUE_BIAS;
        linear->own_gelu = true;
        return "GELU";
    case EPILOGUE_GELU:
    case EPILOGUE_GELU_KEPT:
    case EPILOGUE_GELU_GRADIENT:
        *epilogue = EPILOGUE_NONE;
        linear->own_gelu = true;
        return "GELU";
    default:
        *epilogue = EPILOGUE_NONE;
        linear->own_bias = true;
        return "bias";
    }
}

static status_t prepare_product(struct linear *linear, struct cuda_device *device,
                                struct matmul_shape *shape)
{
    for (;;) {
        status_t status = cuda_matmul_init(&linear->matmul, device, shape);
        if (status_code(status) != STATUS_UNIMPLEMENTED || shape->epilogue == EPILOGUE_NONE)
            return status;
        status_free(status);
        cuda_note(device,
                  "%s: its %s is a pass of fsdpd's own kernels, cuBLASLt has no epilogue for it",
                  op_info_get(linear->base.op.desc.kind)->name,
                  do_without(linear, &shape->epilogue));
    }
}

/* Whether GELU, or its gradient, may be part of a product with that number of columns. */
static bool fuses_gelu(const struct cuda_device *device, const struct op_desc *desc,
                       int64_t columns)
{
    bool rounds = desc->inputs[0].dtype == DTYPE_BF16 || device->tf32;
    return rounds && columns % 8 == 0 && !cuda_is_switched("FSDPD_CUDA_GELU", "own");
}

static enum matmul_epilogue forward_epilogue(const struct op_desc *desc, bool gelu)
{
    bool bias = desc->input_present[2], kept = desc->output_present[1];
    if (!gelu) return bias ? EPILOGUE_BIAS : EPILOGUE_NONE;
    if (kept) return bias ? EPILOGUE_GELU_BIAS_KEPT : EPILOGUE_GELU_KEPT;
    return bias ? EPILOGUE_GELU_BIAS : EPILOGUE_GELU;
}

static status_t prepare(struct linear *linear, struct cuda_device *device)
{
    const struct op_desc *desc = &linear->base.op.desc;
    bool transposed = desc->attrs.linear.transposed, forward = desc->kind == OP_LINEAR;
    bool weights = desc->kind == OP_LINEAR_BACKWARD_WEIGHTS;
    const struct tensor_type *w = weights ? &desc->outputs[0] : &desc->inputs[1];
    linear->in = w->dims[transposed ? 0 : 1], linear->out = w->dims[transposed ? 1 : 0];
    /* An algorithm for the rows of all would depend on how many sequences there are. */
    bool prompt = desc->attrs.linear.rows_apart && !desc->accumulate[0] && !desc->output_present[1];
    linear->sequences = forward && prompt ? desc->inputs[0].dims[0] : 1;
    linear->rows = rows_of(&desc->inputs[0]) / linear->sequences;
    bool gelu = desc->attrs.linear.activation == ACTIVATION_GELU_TANH;
    bool fused = gelu && fuses_gelu(device, desc, forward ? linear->out : linear->in);
    linear->own_gelu = gelu && !fused;
    struct matmul_shape shape = {.in = desc->inputs[0].dtype,
                                 .out = desc->outputs[0].dtype,
                                 .accumulate = desc->accumulate[0]};
    linear->added =
        forward && desc->accumulate[0] && desc->attrs.linear.activation != ACTIVATION_NONE;
    if (linear->added) {
        shape.accumulate = false;
        linear->products =
            ((uint64_t)(linear->rows * linear->out) * sizeof(float) + 255) / 256 * 256;
    }
    if (forward) {
        shape.m = linear->out, shape.n = linear->rows, shape.k = linear->in;
        shape.a_transposed = !transposed;
        shape.epilogue = forward_epilogue(desc, fused);
        linear->base.run = run_forward;
    } else if (!weights) {
        shape.m = linear->in, shape.n = linear->rows, shape.k = linear->out;
        shape.a_transposed = transposed;
        if (fused) shape.epilogue = EPILOGUE_GELU_GRADIENT;
        linear->base.run = run_data;
    } else {
        shape.m = transposed ? linear->out : linear->in;
        shape.n = transposed ? linear->in : linear->out;
        shape.k = linear->rows;
        shape.b_transposed = true;
        bool own = desc->accumulate[1] || cuda_is_switched("FSDPD_CUDA_BIAS", "own");
        if (desc->output_present[1] && own) linear->own_bias = true;
        else if (desc->output_present[1])
            shape.epilogue = transposed ? EPILOGUE_BIAS_OF_A : EPILOGUE_BIAS_OF_B;
        linear->base.run = run_weights;
    }
    TRY(prepare_product(linear, device, &shape));
    linear->base.workspace_bytes = linear->products + linear->matmul.workspace_bytes;
    if (weights && linear->own_bias) {
        uint64_t bytes = cuda_column_sum_bytes(linear->rows, linear->out);
        if (bytes > linear->base.workspace_bytes) linear->base.workspace_bytes = bytes;
    }
    return NULL;
}

static void release(struct cuda_prepared *prepared)
{
    cuda_matmul_deinit(&((struct linear *)prepared)->matmul);
}

status_t cuda_linear_prepare(struct cuda_device *device, const struct op_desc *desc,
                             struct cuda_prepared **prepared)
{
    if (desc->kind == OP_LINEAR && linear_keeps_rows_apart(desc))
        return cuda_prepare_own(desc, prepared);
    struct linear *linear = mem_alloc(sizeof *linear);
    linear->base.op.desc = *desc;
    linear->base.release = release;
    *prepared = &linear->base;
    return prepare(linear, device);
}
