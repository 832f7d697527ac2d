/* y (columns, rows) = x (rows, columns), transposed in blocks of 8 x 8. Part of loops_body.h. */

LOOP_INLINE void transpose_edge(size_t rows, size_t columns, size_t row_end, size_t column_end,
                                size_t row, size_t column, float *y, const float *x, bool add)
{
    for (size_t c = column; c < column_end; c++)
        for (size_t r = row; r < row_end; r++) {
            float value = x[r * columns + c];
            y[c * rows + r] = add ? y[c * rows + r] + value : value;
        }
}

#ifdef LOOPS_AVX2
/* Swaps pairs, then quadruples within 128-bit halves, then the halves themselves. */
LOOP_INLINE void transpose_block(size_t rows, size_t columns, float *y, const float *x, bool add)
{
    __m256 in[8], pairs[8], quads[8], out[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) in[i] = _mm256_loadu_ps(x + (size_t)i * columns);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        pairs[2 * i] = _mm256_unpacklo_ps(in[2 * i], in[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(in[2 * i], in[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const __m256 *p = pairs + 4 * i;
        quads[4 * i] = _mm256_shuffle_ps(p[0], p[2], 0x44);
        quads[4 * i + 1] = _mm256_shuffle_ps(p[0], p[2], 0xee);
        quads[4 * i + 2] = _mm256_shuffle_ps(p[1], p[3], 0x44);
        quads[4 * i + 3] = _mm256_shuffle_ps(p[1], p[3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        out[i] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x20);
        out[i + 4] = _mm256_permute2f128_ps(quads[i], quads[i + 4], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        float *to = y + (size_t)i * rows;
        _mm256_storeu_ps(to, add ? _mm256_add_ps(_mm256_loadu_ps(to), out[i]) : out[i]);
    }
}
#else
LOOP_INLINE void transpose_block(size_t rows, size_t columns, float *y, const float *x, bool add)
{
    transpose_edge(rows, columns, 8, 8, 0, 0, y, x, add);
}
#endif

LOOP loop_transpose(size_t rows, size_t columns, float *y, const float *x, bool add)
{
    size_t row_blocks = rows / 8 * 8, column_blocks = columns / 8 * 8;
    /* The inner loop goes down the columns, so that it completes cache lines of y one after the
     * other. */
    for (size_t c = 0; c < column_blocks; c += 8)
        for (size_t r = 0; r < row_blocks; r += 8)
            transpose_block(rows, columns, y + c * rows + r, x + r * columns + c, add);
    transpose_edge(rows, columns, rows, columns, 0, column_blocks, y, x, add);
    transpose_edge(rows, columns, rows, column_blocks, row_blocks, 0, y, x, add);
}
