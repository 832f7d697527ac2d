/*
 * PyTorch's CPU random numbers, bit for bit (checked against PyTorch 1.13): a Mersenne Twister
 * (Matsumoto and Nishimura, 1998) and the functions that fill tensors from it. A generator belongs
 * to one thread and owns nothing.
 */
#ifndef FSDPD_TRAIN_GENERATOR_H
#define FSDPD_TRAIN_GENERATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { GENERATOR_WORDS = 624 };

struct generator {
    uint32_t words[GENERATOR_WORDS];
    int used; /* words already used; GENERATOR_WORDS: time to generate new ones */
    bool has_normal;
    double normal; /* the second value of a Box-Muller pair, kept for the next call */
};

/* As torch.manual_seed: only the low 32 bits of `seed` matter. */
void generator_seed(struct generator *generator, uint64_t seed);

uint32_t generator_random(struct generator *generator);
uint64_t generator_random64(struct generator *generator); /* the first draw is the high half */

/* Tensor.uniform_(from, to) of n floats. */
void generator_fill_uniform(struct generator *generator, size_t n, float *values, double from,
                            double to);

/* Tensor.normal_(mean, std) of n contiguous floats, as PyTorch's AVX2 kernels round them. */
void generator_fill_normal(struct generator *generator, size_t n, float *values, double mean,
                           double std);

/* torch.randperm(n), for n below PERMUTATION_MAX. */
#define PERMUTATION_MAX 214748364u
void generator_fill_permutation(struct generator *generator, uint32_t n, uint32_t *values);

#endif
