/* Conversions of single bf16 values; cpu/loops_bfloat16.h has the loops. Private to kernels/. */
#ifndef FSDPD_KERNELS_BFLOAT16_H
#define FSDPD_KERNELS_BFLOAT16_H

#include <stdint.h>
#include <string.h>

static inline float bfloat16_to_f32(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

/* Rounds to nearest, ties to even; a NaN stays a NaN. */
static inline uint16_t bfloat16_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
