/*
 * Norms, and softmax, of one row. Sums are kept in four vectors of 16 lanes, which are added in a
 * fixed order, so that every level gives the same bits. Part of loops_body.h.
 */

enum { ROW_VECTORS = 4, ROW_STEP = LANES * ROW_VECTORS };

/* A row may start at any element. */
typedef float row_vector
    __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

/* Adds in halves, which avoids a long chain of dependent additions. */
LOOP_INLINE float add_vectors(const row_vector sums[ROW_VECTORS])
{
    row_vector sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    float lanes[LANES];
    for (int i = 0; i < LANES; i++) lanes[i] = sum[i];
    for (int width = LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

/* Elements from i on; `fill` beyond the row's end. */
LOOP_INLINE void load_vector(row_vector *to, size_t i, size_t n, const float *x, float fill)
{
    if (i + LANES <= n) {
        *to = *(const row_vector *)(x + i);
        return;
    }
    float lanes[LANES];
    for (size_t j = 0; j < LANES; j++) lanes[j] = i + j < n ? x[i + j] : fill;
    *to = *(const row_vector *)lanes;
}

LOOP_INLINE float sum_of_row(size_t n, const float *x)
{
    row_vector sums[ROW_VECTORS] = {0}, rest;
    size_t i = 0;
    for (; i + ROW_STEP <= n; i += ROW_STEP)
#pragma GCC unroll 4
        for (size_t v = 0; v < ROW_VECTORS; v++)
            sums[v] += *(const row_vector *)(x + i + v * LANES);
    for (; i < n; i += LANES) {
        load_vector(&rest, i, n, x, 0);
        sums[0] += rest;
    }
    return add_vectors(sums);
}

LOOP_INLINE float sum_of_squares(size_t n, const float *x, float mean)
{
    row_vector sums[ROW_VECTORS] = {0}, rest;
    size_t i = 0;
    for (; i + ROW_STEP <= n; i += ROW_STEP)
#pragma GCC unroll 4
        for (size_t v = 0; v < ROW_VECTORS; v++) {
            row_vector value = *(const row_vector *)(x + i + v * LANES) - mean;
            sums[v] += value * value;
        }
    for (; i < n; i += LANES) {
        load_vector(&rest, i, n, x, mean);
        sums[0] += (rest - mean) * (rest - mean);
    }
    return add_vectors(sums);
}

LOOP loop_norm(size_t n, float *y, const float *x, const float *weight, const float *bias,
               bool centered, double eps, float *mean, float *rstd, bool add)
{
    float m = centered ? sum_of_row(n, x) / (float)n : 0;
    float factor = (float)(1 / sqrt((double)sum_of_squares(n, x, m) / (double)n + eps));
    if (weight != NULL && bias != NULL)
        EACH(n, y, add, __builtin_fmaf((x[i] - m) * factor, weight[i], bias[i]));
    else if (weight != NULL && centered) EACH(n, y, add, (x[i] - m) * factor * weight[i]);
    else if (weight != NULL) EACH(n, y, add, x[i] * factor * weight[i]);
    else if (bias != NULL) EACH(n, y, add, __builtin_fmaf(x[i] - m, factor, bias[i]));
    else EACH(n, y, add, (x[i] - m) * factor);
    *mean = m;
    *rstd = factor;
}

/* The sums of g and of g (x - mean), g = dy weight. */
LOOP_INLINE void gradient_sums(size_t n, const float *dy, const float *x, const float *weight,
                               float mean, bool weighted, bool centered, float *sum, float *product)
{
    row_vector sums[ROW_VECTORS] = {0}, products[ROW_VECTORS] = {0};
    size_t i = 0;
    for (; i + ROW_STEP <= n; i += ROW_STEP)
#pragma GCC unroll 4
        for (size_t v = 0; v < ROW_VECTORS; v++) {
            size_t at = i + v * LANES;
            row_vector g = *(const row_vector *)(dy + at);
            if (weighted) g *= *(const row_vector *)(weight + at);
            if (centered) sums[v] += g;
            products[v] += g * (*(const row_vector *)(x + at) - mean);
        }
    for (; i < n; i += LANES) {
        row_vector g, value, w = {0};
        load_vector(&g, i, n, dy, 0);
        load_vector(&value, i, n, x, mean);
        if (weighted) {
            load_vector(&w, i, n, weight, 0);
            g *= w;
        }
        if (centered) sums[0] += g;
        products[0] += g * (value - mean);
    }
    *sum = centered ? add_vectors(sums) : 0;
    *product = add_vectors(products);
}

LOOP loop_norm_backward(size_t n, float *dx, const float *dy, const float *x, const float *weight,
                        const float *other, bool centered, float mean, float rstd, bool add)
{
    float sum, product;
    if (weight != NULL && centered)
        gradient_sums(n, dy, x, weight, mean, true, true, &sum, &product);
    else if (weight != NULL) gradient_sums(n, dy, x, weight, mean, true, false, &sum, &product);
    else gradient_sums(n, dy, x, weight, mean, false, centered, &sum, &product);
    /* dx = rstd g - (x - mean) slope - shift */
    float slope = -rstd * rstd * rstd * (product / (float)n), shift = -rstd * (sum / (float)n);
    if (weight != NULL && other != NULL)
        EACH(n, dx, add,
             __builtin_fmaf(dy[i] * weight[i], rstd,
                            __builtin_fmaf(x[i] - mean, slope, other[i] + shift)));
    else if (weight != NULL)
        EACH(n, dx, add,
             __builtin_fmaf(dy[i] * weight[i], rstd, __builtin_fmaf(x[i] - mean, slope, shift)));
    else if (other != NULL)
        EACH(n, dx, add,
             __builtin_fmaf(dy[i], rstd, __builtin_fmaf(x[i] - mean, slope, other[i] + shift)));
    else EACH(n, dx, add, __builtin_fmaf(dy[i], rstd, __builtin_fmaf(x[i] - mean, slope, shift)));
}

LOOP loop_norm_backward_weights(size_t n, float *dweight, float *dbias, const float *dy,
                                const float *x, float mean, float rstd)
{
    if (dbias == NULL) {
        SIMD for (size_t i = 0; i < n; i++) dweight[i] =
            __builtin_fmaf(dy[i], (x[i] - mean) * rstd, dweight[i]);
    } else if (dweight == NULL) {
        SIMD for (size_t i = 0; i < n; i++) dbias[i] += dy[i];
    } else {
        SIMD for (size_t i = 0; i < n; i++)
        {
            dweight[i] = __builtin_fmaf(dy[i], (x[i] - mean) * rstd, dweight[i]);
            dbias[i] += dy[i];
        }
    }
}

LOOP loop_softmax(size_t n, float *y, const float *x, bool add)
{
    float max = max_of_row(n, x);
    if (add) {
        float factor = 1.0f / sum_of_exp(n, x, max);
        SIMD for (size_t i = 0; i < n; i++) y[i] += loop_exp(x[i] - max) * factor;
        return;
    }
    SIMD for (size_t i = 0; i < n; i++) y[i] = loop_exp(x[i] - max);
    float factor = 1.0f / sum_of_row(n, y);
    SIMD for (size_t i = 0; i < n; i++) y[i] *= factor;
}

LOOP loop_softmax_backward(size_t n, float *dx, const float *dy, const float *y, bool add)
{
    float unused, sum;
    gradient_sums(n, dy, y, NULL, 0, false, false, &unused, &sum);
    EACH(n, dx, add, y[i] * (dy[i] - sum));
}
