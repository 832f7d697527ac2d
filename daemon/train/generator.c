/* PyTorch's CPU random numbers; see generator.h. kernels/cpu/loops_random.h has the loops for many
 * values. */
#include "train/generator.h"

#include <math.h>

#include "kernels/kernels.h"

enum { SHIFT = 397 };

void generator_seed(struct generator *generator, uint64_t seed)
{
    *generator = (struct generator){.used = GENERATOR_WORDS};
    uint32_t *words = generator->words;
    words[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < GENERATOR_WORDS; i++)
        words[i] = 1812433253u * (words[i - 1] ^ (words[i - 1] >> 30)) + i;
}

static uint32_t twist(uint32_t high, uint32_t low)
{
    uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (mixed >> 1) ^ (low & 1 ? 0x9908b0dfu : 0);
}

static void renew(struct generator *generator)
{
    uint32_t *words = generator->words;
    const int last = GENERATOR_WORDS - 1, back = GENERATOR_WORDS - SHIFT;
    for (int i = 0; i < back; i++) words[i] = words[i + SHIFT] ^ twist(words[i], words[i + 1]);
    for (int i = back; i < last; i++) words[i] = words[i - back] ^ twist(words[i], words[i + 1]);
    words[last] = words[last - back] ^ twist(words[last], words[0]);
    generator->used = 0;
}

static uint32_t temper(uint32_t y)
{
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

uint32_t generator_random(struct generator *generator)
{
    if (generator->used == GENERATOR_WORDS) renew(generator);
    return temper(generator->words[generator->used++]);
}

uint64_t generator_random64(struct generator *generator)
{
    uint64_t high = generator_random(generator);
    return high << 32 | generator_random(generator);
}

static void draw_unit_floats(struct generator *generator, size_t n, float *values)
{
    while (n > 0) {
        if (generator->used == GENERATOR_WORDS) renew(generator);
        const uint32_t *words = generator->words + generator->used;
        size_t count = (size_t)(GENERATOR_WORDS - generator->used);
        if (count > n) count = n;
        for (size_t i = 0; i < count; i++)
            values[i] = (float)(int32_t)(temper(words[i]) & 0xffffff) * 0x1p-24f;
        generator->used += (int)count;
        values += count;
        n -= count;
    }
}

static double draw_unit_double(struct generator *generator)
{
    return (double)(generator_random64(generator) & ((UINT64_C(1) << 53) - 1)) * 0x1p-53;
}

void generator_fill_uniform(struct generator *generator, size_t n, float *values, double from,
                            double to)
{
    float low = (float)from;
    float width = (float)to - low;
    draw_unit_floats(generator, n, values);
    kernel_fused(n, values, width, low);
}

static double draw_normal(struct generator *generator)
{
    if (generator->has_normal) {
        generator->has_normal = false;
        return generator->normal;
    }
    double u1 = draw_unit_double(generator);
    double u2 = draw_unit_double(generator);
    double radius = sqrt(-2.0 * log1p(-u2));
    double theta = 2.0 * M_PI * u1;
    generator->normal = radius * sin(theta);
    generator->has_normal = true;
    return radius * cos(theta);
}

void generator_fill_normal(struct generator *generator, size_t n, float *values, double mean,
                           double std)
{
    if (n < 16) {
        for (size_t i = 0; i < n; i++) values[i] = (float)(draw_normal(generator) * std + mean);
        return;
    }
    draw_unit_floats(generator, n, values);
    kernel_box_muller(n / 16, values, (float)mean, (float)std);
    if (n % 16 != 0) {
        /* The tail shares a block with values already made, so the whole block is drawn again. */
        float *tail = values + n - 16;
        draw_unit_floats(generator, 16, tail);
        kernel_box_muller(1, tail, (float)mean, (float)std);
    }
}

void generator_fill_permutation(struct generator *generator, uint32_t n, uint32_t *values)
{
    for (uint32_t i = 0; i < n; i++) values[i] = i;
    for (uint32_t i = 0; i + 1 < n; i++) {
        uint32_t other = i + generator_random(generator) % (n - i);
        uint32_t value = values[i];
        values[i] = values[other];
        values[other] = value;
    }
}
