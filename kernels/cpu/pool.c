/*
 * Max pooling. In channels last, a vector holds the channels of one output pixel; in plain order it
 * holds the pixels of one output row whose windows do not touch the padding. The backward pass
 * writes each element once if windows do not overlap; otherwise it clears and adds.
 */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

enum { MAX_WINDOW = 255 };

/* The positions of a window that lie inside the image. */
struct pool_window {
    int count;
    int64_t offsets[MAX_WINDOW]; /* in pixels, from the window's first */
    uint8_t numbers[MAX_WINDOW];
};

struct pool_job {
    const struct kernel *kernel;
    const struct kernel_call *call;
    int64_t channels, height, width, out_height, out_width;
    const int64_t *size, *stride, *padding;
    struct pool_window whole; /* the window where no edge cuts it off */
};

static void job_init(struct pool_job *job, const struct kernel *kernel,
                     const struct kernel_call *call, const struct tensor_type *x,
                     const struct tensor_type *y)
{
    job->kernel = kernel;
    job->call = call;
    job->channels = x->dims[1];
    job->height = x->dims[2];
    job->width = x->dims[3];
    job->out_height = y->dims[2];
    job->out_width = y->dims[3];
    job->size = kernel->desc.attrs.pool.kernel;
    job->stride = kernel->desc.attrs.pool.stride;
    job->padding = kernel->desc.attrs.pool.padding;
    job->whole.count = 0;
    for (int64_t h = 0; h < job->size[0]; h++)
        for (int64_t w = 0; w < job->size[1]; w++) {
            job->whole.offsets[job->whole.count] = h * job->width + w;
            job->whole.numbers[job->whole.count++] = (uint8_t)(h * job->size[1] + w);
        }
}

/* Finds the window of an output pixel and the image's pixel that its offsets start from; `cut` is
 * memory for a window that an edge cuts off. */
static const struct pool_window *find_window(const struct pool_job *job, int64_t row,
                                             int64_t column, int64_t *start,
                                             struct pool_window *cut)
{
    int64_t top = row * job->stride[0] - job->padding[0];
    int64_t left = column * job->stride[1] - job->padding[1];
    *start = top * job->width + left;
    if (top >= 0 && left >= 0 && top + job->size[0] <= job->height &&
        left + job->size[1] <= job->width)
        return &job->whole;
    cut->count = 0;
    for (int k = 0; k < job->whole.count; k++) {
        int64_t h = top + job->whole.numbers[k] / job->size[1];
        int64_t w = left + job->whole.numbers[k] % job->size[1];
        if (h < 0 || h >= job->height || w < 0 || w >= job->width) continue;
        cut->offsets[cut->count] = job->whole.offsets[k];
        cut->numbers[cut->count++] = job->whole.numbers[k];
    }
    return cut;
}

/* Whether every element belongs to at most one window and no window is cut off. */
static bool windows_apart(const struct pool_job *job)
{
    return job->stride[0] >= job->size[0] && job->stride[1] >= job->size[1] &&
           job->padding[0] == 0 && job->padding[1] == 0;
}

/* Whether the windows also include every element. */
static bool windows_cover(const struct pool_job *job)
{
    return windows_apart(job) && job->out_height * job->size[0] == job->height &&
           job->out_width * job->size[1] == job->width && job->stride[0] == job->size[0] &&
           job->stride[1] == job->size[1];
}

static void forward_channels_last(const void *argument, size_t begin, size_t end)
{
    const struct pool_job *job = argument;
    const struct cpu_loops *loops = cpu_loops_get();
    int64_t channels = job->channels;
    struct pool_window cut;
    int64_t pixel;
    const float *candidates[MAX_WINDOW];
    for (size_t line = begin; line < end; line++) { /* rows of all images */
        int64_t image = (int64_t)line / job->out_height, row = (int64_t)line % job->out_height;
        const float *x =
            (const float *)job->call->inputs[0] + image * job->height * job->width * channels;
        for (int64_t column = 0; column < job->out_width; column++) {
            const struct pool_window *window = find_window(job, row, column, &pixel, &cut);
            for (int k = 0; k < window->count; k++)
                candidates[k] = x + (pixel + window->offsets[k]) * channels;
            int64_t at = ((int64_t)line * job->out_width + column) * channels;
            uint8_t *indices = job->call->outputs[1];
            loops->max_of((size_t)channels, 1, window->count, candidates, window->numbers,
                          (float *)job->call->outputs[0] + at,
                          indices != NULL ? indices + at : NULL, job->kernel->desc.accumulate[0]);
        }
    }
}

/* The output columns whose windows are inside the image from left to right: [*first, *last). */
static void inner_columns(const struct pool_job *job, int64_t *first, int64_t *last)
{
    *first = (job->padding[1] + job->stride[1] - 1) / job->stride[1];
    *last = (job->width + job->padding[1] - job->size[1]) / job->stride[1] + 1;
    if (*first > job->out_width) *first = job->out_width;
    if (*last > job->out_width) *last = job->out_width;
    if (*last < *first) *last = *first;
}

static void forward_plain(const void *argument, size_t begin, size_t end)
{
    const struct pool_job *job = argument;
    const struct cpu_loops *loops = cpu_loops_get();
    struct pool_window cut;
    int64_t pixel;
    const float *candidates[MAX_WINDOW];
    int64_t first, last;
    inner_columns(job, &first, &last);
    for (size_t line = begin; line < end; line++) { /* rows of all planes */
        int64_t plane = (int64_t)line / job->out_height, row = (int64_t)line % job->out_height;
        const float *x = (const float *)job->call->inputs[0] + plane * job->height * job->width;
        for (int64_t column = 0; column < job->out_width;) {
            int64_t count = column == first && last > first ? last - first : 1;
            const struct pool_window *window = find_window(job, row, column, &pixel, &cut);
            for (int k = 0; k < window->count; k++) candidates[k] = x + pixel + window->offsets[k];
            int64_t at = (int64_t)line * job->out_width + column;
            uint8_t *indices = job->call->outputs[1];
            loops->max_of((size_t)count, (size_t)job->stride[1], window->count, candidates,
                          window->numbers, (float *)job->call->outputs[0] + at,
                          indices != NULL ? indices + at : NULL, job->kernel->desc.accumulate[0]);
            column += count;
        }
    }
}

static status_t run_forward(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *x = &kernel->desc.inputs[0], *y = &kernel->desc.outputs[0];
    struct kernel_call present = *call;
    if (!kernel->desc.output_present[1]) present.outputs[1] = NULL;
    struct pool_job job;
    job_init(&job, kernel, &present, x, y);
    if (cpu_is_plain(x))
        cpu_parallel(kernel->threads, (size_t)(y->dims[0] * y->dims[1] * y->dims[2]), 16,
                     forward_plain, &job);
    else
        cpu_parallel(kernel->threads, (size_t)(y->dims[0] * y->dims[2]), 4, forward_channels_last,
                     &job);
    return NULL;
}

/* The gradient of one image (channels last) or one plane; a pixel has `lanes` elements. */
static void backward_image(const struct pool_job *job, size_t image, bool channels_last)
{
    int64_t lanes = channels_last ? job->channels : 1;
    float *dx = (float *)job->call->outputs[0] + (int64_t)image * job->height * job->width * lanes;
    int64_t start = (int64_t)image * job->out_height * job->out_width * lanes;
    const float *dy = (const float *)job->call->inputs[0] + start;
    const uint8_t *indices = (const uint8_t *)job->call->inputs[1] + start;
    bool accumulate = job->kernel->desc.accumulate[0], cover = windows_cover(job);
    bool apart = windows_apart(job);
    const struct cpu_loops *loops = cpu_loops_get();
    if (!accumulate && !cover)
        memset(dx, 0, (size_t)(job->height * job->width * lanes) * sizeof *dx);
    int64_t first = 0, last = 0;
    if (!channels_last) inner_columns(job, &first, &last);
    struct pool_window cut;
    int64_t pixel;
    float *outputs[MAX_WINDOW];
    for (int64_t row = 0; row < job->out_height; row++)
        for (int64_t column = 0; column < job->out_width;) {
            int64_t columns = column == first && last > first ? last - first : 1;
            const struct pool_window *window = find_window(job, row, column, &pixel, &cut);
            for (int k = 0; k < window->count; k++)
                outputs[k] = dx + (pixel + window->offsets[k]) * lanes;
            int64_t at = (row * job->out_width + column) * lanes;
            loops->max_of_backward((size_t)(channels_last ? lanes : columns),
                                   channels_last ? 1 : (size_t)job->stride[1], window->count,
                                   outputs, window->numbers, dy + at, indices + at,
                                   accumulate || !apart);
            column += columns;
        }
}

static void backward_channels_last(const void *argument, size_t begin, size_t end)
{
    for (size_t image = begin; image < end; image++) backward_image(argument, image, true);
}

static void backward_plain(const void *argument, size_t begin, size_t end)
{
    for (size_t plane = begin; plane < end; plane++) backward_image(argument, plane, false);
}

static status_t run_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *x = &kernel->desc.outputs[0], *y = &kernel->desc.inputs[0];
    struct pool_job job;
    job_init(&job, kernel, call, x, y);
    if (cpu_is_plain(x))
        cpu_parallel(kernel->threads, (size_t)(x->dims[0] * x->dims[1]), 1, backward_plain, &job);
    else cpu_parallel(kernel->threads, (size_t)x->dims[0], 1, backward_channels_last, &job);
    return NULL;
}

status_t cpu_prepare_pool(struct kernel *kernel)
{
    const struct op_desc *desc = &kernel->desc;
    bool forward = desc->kind == OP_MAX_POOL2D;
    const struct tensor_type *x = forward ? &desc->inputs[0] : &desc->outputs[0];
    const struct tensor_type *y = forward ? &desc->outputs[0] : &desc->inputs[0];
    const struct tensor_type *indices = forward ? &desc->outputs[1] : &desc->inputs[1];
    bool has_indices = !forward || desc->output_present[1];
    /* x decides the order: a pooled image may shrink to one pixel, which fits either order. */
    bool plain = cpu_is_plain(x);
    if (plain != cpu_is_plain(y) && !(cpu_is_plain(y) && y->dims[2] * y->dims[3] == 1))
        return reference_prepare(kernel);
    if (has_indices && !cpu_same_order(y, indices)) return reference_prepare(kernel);
    kernel->run = forward ? run_forward : run_backward;
    return NULL;
}
