/*
 * Dropout: forward and backward are the same function. The generator counts elements in plain
 * order. So for channels last, the bits of a tile (up to 64 channels of one image) are made in that
 * order, and transposed when applied to the elements. Draws of the normal distribution, too.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"
#include "kernels/philox.h"

enum {
    TILE_CHANNELS = 64,
    TILE_PIXELS = 1024,
    /* A tile's row may start within a block of random words, and one word beyond its end is
     * read. */
    ROW_WORDS = TILE_PIXELS / 64 + 2,
    CHUNK = 4096, /* elements, in plain order */
};

struct dropout_job {
    const struct kernel *kernel;
    const float *x;
    float *y;
    struct dropout_mask mask;
    float scale;
    uint64_t first; /* the index of the first element */
};

/* The bits of `count` elements from `index` on, which may lie within a block of random words. */
static void plain_bits(const struct dropout_job *job, size_t count, uint64_t index, uint64_t *words)
{
    unsigned ahead = (unsigned)(index % 4);
    size_t needed = (count + ahead + 63) / 64;
    cpu_loops_get()->keep_bits(needed, words, index / 4, &job->mask);
    if (ahead == 0) return;
    words[needed] = 0;
    for (size_t w = 0; w < needed; w++) words[w] = words[w] >> ahead | words[w + 1] << (64 - ahead);
}

static void plain_part(const void *argument, size_t begin, size_t end)
{
    const struct dropout_job *job = argument;
    const struct cpu_loops *loops = cpu_loops_get();
    uint64_t words[CHUNK / 64 + 2];
    for (size_t i = begin; i < end; i += CHUNK) {
        size_t count = end - i < CHUNK ? end - i : CHUNK;
        plain_bits(job, count, job->first + i, words);
        loops->apply_bits(count, job->y + i, job->x + i, words, job->scale,
                          job->kernel->desc.accumulate[0]);
    }
}

/* Random bits for `channels` rows of `pixels` elements, from element `index` on; rows are
 * `row_stride` elements apart. */
static void tile_bits(const struct dropout_job *job, size_t channels, size_t pixels,
                      size_t row_stride, uint64_t index, uint64_t *words, uint32_t *bit_offsets)
{
    const struct cpu_loops *loops = cpu_loops_get();
    if (pixels == row_stride) { /* the rows are contiguous */
        size_t count = channels * pixels + index % 4;
        loops->keep_bits((count + 63) / 64, words, index / 4, &job->mask);
        for (size_t c = 0; c < channels; c++) bit_offsets[c] = (uint32_t)(index % 4 + c * pixels);
        return;
    }
    for (size_t c = 0; c < channels; c++) {
        uint64_t start = index + c * row_stride;
        loops->keep_bits((pixels + start % 4 + 63) / 64, words + c * ROW_WORDS, start / 4,
                         &job->mask);
        bit_offsets[c] = (uint32_t)(c * ROW_WORDS * 64 + start % 4);
    }
}

static void channels_last_part(const void *argument, size_t begin, size_t end)
{
    const struct dropout_job *job = argument;
    const struct op_desc *desc = &job->kernel->desc;
    size_t channels = (size_t)desc->inputs[0].dims[1];
    size_t pixels = (size_t)(desc->inputs[0].dims[2] * desc->inputs[0].dims[3]);
    uint64_t words[TILE_CHANNELS * ROW_WORDS + 2];
    uint32_t bit_offsets[TILE_CHANNELS];
    words[TILE_CHANNELS * ROW_WORDS] = words[TILE_CHANNELS * ROW_WORDS + 1] = 0;
    for (size_t image = begin; image < end; image++)
        for (size_t c = 0; c < channels; c += TILE_CHANNELS)
            for (size_t p = 0; p < pixels; p += TILE_PIXELS) {
                size_t tile_channels = channels - c < TILE_CHANNELS ? channels - c : TILE_CHANNELS;
                size_t tile_pixels = pixels - p < TILE_PIXELS ? pixels - p : TILE_PIXELS;
                tile_bits(job, tile_channels, tile_pixels, pixels,
                          job->first + (image * channels + c) * pixels + p, words, bit_offsets);
                size_t at = (image * pixels + p) * channels + c;
                cpu_loops_get()->apply_bits_transposed(tile_channels, tile_pixels, channels,
                                                       job->y + at, job->x + at, words, bit_offsets,
                                                       job->scale, desc->accumulate[0]);
            }
}

/* Draws chunks of blocks of 16 elements, of which the first block may begin before the op's. */
static void normal_part(const void *argument, size_t begin, size_t end)
{
    const struct dropout_job *job = argument;
    size_t ahead = (size_t)(job->first % 16);
    size_t all = (size_t)tensor_element_count(&job->kernel->desc.outputs[0]) + ahead;
    for (size_t chunk = begin; chunk < end; chunk++) {
        float values[CHUNK];
        size_t at = chunk * CHUNK, count = all - at < CHUNK ? all - at : CHUNK;
        bool add = job->kernel->desc.accumulate[0], whole = ahead == 0 && count % 32 == 0 && !add;
        float *drawn = whole ? job->y + at : values;
        cpu_loops_get()->draw_fractions((count + 31) / 32, drawn, (job->first - ahead + at) / 4,
                                        &job->mask);
        cpu_loops_get()->box_muller((count + 15) / 16, drawn, 0, 1);
        for (size_t i = at == 0 ? ahead : 0; i < count && !whole; i++) {
            float *y = job->y + at + i - ahead;
            *y = add ? *y + values[i] : values[i];
        }
    }
}

static status_t run_dropout(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *type = &kernel->desc.inputs[0];
    double p = kernel->desc.attrs.dropout.p;
    struct dropout_job job = {.kernel = kernel,
                              .x = call->inputs[0],
                              .y = call->outputs[0],
                              .mask = {.seed = call->seed,
                                       .stream = kernel->desc.attrs.dropout.stream,
                                       .step = (uint32_t)call->step,
                                       .rank = call->rank,
                                       .threshold = philox_threshold(p)},
                              .scale = (float)(1 / (1 - p)),
                              .first = kernel_first_element(call)};
    size_t drawn = (size_t)tensor_element_count(type) + (size_t)(job.first % 16);
    if (kernel->desc.attrs.dropout.normal)
        cpu_parallel(kernel->threads, (drawn + CHUNK - 1) / CHUNK, 1, normal_part, &job);
    else if (cpu_is_plain(type))
        cpu_parallel(kernel->threads, (size_t)tensor_element_count(type), CHUNK, plain_part, &job);
    else cpu_parallel(kernel->threads, (size_t)type->dims[0], 1, channels_last_part, &job);
    return NULL;
}

status_t cpu_prepare_dropout(struct kernel *kernel)
{
    const struct tensor_type *y = &kernel->desc.outputs[0];
    bool plain = !kernel->desc.attrs.dropout.normal || cpu_is_plain(y);
    if (!plain || !cpu_same_order(&kernel->desc.inputs[0], y)) return reference_prepare(kernel);
    kernel->run = run_dropout;
    return NULL;
}
