/*
 * Philox4x32-10, the counter-based generator behind dropout (Salmon et al., "Parallel random
 * numbers: as easy as 1, 2, 3", SC 2011): makes four random words from a counter and a key, without
 * state.
 */
#ifndef FSDPD_KERNELS_PHILOX_H
#define FSDPD_KERNELS_PHILOX_H

#include <math.h>
#include <stdint.h>

#define PHILOX_MULTIPLIER_0 0xD2511F53u
#define PHILOX_MULTIPLIER_1 0xCD9E8D57u
#define PHILOX_WEYL_0 0x9E3779B9u
#define PHILOX_WEYL_1 0xBB67AE85u
enum { PHILOX_ROUNDS = 10 };

#ifdef __CUDACC__
#define PHILOX_ANYWHERE __host__ __device__
#else
#define PHILOX_ANYWHERE
#endif

PHILOX_ANYWHERE static inline void philox_block(const uint32_t counter[4], const uint32_t key[2], uint32_t words[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t product0 = (uint64_t)PHILOX_MULTIPLIER_0 * c0;
        uint64_t product1 = (uint64_t)PHILOX_MULTIPLIER_1 * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += PHILOX_WEYL_0;
        k1 += PHILOX_WEYL_1;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

/* The lowest random word that keeps an element: word * 2^-32 >= p, exactly. At most 2^32. */
static inline uint64_t philox_threshold(double p)
{
    return (uint64_t)ceil(p * 4294967296.0);
}

#endif
