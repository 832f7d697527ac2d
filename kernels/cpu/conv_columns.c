/*
 * See winograd.h. With dy (rows, out), a row for each output pixel, and the columns (rows,
 * depth),
 *
 *     product (out, depth) = dy^T columns,    depth = kernel height * kernel width * in
 *
 * and each row of the product, (taps, in), is transposed into the weight's gradient, (in, taps).
 * The batch goes in slices of images whose columns stay in the cache; their products are added up.
 */
#include "kernels/cpu/winograd.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

enum {
    ALIGNMENT = 64,
    COLUMN_BYTES = 4 << 20, /* of a slice, at most, if it has more than one image */
    SHORT_AREA = 16,        /* output pixels of an image: with fewer, oneDNN's rows are too short */
    LEAST_WIDTH = 64,       /* channels in and out; with fewer, the columns cost too much */
};

struct columns {
    struct kernel *product;
    int64_t images, slices;        /* of a slice; of the batch */
    uint64_t product_at, inner_at; /* in the workspace, after the columns */
};

struct columns_job {
    const struct op_desc *desc;
    const char *x; /* of the slice's first image */
    char *columns;
    float *product;
    const struct kernel_call *call;
};

static bool is_channels_last(const struct tensor_type *type)
{
    return type->layout == LAYOUT_CHANNELS_LAST || type->dims[2] * type->dims[3] == 1;
}

static int64_t area_of(const struct tensor_type *type)
{
    return type->dims[2] * type->dims[3];
}

static int64_t taps_of(const struct op_desc *desc)
{
    return area_of(&desc->outputs[0]);
}

static int64_t depth_of(const struct op_desc *desc)
{
    return taps_of(desc) * desc->inputs[0].dims[1];
}

/* Not where the processor multiplies whole tiles: that was not measured. */
static bool is_fast(enum dtype dtype)
{
    int isa = (int)dnnl_get_effective_cpu_isa(), amx = (int)dnnl_cpu_isa_avx512_core_amx;
    return (isa & amx) != amx && (dtype == DTYPE_F32 || kernels_have_bf16()) &&
           cpu_loops_get() == cpu_loops_avx512;
}

bool conv_columns_fit(const struct op_desc *desc)
{
    if (desc->kind != OP_CONV2D_BACKWARD_WEIGHTS) return false;
    const struct tensor_type *x = &desc->inputs[0], *dy = &desc->inputs[1];
    const struct tensor_type *weight = &desc->outputs[0];
    const int64_t *stride = desc->attrs.conv.stride;
    bool half = x->dtype == DTYPE_BF16, strided = stride[0] > 1 || stride[1] > 1;
    return is_channels_last(x) && is_channels_last(dy) && cpu_is_plain(weight) &&
           weight->dtype == DTYPE_F32 && x->dtype == dy->dtype && !desc->output_present[1] &&
           desc->attrs.conv.groups == 1 && x->dims[1] >= LEAST_WIDTH &&
           dy->dims[1] >= LEAST_WIDTH && (area_of(dy) < SHORT_AREA || (half && strided)) &&
           is_fast(x->dtype);
}

/* The pixels of one output, or zeros where they are outside. */
static void gather(const struct columns_job *job, int64_t row, char *to)
{
    const struct op_desc *desc = job->desc;
    const struct tensor_type *x = &desc->inputs[0], *dy = &desc->inputs[1];
    const int64_t *dims = x->dims, *taps = desc->outputs[0].dims + 2;
    size_t bytes = (size_t)dims[1] * dtype_size(x->dtype);
    int64_t image = row / area_of(dy), at = row % area_of(dy);
    int64_t top = at / dy->dims[3] * desc->attrs.conv.stride[0] - desc->attrs.conv.padding[0];
    int64_t left = at % dy->dims[3] * desc->attrs.conv.stride[1] - desc->attrs.conv.padding[1];
    for (int64_t i = 0; i < taps[0]; i++)
        for (int64_t k = 0; k < taps[1]; k++, to += bytes) {
            int64_t h = top + i * desc->attrs.conv.dilation[0];
            int64_t w = left + k * desc->attrs.conv.dilation[1];
            if (h < 0 || h >= dims[2] || w < 0 || w >= dims[3]) memset(to, 0, bytes);
            else memcpy(to, job->x + (size_t)((image * dims[2] + h) * dims[3] + w) * bytes, bytes);
        }
}

static void gather_part(const void *argument, size_t begin, size_t end)
{
    const struct columns_job *job = argument;
    size_t bytes = (size_t)depth_of(job->desc) * dtype_size(job->desc->inputs[0].dtype);
    for (size_t row = begin; row < end; row++)
        gather(job, (int64_t)row, job->columns + row * bytes);
}

static void transpose_part(const void *argument, size_t begin, size_t end)
{
    const struct columns_job *job = argument;
    size_t depth = (size_t)depth_of(job->desc), in = (size_t)job->desc->inputs[0].dims[1];
    for (size_t out = begin; out < end; out++)
        cpu_loops_get()->transpose(depth / in, in, (float *)job->call->outputs[0] + out * depth,
                                   job->product + out * depth, job->desc->accumulate[0]);
}

static status_t run(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct columns *columns = kernel->state;
    const struct op_desc *desc = &kernel->desc;
    const struct tensor_type *x = &desc->inputs[0], *dy = &desc->inputs[1];
    char *workspace = call->workspace;
    size_t x_bytes = (size_t)(tensor_bytes(x) / (uint64_t)columns->slices);
    size_t dy_bytes = (size_t)(tensor_bytes(dy) / (uint64_t)columns->slices);
    size_t rows = (size_t)(columns->images * area_of(dy)), out = (size_t)dy->dims[1];
    struct columns_job job = {.desc = desc,
                              .columns = workspace,
                              .product = (float *)(workspace + columns->product_at),
                              .call = call};
    if (columns->slices > 1) memset(job.product, 0, out * (size_t)depth_of(desc) * sizeof(float));
    for (size_t slice = 0; slice < (size_t)columns->slices; slice++) {
        const struct kernel_call inner = {.inputs = {workspace, (const char *)call->inputs[1] +
                                                                    slice * dy_bytes},
                                          .outputs = {job.product},
                                          .workspace = workspace + columns->inner_at};
        job.x = (const char *)call->inputs[0] + slice * x_bytes;
        cpu_parallel(kernel->threads, rows, 16, gather_part, &job);
        TRY(kernel_run(columns->product, &inner));
    }
    cpu_parallel(kernel->threads, out, 8, transpose_part, &job);
    return NULL;
}

static void release(void *state)
{
    struct columns *columns = state;
    kernel_free(columns->product);
    free(columns);
}

/* The most images that divide the batch into slices of at most COLUMN_BYTES; at least one. */
static int64_t images_of(const struct op_desc *desc)
{
    int64_t count = desc->inputs[0].dims[0], images = 1;
    int64_t bytes =
        area_of(&desc->inputs[1]) * depth_of(desc) * (int64_t)dtype_size(desc->inputs[0].dtype);
    for (int64_t d = 2; d <= count && d * bytes <= COLUMN_BYTES; d++)
        if (count % d == 0) images = d;
    return images;
}

status_t conv_columns_prepare(struct kernel *kernel)
{
    const struct op_desc *desc = &kernel->desc;
    enum dtype dtype = desc->inputs[0].dtype;
    struct columns *columns = mem_alloc(sizeof *columns);
    kernel->state = columns;
    kernel->release = release;
    columns->images = images_of(desc);
    columns->slices = desc->inputs[0].dims[0] / columns->images;
    int64_t rows = columns->images * area_of(&desc->inputs[1]), out = desc->inputs[1].dims[1];
    struct tensor_type gathered = tensor_type_make(dtype, 2, (int64_t[]){rows, depth_of(desc)});
    struct tensor_type slopes = tensor_type_make(dtype, 2, (int64_t[]){rows, out});
    struct tensor_type product = tensor_type_make(DTYPE_F32, 2, (int64_t[]){out, depth_of(desc)});
    const struct op_info *info = op_info_get(OP_LINEAR_BACKWARD_WEIGHTS);
    const struct op_desc inner = {.kind = OP_LINEAR_BACKWARD_WEIGHTS,
                                  .input_count = info->input_count,
                                  .output_count = info->output_count,
                                  .input_present = {true, true},
                                  .output_present = {true},
                                  .accumulate = {columns->slices > 1},
                                  .inputs = {gathered, slopes},
                                  .outputs = {product}};
    TRY(kernel_new(KERNELS_CPU, &inner, &columns->product));
    columns->product_at = round_up(tensor_bytes(&gathered), ALIGNMENT);
    columns->inner_at = columns->product_at + round_up(tensor_bytes(&product), ALIGNMENT);
    kernel->workspace_bytes = columns->inner_at + kernel_workspace_bytes(columns->product);
    kernel->held_bytes = sizeof *columns + kernel_held_bytes(columns->product);
    kernel->run = run;
    return NULL;
}
