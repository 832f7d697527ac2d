/*
 * PyTorch's normal random numbers from uniform ones (daemon/data/generator.h). Part of
 * loops_body.h. Every fused multiply-add is written out: plain a * b + c would differ in the last
 * bit for half of the values.
 */

LOOP loop_fused(size_t n, float *values, float factor, float offset)
{
    SIMD for (size_t i = 0; i < n; i++) values[i] = fmaf(values[i], factor, offset);
}

/*
 * Natural logarithm of a normal number x in (0, 1] in single precision: the Cephes library's
 * polynomial (Moshier, logf) on the mantissa, reduced to [sqrt(1/2), sqrt(2)).
 */
LOOP_INLINE float log_single(float x)
{
    union {
        float value;
        uint32_t bits;
    } parts = {.value = x}, mantissa = {.bits = (parts.bits & 0x007fffffu) | 0x3f000000u};
    float m = mantissa.value;
    bool low = m < 0.707106781186547524f;
    float e = (float)((int32_t)(parts.bits >> 23) - 126 - low);
    m = low ? m + (m - 1) : m - 1;
    float square = m * m;
    float y = 7.0376836292e-2f;
    y = fmaf(y, m, -1.1514610310e-1f);
    y = fmaf(y, m, 1.1676998740e-1f);
    y = fmaf(y, m, -1.2420140846e-1f);
    y = fmaf(y, m, 1.4249322787e-1f);
    y = fmaf(y, m, -1.6668057665e-1f);
    y = fmaf(y, m, 2.0000714765e-1f);
    y = fmaf(y, m, -2.4999993993e-1f);
    y = fmaf(y, m, 3.3333331174e-1f);
    y = fmaf(y * m, square, e * -2.12194440e-4f);
    y = fmaf(square, -0.5f, y);
    return fmaf(e, 0.693359375f, m + y);
}

/* Sine and cosine of x >= 0 in single precision, after Cephes' sinf and cosf: reduces x in three
 * steps by parts of pi/4; the octant selects the polynomial for each. */
LOOP_INLINE void sincos_single(float x, float *sine, float *cosine)
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

    bool swap = (octant & 2) != 0;
    float s = swap ? even : odd;
    float c = swap ? odd : even;
    *sine = (octant & 4) != 0 ? -s : s;
    *cosine = ((octant - 2) & 4) != 0 ? c : -c;
}

/* Box-Muller in place on blocks of 16 uniform values: the first 8 are radii, the last 8 angles. */
LOOP loop_box_muller(size_t blocks, float *values, float mean, float std)
{
    for (float *block = values; block < values + blocks * 16; block += 16) {
        SIMD for (int i = 0; i < 8; i++)
        {
            float radius = sqrtf(-2.0f * log_single(1.0f - block[i]));
            float sine, cosine;
            sincos_single((float)(2.0 * M_PI) * block[i + 8], &sine, &cosine);
            block[i] = fmaf(radius * cosine, std, mean);
            block[i + 8] = fmaf(radius * sine, std, mean);
        }
    }
}

/* The words of blocks of four elements as fractions of 24 bits, eight blocks at a time. */
LOOP loop_draw_fractions(size_t eights, float *values, uint64_t block,
                         const struct dropout_mask *mask)
{
    for (; eights > 0; eights--, block += 8, values += 32) {
        uint32_t key0 = (uint32_t)mask->seed, key1 = (uint32_t)(mask->seed >> 32);
        uint32_t c0[8], c1[8], c2[8], c3[8];
        SIMD for (uint32_t i = 0; i < 8; i++)
        {
            c0[i] = (uint32_t)block + i;
            c1[i] = mask->stream;
            c2[i] = mask->step;
            c3[i] = mask->rank;
        }
        for (int round = 0; round < PHILOX_ROUNDS; round++) {
            SIMD for (int i = 0; i < 8; i++)
            {
                uint64_t product0 = (uint64_t)PHILOX_MULTIPLIER_0 * c0[i];
                uint64_t product1 = (uint64_t)PHILOX_MULTIPLIER_1 * c2[i];
                c0[i] = (uint32_t)(product1 >> 32) ^ c1[i] ^ key0;
                c2[i] = (uint32_t)(product0 >> 32) ^ c3[i] ^ key1;
                c1[i] = (uint32_t)product1;
                c3[i] = (uint32_t)product0;
            }
            key0 += PHILOX_WEYL_0;
            key1 += PHILOX_WEYL_1;
        }
        SIMD for (int i = 0; i < 8; i++)
        {
            values[4 * i] = (float)(int32_t)(c0[i] >> 8) * 0x1p-24f;
            values[4 * i + 1] = (float)(int32_t)(c1[i] >> 8) * 0x1p-24f;
            values[4 * i + 2] = (float)(int32_t)(c2[i] >> 8) * 0x1p-24f;
            values[4 * i + 3] = (float)(int32_t)(c3[i] >> 8) * 0x1p-24f;
        }
    }
}
