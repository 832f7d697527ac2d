/*
 * Linear layers for drawing tokens (attrs.linear.rows_apart): a row of x has the same bits beside
 * any other rows, as a sequence must not depend on what it is drawn with. A few rows are bound by
 * memory, so the weight is read once, in its order. Features are split into one part per thread.
 * A bf16 weight becomes f32 block by block, in memory of the thread that stays in its cache.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

enum { FEATURES_TOGETHER = 64, BLOCK = 16 }; /* BLOCK: features of a bf16 weight */

struct linear_rows_job {
    size_t rows, depth, features;
    const float *x, *weight, *bias; /* bias may be NULL */
    float *y;
    bool transposed; /* the weight is (depth, features) */
};

static void rows_part(const void *argument, size_t begin, size_t end)
{
    const struct linear_rows_job *job = argument;
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

/* ---- bf16 ---- */

struct linear_halves_job {
    struct linear_rows_job job; /* of f32 */
    const uint16_t *weight, *bias;
    uint16_t *y;
    float *scratch; /* of all threads */
};

/* Floats that a thread needs: of a block the weight, the results and the bias. */
static size_t scratch_of(const struct linear_rows_job *job)
{
    return BLOCK * (job->depth + job->rows + 1);
}

static void run_block(const struct linear_halves_job *halves, float *scratch, size_t first,
                      size_t count)
{
    const struct cpu_loops *loops = cpu_loops_get();
    struct linear_rows_job block = halves->job;
    const size_t depth = block.depth, features = block.features;
    float *weight = scratch, *y = weight + BLOCK * depth, *bias = y + BLOCK * block.rows;
    if (!block.transposed)
        loops->bf16_to_f32(count * depth, weight, halves->weight + first * depth);
    for (size_t k = 0; block.transposed && k < depth; k++)
        loops->bf16_to_f32(count, weight + k * count, halves->weight + k * features + first);
    if (halves->bias != NULL) loops->bf16_to_f32(count, bias, halves->bias + first);
    block.features = count;
    block.weight = weight;
    block.bias = halves->bias != NULL ? bias : NULL;
    block.y = y;
    rows_part(&block, 0, count);
    for (size_t row = 0; row < block.rows; row++)
        loops->f32_to_bf16(count, halves->y + row * features + first, y + row * count);
}

static void halves_part(const void *argument, size_t begin, size_t end)
{
    const struct linear_halves_job *halves = argument;
    float *scratch = halves->scratch + (size_t)cpu_parallel_thread() * scratch_of(&halves->job);
    for (size_t first = begin; first < end; first += BLOCK)
        run_block(halves, scratch, first, end - first < BLOCK ? end - first : BLOCK);
}

static void run_halves(const struct kernel *kernel, const struct kernel_call *call,
                       const struct linear_rows_job *job)
{
    struct linear_halves_job halves = {.job = *job,
                                       .weight = call->inputs[1],
                                       .y = call->outputs[0],
                                       .scratch =
                                           (float *)call->workspace + job->rows * job->depth};
    if (kernel->desc.input_present[2]) halves.bias = call->inputs[2];
    halves.job.x = call->workspace;
    cpu_loops_get()->bf16_to_f32(job->rows * job->depth, call->workspace, call->inputs[0]);
    cpu_parallel(kernel->threads, job->features, FEATURES_TOGETHER, halves_part, &halves);
}

/* ---- both ---- */

static struct linear_rows_job job_of(const struct op_desc *desc)
{
    const struct tensor_type *x = &desc->inputs[0], *weight = &desc->inputs[1];
    bool transposed = desc->attrs.linear.transposed;
    size_t depth = (size_t)weight->dims[!transposed];
    return (struct linear_rows_job){.rows = (size_t)tensor_element_count(x) / depth,
                                    .depth = depth,
                                    .features = (size_t)weight->dims[transposed],
                                    .transposed = transposed};
}

static bool is_halves(const struct kernel *kernel)
{
    return kernel->desc.inputs[1].dtype == DTYPE_BF16;
}

static status_t run_rows(const struct kernel *kernel, const struct kernel_call *call)
{
    struct linear_rows_job job = job_of(&kernel->desc);
    if (is_halves(kernel)) {
        run_halves(kernel, call, &job);
        return NULL;
    }
    job.x = call->inputs[0];
    job.weight = call->inputs[1];
    job.bias = kernel->desc.input_present[2] ? call->inputs[2] : NULL;
    job.y = call->outputs[0];
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
    const struct linear_rows_job job = job_of(&kernel->desc);
    if (is_halves(kernel))
        kernel->workspace_bytes =
            sizeof(float) *
            (uint64_t)(job.rows * job.depth + (size_t)kernel->threads * scratch_of(&job));
    kernel->run = activated ? run_activated : run_rows;
    return NULL;
}
