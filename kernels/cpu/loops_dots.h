/*
 * Products with a matrix whose columns lie along the depth: c[row][column] = a[row] . b[column].
 * An element has 16 sums, of every 16th place of the depth, each a chain of fused multiply-adds;
 * these are then added pairwise. So all levels, and tiles of any shape, give the same bits, and a
 * row those that it has alone. Part of loops_body.h.
 */

enum { DOT_LANES = 16 };

LOOP_INLINE float dot_sum(float lanes[DOT_LANES])
{
#pragma GCC unroll 4
    for (int n = DOT_LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) lanes[i] += lanes[i + n];
    return lanes[0];
}

/* An element of b. `low`: it is of bf16. */
LOOP_INLINE float product_value(const bool low, const struct cpu_product *p, size_t at)
{
    if (!low) return p->b[at];
    float value;
    *(loop_bits *)&value = (uint32_t)p->halves[at] << 16;
    return value;
}

/* Asks for the cache line of an element that is read soon; past the end of b it does nothing. */
LOOP_INLINE void product_fetch(const bool low, const struct cpu_product *p, size_t at)
{
    if (low)
        __builtin_prefetch((const void *)((uintptr_t)p->halves + at * sizeof *p->halves), 0, 2);
    else __builtin_prefetch((const void *)((uintptr_t)p->b + at * sizeof *p->b), 0, 2);
}

#if defined(LOOPS_AVX512)

enum { DOT_ROWS = 4, DOT_COLUMNS = 4, DOT_ALONE = 4 };

LOOP_INLINE void dot_step(const bool low, const int rows, const int columns,
                          const struct cpu_product *p, const float *a, size_t b, __mmask16 inside,
                          __m512 sums[DOT_ROWS][DOT_COLUMNS])
{
    __m512 values[DOT_COLUMNS];
#pragma GCC unroll 4
    for (int v = 0; v < columns; v++)
        values[v] =
            low ? _mm512_castsi512_ps(
                      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(
                                            inside, p->halves + b + (size_t)v * p->b_depth)),
                                        16))
                : _mm512_maskz_loadu_ps(inside, p->b + b + (size_t)v * p->b_depth);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        __m512 factors = _mm512_maskz_loadu_ps(inside, a + (size_t)r * p->a_row);
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++)
            sums[r][v] = _mm512_fmadd_ps(factors, values[v], sums[r][v]);
    }
}

LOOP_INLINE void dot_tile(const bool low, const int rows, const int columns,
                          const struct cpu_product *p, size_t row, size_t column)
{
    const float *a = p->a + row * p->a_row;
    const size_t b = column * p->b_depth;
    __m512 sums[DOT_ROWS][DOT_COLUMNS];
    size_t k = 0;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++) sums[r][v] = _mm512_setzero_ps();
    for (; k + DOT_LANES <= p->depth; k += DOT_LANES) {
#pragma GCC unroll 4
        for (int v = 0; v < columns && row == 0; v++)
            product_fetch(low, p, b + k + (size_t)(columns + v) * p->b_depth);
        dot_step(low, rows, columns, p, a + k, b + k, 0xffff, sums);
    }
    if (k < p->depth)
        dot_step(low, rows, columns, p, a + k, b + k, (__mmask16)((1u << (p->depth - k)) - 1),
                 sums);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++) {
            float lanes[DOT_LANES];
            _mm512_storeu_ps(lanes, sums[r][v]);
            p->c[(row + (size_t)r) * p->c_row + column + (size_t)v] = dot_sum(lanes);
        }
}

#elif defined(LOOPS_AVX2)

enum { DOT_ROWS = 2, DOT_COLUMNS = 2, DOT_ALONE = 4, DOT_HALVES = 2 };

LOOP_INLINE __m256 dot_values(const bool low, const struct cpu_product *p, size_t at)
{
    if (!low) return _mm256_loadu_ps(p->b + at);
    __m128i halves = _mm_loadu_si128((const __m128i *)(p->halves + at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

LOOP_INLINE void dot_tile(const bool low, const int rows, const int columns,
                          const struct cpu_product *p, size_t row, size_t column)
{
    const float *a = p->a + row * p->a_row;
    const size_t b = column * p->b_depth;
    __m256 sums[DOT_ROWS][DOT_ALONE][DOT_HALVES];
    size_t k = 0;
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++) sums[r][v][0] = sums[r][v][1] = _mm256_setzero_ps();
    for (; k + DOT_LANES <= p->depth; k += DOT_LANES) {
#pragma GCC unroll 4
        for (int v = 0; v < columns && row == 0; v++)
            product_fetch(low, p, b + k + (size_t)(columns + v) * p->b_depth);
#pragma GCC unroll 2
        for (int h = 0; h < DOT_HALVES; h++)
#pragma GCC unroll 2
            for (int r = 0; r < rows; r++) {
                __m256 factors = _mm256_loadu_ps(a + (size_t)r * p->a_row + k + 8 * h);
#pragma GCC unroll 4
                for (int v = 0; v < columns; v++)
                    sums[r][v][h] =
                        _mm256_fmadd_ps(factors,
                                        dot_values(low, p, b + (size_t)v * p->b_depth + k + 8 * h),
                                        sums[r][v][h]);
            }
    }
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++) {
            float lanes[DOT_LANES];
            _mm256_storeu_ps(lanes, sums[r][v][0]);
            _mm256_storeu_ps(lanes + 8, sums[r][v][1]);
            for (size_t i = k; i < p->depth; i++)
                lanes[i - k] = __builtin_fmaf(a[(size_t)r * p->a_row + i],
                                              product_value(low, p, b + (size_t)v * p->b_depth + i),
                                              lanes[i - k]);
            p->c[(row + (size_t)r) * p->c_row + column + (size_t)v] = dot_sum(lanes);
        }
}

#else

enum { DOT_ROWS = 1, DOT_COLUMNS = 1, DOT_ALONE = 1 };

LOOP_INLINE void dot_tile(const bool low, const int rows, const int columns,
                          const struct cpu_product *p, size_t row, size_t column)
{
    const float *a = p->a + row * p->a_row;
    const size_t b = column * p->b_depth;
    float lanes[DOT_LANES] = {0};
    (void)rows;
    (void)columns;
    for (size_t k = 0; k < p->depth; k++)
        lanes[k % DOT_LANES] =
            __builtin_fmaf(a[k], product_value(low, p, b + k), lanes[k % DOT_LANES]);
    p->c[row * p->c_row + column] = dot_sum(lanes);
}

#endif

/* Columns of b stay in the cache for all rows. */
LOOP_INLINE void dot_tiles(const bool low, const struct cpu_product *p)
{
    size_t column = 0;
    for (; p->rows == 1 && column + DOT_ALONE <= p->columns; column += DOT_ALONE)
        dot_tile(low, 1, DOT_ALONE, p, 0, column);
    while (column < p->columns) {
        size_t columns = p->columns - column >= DOT_COLUMNS ? DOT_COLUMNS : 1;
        for (size_t row = 0; row < p->rows;) {
            size_t rows = p->rows - row >= DOT_ROWS ? DOT_ROWS : 1;
            if (rows > 1 && columns > 1) dot_tile(low, DOT_ROWS, DOT_COLUMNS, p, row, column);
            else if (columns > 1) dot_tile(low, 1, DOT_COLUMNS, p, row, column);
            else if (rows > 1) dot_tile(low, DOT_ROWS, 1, p, row, column);
            else dot_tile(low, 1, 1, p, row, column);
            row += rows;
        }
        column += columns;
    }
}

LOOP loop_dots(const struct cpu_product *p)
{
    if (p->halves != NULL) dot_tiles(true, p);
    else dot_tiles(false, p);
}
