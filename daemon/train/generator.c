/*
 * PyTorch's CPU random numbers; see generator.h. Every fused multiply-add is written out, and the
 * project is built without contraction: plain a * b + c would differ in the last bit of half of the
 * values.
 */
#include "train/generator.h"

#include <math.h>
#include <string.h>

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
    for (int i = 0; i < GENERATOR_WORDS; i++) {
        uint32_t twisted = twist(words[i], words[(i + 1) % GENERATOR_WORDS]);
        words[i] = words[(i + SHIFT) % GENERATOR_WORDS] ^ twisted;
    }
    generator->used = 0;
}

uint32_t generator_random(struct generator *generator)
{
    if (generator->used == GENERATOR_WORDS) renew(generator);
    uint32_t y = generator->words[generator->used++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

uint64_t generator_random64(struct generator *generator)
{
    uint64_t high = generator_random(generator);
    return high << 32 | generator_random(generator);
}

static float draw_unit_float(struct generator *generator)
{
    return (float)(generator_random(generator) & 0xffffff) * 0x1p-24f;
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
    for (size_t i = 0; i < n; i++) values[i] = fmaf(draw_unit_float(generator), width, low);
}

/*
 * Natural logarithm of x in (0, 1] in single precision: the polynomial of the Cephes library
 * (Moshier, logf) on the mantissa, brought into [sqrt(1/2), sqrt(2)).
 */
static float log_single(float x)
{
    static const float coefficients[] = {
        7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
        -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
        2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f,
    };
    int exponent;
    float m = frexpf(x, &exponent);
    if (m < 0.707106781186547524f) {
        exponent--;
        m += m - 1;
    } else {
        m -= 1;
    }
    float e = (float)exponent;
    float square = m * m;
    float y = coefficients[0];
    for (size_t i = 1; i < sizeof coefficients / sizeof coefficients[0]; i++)
        y = fmaf(y, m, coefficients[i]);
    y = fmaf(y * m, square, e * -2.12194440e-4f);
    y = fmaf(square, -0.5f, y);
    return fmaf(e, 0.693359375f, m + y);
}

/* Sine and cosine of x >= 0 in single precision, after Cephes' sinf and cosf: x is brought near 0
 * in three steps of pi/4 parts, and the octant says which polynomial gives which. */
static void sincos_single(float x, float *sine, float *cosine)
{
    int octant = (int)(x * 1.27323954473516f); /* 4 / pi */
    octant = (octant + 1) & ~1;
    float parts = (float)octant;
    x = fmaf(parts, -0.78515625f, x);
    x = fmaf(parts, -2.4187564849853515625e-4f, x);
    x = fmaf(parts, -3.77489497744594108e-8f, x);
    float square = x * x;

    float even = 2.443315711809948e-5f;
    even = fmaf(even, square, -1.388731625493765e-3f);
    even = fmaf(even, square, 4.166664568298827e-2f);
    even = fmaf(even * square, square, -(square * 0.5f)) + 1;
    float odd = -1.9515295891e-4f;
    odd = fmaf(odd, square, 8.3321608736e-3f);
    odd = fmaf(odd, square, -1.6666654611e-1f);
    odd = fmaf(odd * square, x, x);

    bool swap = octant & 2;
    float s = swap ? even : odd;
    float c = swap ? odd : even;
    *sine = octant & 4 ? -s : s;
    *cosine = (octant - 2) & 4 ? c : -c;
}

/* Box-Muller on 16 uniform values in place: the first 8 are radii, the last 8 angles. */
static void transform_block(float *block, float mean, float std)
{
    for (int i = 0; i < 8; i++) {
        float radius = sqrtf(-2.0f * log_single(1.0f - block[i]));
        float sine, cosine;
        sincos_single((float)(2.0 * M_PI) * block[i + 8], &sine, &cosine);
        block[i] = fmaf(radius * cosine, std, mean);
        block[i + 8] = fmaf(radius * sine, std, mean);
    }
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
    for (size_t i = 0; i < n; i++) values[i] = draw_unit_float(generator);
    for (size_t i = 0; i + 16 <= n; i += 16) transform_block(values + i, (float)mean, (float)std);
    if (n % 16 != 0) {
        /* The tail shares a block with values already made: that block is drawn anew as a whole. */
        float *tail = values + n - 16;
        for (int i = 0; i < 16; i++) tail[i] = draw_unit_float(generator);
        transform_block(tail, (float)mean, (float)std);
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
