/*
 * Dropout: makes random bits from Philox4x32-10, one per element, 16 counters to a 64-bit word;
 * then scales or zeroes the elements. Part of loops_body.h.
 */

#if defined(LOOPS_AVX512)

enum { PHILOX_VECTORS = 4 };

/* Eight counters in the low halves of 64-bit lanes: one multiplication gives both result words. The
 * high halves hold unused bits until the end. */
LOOP_INLINE void philox_vectors(__m512i c0[PHILOX_VECTORS], __m512i c1[PHILOX_VECTORS],
                                __m512i c2[PHILOX_VECTORS], __m512i c3[PHILOX_VECTORS],
                                uint64_t seed)
{
    const __m512i multiplier0 = _mm512_set1_epi64(PHILOX_MULTIPLIER_0);
    const __m512i multiplier1 = _mm512_set1_epi64(PHILOX_MULTIPLIER_1);
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        __m512i k0 = _mm512_set1_epi64(key0), k1 = _mm512_set1_epi64(key1);
#pragma GCC unroll 4
        for (int v = 0; v < PHILOX_VECTORS; v++) {
            __m512i product0 = _mm512_mul_epu32(c0[v], multiplier0);
            __m512i product1 = _mm512_mul_epu32(c2[v], multiplier1);
            /* 0x96: exclusive or of three values */
            c0[v] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product1, 32), c1[v], k0, 0x96);
            c2[v] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product0, 32), c3[v], k1, 0x96);
            c1[v] = product1;
            c3[v] = product0;
        }
        key0 += PHILOX_WEYL_0;
        key1 += PHILOX_WEYL_1;
    }
}

LOOP_INLINE void keep_two_words(uint64_t words[2], uint64_t block, const struct dropout_mask *mask)
{
    /* makes the interleaving below give the counters in order */
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    const __m512i threshold = _mm512_set1_epi32((int)(uint32_t)mask->threshold);
    __m512i c0[PHILOX_VECTORS], c1[PHILOX_VECTORS], c2[PHILOX_VECTORS], c3[PHILOX_VECTORS];
    for (int v = 0; v < PHILOX_VECTORS; v++) {
        c0[v] = _mm512_add_epi64(_mm512_set1_epi64((long long)(block + 8 * (unsigned)v)), order);
        c1[v] = _mm512_set1_epi64(mask->stream);
        c2[v] = _mm512_set1_epi64(mask->step);
        c3[v] = _mm512_set1_epi64(mask->rank);
    }
    philox_vectors(c0, c1, c2, c3, mask->seed);
    uint32_t bits[PHILOX_VECTORS];
    for (int v = 0; v < PHILOX_VECTORS; v++) {
        __m512i first = _mm512_mask_mov_epi32(c0[v], 0xaaaa, _mm512_slli_epi64(c1[v], 32));
        __m512i second = _mm512_mask_mov_epi32(c2[v], 0xaaaa, _mm512_slli_epi64(c3[v], 32));
        __m512i low = _mm512_unpacklo_epi64(first, second);
        __m512i high = _mm512_unpackhi_epi64(first, second);
        bits[v] = (uint32_t)_mm512_cmpge_epu32_mask(low, threshold) |
                  (uint32_t)_mm512_cmpge_epu32_mask(high, threshold) << 16;
    }
    words[0] = bits[0] | (uint64_t)bits[1] << 32;
    words[1] = bits[2] | (uint64_t)bits[3] << 32;
}

LOOP_INLINE void apply_word(size_t n, float *y, const float *x, uint64_t word, float scale,
                            bool add)
{
    const __m512 factor = _mm512_set1_ps(scale);
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 inside = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);
        __mmask16 kept = (__mmask16)(word >> i) & inside;
        __m512 value = _mm512_maskz_mul_ps(kept, _mm512_maskz_loadu_ps(kept, x + i), factor);
        if (add) value = _mm512_add_ps(_mm512_maskz_loadu_ps(inside, y + i), value);
        _mm512_mask_storeu_ps(y + i, inside, value);
    }
}

#elif defined(LOOPS_AVX2)

enum { PHILOX_VECTORS = 4 };

/* The same with four counters per vector. */
LOOP_INLINE uint64_t keep_word(uint64_t block, const struct dropout_mask *mask)
{
    const __m256i order = _mm256_set_epi64x(3, 1, 2, 0);
    const __m256i multiplier0 = _mm256_set1_epi64x(PHILOX_MULTIPLIER_0);
    const __m256i multiplier1 = _mm256_set1_epi64x(PHILOX_MULTIPLIER_1);
    const __m256i threshold = _mm256_set1_epi32((int)(uint32_t)mask->threshold);
    __m256i c0[PHILOX_VECTORS], c1[PHILOX_VECTORS], c2[PHILOX_VECTORS], c3[PHILOX_VECTORS];
    for (int v = 0; v < PHILOX_VECTORS; v++) {
        c0[v] = _mm256_add_epi64(_mm256_set1_epi64x((long long)(block + 4 * (unsigned)v)), order);
        c1[v] = _mm256_set1_epi64x(mask->stream);
        c2[v] = _mm256_set1_epi64x(mask->step);
        c3[v] = _mm256_set1_epi64x(mask->rank);
    }
    uint32_t key0 = (uint32_t)mask->seed, key1 = (uint32_t)(mask->seed >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        __m256i k0 = _mm256_set1_epi64x(key0), k1 = _mm256_set1_epi64x(key1);
#pragma GCC unroll 4
        for (int v = 0; v < PHILOX_VECTORS; v++) {
            __m256i product0 = _mm256_mul_epu32(c0[v], multiplier0);
            __m256i product1 = _mm256_mul_epu32(c2[v], multiplier1);
            c0[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product1, 32), c1[v]), k0);
            c2[v] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product0, 32), c3[v]), k1);
            c1[v] = product1;
            c3[v] = product0;
        }
        key0 += PHILOX_WEYL_0;
        key1 += PHILOX_WEYL_1;
    }
    uint64_t word = 0;
    for (int v = 0; v < PHILOX_VECTORS; v++) {
        __m256i first = _mm256_blend_epi32(c0[v], _mm256_slli_epi64(c1[v], 32), 0xaa);
        __m256i second = _mm256_blend_epi32(c2[v], _mm256_slli_epi64(c3[v], 32), 0xaa);
        __m256i low = _mm256_unpacklo_epi64(first, second);
        __m256i high = _mm256_unpackhi_epi64(first, second);
        low = _mm256_cmpeq_epi32(_mm256_max_epu32(low, threshold), low);
        high = _mm256_cmpeq_epi32(_mm256_max_epu32(high, threshold), high);
        uint32_t bits = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(low)) |
                        (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(high)) << 8;
        word |= (uint64_t)bits << (16 * v);
    }
    return word;
}

LOOP_INLINE void keep_two_words(uint64_t words[2], uint64_t block, const struct dropout_mask *mask)
{
    words[0] = keep_word(block, mask);
    words[1] = keep_word(block + 16, mask);
}

LOOP_INLINE void apply_word(size_t n, float *y, const float *x, uint64_t word, float scale,
                            bool add)
{
    const __m256i bit = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
    const __m256 factor = _mm256_set1_ps(scale);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i byte = _mm256_set1_epi32((int)(word >> i & 0xff));
        __m256i kept = _mm256_cmpeq_epi32(_mm256_and_si256(byte, bit), bit);
        __m256 value = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor);
        value = _mm256_and_ps(value, _mm256_castsi256_ps(kept));
        if (add) value = _mm256_add_ps(_mm256_loadu_ps(y + i), value);
        _mm256_storeu_ps(y + i, value);
    }
    for (; i < n; i++) {
        float value = word >> i & 1 ? x[i] * scale : 0;
        y[i] = add ? y[i] + value : value;
    }
}

#else

LOOP_INLINE void keep_two_words(uint64_t words[2], uint64_t block, const struct dropout_mask *mask)
{
    uint32_t key[2] = {(uint32_t)mask->seed, (uint32_t)(mask->seed >> 32)};
    words[0] = words[1] = 0;
    for (unsigned i = 0; i < 32; i++) {
        uint32_t counter[4] = {(uint32_t)(block + i), mask->stream, mask->step, mask->rank};
        uint32_t random[4];
        philox_block(counter, key, random);
        for (unsigned j = 0; j < 4; j++)
            words[i / 16] |= (uint64_t)(random[j] >= mask->threshold) << (i % 16 * 4 + j);
    }
}

LOOP_INLINE void apply_word(size_t n, float *y, const float *x, uint64_t word, float scale,
                            bool add)
{
    for (size_t i = 0; i < n; i++) {
        float value = word >> i & 1 ? x[i] * scale : 0;
        y[i] = add ? y[i] + value : value;
    }
}

#endif

LOOP loop_keep_bits(size_t word_count, uint64_t *words, uint64_t block,
                    const struct dropout_mask *mask)
{
    if (mask->threshold > UINT32_MAX) {
        for (size_t i = 0; i < word_count; i++) words[i] = 0;
        return;
    }
    for (size_t i = 0; i < word_count; i += 2) {
        uint64_t pair[2];
        keep_two_words(pair, block + 16 * i, mask);
        words[i] = pair[0];
        if (i + 1 < word_count) words[i + 1] = pair[1];
    }
}

LOOP loop_apply_bits(size_t n, float *y, const float *x, const uint64_t *words, float scale,
                     bool add)
{
    for (size_t i = 0; i < n; i += 64)
        apply_word(n - i < 64 ? n - i : 64, y + i, x + i, words[i / 64], scale, add);
}

/* Bit j of row i becomes bit i of row j. */
LOOP_INLINE void transpose_bits(uint64_t rows[64])
{
    uint64_t mask = 0x00000000ffffffff;
    for (unsigned width = 32; width > 0; width /= 2) {
        for (unsigned base = 0; base < 64; base += 2 * width) {
            uint64_t *upper = rows + base, *lower = rows + base + width;
            for (unsigned i = 0; i < width; i++) {
                uint64_t swapped = (upper[i] >> width ^ lower[i]) & mask;
                upper[i] ^= swapped << width;
                lower[i] ^= swapped;
            }
        }
        mask ^= mask << (width / 2);
    }
}

LOOP loop_apply_bits_transposed(size_t channels, size_t pixels, size_t stride, float *y,
                                const float *x, const uint64_t *words, const uint32_t *bit_offsets,
                                float scale, bool add)
{
    for (size_t pixel = 0; pixel < pixels; pixel += 64) {
        uint64_t rows[64] = {0}; /* by channel, then by pixel */
        for (size_t c = 0; c < channels; c++) {
            size_t bit = bit_offsets[c] + pixel, shift = bit % 64;
            const uint64_t *word = words + bit / 64;
            rows[c] = word[0] >> shift | (shift ? word[1] << (64 - shift) : 0);
        }
        transpose_bits(rows);
        size_t count = pixels - pixel < 64 ? pixels - pixel : 64;
        for (size_t i = 0; i < count; i++) {
            size_t at = (pixel + i) * stride;
            apply_word(channels, y + at, x + at, rows[i], scale, add);
        }
    }
}
