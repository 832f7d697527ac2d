/*
 * The Mersenne Twister's state; see generator.h.
 *
 * To jump: a step T of the state, one word, is linear over GF(2), and its characteristic polynomial
 * phi has degree 19,937. T^n is therefore g(T) with g = x^n mod phi, so that the word n steps ahead
 * is the sum of the next 19,937 words that g's bits select (Haramoto et al., "Efficient Jump Ahead
 * for F2-Linear Random Number Generators", 2008). g takes a squaring per bit of n.
 */
#include "data/generator.h"

#include <stdbool.h>
#include <string.h>

#include "base/mem.h"

enum {
    SHIFT = 397,
    DEGREE = 19937,
    LIMBS = DEGREE / 64 + 1, /* of 64 bits each, a polynomial's coefficients from x^0 up */
    TOP = DEGREE % 64,       /* bits of the last limb */
    TERMS = 256,             /* at least phi's terms */
    SEQUENCE = (DEGREE / TWISTER_WORDS + 2) * TWISTER_WORDS,
    JUMP_LEAST = 8192 /* blocks that take as long as a jump */
};

static const uint32_t MATRIX = 0x9908b0dfu;

static uint32_t twist(uint32_t high, uint32_t low)
{
    uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (mixed >> 1) ^ (low & 1 ? MATRIX : 0);
}

void twister_next(uint32_t *words)
{
    const int last = TWISTER_WORDS - 1, back = TWISTER_WORDS - SHIFT;
    for (int i = 0; i < back; i++) words[i] = words[i + SHIFT] ^ twist(words[i], words[i + 1]);
    for (int i = back; i < last; i++) words[i] = words[i - back] ^ twist(words[i], words[i + 1]);
    words[last] = words[last - back] ^ twist(words[last], words[0]);
}

/* ---- Polynomials modulo phi ---- */

struct modulus {
    int terms[TERMS]; /* exponents of phi - x^DEGREE */
    int count;
};

/* Adds x^shift (x^623 + x^396)^power; a binomial coefficient is odd where its lower number has no
 * bit that the upper one lacks. */
static void add_power(uint64_t *limbs, int shift, int power)
{
    for (int k = 0; k <= power; k++) {
        int exponent = shift + (TWISTER_WORDS - 1) * k + (SHIFT - 1) * (power - k);
        if ((k & ~power) == 0) limbs[exponent / 64] ^= UINT64_C(1) << (exponent % 64);
    }
}

/* The paper of 1998, appendix A: (x^624 + x^397) times (x^623 + x^396)^31 and the lower powers that
 * the matrix's bits 0 to 30 select, plus its bit 31. */
static void find_modulus(struct modulus *phi)
{
    uint64_t limbs[LIMBS] = {MATRIX >> 31};
    for (int i = -1; i < 31; i++) {
        if (i >= 0 && !(MATRIX >> i & 1)) continue;
        add_power(limbs, TWISTER_WORDS, 30 - i);
        add_power(limbs, SHIFT, 30 - i);
    }
    phi->count = 0;
    for (int i = 0; i < DEGREE; i++)
        if (limbs[i / 64] >> (i % 64) & 1) phi->terms[phi->count++] = i;
}

/* Adds (phi - x^DEGREE) times `bits` x^shift. */
static void add_terms(const struct modulus *phi, uint64_t *limbs, uint64_t bits, int shift)
{
    if (bits == 0) return;
    for (int t = 0; t < phi->count; t++) {
        int at = shift + phi->terms[t], low = at % 64;
        limbs[at / 64] ^= bits << low;
        if (low > 0) limbs[at / 64 + 1] ^= bits >> (64 - low);
    }
}

/* phi's second exponent is more than 64 below DEGREE, so that a limb's bits go at once. */
static void reduce(const struct modulus *phi, uint64_t *limbs, int count)
{
    for (int i = count - 1; i >= LIMBS - 1; i--) {
        int top = i >= LIMBS ? 0 : TOP;
        uint64_t bits = limbs[i] >> top;
        limbs[i] ^= bits << top;
        add_terms(phi, limbs, bits, i * 64 + top - DEGREE);
    }
}

/* The low half's bits, a zero after each. */
static uint64_t spread(uint64_t bits)
{
    bits &= 0xffffffff;
    bits = (bits | bits << 16) & 0x0000ffff0000ffff;
    bits = (bits | bits << 8) & 0x00ff00ff00ff00ff;
    bits = (bits | bits << 4) & 0x0f0f0f0f0f0f0f0f;
    bits = (bits | bits << 2) & 0x3333333333333333;
    return (bits | bits << 1) & 0x5555555555555555;
}

static void find_power(uint64_t n, uint64_t *power)
{
    struct modulus phi;
    uint64_t square[2 * LIMBS];
    find_modulus(&phi);
    memset(power, 0, LIMBS * sizeof *power);
    power[0] = 1;
    for (int bit = 63; bit >= 0; bit--) {
        bool odd = n >> bit & 1;
        for (int i = 0; i < LIMBS; i++) {
            square[2 * i] = spread(power[i]);
            square[2 * i + 1] = spread(power[i] >> 32);
        }
        /* Times x; the highest bit is free, as the degree is at most 2 * (DEGREE - 1). */
        for (int i = 2 * LIMBS - 1; i >= 0 && odd; i--)
            square[i] = square[i] << 1 | (i > 0 ? square[i - 1] >> 63 : 0);
        reduce(&phi, square, 2 * LIMBS);
        memcpy(power, square, LIMBS * sizeof *power);
    }
}

/* ---- Jumps ---- */

static void add_words(uint32_t *restrict to, const uint32_t *restrict from)
{
    for (int i = 0; i < TWISTER_WORDS; i++) to[i] ^= from[i];
}

/* `words` become those that follow them by n. Of the first, only the highest bit is then defined,
 * which is all that the sequence's next words depend on. */
static void advance(uint32_t *words, uint64_t n)
{
    uint64_t power[LIMBS];
    find_power(n, power);
    AUTO_FREE uint32_t *sequence = mem_alloc_array(SEQUENCE, sizeof *sequence);
    memcpy(sequence, words, TWISTER_WORDS * sizeof *words);
    for (uint32_t *block = sequence; block < sequence + SEQUENCE - TWISTER_WORDS;) {
        memcpy(block + TWISTER_WORDS, block, TWISTER_WORDS * sizeof *block);
        block += TWISTER_WORDS;
        twister_next(block);
    }
    memset(words, 0, TWISTER_WORDS * sizeof *words);
    for (int i = 0; i < DEGREE; i++)
        if (power[i / 64] >> (i % 64) & 1) add_words(words, sequence + i);
}

void twister_jump(uint32_t *words, uint64_t blocks)
{
    if (blocks >= JUMP_LEAST) { /* the last block is computed, so that it is whole */
        advance(words, (blocks - 1) * TWISTER_WORDS);
        blocks = 1;
    }
    for (; blocks > 0; blocks--) twister_next(words);
}
