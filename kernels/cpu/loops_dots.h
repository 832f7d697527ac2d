/*
 * Products with a matrix whose columns lie along the depth: c[row][column] = a[row] . b[column].
 * An element has 8 sums, of every 8th place of the depth, each a chain of fused multiply-adds;
 * these are then added pairwise. So all levels, and tiles of any shape, give the same bits, and a
 * row those that it has alone. Part of loops_body.h.
 */

enum { DOT_LANES = 8 };

#if defined(LOOPS_AVX2)

LOOP_INLINE float dot_sum(__m256 lanes)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#endif

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

#if defined(LOOPS_AVX2)

/* Sums of four rows and three columns fill the registers, with what is read. */
enum { DOT_ROWS = 4, DOT_COLUMNS = 3, DOT_ALONE = 4 };

LOOP_INLINE __m256 dot_values(const bool low, const struct cpu_product *p, size_t at)
{
    if (!low) return _mm256_loadu_ps(p->b + at);
    __m128i halves = _mm_loadu_si128((const __m128i *)(p->halves + at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

LOOP_INLINE void dot_tile(const bool low, const int rows, const int columns,
                          const struct cpu_product *p, size_t row, size_t column, size_t apart)
{
    const size_t whole = p->depth / DOT_LANES * DOT_LANES, b = column * p->b_depth,
                 next = apart * p->b_depth;
    const float *a = p->a + row * p->a_row;
    __m256 sums[DOT_ROWS][DOT_ALONE], values[DOT_ALONE];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++) sums[r][v] = _mm256_setzero_ps();
    for (size_t k = 0; k < whole; k += DOT_LANES) {
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++) values[v] = dot_values(low, p, b + (size_t)v * next + k);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m256 factors = _mm256_loadu_ps(a + (size_t)r * p->a_row + k);
#pragma GCC unroll 4
            for (int v = 0; v < columns; v++)
                sums[r][v] = _mm256_fmadd_ps(factors, values[v], sums[r][v]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++) {
            float lanes[DOT_LANES];
            _mm256_storeu_ps(lanes, sums[r][v]);
            for (size_t i = whole; i < p->depth; i++)
                lanes[i - whole] = __builtin_fmaf(a[(size_t)r * p->a_row + i],
                                                  product_value(low, p, b + (size_t)v * next + i),
                                                  lanes[i - whole]);
            p->c[(row + (size_t)r) * p->c_row + column + (size_t)v * apart] =
                dot_sum(_mm256_loadu_ps(lanes));
        }
}

#else

enum { DOT_ROWS = 1, DOT_COLUMNS = 1, DOT_ALONE = 1 };

LOOP_INLINE void dot_tile(const bool low, const int rows, const int columns,
                          const struct cpu_product *p, size_t row, size_t column, size_t apart)
{
    const float *a = p->a + row * p->a_row;
    const size_t b = column * p->b_depth;
    float lanes[DOT_LANES] = {0};
    (void)rows;
    (void)columns;
    (void)apart;
    for (size_t k = 0; k < p->depth; k++)
        lanes[k % DOT_LANES] =
            __builtin_fmaf(a[k], product_value(low, p, b + k), lanes[k % DOT_LANES]);
#pragma GCC unroll 4
    for (int n = DOT_LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) lanes[i] += lanes[i + n];
    p->c[row * p->c_row + column] = lanes[0];
}

#endif

enum { DOT_BLOCK = 32768 }; /* elements of b that stay in the cache for all rows */

LOOP_INLINE void dot_columns(const bool low, const int columns, const struct cpu_product *p,
                             size_t row, size_t column, size_t apart)
{
    switch (p->rows - row < DOT_ROWS ? p->rows - row : DOT_ROWS) {
    case 1: dot_tile(low, 1, columns, p, row, column, apart); break;
#if defined(LOOPS_AVX2)
    case 2: dot_tile(low, 2, columns, p, row, column, apart); break;
    case 3: dot_tile(low, 3, columns, p, row, column, apart); break;
    case 4: dot_tile(low, 4, columns, p, row, column, apart); break;
#endif
    }
}

/* One tile of rows or two are bound by memory, which answers streams far apart sooner than short
 * ones. */
LOOP_INLINE void dot_tiles(const bool low, const struct cpu_product *p)
{
    const size_t fit = DOT_BLOCK / p->depth / DOT_COLUMNS * DOT_COLUMNS,
                 most = fit == 0 ? DOT_COLUMNS : fit,
                 streams = p->rows == 1 ? DOT_ALONE : DOT_COLUMNS,
                 apart = p->rows <= 2 * DOT_ROWS ? p->columns / streams : 0;
    for (size_t column = 0; column < apart; column++)
        if (p->rows == 1) dot_tile(low, 1, DOT_ALONE, p, 0, column, apart);
        else
            for (size_t row = 0; row < p->rows; row += DOT_ROWS)
                dot_columns(low, DOT_COLUMNS, p, row, column, apart);
    for (size_t first = apart * streams; first < p->columns; first += most) {
        const size_t end = p->columns - first < most ? p->columns : first + most;
        for (size_t row = 0; row < p->rows; row += DOT_ROWS) {
            size_t column = first;
            for (; column + DOT_COLUMNS <= end; column += DOT_COLUMNS)
                dot_columns(low, DOT_COLUMNS, p, row, column, 1);
            for (; column < end; column++) dot_columns(low, 1, p, row, column, 1);
        }
    }
}

LOOP loop_dots(const struct cpu_product *p)
{
    if (p->halves != NULL) dot_tiles(true, p);
    else dot_tiles(false, p);
}
