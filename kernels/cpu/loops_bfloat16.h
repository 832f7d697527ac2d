/* Loops on bf16: the upper half of an f32, rounded to nearest, ties to even. Part of loops_body.h.
 */
typedef uint32_t __attribute__((may_alias)) loop_bits;

LOOP loop_bf16_to_f32(size_t n, float *y, const uint16_t *x)
{
    loop_bits *bits = (loop_bits *)y;
    SIMD for (size_t i = 0; i < n; i++) bits[i] = (uint32_t)x[i] << 16;
}

LOOP loop_f32_to_bf16(size_t n, uint16_t *y, const float *x)
{
    const loop_bits *bits = (const loop_bits *)x;
    SIMD for (size_t i = 0; i < n; i++)
    {
        uint32_t b = bits[i];
        uint32_t rounded = (b + 0x7fff + (b >> 16 & 1)) >> 16;
        uint32_t quiet = b >> 16 | 0x40; /* a NaN stays a NaN */
        y[i] = (uint16_t)((b & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
    }
}

/* A NaN stays a NaN. y may be x. */
LOOP loop_relu_bf16(size_t n, uint16_t *y, const uint16_t *x)
{
    SIMD for (size_t i = 0; i < n; i++)
    {
        uint16_t value = x[i];
        y[i] = value >= 0x8000 && value <= 0xff80 ? 0 : value; /* -0 to -infinity */
    }
}

LOOP_INLINE float widen(uint16_t value)
{
    union {
        uint32_t bits;
        float value;
    } wide = {(uint32_t)value << 16};
    return wide.value;
}

LOOP loop_copy_add_bf16(size_t n, float *y, const uint16_t *x)
{
    SIMD for (size_t i = 0; i < n; i++) y[i] += widen(x[i]);
}

/* As add_rows. */
LOOP_INLINE void add_rows_bf16(size_t rows, size_t columns, size_t stride, float *block,
                               const uint16_t *x)
{
    for (; rows >= 4; rows -= 4, x += 4 * stride) {
        SIMD for (size_t i = 0; i < columns; i++) block[i] =
            (((block[i] + widen(x[i])) + widen(x[stride + i])) + widen(x[2 * stride + i])) +
            widen(x[3 * stride + i]);
    }
    for (; rows > 0; rows--, x += stride) {
        SIMD for (size_t i = 0; i < columns; i++) block[i] += widen(x[i]);
    }
}

LOOP loop_sum_columns_bf16(size_t rows, size_t columns, size_t stride, float *sums,
                           const uint16_t *x, bool add)
{
    for (size_t start = 0; start < columns; start += SUM_COLUMNS) {
        size_t count = columns - start < SUM_COLUMNS ? columns - start : SUM_COLUMNS;
        _Alignas(64) float whole[SUM_COLUMNS] = {0};
        for (size_t row = 0; row < rows; row += SUM_ROWS) {
            size_t few = rows - row < SUM_ROWS ? rows - row : SUM_ROWS;
            _Alignas(64) float block[SUM_COLUMNS] = {0};
            add_rows_bf16(few, count, stride, block, x + row * stride + start);
            SIMD for (size_t i = 0; i < count; i++) whole[i] += block[i];
        }
        EACH(count, sums + start, add, whole[i]);
    }
}

LOOP loop_sum_rows_bf16(size_t rows, size_t columns, float *sums, const uint16_t *x, bool add)
{
    loop_sum_columns_bf16(rows, columns, columns, sums, x, add);
}

/* As loop_sum_ordered. */
LOOP loop_sum_ordered_bf16(size_t n, float *out, const uint16_t *const *parts, int part_count,
                           float scale)
{
    enum { BLOCK = 512 };
    for (size_t start = 0; start < n; start += BLOCK) {
        size_t count = n - start < BLOCK ? n - start : BLOCK;
        float sums[BLOCK], values[BLOCK];
        loop_bf16_to_f32(count, sums, parts[0] + start);
        for (int part = 1; part < part_count; part++) {
            loop_bf16_to_f32(count, values, parts[part] + start);
            SIMD for (size_t i = 0; i < count; i++) sums[i] += values[i];
        }
        SIMD for (size_t i = 0; i < count; i++) out[start + i] = sums[i] * scale;
    }
}
