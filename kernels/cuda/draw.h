/*
 * The random words of dropout on the device, those of the CPU's kernels: which of them an element
 * has depends on its number alone, never on the shape of a launch. A graph that is replayed reads
 * the step and the first sample when it runs. Internal to kernels/cuda.
 */
#ifndef FSDPD_KERNELS_CUDA_DRAW_H
#define FSDPD_KERNELS_CUDA_DRAW_H

#include "kernels/cuda/platform.h"

struct cuda_draw {
    uint32_t key[2], stream, rank;
    float scale; /* of what is kept */
    uint64_t threshold, sample_elements;
    struct cuda_live own;         /* of the call */
    const struct cuda_live *live; /* replaces it unless NULL */
};

/* What a kernel needs of `live`, read once: the step, and the place of the op's first element,
 * 4 * block + word. Registers are few: 32 bits are all that counters have. */
struct drawn {
    uint32_t step, block, word;
};

static inline cuda_draw draw_of(const struct kernel_call *call, const struct cuda_launch *launch,
                                uint32_t stream, double p)
{
    return cuda_draw{{(uint32_t)call->seed, (uint32_t)(call->seed >> 32)},
                     stream,
                     call->rank,
                     (float)(1 / (1 - p)),
                     philox_threshold(p),
                     call->sample_elements,
                     {call->step, call->first_sample},
                     (const struct cuda_live *)launch->live};
}

/* `start`: the element that counts as the op's first. */
__device__ inline drawn drawn_now(const cuda_draw &d, uint64_t start = 0)
{
    uint64_t step = d.live != nullptr ? d.live->step : d.own.step;
    uint64_t sample = d.live != nullptr ? d.live->first_sample : d.own.first_sample;
    uint64_t first = sample * d.sample_elements + start;
    return drawn{(uint32_t)step, (uint32_t)(first / 4), (uint32_t)(first % 4)};
}

/* The words of elements 4 * block to 4 * block + 3. */
__device__ inline void draw_block(const cuda_draw &d, uint32_t step, uint32_t block,
                                  uint32_t words[4])
{
    uint32_t counter[4] = {block, d.stream, step, d.rank};
    philox_block(counter, d.key, words);
}

/* The upper bits of an element's word, as a fraction; `block`: its counter. */
__device__ inline float draw_fraction(const cuda_draw &d, uint32_t step, uint32_t block,
                                      uint32_t word)
{
    uint32_t words[4];
    draw_block(d, step, block, words);
    return (float)(word_of(words, word) >> 8) / 16777216.0f;
}

/* The draw of the normal distribution of the op's element i. */
__device__ inline float draw_normal(const cuda_draw &d, const drawn &now, uint64_t i)
{
    uint64_t element = 4 * (uint64_t)now.block + now.word + i;
    uint32_t place = (uint32_t)(element % 16), pair = place % 8;
    uint32_t block = (uint32_t)(element / 16 * 4) + pair / 4;
    float radius = sqrtf(-2 * logf(1 - draw_fraction(d, now.step, block, pair % 4)));
    float angle = 6.2831853f * draw_fraction(d, now.step, block + 2, pair % 4);
    return radius * (place < 8 ? cosf(angle) : sinf(angle));
}

/* The factor of the op's element i: 0, or d.scale. */
__device__ inline float draw_factor(const cuda_draw &d, const drawn &now, uint64_t i)
{
    uint32_t word = now.word + (uint32_t)(i % 4), words[4];
    draw_block(d, now.step, now.block + (uint32_t)(i / 4) + word / 4, words);
    return word_of(words, word) >= d.threshold ? d.scale : 0;
}

/* The factors of V elements from i on; V: 1, or a multiple of 4, as i is then. All indices are
 * constants, so that words stay in registers. */
template <int V>
__device__ inline void draw_factors(const cuda_draw &d, const drawn &now, uint64_t i,
                                    float factors[V])
{
    if (V == 1) {
        factors[0] = draw_factor(d, now, i);
        return;
    }
    uint32_t words[V + 4], block = now.block + (uint32_t)(i / 4);
    UNROLLED for (int v = 0; v < V; v += 4) draw_block(d, now.step, block + v / 4, words + v);
    if (now.word != 0) { /* for all threads or none */
        draw_block(d, now.step, block + V / 4, words + V);
        UNROLLED for (int v = 0; v < V + 2; v++) words[v] = now.word & 1 ? words[v + 1] : words[v];
        UNROLLED for (int v = 0; v < V; v++) words[v] = now.word & 2 ? words[v + 2] : words[v];
    }
    UNROLLED for (int v = 0; v < V; v++) factors[v] = words[v] >= d.threshold ? d.scale : 0;
}

#endif
