/*
 * Optimizer steps over values in bf16, rounded at random (kernels.h). Eight elements of an array
 * share a Philox block: 16 bits of it are added below a value's upper half before the rest is cut
 * off, which rounds up with the probability that the rest is of a whole step.
 */
#include <math.h>
#include <string.h>

#include "kernels/bfloat16.h"
#include "kernels/cpu/parallel.h"
#include "kernels/kernel.h"
#include "kernels/kernels.h"
#include "kernels/philox.h"

/* A piece stays in the nearest cache; with fewer pieces than a grain, waking a thread does not
 * pay. */
enum { DRAWS = 8, PIECE = 512, GRAIN = 16 };

static uint16_t round_at_random(float value, uint32_t draw)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (!isfinite(value)) return bfloat16_from_f32(value);
    uint32_t rounded = bits + draw;
    bool overflows = (rounded & 0x7f800000) == 0x7f800000;
    return (uint16_t)((overflows ? bits : rounded) >> 16);
}

/* `array` tells apart what is of the parameter: itself, and its slots from 1. */
static void narrow(const struct kernel_halves *halves, uint32_t array, uint64_t first, size_t n,
                   const float *values, uint16_t *out)
{
    const uint32_t key[2] = {(uint32_t)halves->seed, (uint32_t)(halves->seed >> 32)};
    for (size_t i = 0; i < n; i += DRAWS) {
        uint64_t block = (first + i) / DRAWS;
        /* 2^48 elements and 2^44 steps */
        const uint32_t counter[4] = {(uint32_t)block, halves->parameter, (uint32_t)halves->step,
                                     (uint32_t)(block >> 32) << 16 |
                                         (uint32_t)(halves->step >> 32 & 0xfff) << 4 | array};
        uint32_t words[4];
        philox_block(counter, key, words);
        for (size_t j = 0; j < DRAWS && i + j < n; j++)
            out[i + j] = round_at_random(values[i + j], words[j / 2] >> (j % 2 * 16) & 0xffff);
    }
}

static void run_pieces(const void *argument, size_t begin, size_t end)
{
    const struct kernel_halves *halves = argument;
    float wide[KERNEL_HALVES_SLOTS][PIECE], wide_param[PIECE];
    for (size_t piece = begin; piece < end; piece++) {
        size_t at = piece * PIECE, n = halves->n - at < PIECE ? halves->n - at : PIECE;
        float *slots[KERNEL_HALVES_SLOTS] = {NULL};
        for (int s = 0; s < KERNEL_HALVES_SLOTS; s++) {
            if (halves->slots[s] != NULL) slots[s] = halves->slots[s] + at;
            if (halves->half_slots[s] == NULL) continue;
            kernel_bf16_to_f32(n, wide[s], halves->half_slots[s] + at);
            slots[s] = wide[s];
        }
        float *param = halves->half_param != NULL ? wide_param : halves->param + at;
        if (halves->half_param != NULL) kernel_bf16_to_f32(n, param, halves->half_param + at);
        halves->update(halves->user, n, param, halves->grad + at, slots);
        if (halves->half_param != NULL)
            narrow(halves, 0, halves->first + at, n, param, halves->half_param + at);
        for (int s = 0; s < KERNEL_HALVES_SLOTS; s++)
            if (halves->half_slots[s] != NULL)
                narrow(halves, (uint32_t)s + 1, halves->first + at, n, wide[s],
                       halves->half_slots[s] + at);
    }
}

void kernel_step_halves(const struct kernel_halves *halves)
{
    cpu_parallel(kernels_threads(), (halves->n + PIECE - 1) / PIECE, GRAIN, run_pieces, halves);
}
