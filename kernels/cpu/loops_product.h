/*
 * Products of small matrices with any strides: tiles of sums that stay in registers, one element of
 * a times vectors of b. Every sum is a chain of fused multiply-adds in the order of the depth, so
 * that all levels, and tiles of any shape, give the same bits. Part of loops_body.h.
 */

#if defined(LOOPS_AVX512)

enum { TILE_LANES = 16, TILE_VECTORS = 4, TILE_ROWS = 8 };

/* Computes c[row ... row + rows][column ... column + 16 * vectors]; the last columns may not
 * exist. */
LOOP_INLINE void product_tile(const int rows, const int vectors, const size_t a_row,
                              const struct cpu_product *p, size_t row, size_t column, size_t begin,
                              size_t end)
{
    size_t left = p->columns - column - (size_t)(vectors - 1) * TILE_LANES;
    __mmask16 last = left >= TILE_LANES ? 0xffff : (__mmask16)((1u << left) - 1);
    __m512 sums[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        const float *c = p->c + (row + (size_t)r) * p->c_row + column;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sums[r][v] = p->continued ? _mm512_maskz_loadu_ps(v < vectors - 1 ? 0xffff : last,
                                                              c + v * TILE_LANES)
                                      : _mm512_setzero_ps();
    }
    const float *a = p->a + row * a_row + begin * p->a_depth;
    const float *b = p->b + begin * p->b_depth + column;
    for (size_t k = begin; k < end; k++, a += p->a_depth, b += p->b_depth) {
        __m512 values[TILE_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            values[v] = v < vectors - 1 ? _mm512_loadu_ps(b + v * TILE_LANES)
                                        : _mm512_maskz_loadu_ps(last, b + v * TILE_LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            __m512 factor = _mm512_set1_ps(a[(size_t)r * a_row]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sums[r][v] = _mm512_fmadd_ps(factor, values[v], sums[r][v]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        float *c = p->c + (row + (size_t)r) * p->c_row + column;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            __mmask16 inside = v < vectors - 1 ? 0xffff : last;
            __m512 sum = sums[r][v];
            if (p->add) {
                __m512 before = _mm512_maskz_loadu_ps(inside, c + v * TILE_LANES);
                __m512 factor =
                    _mm512_set1_ps(p->factors != NULL ? p->factors[row + (size_t)r] : 1);
                sum = _mm512_fmadd_ps(before, factor, sum);
            }
            _mm512_mask_storeu_ps(c + v * TILE_LANES, inside, sum);
        }
    }
}

#elif defined(LOOPS_AVX2)

enum { TILE_LANES = 8, TILE_VECTORS = 2, TILE_ROWS = 6 };

/* `whole`: all of its columns exist. */
LOOP_INLINE void product_tile_of(const bool whole, const int rows, const int vectors,
                                 const size_t a_row, const struct cpu_product *p, size_t row,
                                 size_t column, size_t begin, size_t end)
{
    size_t left = p->columns - column - (size_t)(vectors - 1) * TILE_LANES;
    __m256i last = _mm256_cmpgt_epi32(_mm256_set1_epi32(whole ? TILE_LANES : (int)left),
                                      _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
    __m256 sums[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        const float *c = p->c + (row + (size_t)r) * p->c_row + column;
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            sums[r][v] = !p->continued              ? _mm256_setzero_ps()
                         : v < vectors - 1 || whole ? _mm256_loadu_ps(c + v * TILE_LANES)
                                                    : _mm256_maskload_ps(c + v * TILE_LANES, last);
    }
    const float *a = p->a + row * a_row + begin * p->a_depth;
    const float *b = p->b + begin * p->b_depth + column;
    for (size_t k = begin; k < end; k++, a += p->a_depth, b += p->b_depth) {
        __m256 values[TILE_VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++)
            values[v] = v < vectors - 1 || whole ? _mm256_loadu_ps(b + v * TILE_LANES)
                                                 : _mm256_maskload_ps(b + v * TILE_LANES, last);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            __m256 factor = _mm256_broadcast_ss(a + (size_t)r * a_row);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++)
                sums[r][v] = _mm256_fmadd_ps(factor, values[v], sums[r][v]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        float *c = p->c + (row + (size_t)r) * p->c_row + column;
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            bool full = v < vectors - 1 || whole;
            __m256 sum = sums[r][v];
            if (p->add) {
                __m256 before = full ? _mm256_loadu_ps(c + v * TILE_LANES)
                                     : _mm256_maskload_ps(c + v * TILE_LANES, last);
                __m256 factor =
                    _mm256_set1_ps(p->factors != NULL ? p->factors[row + (size_t)r] : 1);
                sum = _mm256_fmadd_ps(before, factor, sum);
            }
            if (full) _mm256_storeu_ps(c + v * TILE_LANES, sum);
            else _mm256_maskstore_ps(c + v * TILE_LANES, last, sum);
        }
    }
}

LOOP_INLINE void product_tile(const int rows, const int vectors, const size_t a_row,
                              const struct cpu_product *p, size_t row, size_t column, size_t begin,
                              size_t end)
{
    if (p->columns - column >= (size_t)vectors * TILE_LANES)
        product_tile_of(true, rows, vectors, a_row, p, row, column, begin, end);
    else product_tile_of(false, rows, vectors, a_row, p, row, column, begin, end);
}

#else

enum { TILE_LANES = 16, TILE_VECTORS = 4, TILE_ROWS = 1 };

LOOP_INLINE void product_tile(const int rows, const int vectors, const size_t a_row,
                              const struct cpu_product *p, size_t row, size_t column, size_t begin,
                              size_t end)
{
    (void)rows;
    float sums[TILE_LANES * TILE_VECTORS] = {0};
    float *c = p->c + row * p->c_row + column;
    size_t most = (size_t)vectors * TILE_LANES;
    size_t count = p->columns - column < most ? p->columns - column : most;
    for (size_t i = 0; p->continued && i < count; i++) sums[i] = c[i];
    for (size_t k = begin; k < end; k++) {
        float factor = p->a[row * a_row + k * p->a_depth];
        const float *b = p->b + k * p->b_depth + column;
        SIMD for (size_t i = 0; i < count; i++) sums[i] = __builtin_fmaf(factor, b[i], sums[i]);
    }
    float factor = p->factors != NULL ? p->factors[row] : 1;
    for (size_t i = 0; i < count; i++)
        c[i] = p->add ? __builtin_fmaf(c[i], factor, sums[i]) : sums[i];
}

#endif

/* `a_row` becomes a constant where the caller passes one and this is inlined. */
LOOP_INLINE void product_rows(const size_t a_row, const struct cpu_product *p)
{
    for (size_t panel = 0; panel < p->columns; panel += TILE_VECTORS * TILE_LANES) {
        for (size_t row = 0; row < p->rows;) {
            size_t column = panel;
            if (p->part == PRODUCT_COLUMNS_FROM_ROW && column < row / 16 * 16)
                column = row / 16 * 16;
            size_t most = panel + TILE_VECTORS * TILE_LANES;
            size_t column_end = most < p->columns ? most : p->columns;
            if (column >= column_end) break;
            size_t vectors = (column_end - column + TILE_LANES - 1) / TILE_LANES;
            size_t left = p->rows - row, rows = 1;
            if (TILE_ROWS >= 4 && left >= 4) rows = 4;
            if (TILE_ROWS == 6 && left >= 6 && left != 8 && p->part == PRODUCT_WHOLE) rows = 6;
            if (TILE_ROWS >= 8 && left >= 8 && vectors <= 2) rows = 8;
            size_t begin = p->part == PRODUCT_DEPTH_FROM_ROW ? row : 0;
            size_t end =
                p->part == PRODUCT_DEPTH_TO_ROW && row + rows < p->depth ? row + rows : p->depth;
#define TILE(r, v)                                                                                 \
    case (r)*8 + (v): product_tile(r, v, a_row, p, row, column, begin, end); break
            switch (rows * 8 + vectors) {
                TILE(1, 1);
                TILE(1, 2);
#if !defined(LOOPS_AVX2) || defined(LOOPS_AVX512)
                TILE(1, 3);
                TILE(1, 4);
#endif
#if defined(LOOPS_AVX2)
                TILE(4, 1);
                TILE(4, 2);
#endif
#if defined(LOOPS_AVX2) && !defined(LOOPS_AVX512)
                TILE(6, 1);
                TILE(6, 2);
#endif
#if defined(LOOPS_AVX512)
                TILE(4, 3);
                TILE(4, 4);
                TILE(8, 1);
                TILE(8, 2);
#endif
            }
#undef TILE
            row += rows;
        }
    }
}

/* The same for few rows, which reads b once, from its first element to its last. `low`: bf16. */
enum { STREAM_ROWS = 16, STREAM_COLUMNS = 256, STREAM_LEAST = 128 }; /* of c, for all rows in L1 */
/* Columns whose next elements are asked for together. Those of f32 come in time unasked for a row
 * or two; places of the depth that are a multiple of 4 KiB apart would push each other out of L1.
 */
enum { STREAM_CHUNK = 64, STREAM_ALIAS = 1024 };

/* Four places of the depth, of one row of a or of two next to each other. */
LOOP_INLINE void product_four(const bool low, const int rows, const struct cpu_product *p,
                              const float *a, size_t b, float *c, size_t n)
{
    const size_t b1 = b + p->b_depth, b2 = b1 + p->b_depth, b3 = b2 + p->b_depth;
    const float *below = rows > 1 ? a + p->a_row : a;
    float *c_below = rows > 1 ? c + p->c_row : c;
    const float first = a[0], second = a[p->a_depth], third = a[2 * p->a_depth],
                fourth = a[3 * p->a_depth], first_below = below[0],
                second_below = below[p->a_depth], third_below = below[2 * p->a_depth],
                fourth_below = below[3 * p->a_depth];
    SIMD for (size_t i = 0; i < n; i++)
    {
        float v0 = product_value(low, p, b + i), v1 = product_value(low, p, b1 + i),
              v2 = product_value(low, p, b2 + i), v3 = product_value(low, p, b3 + i);
        float sum = __builtin_fmaf(first, v0, c[i]);
        sum = __builtin_fmaf(second, v1, sum);
        sum = __builtin_fmaf(third, v2, sum);
        c[i] = __builtin_fmaf(fourth, v3, sum);
        if (rows > 1) {
            sum = __builtin_fmaf(first_below, v0, c_below[i]);
            sum = __builtin_fmaf(second_below, v1, sum);
            sum = __builtin_fmaf(third_below, v2, sum);
            c_below[i] = __builtin_fmaf(fourth_below, v3, sum);
        }
    }
}

/* Eight places of the depth, of one row of a: longer streams, which come sooner. */
LOOP_INLINE void product_eight(const struct cpu_product *p, const float *a, const float *b,
                               float *c, size_t n)
{
    const size_t next = p->b_depth;
    float factors[8];
    for (size_t k = 0; k < 8; k++) factors[k] = a[k * p->a_depth];
    SIMD for (size_t i = 0; i < n; i++)
    {
        float sum = __builtin_fmaf(factors[0], b[i], c[i]);
        sum = __builtin_fmaf(factors[1], b[next + i], sum);
        sum = __builtin_fmaf(factors[2], b[2 * next + i], sum);
        sum = __builtin_fmaf(factors[3], b[3 * next + i], sum);
        sum = __builtin_fmaf(factors[4], b[4 * next + i], sum);
        sum = __builtin_fmaf(factors[5], b[5 * next + i], sum);
        sum = __builtin_fmaf(factors[6], b[6 * next + i], sum);
        c[i] = __builtin_fmaf(factors[7], b[7 * next + i], sum);
    }
}

LOOP_INLINE void product_stream(const bool low, const struct cpu_product *p, size_t panel, size_t n)
{
    const bool fetches = low || (p->rows > 2 && p->b_depth % STREAM_ALIAS != 0);
    const size_t chunk = fetches ? STREAM_CHUNK : n;
    size_t k = 0;
    for (; !low && p->rows == 1 && k + 8 <= p->depth; k += 8)
        product_eight(p, p->a + k * p->a_depth, p->b + k * p->b_depth + panel, p->c + panel, n);
    for (; k + 4 <= p->depth; k += 4)
        for (size_t from = 0; from < n; from += chunk) {
            const size_t b = k * p->b_depth + panel + from,
                         count = n - from < chunk ? n - from : chunk;
            for (size_t i = 0; fetches && i < count; i += low ? 32 : 16)
                for (size_t next = 4; next < 8; next++)
                    product_fetch(low, p, b + next * p->b_depth + i);
            const float *a = p->a + k * p->a_depth;
            float *c = p->c + panel + from;
            size_t row = 0;
            for (; row + 2 <= p->rows; row += 2)
                product_four(low, 2, p, a + row * p->a_row, b, c + row * p->c_row, count);
            if (row < p->rows)
                product_four(low, 1, p, a + row * p->a_row, b, c + row * p->c_row, count);
        }
    for (; k < p->depth; k++)
        for (size_t row = 0; row < p->rows; row++) {
            const size_t b = k * p->b_depth + panel;
            float *c = p->c + row * p->c_row + panel,
                  factor = p->a[row * p->a_row + k * p->a_depth];
            SIMD for (size_t i = 0; i < n; i++) c[i] =
                __builtin_fmaf(factor, product_value(low, p, b + i), c[i]);
        }
}

LOOP_INLINE void product_streams(const bool low, const struct cpu_product *p)
{
    const size_t most =
        p->rows < STREAM_ROWS ? STREAM_COLUMNS * STREAM_ROWS / p->rows : STREAM_COLUMNS;
    for (size_t panel = 0; panel < p->columns; panel += most) {
        size_t left = p->columns - panel, n = left < most ? left : most;
        for (size_t row = 0; !p->continued && row < p->rows; row++) {
            float *c = p->c + row * p->c_row + panel;
            SIMD for (size_t i = 0; i < n; i++) c[i] = 0;
        }
        product_stream(low, p, panel, n);
    }
}

LOOP loop_product(const struct cpu_product *p)
{
    bool whole = p->part == PRODUCT_WHOLE && !p->add;
    if (p->halves != NULL) product_streams(true, p);
    else if (whole && p->rows <= STREAM_ROWS && p->columns >= STREAM_LEAST)
        product_streams(false, p);
    else if (p->a_row == 1) product_rows(1, p);
    else if (p->a_row == ATTENTION_BLOCK) product_rows(ATTENTION_BLOCK, p);
    else product_rows(p->a_row, p);
}
