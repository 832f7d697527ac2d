/*
 * Rotary positions: the angles by which ROPE turns pairs of columns, in the f32 arithmetic of
 * Hugging Face's rotary embeddings, so that the same bits come out for positions far from 0 too.
 */
#ifndef FSDPD_KERNELS_ROPE_H
#define FSDPD_KERNELS_ROPE_H

#include "ops/op.h"

/* The angle per position of each of head_dim / 2 pairs, scaling included. */
void rope_frequencies(const struct op_desc *desc, float *frequencies);

#endif
