/*
 * LayerNorm and RMSNorm, row by row. The rows are split into one part per thread. Each part has
 * scratch rows of its own in the workspace. There it converts bf16 to f32 and sums the gradients of
 * the norm's parameters, over a few rows first, which keeps errors small; then the parts' sums are
 * added in their order.
 */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

/* Rows of the workspace: two parameters in f32, if they are not read in place, then the rows of
 * every part. */
enum { WEIGHT_ROW, BIAS_ROW, PARAMETER_ROWS };
enum {
    X_ROW,
    DY_ROW,
    OTHER_ROW,
    OUT_ROW,
    DWEIGHT_ROW, /* over a few rows */
    DBIAS_ROW,
    DWEIGHT_SUM_ROW, /* over the part */
    DBIAS_SUM_ROW,
    PART_ROWS
};
enum { SUM_ROWS = 64 };

/* A call's operands by role; NULL if absent. */
struct norm_job {
    bool centered, is_bf16, one_plus, rounded, add; /* `add`: to y or dx */
    size_t rows, columns, parts;
    size_t stride; /* between rows of the workspace */
    double eps;
    const void *x, *dy, *weight, *bias;
    const void *other; /* the residual, or the other gradient */
    void *out, *sum;   /* y or dx */
    float *mean, *rstd, *dweight, *dbias;
    const float *mean_in, *rstd_in;
    float *workspace;
};

static bool is_forward(const struct op_desc *desc)
{
    return desc->kind == OP_LAYER_NORM || desc->kind == OP_RMS_NORM;
}

static const struct tensor_type *type_of_x(const struct op_desc *desc)
{
    return &desc->inputs[is_forward(desc) ? 0 : 1];
}

static size_t columns_of(const struct op_desc *desc)
{
    const struct tensor_type *x = type_of_x(desc);
    return (size_t)x->dims[x->dim_count - 1];
}

/* Rows of the workspace start at cache lines. */
static size_t row_stride(size_t columns)
{
    return (columns + 15) / 16 * 16;
}

static size_t parts_of(const struct kernel *kernel)
{
    size_t count = (size_t)tensor_element_count(type_of_x(&kernel->desc));
    size_t rows = count / columns_of(&kernel->desc), most = (count + CPU_GRAIN - 1) / CPU_GRAIN;
    if (most > rows) most = rows;
    return most < (size_t)kernel->threads ? most : (size_t)kernel->threads;
}

static const void *input(const struct kernel *kernel, const struct kernel_call *call, int index)
{
    return kernel->desc.input_present[index] ? call->inputs[index] : NULL;
}

static void *output(const struct kernel *kernel, const struct kernel_call *call, int index)
{
    return kernel->desc.output_present[index] ? call->outputs[index] : NULL;
}

static struct norm_job job_of(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    struct norm_job job = {.centered =
                               desc->kind == OP_LAYER_NORM || desc->kind == OP_LAYER_NORM_BACKWARD,
                           .is_bf16 = type_of_x(desc)->dtype == DTYPE_BF16,
                           .one_plus = desc->attrs.norm.one_plus,
                           .rounded = desc->attrs.norm.rounded,
                           .add = desc->accumulate[0],
                           .columns = columns_of(desc),
                           .stride = row_stride(columns_of(desc)),
                           .parts = parts_of(kernel),
                           .eps = desc->attrs.norm.eps,
                           .out = output(kernel, call, 0),
                           .workspace = call->workspace};
    job.rows = (size_t)tensor_element_count(type_of_x(desc)) / job.columns;
    int next = is_forward(desc) ? 1 : 2; /* LAYER_NORM's extra operands shift the next ones */
    if (is_forward(desc)) {
        job.x = call->inputs[0];
        job.weight = input(kernel, call, next++);
        if (job.centered) job.bias = input(kernel, call, next++);
        job.other = input(kernel, call, next);
        next = 1;
        if (job.centered) job.mean = output(kernel, call, next++);
        job.rstd = output(kernel, call, next++);
        job.sum = output(kernel, call, next);
        return job;
    }
    job.dy = call->inputs[0];
    job.x = call->inputs[1];
    job.weight = input(kernel, call, next++);
    if (job.centered) job.mean_in = call->inputs[next++];
    job.rstd_in = call->inputs[next++];
    job.other = input(kernel, call, next);
    job.dweight = output(kernel, call, 1);
    if (job.centered) job.dbias = output(kernel, call, 2);
    return job;
}

static float *part_row(const struct norm_job *job, size_t part, int row)
{
    size_t rows = PARAMETER_ROWS + part * PART_ROWS + (size_t)row;
    return job->workspace + rows * job->stride;
}

/* A row of an operand in f32: in place, or converted in the workspace. NULL if there is no
 * operand. */
static const float *read_row(const struct norm_job *job, const void *operand, size_t row,
                             float *scratch)
{
    if (operand == NULL) return NULL;
    if (!job->is_bf16) return (const float *)operand + row * job->columns;
    cpu_loops_get()->bf16_to_f32(job->columns, scratch,
                                 (const uint16_t *)operand + row * job->columns);
    return scratch;
}

/* Returns where to write a row; end_row completes it. */
static float *begin_row(const struct norm_job *job, void *operand, size_t row, float *scratch)
{
    return job->is_bf16 ? scratch : (float *)operand + row * job->columns;
}

static void end_row(const struct norm_job *job, void *operand, size_t row, const float *scratch)
{
    if (!job->is_bf16) return;
    cpu_loops_get()->f32_to_bf16(job->columns, (uint16_t *)operand + row * job->columns, scratch);
}

static void forward_row(const struct norm_job *job, size_t part, size_t row, const float *weight,
                        const float *bias)
{
    const struct cpu_loops *loops = cpu_loops_get();
    const float *x = read_row(job, job->x, row, part_row(job, part, X_ROW));
    if (job->other != NULL) {
        const float *residual = read_row(job, job->other, row, part_row(job, part, OTHER_ROW));
        float *sum = begin_row(job, job->sum, row, part_row(job, part, X_ROW));
        loops->add(job->columns, sum, x, residual, false);
        end_row(job, job->sum, row, sum);
        x = job->rounded ? read_row(job, job->sum, row, sum) : sum;
    }
    float *y = begin_row(job, job->out, row, part_row(job, part, OUT_ROW)), mean, rstd;
    loops->norm(job->columns, y, x, weight, bias, job->centered, job->eps, &mean, &rstd, job->add);
    end_row(job, job->out, row, y);
    if (job->mean != NULL) job->mean[row] = mean;
    if (job->rstd != NULL) job->rstd[row] = rstd;
}

static void backward_row(const struct norm_job *job, size_t part, size_t row, const float *weight)
{
    const struct cpu_loops *loops = cpu_loops_get();
    const float *x = read_row(job, job->x, row, part_row(job, part, X_ROW));
    const float *dy = read_row(job, job->dy, row, part_row(job, part, DY_ROW));
    float mean = job->mean_in != NULL ? job->mean_in[row] : 0, rstd = job->rstd_in[row];
    if (job->out != NULL) {
        const float *other = read_row(job, job->other, row, part_row(job, part, OTHER_ROW));
        float *dx = begin_row(job, job->out, row, part_row(job, part, OUT_ROW));
        loops->norm_backward(job->columns, dx, dy, x, weight, other, job->centered, mean, rstd,
                             job->add);
        end_row(job, job->out, row, dx);
    }
    if (job->dweight != NULL || job->dbias != NULL)
        loops->norm_backward_weights(job->columns,
                                     job->dweight ? part_row(job, part, DWEIGHT_ROW) : NULL,
                                     job->dbias ? part_row(job, part, DBIAS_ROW) : NULL, dy, x,
                                     mean, rstd);
}

static void clear_row(const struct norm_job *job, size_t part, int row)
{
    memset(part_row(job, part, row), 0, job->columns * sizeof(float));
}

/* Adds the sums over a few rows to the part's. */
static void flush_sums(const struct norm_job *job, size_t part)
{
    for (int row = DWEIGHT_ROW; row <= DBIAS_ROW; row++) {
        if ((row == DWEIGHT_ROW ? job->dweight : job->dbias) == NULL) continue;
        cpu_loops_get()->copy_add(job->columns,
                                  part_row(job, part, row - DWEIGHT_ROW + DWEIGHT_SUM_ROW),
                                  part_row(job, part, row));
        clear_row(job, part, row);
    }
}

static void run_parts(const void *argument, size_t begin, size_t end)
{
    const struct norm_job *job = argument;
    const float *weight = job->weight, *bias = job->bias;
    if ((job->is_bf16 || job->one_plus) && weight != NULL)
        weight = job->workspace + WEIGHT_ROW * job->stride;
    if (job->is_bf16 && bias != NULL) bias = job->workspace + BIAS_ROW * job->stride;
    for (size_t part = begin; part < end; part++) {
        size_t row = job->rows * part / job->parts, last = job->rows * (part + 1) / job->parts;
        if (job->dy == NULL) {
            for (; row < last; row++) forward_row(job, part, row, weight, bias);
            continue;
        }
        for (int sum = DWEIGHT_ROW; sum <= DBIAS_SUM_ROW; sum++) clear_row(job, part, sum);
        while (row < last) {
            size_t stop = last - row < SUM_ROWS ? last : row + SUM_ROWS;
            for (; row < stop; row++) backward_row(job, part, row, weight);
            flush_sums(job, part);
        }
    }
}

static void add_parts(const struct norm_job *job, float *to, int row, bool add)
{
    if (to == NULL) return;
    const struct cpu_loops *loops = cpu_loops_get();
    float *sum = part_row(job, 0, row);
    for (size_t part = 1; part < job->parts; part++)
        loops->copy_add(job->columns, sum, part_row(job, part, row));
    if (add) loops->copy_add(job->columns, to, sum);
    else memcpy(to, sum, job->columns * sizeof(float));
}

static status_t run_norm(const struct kernel *kernel, const struct kernel_call *call)
{
    struct norm_job job = job_of(kernel, call);
    const struct cpu_loops *loops = cpu_loops_get();
    if (job.is_bf16 && job.weight != NULL)
        loops->bf16_to_f32(job.columns, job.workspace + WEIGHT_ROW * job.stride, job.weight);
    if (job.one_plus && job.weight != NULL) {
        float *row = job.workspace + WEIGHT_ROW * job.stride;
        loops->affine(job.columns, row, job.is_bf16 ? row : job.weight, 1, 1, false);
    }
    if (job.is_bf16 && job.bias != NULL)
        loops->bf16_to_f32(job.columns, job.workspace + BIAS_ROW * job.stride, job.bias);
    cpu_parallel(kernel->threads, job.parts, 1, run_parts, &job);
    add_parts(&job, job.dweight, DWEIGHT_SUM_ROW, kernel->desc.accumulate[1]);
    add_parts(&job, job.dbias, DBIAS_SUM_ROW, kernel->desc.accumulate[2]);
    return NULL;
}

status_t cpu_prepare_norm(struct kernel *kernel)
{
    const struct op_desc *desc = &kernel->desc;
    /* The statistics must not accumulate, nor must the sum, which is read again. */
    for (int i = 1; i < desc->output_count; i++)
        if (is_forward(desc) && desc->accumulate[i]) return cpu_leave_to_reference(kernel);
    bool scratch =
        !is_forward(desc) || type_of_x(desc)->dtype == DTYPE_BF16 || desc->attrs.norm.one_plus;
    size_t rows = PARAMETER_ROWS + parts_of(kernel) * PART_ROWS;
    if (scratch) kernel->workspace_bytes = rows * row_stride(columns_of(desc)) * sizeof(float);
    kernel->run = run_norm;
    return NULL;
}
