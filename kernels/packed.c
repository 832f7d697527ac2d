/*
 * AdamW with its averages in 8 bits, as bitsandbytes (0.50.2) computes it on a CPU: a code stands
 * for a value of a map times its block's scale, the largest magnitude in it. A value is rounded
 * twice, first to one of 65,536 equal steps from -1 to 1 and then to the value of the map that is
 * nearest to that step, so that a table finds the code. The maps are those of Dettmers et al.,
 * "8-bit Optimizers via Block-wise Quantization" (2022): the first average is signed, the other
 * not.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/kernel.h"
#include "kernels/kernels.h"

enum { CODES = 256, STEPS = 1 << 16, EXPONENTS = 7, GRAIN = 64 /* blocks */ };

static struct packed_map {
    float values[CODES];    /* ascending */
    uint8_t nearest[STEPS]; /* by step, the code */
} maps[2];                  /* unsigned, signed */

static pthread_once_t once = PTHREAD_ONCE_INIT;

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* PyTorch's linspace(0.1, 1, count): from both ends to the middle. */
static float boundary(int i, int count)
{
    float begin = 0.1F, step = (1 - begin) / (float)(count - 1);
    return i < count / 2 ? __builtin_fmaf(step, (float)i, begin)
                         : __builtin_fmaf(-step, (float)(count - 1 - i), 1);
}

/* Per decimal exponent twice as many values as for the next smaller one, each in the middle of two
 * boundaries. */
static void make_values(bool is_signed, float values[CODES])
{
    int count = 0;
    for (int e = 0; e < EXPONENTS; e++) {
        int boundaries = (is_signed ? 1 << e : 2 << e) + 1;
        float scale = (float)pow(10, e - (EXPONENTS - 1));
        for (int i = 0; i + 1 < boundaries; i++) {
            float mean = (boundary(i, boundaries) + boundary(i + 1, boundaries)) / 2;
            values[count++] = scale * mean;
            if (is_signed) values[count++] = -(scale * mean);
        }
    }
    values[count++] = 0;
    values[count++] = 1;
    qsort(values, CODES, sizeof *values, compare_floats);
}

static void make_map(bool is_signed)
{
    struct packed_map *map = &maps[is_signed];
    make_values(is_signed, map->values);
    for (int step = 0, code = 0; step < STEPS; step++) {
        float value = 2 * (float)step / (STEPS - 1) - 1;
        while (code + 1 < CODES &&
               fabsf(value - map->values[code + 1]) < fabsf(value - map->values[code]))
            code++;
        map->nearest[step] = (uint8_t)code;
    }
}

static void make_maps(void)
{
    make_map(false);
    make_map(true);
}

void kernel_packed_map(bool is_signed, float values[256])
{
    pthread_once(&once, make_maps);
    for (int i = 0; i < CODES; i++) values[i] = maps[is_signed].values[i];
}

void kernel_packed_steps(bool is_signed, uint16_t firsts[256])
{
    pthread_once(&once, make_maps);
    for (int code = 0, step = 0; code < CODES; code++) {
        while (maps[is_signed].nearest[step] < code) step++;
        firsts[code] = (uint16_t)step;
    }
}

static void unpack(const struct packed_map *map, const float *block, int count, float *values)
{
    cpu_loops_get()->unpack_codes((size_t)count, (const uint8_t *)(block + 1), map->values,
                                  block[0], values);
}

static void pack(const struct packed_map *map, const float *values, int count, float *block)
{
    cpu_loops_get()->pack_codes((size_t)count, values, map->nearest, (uint8_t *)(block + 1), block);
}

struct packed_step {
    size_t n;
    float *param, *average, *square_average;
    const float *grad;
    const struct adam_args *args;
};

static void run_blocks(const void *argument, size_t begin, size_t end)
{
    const struct packed_step *step = argument;
    float first[KERNEL_PACKED_BLOCK], second[KERNEL_PACKED_BLOCK];
    for (size_t b = begin; b < end; b++) {
        size_t at = b * KERNEL_PACKED_BLOCK, left = step->n - at;
        int count = left < KERNEL_PACKED_BLOCK ? (int)left : KERNEL_PACKED_BLOCK;
        float *average = step->average + b * KERNEL_PACKED_WORDS;
        float *square_average = step->square_average + b * KERNEL_PACKED_WORDS;
        const struct adam_codes codes = {.codes = (const uint8_t *)(average + 1),
                                         .square_codes = (const uint8_t *)(square_average + 1),
                                         .map = maps[true].values,
                                         .square_map = maps[false].values,
                                         .scale = average[0],
                                         .square_scale = square_average[0]};
        cpu_loops_get()->adam_codes((size_t)count, step->param + at, step->grad + at, &codes, first,
                                    second, step->args);
        pack(&maps[true], first, count, average);
        pack(&maps[false], second, count, square_average);
    }
}

struct packed_values { /* of parameters, which are signed */
    size_t n;
    const float *from;
    const float *blocks;
    float *to, *values; /* blocks, and what they stand for */
    uint16_t *rounded;
};

static size_t block_count(size_t n)
{
    return (n + KERNEL_PACKED_BLOCK - 1) / KERNEL_PACKED_BLOCK;
}

static int values_of_block(size_t n, size_t block)
{
    size_t left = n - block * KERNEL_PACKED_BLOCK;
    return left < KERNEL_PACKED_BLOCK ? (int)left : KERNEL_PACKED_BLOCK;
}

static void unpack_blocks(const void *argument, size_t begin, size_t end)
{
    const struct packed_values *it = argument;
    float block[KERNEL_PACKED_BLOCK];
    for (size_t b = begin; b < end; b++) {
        size_t at = b * KERNEL_PACKED_BLOCK;
        int count = values_of_block(it->n, b);
        float *values = it->values != NULL ? it->values + at : block;
        unpack(&maps[true], it->blocks + b * KERNEL_PACKED_WORDS, count, values);
        if (it->rounded != NULL) kernel_f32_to_bf16((size_t)count, it->rounded + at, values);
    }
}

void kernel_int8_unpack(size_t n, const float *blocks, float *values, uint16_t *rounded)
{
    const struct packed_values it = {.n = n,
                                     .blocks = blocks,
                                     .values = values,
                                     .rounded = rounded};
    pthread_once(&once, make_maps);
    cpu_parallel(kernels_threads(), block_count(n), GRAIN, unpack_blocks, &it);
}

static void pack_blocks(const void *argument, size_t begin, size_t end)
{
    const struct packed_values *it = argument;
    for (size_t b = begin; b < end; b++)
        pack(&maps[true], it->from + b * KERNEL_PACKED_BLOCK, values_of_block(it->n, b),
             it->to + b * KERNEL_PACKED_WORDS);
}

void kernel_int8_pack(size_t n, const float *values, float *blocks)
{
    const struct packed_values it = {.n = n, .from = values, .to = blocks};
    pthread_once(&once, make_maps);
    cpu_parallel(kernels_threads(), block_count(n), GRAIN, pack_blocks, &it);
}

void kernel_adam_packed(size_t n, float *param, const float *grad, float *average,
                        float *square_average, const struct adam_args *args)
{
    const struct packed_step step = {n, param, average, square_average, grad, args};
    pthread_once(&once, make_maps);
    cpu_parallel(kernels_threads(), (n + KERNEL_PACKED_BLOCK - 1) / KERNEL_PACKED_BLOCK, GRAIN,
                 run_blocks, &step);
}
