/*
 * PyTorch's CPU random numbers, bit for bit (checked against PyTorch 1.13): a Mersenne Twister
 * (Matsumoto and Nishimura, 1998) and the functions that fill tensors from it. A generator belongs
 * to one thread and owns nothing.
 */
#ifndef FSDPD_DATA_GENERATOR_H
#define FSDPD_DATA_GENERATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- twister.c ---- */

/*
 * The state of the Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998): the last 624 words of
 * its sequence, before tempering. Pure functions; any thread.
 */

enum { TWISTER_WORDS = 624 };

/* Replaces the words by the next TWISTER_WORDS of the sequence. */
void twister_next(uint32_t *words);

/* The same `blocks` times, up to 2^64 / TWISTER_WORDS. It takes at most some milliseconds: where
 * many blocks are passed over, they are not computed. */
void twister_jump(uint32_t *words, uint64_t blocks);

/* ---- generator.c ---- */

struct generator {
    uint32_t words[TWISTER_WORDS];
    int used; /* words already used; TWISTER_WORDS: time to generate new ones */
    bool has_normal;
    double normal; /* the second value of a Box-Muller pair, kept for the next call */
};

/* As torch.manual_seed: only the low 32 bits of `seed` matter. */
void generator_seed(struct generator *generator, uint64_t seed);

/* As that many calls of generator_random, in at most some milliseconds. */
void generator_skip(struct generator *generator, uint64_t words);

uint32_t generator_random(struct generator *generator);
uint64_t generator_random64(struct generator *generator); /* the first draw is the high half */

/* Tensor.uniform_(from, to) of n floats. */
void generator_fill_uniform(struct generator *generator, size_t n, float *values, double from,
                            double to);

/* Tensor.normal_(mean, std) of n contiguous floats, as PyTorch's AVX2 kernels round them. */
void generator_fill_normal(struct generator *generator, size_t n, float *values, double mean,
                           double std);

/* A part of what generator_fill_normal makes of n >= 16 values: block b, the values from 16 b on,
 * is made of the words from 16 b on. If n is not a multiple of 16, the last 16 values are instead a
 * block made of the words from n on. */
void generator_fill_normal_blocks(struct generator *generator, size_t blocks, float *values,
                                  double mean, double std);

/* torch.randperm(n), for n below PERMUTATION_MAX. */
#define PERMUTATION_MAX 214748364u
void generator_fill_permutation(struct generator *generator, uint32_t n, uint32_t *values);

#endif
