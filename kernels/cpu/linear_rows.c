/*
 * Linear layers for drawing tokens (attrs.linear.rows_apart): a row of x has the same bits beside
 * any other rows, as a sequence must not depend on what it is drawn with. A few rows are bound by
 * memory, so the weight is read once, in its order. Features are split into one part per thread.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

enum { FEATURES_TOGETHER = 64 };

struct rows_job {
    size_t rows, depth, features;
    const float *x, *weight, *bias; /* bias may be NULL */
    float *y;
    bool transposed; /* the weight is (depth, features) */
};

static void rows_part(const void *argument, size_t begin, size_t end)
{
    const struct rows_job *job = argument;
    const struct cpu_loops *loops = cpu_loops_get();
    const struct cpu_product product = {
        .rows = job->rows,
        .columns = end - begin,
        .depth = job->depth,
        .a = job->x,
        .b = job->weight + begin * (job->transposed ? 1 : job->depth),
        .c = job->y + begin,
        .a_row = job->depth,
        .a_depth = 1,
        .b_depth = job->transposed ? job->features : job->depth,
        .c_row = job->features,
    };
    if (job->transposed) loops->product(&product);
    else loops->dots(&product);
    for (size_t row = 0; job->bias != NULL && row < job->rows; row++) {
        float *y = product.c + row * job->features;
        loops->add(end - begin, y, y, job->bias + begin, false);
    }
}

static status_t run_rows(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    const struct tensor_type *x = &desc->inputs[0], *weight = &desc->inputs[1];
    bool transposed = desc->attrs.linear.transposed;
    size_t depth = (size_t)weight->dims[!transposed];
    struct rows_job job = {.rows = (size_t)tensor_element_count(x) / depth,
                           .depth = depth,
                           .features = (size_t)weight->dims[transposed],
                           .x = call->inputs[0],
                           .weight = call->inputs[1],
                           .bias = desc->input_present[2] ? call->inputs[2] : NULL,
                           .y = call->outputs[0],
                           .transposed = transposed};
    cpu_parallel(kernel->threads, job.features, FEATURES_TOGETHER, rows_part, &job);
    return NULL;
}

static status_t run_activated(const struct kernel *kernel, const struct kernel_call *call)
{
    bool relu = kernel->desc.attrs.linear.activation == ACTIVATION_RELU;
    const struct op_desc activation = {.kind = relu ? OP_RELU : OP_GELU,
                                       .attrs.gelu.tanh = !relu,
                                       .input_count = 1,
                                       .output_count = 1,
                                       .inputs = {kernel->desc.outputs[0]},
                                       .outputs = {kernel->desc.outputs[0]}};
    const struct kernel_call follow = {.inputs = {call->outputs[0]}, .outputs = {call->outputs[0]}};
    TRY(run_rows(kernel, call));
    cpu_run_element(&activation, kernel->threads, &follow);
    return NULL;
}

status_t cpu_prepare_linear_rows(struct kernel *kernel)
{
    bool activated = kernel->desc.attrs.linear.activation != ACTIVATION_NONE;
    kernel->run = activated ? run_activated : run_rows;
    return NULL;
}
