/*
 * Attention's operations on blocks of scores. A block is stored transposed: a row per key, with
 * ATTENTION_BLOCK lanes, one for each query. So operations along the keys work on vectors of
 * queries. In blocks on the diagonal, query and key positions are the same, and lanes below the
 * key's index do not see it. Part of loops_body.h.
 */

/* Turns rows x of `columns` elements into lanes; lanes without a row are 0. */
LOOP loop_pack_lanes(size_t rows, size_t columns, float *y, const float *x, size_t x_row)
{
    size_t row_blocks = rows / 8 * 8, column_blocks = columns / 8 * 8;
    for (size_t c = 0; c < column_blocks; c += 8)
        for (size_t r = 0; r < row_blocks; r += 8)
            transpose_block(ATTENTION_BLOCK, x_row, y + c * ATTENTION_BLOCK + r, x + r * x_row + c,
                            false);
    for (size_t c = column_blocks; c < columns; c++)
        for (size_t r = 0; r < row_blocks; r++) y[c * ATTENTION_BLOCK + r] = x[r * x_row + c];
    for (size_t c = 0; c < columns; c++)
        for (size_t r = row_blocks; r < ATTENTION_BLOCK; r++)
            y[c * ATTENTION_BLOCK + r] = r < rows ? x[r * x_row + c] : 0;
}

/* `value` if the lane may see the key: always, or on the diagonal if lane >= key. */
LOOP_INLINE float if_seen(bool diagonal, size_t lane, size_t key, float value, float otherwise)
{
    return !diagonal || lane >= key ? value : otherwise;
}

LOOP_INLINE bool is_key_seen(const struct attention_block *block, size_t key)
{
    return block->seen == NULL || block->seen[key] != 0;
}

/* The number of keys that any of the LANES lanes may see. */
LOOP_INLINE size_t keys_of_lanes(const struct attention_block *block, size_t first)
{
    size_t most = first + LANES;
    return block->diagonal && most < block->keys ? most : block->keys;
}

LOOP_INLINE void zero_lanes(float *to)
{
    SIMD for (size_t l = 0; l < LANES; l++) to[l] = 0;
}

LOOP_INLINE void softmax_lanes(const struct attention_block *block, const bool diagonal,
                               size_t first, float *scores, float *max, float *sum, float *shrink)
{
    size_t keys = keys_of_lanes(block, first);
    float top[LANES], lead[LANES], total[LANES];
    SIMD for (size_t l = 0; l < LANES; l++) top[l] = -INFINITY;
    for (size_t key = 0; key < keys; key++) {
        if (!is_key_seen(block, key)) continue;
        const float *row = scores + key * ATTENTION_BLOCK;
        bool edge = diagonal && key > first;
        SIMD for (size_t l = 0; l < LANES; l++)
        {
            float value = if_seen(edge, first + l, key, row[l], -INFINITY);
            top[l] = value > top[l] ? value : top[l];
        }
    }
    SIMD for (size_t l = 0; l < LANES; l++)
    {
        float scaled = top[l] * block->scale;
        float raised = scaled > max[l] ? scaled : max[l];
        lead[l] = raised == -INFINITY ? 0 : raised;
        shrink[l] = loop_exp(max[l] - lead[l]);
        max[l] = raised;
        total[l] = 0;
    }
    for (size_t key = 0; key < keys; key++) {
        float *row = scores + key * ATTENTION_BLOCK;
        if (!is_key_seen(block, key)) {
            zero_lanes(row);
            continue;
        }
        bool edge = diagonal && key > first;
        SIMD for (size_t l = 0; l < LANES; l++)
        {
            float value = loop_exp(__builtin_fmaf(row[l], block->scale, -lead[l]));
            row[l] = if_seen(edge, first + l, key, value, 0);
            total[l] += row[l];
        }
    }
    for (size_t key = keys; key < block->keys; key++) zero_lanes(scores + key * ATTENTION_BLOCK);
    SIMD for (size_t l = 0; l < LANES; l++) sum[l] = __builtin_fmaf(sum[l], shrink[l], total[l]);
}

LOOP loop_attention_softmax(const struct attention_block *block, float *scores, float *max,
                            float *sum, float *shrink)
{
    for (size_t first = 0; first < block->queries; first += LANES) {
        if (block->diagonal)
            softmax_lanes(block, true, first, scores + first, max + first, sum + first,
                          shrink + first);
        else
            softmax_lanes(block, false, first, scores + first, max + first, sum + first,
                          shrink + first);
    }
}

LOOP_INLINE void probability_lanes(const struct attention_block *block, const bool diagonal,
                                   size_t first, float *scores, const float *lse)
{
    size_t keys = keys_of_lanes(block, first);
    float lead[LANES];
    SIMD for (size_t l = 0; l < LANES; l++) lead[l] = lse[l];
    for (size_t key = 0; key < keys; key++) {
        float *row = scores + key * ATTENTION_BLOCK;
        if (!is_key_seen(block, key)) {
            zero_lanes(row);
            continue;
        }
        bool edge = diagonal && key > first;
        SIMD for (size_t l = 0; l < LANES; l++)
        {
            float value = loop_exp(__builtin_fmaf(row[l], block->scale, -lead[l]));
            row[l] = if_seen(edge, first + l, key, value, 0);
        }
    }
    for (size_t key = keys; key < block->keys; key++) zero_lanes(scores + key * ATTENTION_BLOCK);
}

LOOP loop_attention_probabilities(const struct attention_block *block, float *scores,
                                  const float *lse)
{
    for (size_t first = 0; first < block->queries; first += LANES) {
        if (block->diagonal) probability_lanes(block, true, first, scores + first, lse + first);
        else probability_lanes(block, false, first, scores + first, lse + first);
    }
}

LOOP loop_attention_gradients(const struct attention_block *block, float *gradients,
                              const float *probabilities, const float *kept, const float *totals)
{
    float scale = block->scale;
    for (size_t first = 0; first < block->queries; first += LANES) {
        size_t keys = keys_of_lanes(block, first);
        for (size_t key = 0; key < block->keys; key++) {
            size_t at = key * ATTENTION_BLOCK + first;
            if (key >= keys || !is_key_seen(block, key)) {
                zero_lanes(gradients + at);
                continue;
            }
            bool edge = block->diagonal && key > first;
            SIMD for (size_t l = 0; l < LANES; l++)
            {
                float product = __builtin_fmaf(kept[at + l], gradients[at + l],
                                               -probabilities[at + l] * totals[first + l]);
                gradients[at + l] = if_seen(edge, first + l, key, product * scale, 0);
            }
        }
    }
}

LOOP loop_attention_cap(size_t queries, size_t keys, float *scores, float *slopes, float scale,
                        float cap)
{
    float inner = scale / cap;
    for (size_t key = 0; key < keys; key++, scores += ATTENTION_BLOCK) {
        if (slopes != NULL) {
            SIMD for (size_t l = 0; l < queries; l++)
            {
                float t = loop_tanh_value(scores[l] * inner);
                slopes[l] = scale * __builtin_fmaf(-t, t, 1.0f);
                scores[l] = cap * t;
            }
            slopes += ATTENTION_BLOCK;
        } else {
            SIMD for (size_t l = 0; l < queries; l++) scores[l] =
                cap * loop_tanh_value(scores[l] * inner);
        }
    }
}

LOOP loop_attention_uncap(size_t queries, size_t keys, float *gradients, const float *slopes)
{
    for (size_t key = 0; key < keys; key++) {
        size_t at = key * ATTENTION_BLOCK;
        SIMD for (size_t l = 0; l < queries; l++) gradients[at + l] *= slopes[at + l];
    }
}

LOOP loop_attention_bias(size_t queries, size_t keys, float *scores, float *slopes, float scale,
                         const float *bias)
{
    for (size_t key = 0; key < keys; key++, scores += ATTENTION_BLOCK) {
        const float *added = bias + ATTENTION_BLOCK - 1 - key;
        SIMD for (size_t l = 0; l < queries; l++) scores[l] =
            __builtin_fmaf(scores[l], scale, added[l]);
        if (slopes == NULL) continue;
        SIMD for (size_t l = 0; l < queries; l++) slopes[l] = scale;
        slopes += ATTENTION_BLOCK;
    }
}

LOOP loop_attention_alibi(size_t queries, size_t keys, float *scores, float *slopes, float scale,
                          const float *of_keys, const float *of_queries)
{
    for (size_t key = 0; key < keys; key++, scores += ATTENTION_BLOCK) {
        float height = of_keys[key];
        SIMD for (size_t l = 0; l < queries; l++) scores[l] =
            __builtin_fmaf(scores[l], scale, height - of_queries[l]);
        if (slopes == NULL) continue;
        SIMD for (size_t l = 0; l < queries; l++) slopes[l] = scale;
        slopes += ATTENTION_BLOCK;
    }
}

LOOP loop_attention_bias_sums(size_t queries, size_t keys, const float *gradients, float *sums)
{
    for (size_t key = 0; key < keys; key++, gradients += ATTENTION_BLOCK) {
        float *to = sums + ATTENTION_BLOCK - 1 - key;
        SIMD for (size_t l = 0; l < queries; l++) to[l] += gradients[l];
    }
}

LOOP loop_attention_hide(size_t queries, size_t keys, float *scores, const int32_t *first,
                         const int32_t *count)
{
    for (size_t key = 0; key < keys; key++, scores += ATTENTION_BLOCK) {
        SIMD for (size_t l = 0; l < queries; l++)
        {
            bool seen = (uint32_t)((int32_t)key - first[l]) < (uint32_t)count[l];
            scores[l] = seen ? scores[l] : -INFINITY;
        }
    }
}

/* sums[row] = a[row] . b[row] */
LOOP loop_dot_rows(size_t rows, size_t columns, float *sums, const float *a, size_t a_row,
                   const float *b, size_t b_row)
{
    for (size_t row = 0; row < rows; row++, a += a_row, b += b_row) {
        float lanes[LANES] = {0};
        size_t i = 0;
        for (; i + LANES <= columns; i += LANES) {
            SIMD for (size_t j = 0; j < LANES; j++) lanes[j] =
                __builtin_fmaf(a[i + j], b[i + j], lanes[j]);
        }
        for (; i < columns; i++) lanes[i % LANES] = __builtin_fmaf(a[i], b[i], lanes[i % LANES]);
        sums[row] = add_lanes(lanes);
    }
}

LOOP loop_scale_rows(size_t rows, size_t columns, float *y, size_t y_row, const float *x,
                     size_t x_row, const float *factors, bool add)
{
    for (size_t row = 0; row < rows; row++, y += y_row, x += x_row) {
        float factor = factors[row];
        if (add) {
            SIMD for (size_t i = 0; i < columns; i++) y[i] = __builtin_fmaf(x[i], factor, y[i]);
        } else {
            SIMD for (size_t i = 0; i < columns; i++) y[i] = x[i] * factor;
        }
    }
}

/* Turns the pairs of columns that the indices of i name. */
#define TURN(first, second)                                                                        \
    do {                                                                                           \
        if (add) {                                                                                 \
            SIMD for (size_t i = 0; i < half; i++)                                                 \
            {                                                                                      \
                float a = x[first], b = x[second], sine = sign * sines[i];                         \
                y[first] += __builtin_fmaf(a, cosines[i], -(b * sine));                            \
                y[second] += __builtin_fmaf(b, cosines[i], a * sine);                              \
            }                                                                                      \
        } else {                                                                                   \
            SIMD for (size_t i = 0; i < half; i++)                                                 \
            {                                                                                      \
                float a = x[first], b = x[second], sine = sign * sines[i];                         \
                y[first] = __builtin_fmaf(a, cosines[i], -(b * sine));                             \
                y[second] = __builtin_fmaf(b, cosines[i], a * sine);                               \
            }                                                                                      \
        }                                                                                          \
    } while (0)

LOOP loop_rotate(size_t heads, size_t width, size_t half, bool interleaved, float *y,
                 const float *x, const float *cosines, const float *sines, bool back, bool add)
{
    float sign = back ? -1 : 1;
    for (size_t head = 0; head < heads; head++, x += width, y += width) {
        if (interleaved) TURN(2 * i, 2 * i + 1);
        else TURN(i, i + half);
        if (add || y != x) EACH(width - 2 * half, y + 2 * half, add, x[2 * half + i]);
    }
}
