/*
 * Products with a matrix whose columns lie along the depth: c[row][column] = a[row] . b[column].
 * An element has 16 sums, of every 16th place of the depth, each a chain of fused multiply-adds;
 * these are then added pairwise. So all levels, and tiles of any shape, give the same bits, and a
 * row those that it has alone. Part of loops_body.h.
 */

enum { DOT_LANES = 16 };

#if defined(LOOPS_AVX2)

LOOP_INLINE float dot_sum(__m256 low, __m256 high)
{
    low = _mm256_add_ps(low, high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(low), _mm256_extractf128_ps(low, 1));
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

#if defined(LOOPS_AVX512)

enum { DOT_ROWS = 4, DOT_COLUMNS = 4, DOT_ALONE = 4 };

LOOP_INLINE void dot_step(const bool low, const int rows, const int columns,
                          const struct cpu_product *p, const float *a, size_t b, size_t apart,
                          __mmask16 inside, __m512 sums[DOT_ROWS][DOT_COLUMNS])
{
    __m512 values[DOT_COLUMNS];
#pragma GCC unroll 4
    for (int v = 0; v < columns; v++)
        values[v] = low ? _mm512_castsi512_ps(_mm512_slli_epi32(
                              _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(
                                  inside, p->halves + b + (size_t)v * apart * p->b_depth)),
                              16))
                        : _mm512_maskz_loadu_ps(inside, p->b + b + (size_t)v * apart * p->b_depth);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        __m512 factors = _mm512_maskz_loadu_ps(inside, a + (size_t)r * p->a_row);
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++)
            sums[r][v] = _mm512_fmadd_ps(factors, values[v], sums[r][v]);
    }
}

LOOP_INLINE void dot_tile(const bool low, const int rows, const int columns,
                          const struct cpu_product *p, size_t row, size_t column, size_t apart)
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
        if (row == 0 && apart == 1) {
#pragma GCC unroll 4
            for (int v = 0; v < columns; v++)
                product_fetch(low, p, b + k + (size_t)(columns + v) * p->b_depth);
        }
        dot_step(low, rows, columns, p, a + k, b + k, apart, 0xffff, sums);
    }
    if (k < p->depth)
        dot_step(low, rows, columns, p, a + k, b + k, apart,
                 (__mmask16)((1u << (p->depth - k)) - 1), sums);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++) {
            const __m512d high = _mm512_castps_pd(sums[r][v]);
            p->c[(row + (size_t)r) * p->c_row + column + (size_t)v * apart] =
                dot_sum(_mm512_castps512_ps256(sums[r][v]),
                        _mm256_castpd_ps(_mm512_extractf64x4_pd(high, 1)));
        }
}

#elif defined(LOOPS_AVX2)

/* Sums fill the registers: of three rows or more they are those of half the lanes, so that a part
 * of the depth, which stays in the cache, is read twice. */
enum { DOT_ROWS = 4, DOT_COLUMNS = 3, DOT_ALONE = 4, DOT_HALVES = 2, DOT_PART = 512 };

LOOP_INLINE __m256 dot_values(const bool low, const struct cpu_product *p, size_t at)
{
    if (!low) return _mm256_loadu_ps(p->b + at);
    __m128i halves = _mm_loadu_si128((const __m128i *)(p->halves + at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* Adds a part of the depth to `lanes`, to all of them or, from `first` on, to half. */
LOOP_INLINE void dot_part(const bool low, const int rows, const int columns, const int halves,
                          const struct cpu_product *p, size_t row, size_t column, size_t apart,
                          size_t begin, size_t end, int first,
                          float lanes[DOT_ROWS][DOT_ALONE][DOT_LANES])
{
    const float *a = p->a + row * p->a_row + first;
    const size_t b = column * p->b_depth;
    __m256 sums[DOT_ROWS][DOT_ALONE][DOT_HALVES], values[DOT_ALONE];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++)
#pragma GCC unroll 2
            for (int h = 0; h < halves; h++)
                sums[r][v][h] =
                    begin == 0 ? _mm256_setzero_ps() : _mm256_loadu_ps(lanes[r][v] + first + 8 * h);
    for (size_t k = begin; k < end; k += DOT_LANES) {
        if (row == 0 && first == 0 && apart == 1) {
#pragma GCC unroll 4
            for (int v = 0; v < columns; v++)
                product_fetch(low, p, b + k + (size_t)(columns + v) * p->b_depth);
        }
#pragma GCC unroll 2
        for (int h = 0; h < halves; h++) {
#pragma GCC unroll 4
            for (int v = 0; v < columns; v++)
                values[v] =
                    dot_values(low, p,
                               b + (size_t)v * apart * p->b_depth + k + (size_t)(first + 8 * h));
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                __m256 factors = _mm256_loadu_ps(a + (size_t)r * p->a_row + k + 8 * h);
#pragma GCC unroll 4
                for (int v = 0; v < columns; v++)
                    sums[r][v][h] = _mm256_fmadd_ps(factors, values[v], sums[r][v][h]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++)
#pragma GCC unroll 2
            for (int h = 0; h < halves; h++)
                _mm256_storeu_ps(lanes[r][v] + first + 8 * h, sums[r][v][h]);
}

LOOP_INLINE void dot_tile(const bool low, const int rows, const int columns,
                          const struct cpu_product *p, size_t row, size_t column, size_t apart)
{
    const size_t whole = p->depth / DOT_LANES * DOT_LANES;
    float lanes[DOT_ROWS][DOT_ALONE][DOT_LANES];
    size_t begin = 0, end;
    do {
        end = rows > 2 && whole - begin > DOT_PART ? begin + DOT_PART : whole;
        dot_part(low, rows, columns, rows > 2 ? 1 : 2, p, row, column, apart, begin, end, 0, lanes);
        if (rows > 2) dot_part(low, rows, columns, 1, p, row, column, apart, begin, end, 8, lanes);
        begin = end;
    } while (begin < whole);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < columns; v++) {
            const float *a = p->a + (row + (size_t)r) * p->a_row;
            const size_t b = (column + (size_t)v * apart) * p->b_depth;
            for (size_t i = whole; i < p->depth; i++)
                lanes[r][v][i - whole] =
                    __builtin_fmaf(a[i], product_value(low, p, b + i), lanes[r][v][i - whole]);
            p->c[(row + (size_t)r) * p->c_row + column + (size_t)v * apart] =
                dot_sum(_mm256_loadu_ps(lanes[r][v]), _mm256_loadu_ps(lanes[r][v] + 8));
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
