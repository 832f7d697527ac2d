/*
 * Linear layers for drawing tokens (attrs.linear.rows_apart): a row of x has the same bits beside
 * any other rows, as a sequence must not depend on what it is drawn with. A few rows are bound by
 * memory, so the weight is read once, in its order. Features are split into one part per thread,
 * and these into stripes.
 *
 * Many rows read a weight (depth, features) block by block, from panels in memory of the thread
 * that stay in its cache: features of a row of it are next to each other, those of the next are
 * not.
 */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

enum {
    FEATURES_TOGETHER = 64,
    /* Rows that read a weight (depth, features) as it is, of f32 and of bf16; as many features at
     * once as give this many sums. */
    FEW_ROWS = 16,
    FEW_ROWS_OF_HALVES = 8,
    FEW_SUMS = 4096,
    /* Features that more rows read at once, in blocks. */
    STRIPE = 512,
    DEPTH = 64,
    PANEL = 64,
};

struct linear_rows_job {
    size_t rows, depth, features;
    bool transposed; /* the weight is (depth, features) */
    bool halves;     /* weight, bias and y are bf16; x is not any more */
    const float *x;
    const void *weight, *bias; /* bias may be NULL */
    void *y;
    float *scratch; /* of all threads */
};

static bool reads_blocks(const struct linear_rows_job *job)
{
    return job->transposed && job->rows > (job->halves ? FEW_ROWS_OF_HALVES : FEW_ROWS);
}

/* Features of a stripe, a multiple of 64. */
static size_t stripe_of(const struct linear_rows_job *job)
{
    return job->rows > FEW_ROWS || reads_blocks(job) ? STRIPE : FEW_SUMS / job->rows / 64 * 64;
}

/* Floats that a thread needs: of a stripe the results and the bias, and a block of the weight. */
static size_t stripe_floats(const struct linear_rows_job *job)
{
    return job->halves ? stripe_of(job) * (job->rows + 1) : 0;
}

static size_t block_floats(const struct linear_rows_job *job)
{
    return reads_blocks(job) ? STRIPE * DEPTH : 0;
}

/* Elements of the weight or of the bias. */
static void load(const struct linear_rows_job *job, const void *from, size_t at, size_t count,
                 float *to)
{
    if (job->halves) cpu_loops_get()->bf16_to_f32(count, to, (const uint16_t *)from + at);
    else memcpy(to, (const float *)from + at, count * sizeof *to);
}

/* `depth` rows of the weight from `k` on. */
static void run_block(const struct linear_rows_job *job, size_t first, size_t k, size_t depth,
                      struct cpu_product product, float *block)
{
    const size_t columns = product.columns;
    for (size_t row = 0; row < depth; row++)
        for (size_t column = 0; column < columns; column += PANEL)
            load(job, job->weight, (k + row) * job->features + first + column,
                 columns - column < PANEL ? columns - column : PANEL,
                 block + column * depth + row * PANEL);
    product.continued = k > 0;
    product.a += k;
    product.depth = depth;
    product.b_depth = PANEL;
    for (size_t column = 0; column < columns; column += PANEL, product.c += PANEL) {
        product.columns = columns - column < PANEL ? columns - column : PANEL;
        product.b = block + column * depth;
        cpu_loops_get()->product(&product);
    }
}

static void multiply(const struct linear_rows_job *job, size_t first, struct cpu_product product,
                     float *block)
{
    const size_t at = job->transposed ? first : first * job->depth;
    for (size_t k = 0; reads_blocks(job) && k < job->depth; k += DEPTH)
        run_block(job, first, k, job->depth - k < DEPTH ? job->depth - k : DEPTH, product, block);
    if (reads_blocks(job)) return;
    product.b_depth = job->transposed ? job->features : job->depth;
    if (job->halves) product.halves = (const uint16_t *)job->weight + at;
    else product.b = (const float *)job->weight + at;
    if (job->transposed) cpu_loops_get()->product(&product);
    else cpu_loops_get()->dots(&product);
}

static void run_stripe(const struct linear_rows_job *job, size_t first, size_t count,
                       float *scratch)
{
    const struct cpu_loops *loops = cpu_loops_get();
    const size_t stripe = stripe_of(job);
    float *block = scratch + stripe_floats(job), *converted = scratch + stripe * job->rows;
    const float *bias = converted;
    struct cpu_product product = {.rows = job->rows,
                                  .columns = count,
                                  .depth = job->depth,
                                  .a = job->x,
                                  .a_row = job->depth,
                                  .a_depth = 1,
                                  .c = job->halves ? scratch : (float *)job->y + first,
                                  .c_row = job->halves ? stripe : job->features};
    multiply(job, first, product, block);
    if (job->bias != NULL && job->halves) load(job, job->bias, first, count, converted);
    else if (job->bias != NULL) bias = (const float *)job->bias + first;
    for (size_t row = 0; row < job->rows; row++) {
        float *y = product.c + row * product.c_row;
        if (job->bias != NULL) loops->add(count, y, y, bias, false);
        if (job->halves)
            loops->f32_to_bf16(count, (uint16_t *)job->y + row * job->features + first, y);
    }
}

static void rows_part(const void *argument, size_t begin, size_t end)
{
    const struct linear_rows_job *job = argument;
    float *scratch =
        job->scratch + (size_t)cpu_parallel_thread() * (stripe_floats(job) + block_floats(job));
    const size_t stripe = stripe_of(job);
    for (size_t first = begin; first < end; first += stripe)
        run_stripe(job, first, end - first < stripe ? end - first : stripe, scratch);
}

static struct linear_rows_job job_of(const struct op_desc *desc)
{
    const struct tensor_type *x = &desc->inputs[0], *weight = &desc->inputs[1];
    bool transposed = desc->attrs.linear.transposed;
    size_t depth = (size_t)weight->dims[!transposed];
    return (struct linear_rows_job){.rows = (size_t)tensor_element_count(x) / depth,
                                    .depth = depth,
                                    .features = (size_t)weight->dims[transposed],
                                    .transposed = transposed,
                                    .halves = weight->dtype == DTYPE_BF16};
}

static status_t run_rows(const struct kernel *kernel, const struct kernel_call *call)
{
    struct linear_rows_job job = job_of(&kernel->desc);
    job.x = call->inputs[0];
    job.weight = call->inputs[1];
    job.bias = kernel->desc.input_present[2] ? call->inputs[2] : NULL;
    job.y = call->outputs[0];
    job.scratch = call->workspace;
    if (job.halves) {
        float *x = call->workspace;
        cpu_loops_get()->bf16_to_f32(job.rows * job.depth, x, call->inputs[0]);
        job.x = x;
        job.scratch = x + job.rows * job.depth;
    }
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
    const size_t x = job.halves ? job.rows * job.depth : 0,
                 thread = stripe_floats(&job) + block_floats(&job);
    kernel->workspace_bytes = sizeof(float) * (uint64_t)(x + (size_t)kernel->threads * thread);
    kernel->run = activated ? run_activated : run_rows;
    return NULL;
}
