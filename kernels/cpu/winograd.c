/*
 * Convolutions by Winograd's F(2x2, 3x3); loops_winograd.h has its matrices and transforms.
 *
 * The output is split into tiles of 2 x 2, each of which depends on 4 x 4 pixels of the input. The
 * work goes by blocks of tiles that stay in the second-level cache: all tiles of a block are
 * transformed, 16 matrix multiplications work on their channels, and the result is transformed
 * back. With U the transformed weights, V the block's transformed input and D that of its output's
 * gradient,
 *
 *     forward            M = V U,    y = A^T M A
 *     backward data      N = D U^T,  dx += B N B^T (tiles overlap)
 *     backward weights   dU += V^T D over all blocks,  dweight = G^T dU G
 *
 * These are the same bilinear form three times, so the gradients are exactly those of the forward
 * pass.
 *
 * Rounding: an element of V is a sum of 4 pixels, one of U at most (9/4) max|weight|, and an output
 * a sum of 9 elements of M. With e = 2^-24 and n = channels summed over, an output differs from the
 * exact one by at most about (n + 10) e 81 max|x| max|weight| n (the direct algorithm's bound has 9
 * for 81); the measured error is twice the direct algorithm's.
 *
 * A value that is not finite makes its whole tile (2 x 2 outputs, or 4 x 4 gradients) not finite.
 * The direct algorithm affects somewhat fewer elements; neither loses such a value.
 *
 * Threads have contiguous parts of the tiles, in `backward data` of whole images. The parts' bounds
 * depend only on shapes and the number of threads. Each part has its own scratch memory and its own
 * sums of the weights' gradient, which are added in the parts' order.
 */
#include "kernels/cpu/winograd.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

enum {
    ELEMENTS = 16,            /* of a transformed tile */
    BLOCK_BYTES = 448 * 1024, /* of a block's transformed tiles, in and out */
    LEAST_BLOCK = 24,         /* tiles; the multiplication works on six rows at a time */
    MOST_BLOCK = 48,
    LEAST_TILES = 32,           /* with fewer, transforming the weights does not pay, */
    LEAST_CHANNELS = 16,        /* with fewer, nor does transforming the tiles, */
    MOST_PRODUCTS = 128 * 1024, /* in x out; with more, 16 matrices do not fit the cache */
};

struct winograd {
    int64_t in, out; /* number of channels */
    int64_t height, width, out_height, out_width, padding[2];
    int64_t tile_rows, tile_columns, tile_count; /* per image, per image, in all */
    size_t block;                                /* tiles per block */
    size_t parts;
    /* In elements: the distances between the 16 matrices of V, of M or D, and of U, */
    size_t v_stride, m_stride, u_stride;
    /* and offsets and sizes in the workspace. */
    size_t u, g, outside, scratch, scratch_size, sums, sums_size, size;
};

struct winograd_job {
    const struct kernel *kernel;
    const struct kernel_call *call;
    const struct winograd *w;
    const struct cpu_loops *loops;
    float *workspace;
};

/* Sizes. */

/* x and y of the convolution that this op is, or whose gradient it is. */
static const struct tensor_type *x_of(const struct op_desc *desc)
{
    return desc->kind == OP_CONV2D_BACKWARD_DATA ? &desc->outputs[0] : &desc->inputs[0];
}

static const struct tensor_type *y_of(const struct op_desc *desc)
{
    return desc->kind == OP_CONV2D                 ? &desc->outputs[0]
           : desc->kind == OP_CONV2D_BACKWARD_DATA ? &desc->inputs[0]
                                                   : &desc->inputs[1];
}

static const struct tensor_type *weight_of(const struct op_desc *desc)
{
    return desc->kind == OP_CONV2D_BACKWARD_WEIGHTS ? &desc->outputs[0] : &desc->inputs[1];
}

static bool is_channels_last(const struct tensor_type *type)
{
    return type->dtype == DTYPE_F32 && type->dims[1] % 16 == 0 &&
           type->layout == LAYOUT_CHANNELS_LAST;
}

bool winograd_fits(const struct op_desc *desc)
{
    const struct tensor_type *x = x_of(desc), *y = y_of(desc), *weight = weight_of(desc);
    if (!is_channels_last(x) || !is_channels_last(y) || !cpu_is_plain(weight) ||
        weight->dtype != DTYPE_F32 || weight->dims[2] != 3 || weight->dims[3] != 3 ||
        desc->attrs.conv.groups != 1)
        return false;
    for (int i = 0; i < 2; i++)
        if (desc->attrs.conv.stride[i] != 1 || desc->attrs.conv.dilation[i] != 1) return false;
    /* Tiles at the edges may be half outside: checks that enough multiplications are saved. */
    int64_t tiles = ((y->dims[2] + 1) / 2) * ((y->dims[3] + 1) / 2);
    int64_t outputs = y->dims[2] * y->dims[3], in = x->dims[1], out = y->dims[1];
    return tiles * y->dims[0] >= LEAST_TILES && 10 * outputs >= 25 * tiles &&
           in * out >= LEAST_CHANNELS * (in + out) && in * out <= MOST_PRODUCTS &&
           cpu_loops_get() != cpu_loops_base;
}

/* The distance of matrices that are written in parallel. It is not a multiple of the page size,
 * which would map all of them to the same few sets of the first-level cache. */
static size_t matrix_stride(size_t elements)
{
    return round_up(elements, 1024) + 64;
}

static size_t take(size_t *size, size_t elements)
{
    size_t offset = *size;
    *size += round_up(elements, 16);
    return offset;
}

static void set_shape(struct winograd *w, const struct op_desc *desc)
{
    const struct tensor_type *x = x_of(desc), *y = y_of(desc);
    w->in = x->dims[1];
    w->height = x->dims[2];
    w->width = x->dims[3];
    w->out = y->dims[1];
    w->out_height = y->dims[2];
    w->out_width = y->dims[3];
    for (int i = 0; i < 2; i++) w->padding[i] = desc->attrs.conv.padding[i];
    w->tile_rows = (w->out_height + 1) / 2;
    w->tile_columns = (w->out_width + 1) / 2;
    w->tile_count = y->dims[0] * w->tile_rows * w->tile_columns;
}

static void set_blocks(struct winograd *w, enum op_kind kind, int threads)
{
    size_t channels = (size_t)(w->in + w->out);
    size_t block = BLOCK_BYTES / (channels * ELEMENTS * sizeof(float));
    block = block < LEAST_BLOCK ? LEAST_BLOCK : block > MOST_BLOCK ? MOST_BLOCK : block / 4 * 4;
    size_t share = ((size_t)w->tile_count + (size_t)threads - 1) / (size_t)threads;
    w->block = share < block ? round_up(share, 4) : block;
    size_t image = (size_t)(w->tile_rows * w->tile_columns);
    size_t pieces = kind == OP_CONV2D_BACKWARD_DATA
                        ? (size_t)w->tile_count / image
                        : ((size_t)w->tile_count + w->block - 1) / w->block;
    w->parts = pieces < (size_t)threads ? pieces : (size_t)threads;
}

static void set_workspace(struct winograd *w, enum op_kind kind)
{
    size_t in = (size_t)w->in, out = (size_t)w->out, most = in > out ? in : out;
    w->v_stride = matrix_stride(w->block * in);
    w->m_stride = matrix_stride(w->block * out);
    w->u_stride = matrix_stride(in * out);
    bool sums = kind == OP_CONV2D_BACKWARD_WEIGHTS;
    w->g = take(&w->size, 9 * in * out);
    w->u = sums ? 0 : take(&w->size, ELEMENTS * w->u_stride);
    w->outside = take(&w->size, most);
    w->scratch = w->size;
    (void)take(&w->scratch_size, ELEMENTS * (w->v_stride + w->m_stride));
    (void)take(&w->scratch_size, most); /* receives the pixels outside of an output */
    w->size += w->parts * w->scratch_size;
    w->sums = w->size;
    if (sums) (void)take(&w->sums_size, ELEMENTS * w->u_stride + out);
    w->size += w->parts * w->sums_size;
}

/* Addresses in the workspace. */

static float *v_at(const struct winograd_job *job, size_t part)
{
    return job->workspace + job->w->scratch + part * job->w->scratch_size;
}

static float *m_at(const struct winograd_job *job, size_t part)
{
    return v_at(job, part) + ELEMENTS * job->w->v_stride;
}

static float *dump_at(const struct winograd_job *job, size_t part)
{
    return m_at(job, part) + ELEMENTS * job->w->m_stride;
}

static float *sums_at(const struct winograd_job *job, size_t part)
{
    return job->workspace + job->w->sums + part * job->w->sums_size;
}

/* The sums of dy, for the bias. */
static float *bias_sums_at(const struct winograd_job *job, size_t part)
{
    return sums_at(job, part) + ELEMENTS * job->w->u_stride;
}

/* The range of a part's tiles: [*begin, *end). */
static void part_bounds(const struct winograd *w, size_t part, size_t unit, size_t *begin,
                        size_t *end)
{
    size_t count = (size_t)w->tile_count, units = (count + unit - 1) / unit;
    *begin = units * part / w->parts * unit;
    *end = units * (part + 1) / w->parts * unit;
    if (*end > count) *end = count;
}

struct position {
    int64_t image, row, column;
};

static struct position position_of(const struct winograd *w, size_t tile)
{
    int64_t column = (int64_t)tile % w->tile_columns, line = (int64_t)tile / w->tile_columns;
    return (struct position){line / w->tile_rows, line % w->tile_rows, column};
}

/* The pixels of a square of an image; `outside` for those beyond its edges. */
static void find_pixels(float *image, int64_t height, int64_t width, int64_t channels, int64_t top,
                        int64_t left, int size, float *outside, float **pixels)
{
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++) {
            int64_t h = top + i, w = left + j;
            bool inside = h >= 0 && h < height && w >= 0 && w < width;
            pixels[i * size + j] = inside ? image + (h * width + w) * channels : outside;
        }
}

static void find_inputs(const struct winograd *w, const void *x, size_t tile, float *outside,
                        float *pixels[16])
{
    struct position at = position_of(w, tile);
    find_pixels((float *)x + at.image * w->height * w->width * w->in, w->height, w->width, w->in,
                2 * at.row - w->padding[0], 2 * at.column - w->padding[1], 4, outside, pixels);
}

static void find_outputs(const struct winograd *w, const void *y, size_t tile, float *outside,
                         float *pixels[4])
{
    struct position at = position_of(w, tile);
    find_pixels((float *)y + at.image * w->out_height * w->out_width * w->out, w->out_height,
                w->out_width, w->out, 2 * at.row, 2 * at.column, 2, outside, pixels);
}

/* Makes V and D of a block's tiles; pixels outside are zero. */
static void transform_inputs(const struct winograd_job *job, const void *x, size_t tile,
                             size_t count, float *v)
{
    const struct winograd *w = job->w;
    float *pixels[16];
    for (size_t i = 0; i < count; i++) {
        find_inputs(w, x, tile + i, job->workspace + w->outside, pixels);
        job->loops->winograd_input((size_t)w->in, v + i * (size_t)w->in, w->v_stride, pixels);
    }
}

static void transform_gradients(const struct winograd_job *job, const void *dy, size_t tile,
                                size_t count, float *d)
{
    const struct winograd *w = job->w;
    float *pixels[4];
    for (size_t i = 0; i < count; i++) {
        find_outputs(w, dy, tile + i, job->workspace + w->outside, pixels);
        job->loops->winograd_output_backward((size_t)w->out, d + i * (size_t)w->out, w->m_stride,
                                             pixels);
    }
}

/* 16 matrices, one for each element of a tile. */
struct matrices {
    float *first;
    size_t stride;
};

/* c (rows, columns) = a (rows, depth) b (depth, columns). If `turned`, a is (depth, rows), and the
 * product is added to c. */
static void multiply(const struct winograd_job *job, size_t rows, size_t columns, size_t depth,
                     struct matrices c, struct matrices a, bool turned, struct matrices b)
{
    for (size_t e = 0; e < ELEMENTS; e++) {
        const struct cpu_product product = {.rows = rows,
                                            .columns = columns,
                                            .depth = depth,
                                            .a = a.first + e * a.stride,
                                            .b = b.first + e * b.stride,
                                            .c = c.first + e * c.stride,
                                            .a_row = turned ? 1 : depth,
                                            .a_depth = turned ? rows : 1,
                                            .b_depth = columns,
                                            .c_row = columns,
                                            .add = turned};
        job->loops->product(&product);
    }
}

/* Weights. The forward multiplication sums over inputs, the backward one over outputs: U is (in,
 * out) or (out, in). Before the transform, g holds the nine elements of a kernel apart. */

static void transform_weights(const void *argument, size_t begin, size_t end)
{
    const struct winograd_job *job = argument;
    const struct winograd *w = job->w;
    bool backward = job->kernel->desc.kind == OP_CONV2D_BACKWARD_DATA;
    size_t columns = (size_t)(backward ? w->in : w->out);
    const float *weight = job->call->inputs[1];
    for (size_t row = begin; row < end; row++) {
        float *g = job->workspace + w->g + row * 9 * columns;
        if (backward) job->loops->transpose(columns, 9, g, weight + row * 9 * columns, false);
        job->loops->winograd_weights(columns, job->workspace + w->u + row * columns, w->u_stride, g,
                                     columns);
    }
}

static void prepare_weights(const struct winograd_job *job)
{
    const struct winograd *w = job->w;
    bool backward = job->kernel->desc.kind == OP_CONV2D_BACKWARD_DATA;
    if (!backward)
        job->loops->transpose((size_t)w->out, 9 * (size_t)w->in, job->workspace + w->g,
                              job->call->inputs[1], false);
    cpu_parallel(job->kernel->threads, (size_t)(backward ? w->out : w->in), 16, transform_weights,
                 job);
}

/* Forward. */

static void forward_block(const struct winograd_job *job, size_t part, size_t tile, size_t count)
{
    const struct winograd *w = job->w;
    const struct op_desc *desc = &job->kernel->desc;
    size_t in = (size_t)w->in, out = (size_t)w->out;
    float *v = v_at(job, part), *m = m_at(job, part), *u = job->workspace + w->u, *pixels[4];
    transform_inputs(job, job->call->inputs[0], tile, count, v);
    multiply(job, count, out, in, (struct matrices){m, w->m_stride},
             (struct matrices){v, w->v_stride}, false, (struct matrices){u, w->u_stride});
    for (size_t i = 0; i < count; i++) {
        find_outputs(w, job->call->outputs[0], tile + i, dump_at(job, part), pixels);
        job->loops->winograd_output(out, pixels, m + i * out, w->m_stride,
                                    desc->input_present[2] ? job->call->inputs[2] : NULL,
                                    desc->attrs.conv.activation == ACTIVATION_RELU,
                                    desc->accumulate[0]);
    }
}

static void forward_parts(const void *argument, size_t begin, size_t end)
{
    const struct winograd_job *job = argument;
    for (size_t part = begin; part < end; part++) {
        size_t first, last, block = job->w->block;
        part_bounds(job->w, part, block, &first, &last);
        memset(dump_at(job, part), 0, (size_t)job->w->out * sizeof(float));
        for (size_t tile = first; tile < last; tile += block)
            forward_block(job, part, tile, last - tile < block ? last - tile : block);
    }
}

/* Backward data. */

static void backward_data_block(const struct winograd_job *job, size_t part, size_t tile,
                                size_t count)
{
    const struct winograd *w = job->w;
    size_t in = (size_t)w->in, out = (size_t)w->out;
    float *n = v_at(job, part), *d = m_at(job, part), *u = job->workspace + w->u, *pixels[16];
    transform_gradients(job, job->call->inputs[0], tile, count, d);
    multiply(job, count, in, out, (struct matrices){n, w->v_stride},
             (struct matrices){d, w->m_stride}, false, (struct matrices){u, w->u_stride});
    for (size_t i = 0; i < count; i++) {
        find_inputs(w, job->call->outputs[0], tile + i, dump_at(job, part), pixels);
        job->loops->winograd_input_backward(in, pixels, n + i * in, w->v_stride);
    }
}

/* A block ends with its image, which is cleared just before, and so is in the cache. */
static void backward_data_parts(const void *argument, size_t begin, size_t end)
{
    const struct winograd_job *job = argument;
    const struct winograd *w = job->w;
    size_t image = (size_t)(w->tile_rows * w->tile_columns), block = w->block;
    size_t elements = (size_t)(w->height * w->width * w->in);
    for (size_t part = begin; part < end; part++) {
        size_t first, last;
        part_bounds(w, part, image, &first, &last);
        memset(dump_at(job, part), 0, (size_t)w->in * sizeof(float));
        for (size_t tile = first; tile < last; tile += image) {
            float *dx = (float *)job->call->outputs[0] + tile / image * elements;
            if (!job->kernel->desc.accumulate[0]) memset(dx, 0, elements * sizeof *dx);
            for (size_t i = 0; i < image; i += block)
                backward_data_block(job, part, tile + i, image - i < block ? image - i : block);
        }
    }
}

/* Backward weights. */

static void backward_weights_block(const struct winograd_job *job, size_t part, size_t tile,
                                   size_t count)
{
    const struct winograd *w = job->w;
    size_t in = (size_t)w->in, out = (size_t)w->out;
    float *v = v_at(job, part), *d = m_at(job, part), *sums = sums_at(job, part);
    transform_inputs(job, job->call->inputs[0], tile, count, v);
    transform_gradients(job, job->call->inputs[1], tile, count, d);
    multiply(job, in, out, count, (struct matrices){sums, w->u_stride},
             (struct matrices){v, w->v_stride}, true, (struct matrices){d, w->m_stride});
    /* A's second row is 1 1, so element (1, 1) of D is the sum of its tile. */
    if (job->kernel->desc.output_present[1])
        job->loops->sum_rows(count, out, bias_sums_at(job, part), d + 5 * w->m_stride, true);
}

static void backward_weights_parts(const void *argument, size_t begin, size_t end)
{
    const struct winograd_job *job = argument;
    for (size_t part = begin; part < end; part++) {
        size_t first, last, block = job->w->block;
        part_bounds(job->w, part, block, &first, &last);
        memset(sums_at(job, part), 0, job->w->sums_size * sizeof(float));
        for (size_t tile = first; tile < last; tile += block)
            backward_weights_block(job, part, tile, last - tile < block ? last - tile : block);
    }
}

/* Adds the parts' sums and transforms them back, into g: (in, 9, out). */
static void finish_weights(const void *argument, size_t begin, size_t end)
{
    const struct winograd_job *job = argument;
    const struct winograd *w = job->w;
    size_t out = (size_t)w->out;
    float *sums = sums_at(job, 0);
    for (size_t part = 1; part < w->parts; part++)
        for (size_t e = 0; e < ELEMENTS; e++)
            job->loops->copy_add((end - begin) * out, sums + e * w->u_stride + begin * out,
                                 sums_at(job, part) + e * w->u_stride + begin * out);
    for (size_t row = begin; row < end; row++)
        job->loops->winograd_weights_backward(out, job->workspace + w->g + row * 9 * out, out,
                                              sums + row * out, w->u_stride);
}

static void finish_bias(const struct winograd_job *job)
{
    const struct winograd *w = job->w;
    size_t out = (size_t)w->out;
    float *sums = bias_sums_at(job, 0), *dbias = job->call->outputs[1];
    for (size_t part = 1; part < w->parts; part++)
        job->loops->copy_add(out, sums, bias_sums_at(job, part));
    job->loops->sum_rows(1, out, dbias, sums, job->kernel->desc.accumulate[1]);
}

/* Running and preparing. */

static status_t run(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct winograd *w = kernel->state;
    struct winograd_job job = {kernel, call, w, cpu_loops_get(), call->workspace};
    size_t most = (size_t)(w->in > w->out ? w->in : w->out);
    memset(job.workspace + w->outside, 0, most * sizeof(float));
    switch (kernel->desc.kind) {
    case OP_CONV2D:
        prepare_weights(&job);
        cpu_parallel(kernel->threads, w->parts, 1, forward_parts, &job);
        break;
    case OP_CONV2D_BACKWARD_DATA:
        prepare_weights(&job);
        cpu_parallel(kernel->threads, w->parts, 1, backward_data_parts, &job);
        break;
    default:
        cpu_parallel(kernel->threads, w->parts, 1, backward_weights_parts, &job);
        cpu_parallel(kernel->threads, (size_t)w->in, 16, finish_weights, &job);
        job.loops->transpose(9 * (size_t)w->in, (size_t)w->out, call->outputs[0],
                             job.workspace + w->g, kernel->desc.accumulate[0]);
        if (kernel->desc.output_present[1]) finish_bias(&job);
    }
    return NULL;
}

void winograd_prepare(struct kernel *kernel)
{
    struct winograd *w = mem_alloc(sizeof *w);
    set_shape(w, &kernel->desc);
    set_blocks(w, kernel->desc.kind, kernel->threads);
    set_workspace(w, kernel->desc.kind);
    kernel->state = w;
    kernel->release = free;
    kernel->held_bytes = sizeof *w;
    kernel->workspace_bytes = w->size * sizeof(float);
    kernel->run = run;
}
