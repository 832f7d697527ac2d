/* PyTorch's CPU random numbers; see generator.h. kernels/cpu/loops_random.h has the loops for many
 * values. */
#include "data/generator.h"

#include <math.h>

#include "kernels/kernels.h"

void generator_seed(struct generator *generator, uint64_t seed)
{
    *generator = (struct generator){.used = TWISTER_WORDS};
    uint32_t *words = generator->words;
    words[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < TWISTER_WORDS; i++)
        words[i] = 1812433253u * (words[i - 1] ^ (words[i - 1] >> 30)) + i;
}

static void renew(struct generator *generator)
{
    twister_next(generator->words);
    generator->used = 0;
}

static uint32_t temper(uint32_t y)
{
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

void generator_skip(struct generator *generator, uint64_t words)
{
    uint64_t left = (uint64_t)(TWISTER_WORDS - generator->used);
    if (words > left) {
        uint64_t blocks = (words - left - 1) / TWISTER_WORDS + 1;
        twister_jump(generator->words, blocks);
        generator->used = 0;
        words -= left + (blocks - 1) * TWISTER_WORDS;
    }
    generator->used += (int)words;
}

uint32_t generator_random(struct generator *generator)
{
    if (generator->used == TWISTER_WORDS) renew(generator);
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
        if (generator->used == TWISTER_WORDS) renew(generator);
        const uint32_t *words = generator->words + generator->used;
        size_t count = (size_t)(TWISTER_WORDS - generator->used);
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

void generator_fill_normal_blocks(struct generator *generator, size_t blocks, float *values,
                                  double mean, double std)
{
    draw_unit_floats(generator, blocks * 16, values);
    kernel_box_muller(blocks, values, (float)mean, (float)std);
}

void generator_fill_normal(struct generator *generator, size_t n, float *values, double mean,
                           double std)
{
    if (n < 16) {
        for (size_t i = 0; i < n; i++) values[i] = (float)(draw_normal(generator) * std + mean);
        return;
    }
    generator_fill_normal_blocks(generator, n / 16, values, mean, std);
    if (n % 16 == 0) return;
    /* The tail shares a block with values already made, so the whole block is drawn again. */
    generator_skip(generator, n % 16);
    generator_fill_normal_blocks(generator, 1, values + n - 16, mean, std);
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
