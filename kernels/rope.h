/*
 * Rotary positions: the angles by which ROPE rotates pairs of columns. The f32 arithmetic is that
 * of Hugging Face's rotary embeddings, so the bits are the same even at positions far from 0.
 */
#ifndef FSDPD_KERNELS_ROPE_H
#define FSDPD_KERNELS_ROPE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "ops/op.h"

/* The number of pairs that are turned. */
int64_t rope_pairs(const struct op_desc *desc);

/* The number of positions that rows can have. */
int64_t rope_positions(const struct op_desc *desc);

/* The factor of the turned columns, which multiplies cosines and sines. */
float rope_magnitude(const struct op_desc *desc);

/* The angle per position of each pair, scaling included. */
void rope_frequencies(const struct op_desc *desc, float *frequencies);

#ifdef __cplusplus
}
#endif

#endif
