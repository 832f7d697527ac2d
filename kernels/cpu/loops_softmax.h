/*
 * Softmax over a row. The exponential is 2^k * e^r with |r| <= ln(2) / 2 and a polynomial of degree
 * 7 for e^r (coefficients of the Cephes library's expf), within 2 ulp. Sums are kept in 16 lanes
 * that are added in a fixed order, so that every level gives the same bits. Part of loops_body.h.
 */

enum { LANES = 16 };

LOOP_INLINE float loop_exp(float x)
{
    /* Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. */
    const float magic = 12582912.0f;
    union {
        float value;
        uint32_t bits;
    } rounded, power;
    float clamped = x > 88.0f ? 88.0f : x;
    rounded.value = __builtin_fmaf(clamped, 1.44269504088896341f, magic);
    float k = rounded.value - magic;
    float r = __builtin_fmaf(k, -0.693359375f, clamped);
    r = __builtin_fmaf(k, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = __builtin_fmaf(p, r, 1.3981999507e-3f);
    p = __builtin_fmaf(p, r, 8.3334519073e-3f);
    p = __builtin_fmaf(p, r, 4.1665795894e-2f);
    p = __builtin_fmaf(p, r, 1.6666665459e-1f);
    p = __builtin_fmaf(p, r, 5.0000001201e-1f);
    p = __builtin_fmaf(p, r * r, r) + 1.0f;
    power.bits = (rounded.bits + 127u) << 23;
    float result = p * power.value;
    return x < -87.0f ? 0.0f : result;
}

LOOP_INLINE float add_lanes(const float lanes[LANES])
{
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += lanes[i];
    return sum;
}

LOOP_INLINE float max_of_row(size_t n, const float *x)
{
    float lanes[LANES];
    for (size_t i = 0; i < LANES; i++) lanes[i] = x[i < n ? i : 0];
    size_t i = LANES;
    for (; i + LANES <= n; i += LANES) {
        SIMD for (size_t j = 0; j < LANES; j++) lanes[j] =
            x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    }
    for (; i < n; i++) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
    for (size_t j = 1; j < LANES; j++) lanes[0] = lanes[j] > lanes[0] ? lanes[j] : lanes[0];
    return lanes[0];
}

/* The sum of exp(x - max). */
LOOP_INLINE float sum_of_exp(size_t n, const float *x, float max)
{
    float lanes[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        SIMD for (size_t j = 0; j < LANES; j++) lanes[j] += loop_exp(x[i + j] - max);
    }
    if (i < n) {
        float rest[LANES];
        for (size_t j = 0; j < LANES; j++) rest[j] = i + j < n ? x[i + j] - max : -INFINITY;
        SIMD for (size_t j = 0; j < LANES; j++) lanes[j] += loop_exp(rest[j]);
    }
    return add_lanes(lanes);
}

LOOP loop_log_softmax(size_t n, float *y, const float *x, bool add)
{
    float max = max_of_row(n, x);
    float log_sum = logf(sum_of_exp(n, x, max));
    if (add) {
        SIMD for (size_t i = 0; i < n; i++) y[i] += x[i] - max - log_sum;
    } else {
        SIMD for (size_t i = 0; i < n; i++) y[i] = x[i] - max - log_sum;
    }
}

LOOP loop_log_softmax_backward(size_t n, float *dx, const float *dy, const float *y, bool add)
{
    float lanes[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        SIMD for (size_t j = 0; j < LANES; j++) lanes[j] += dy[i + j];
    }
    for (; i < n; i++) lanes[i % LANES] += dy[i];
    float sum = add_lanes(lanes);
    if (add) {
        SIMD for (size_t j = 0; j < n; j++) dx[j] += __builtin_fmaf(-loop_exp(y[j]), sum, dy[j]);
    } else {
        SIMD for (size_t j = 0; j < n; j++) dx[j] = __builtin_fmaf(-loop_exp(y[j]), sum, dy[j]);
    }
}

LOOP loop_exp_scaled(size_t n, float *dx, const float *y, float scale, bool add)
{
    if (add) {
        SIMD for (size_t i = 0; i < n; i++) dx[i] += loop_exp(y[i]) * scale;
    } else {
        SIMD for (size_t i = 0; i < n; i++) dx[i] = loop_exp(y[i]) * scale;
    }
}

/* Sets x = exp(x - max) and returns the sum, in the order of sum_of_exp. */
LOOP_INLINE float exp_in_place(size_t n, float *x, float max)
{
    float lanes[LANES] = {0};
    SIMD for (size_t i = 0; i < n; i++) x[i] = loop_exp(x[i] - max);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        SIMD for (size_t j = 0; j < LANES; j++) lanes[j] += x[i + j];
    }
    for (size_t j = 0; i + j < n; j++) lanes[j] += x[i + j];
    return add_lanes(lanes);
}

/* Adds the sums of long rows in double, every few thousand elements. */
LOOP_INLINE double sum_of_stretches(size_t n, float *x, float max, bool write)
{
    enum { STRETCH = 4096 };
    double sum = 0;
    for (size_t i = 0; i < n; i += STRETCH) {
        size_t count = n - i < STRETCH ? n - i : STRETCH;
        sum += write ? exp_in_place(count, x + i, max) : sum_of_exp(count, x + i, max);
    }
    return sum;
}

/* As long as all scores are -infinity, any number serves as the largest. */
LOOPS_TARGET static double loop_exp_block(size_t n, float *x, float *max)
{
    float largest = max_of_row(n, x);
    if (!(largest <= *max)) *max = largest;
    return sum_of_stretches(n, x, *max == -INFINITY ? 0 : *max, true);
}

LOOPS_TARGET static double loop_softmax_scaled(size_t n, float *x, float scale, bool write)
{
    float max = max_of_row(n, x);
    double sum = sum_of_stretches(n, x, max, write);
    if (write) {
        float factor = (float)(scale / sum);
        SIMD for (size_t i = 0; i < n; i++) x[i] *= factor;
    }
    return max + log(sum);
}
