/*
 * NF4 with double quantisation (Dettmers et al., "QLoRA", 2023), as bitsandbytes (0.50.2) computes
 * it on a CPU: a code of 4 bits stands for one of 16 values times the largest magnitude of its
 * block of 64. Less their mean, 256 of these magnitudes are a block of 8 bits in turn (packed.c).
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/parallel.h"
#include "kernels/kernel.h"
#include "kernels/kernels.h"

enum {
    CODES = 16,
    SCALES = KERNEL_NF4_GROUP / KERNEL_NF4_BLOCK, /* of a group */
    CODES_AT = 1 + KERNEL_PACKED_WORDS,           /* word */
    GRAIN = 1                                     /* groups */
};

_Static_assert((int)SCALES == (int)KERNEL_PACKED_BLOCK,
               "a group's magnitudes are a block of 8 bits");

static const float values_of[CODES] = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};

void kernel_nf4_map(float values[16])
{
    memcpy(values, values_of, sizeof values_of);
}

/* The value nearest to it; of two, the smaller one. */
static unsigned code_of(float value)
{
    unsigned code = 0;
    for (int c = 1; c < CODES; c++) code += (values_of[c - 1] + values_of[c]) / 2 < value;
    return code;
}

float kernel_nf4_pack(size_t n, const float *values, uint8_t *codes)
{
    float most = 0;
    for (size_t i = 0; i < n; i++) most = fabsf(values[i]) > most ? fabsf(values[i]) : most;
    float divisor = most > 1e-38F ? most : 1e-38F, factor = 1 / divisor;
    bool whole = n == KERNEL_NF4_BLOCK; /* the last block of a parameter is divided */
    unsigned zero = code_of(0);
    memset(codes, (int)(zero << 4 | zero), KERNEL_NF4_BLOCK / 2);
    for (size_t i = 0; i < n; i++) {
        unsigned code = code_of(whole ? values[i] * factor : values[i] / divisor);
        unsigned kept = i % 2 == 0 ? codes[i / 2] & 0xfU : codes[i / 2] & 0xf0U;
        codes[i / 2] = (uint8_t)(kept | (i % 2 == 0 ? code << 4 : code));
    }
    return whole ? most : divisor;
}

uint8_t *kernel_nf4_codes(float *group, size_t block)
{
    return (uint8_t *)(group + CODES_AT) + block * (KERNEL_NF4_BLOCK / 2);
}

void kernel_nf4_scale(size_t blocks, const float *most, float mean, float *group)
{
    float rest[SCALES];
    for (size_t b = 0; b < blocks; b++) rest[b] = most[b] - mean;
    group[0] = mean;
    kernel_int8_pack(blocks, rest, group + 1);
}

struct unpacking {
    size_t n;
    const float *groups;
    float *values;
    uint16_t *rounded;
};

static void unpack_block(const uint8_t *codes, float scale, size_t n, float *values)
{
    float scaled[CODES];
    for (int c = 0; c < CODES; c++) scaled[c] = values_of[c] * scale;
    for (size_t i = 0; i + 1 < n; i += 2) {
        values[i] = scaled[codes[i / 2] >> 4];
        values[i + 1] = scaled[codes[i / 2] & 0xf];
    }
    if (n % 2 == 1) values[n - 1] = scaled[codes[n / 2] >> 4];
}

static void unpack_groups(const void *argument, size_t begin, size_t end)
{
    const struct unpacking *it = argument;
    float scales[SCALES], block[KERNEL_NF4_BLOCK];
    for (size_t g = begin; g < end; g++) {
        const float *group = it->groups + g * KERNEL_NF4_WORDS;
        const uint8_t *codes = (const uint8_t *)(group + CODES_AT);
        size_t at = g * KERNEL_NF4_GROUP;
        kernel_int8_unpack(SCALES, group + 1, scales, NULL);
        for (size_t b = 0; b < SCALES && at < it->n; b++, at += KERNEL_NF4_BLOCK) {
            size_t count = it->n - at < KERNEL_NF4_BLOCK ? it->n - at : KERNEL_NF4_BLOCK;
            float *values = it->values != NULL ? it->values + at : block;
            unpack_block(codes + b * (KERNEL_NF4_BLOCK / 2), scales[b] + group[0], count, values);
            if (it->rounded != NULL) kernel_f32_to_bf16(count, it->rounded + at, values);
        }
    }
}

void kernel_nf4_unpack(size_t n, const float *groups, float *values, uint16_t *rounded)
{
    const struct unpacking it = {n, groups, values, rounded};
    cpu_parallel(kernels_threads(), (n + KERNEL_NF4_GROUP - 1) / KERNEL_NF4_GROUP, GRAIN,
                 unpack_groups, &it);
}
