/* Loops on single elements. Part of loops_body.h. */

/* Not "x > 0 ? x : 0": a NaN stays a NaN, and shows in the loss. */
LOOP loop_relu(size_t n, float *y, const float *x, bool add)
{
    if (add) {
        SIMD for (size_t i = 0; i < n; i++) y[i] += x[i] <= 0 ? 0 : x[i];
    } else {
        SIMD for (size_t i = 0; i < n; i++) y[i] = x[i] <= 0 ? 0 : x[i];
    }
}

LOOP loop_relu_backward(size_t n, float *dx, const float *dy, const float *y, bool add)
{
    if (add) {
        SIMD for (size_t i = 0; i < n; i++) dx[i] += y[i] <= 0 ? 0 : dy[i];
    } else {
        SIMD for (size_t i = 0; i < n; i++) dx[i] = y[i] <= 0 ? 0 : dy[i];
    }
}

LOOP loop_add(size_t n, float *y, const float *a, const float *b, bool add)
{
    if (add) {
        SIMD for (size_t i = 0; i < n; i++) y[i] += a[i] + b[i];
    } else {
        SIMD for (size_t i = 0; i < n; i++) y[i] = a[i] + b[i];
    }
}

LOOP loop_copy_add(size_t n, float *y, const float *x)
{
    SIMD for (size_t i = 0; i < n; i++) y[i] += x[i];
}

/* block[i] += the sum of some rows in order, four rows per pass. */
LOOP_INLINE void add_rows(size_t rows, size_t columns, size_t stride, float *block, const float *x)
{
    for (; rows >= 4; rows -= 4, x += 4 * stride) {
        SIMD for (size_t i = 0; i < columns; i++) block[i] =
            (((block[i] + x[i]) + x[stride + i]) + x[2 * stride + i]) + x[3 * stride + i];
    }
    for (; rows > 0; rows--, x += stride) {
        SIMD for (size_t i = 0; i < columns; i++) block[i] += x[i];
    }
}

LOOP loop_sum_columns(size_t rows, size_t columns, size_t stride, float *sums, const float *x,
                      bool add)
{
    for (size_t start = 0; start < columns; start += SUM_COLUMNS) {
        size_t count = columns - start < SUM_COLUMNS ? columns - start : SUM_COLUMNS;
        _Alignas(64) float whole[SUM_COLUMNS] = {0};
        for (size_t row = 0; row < rows; row += SUM_ROWS) {
            size_t few = rows - row < SUM_ROWS ? rows - row : SUM_ROWS;
            _Alignas(64) float block[SUM_COLUMNS] = {0};
            add_rows(few, count, stride, block, x + row * stride + start);
            SIMD for (size_t i = 0; i < count; i++) whole[i] += block[i];
        }
        EACH(count, sums + start, add, whole[i]);
    }
}

LOOP loop_sum_rows(size_t rows, size_t columns, float *sums, const float *x, bool add)
{
    loop_sum_columns(rows, columns, columns, sums, x, add);
}

LOOP loop_sum_ordered(size_t n, float *out, const float *const *parts, int part_count, float scale)
{
    enum { BLOCK = 512 }; /* partial sums stay in the first-level cache */
    for (size_t start = 0; start < n; start += BLOCK) {
        size_t count = n - start < BLOCK ? n - start : BLOCK;
        float sums[BLOCK];
        for (size_t i = 0; i < count; i++) sums[i] = parts[0][start + i];
        for (int part = 1; part < part_count; part++) {
            const float *values = parts[part] + start;
            SIMD for (size_t i = 0; i < count; i++) sums[i] += values[i];
        }
        SIMD for (size_t i = 0; i < count; i++) out[start + i] = sums[i] * scale;
    }
}
