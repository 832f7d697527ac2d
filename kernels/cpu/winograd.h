/*
 * 3 x 3 convolutions of stride 1 by Winograd's algorithm F(2x2, 3x3): forward, and both gradients.
 * It needs 2.25 times fewer multiplications than the direct algorithm, at about twice its rounding
 * error (see winograd.c).
 */
#ifndef FSDPD_KERNELS_CPU_WINOGRAD_H
#define FSDPD_KERNELS_CPU_WINOGRAD_H

#include "kernels/kernel.h"

/* Whether a convolution, or a gradient of one, is faster this way. Only shapes, layouts and the
 * processor decide, so that the same job gives the same bits. */
bool winograd_fits(const struct op_desc *desc);

/* Prepares a kernel if winograd_fits. */
void winograd_prepare(struct kernel *kernel);

/* ---- conv_columns.c ---- */

/*
 * The gradient of a convolution's weights as one matrix product, of the output's gradient and of
 * columns: the pixels that each output depends on, gathered side by side. oneDNN's own algorithm
 * works on rows of pixels, and is up to three times slower where these are short or strided.
 */

/* Whether this gradient is faster that way. Only shapes, layouts and the processor decide, so that
 * the same job gives the same bits. */
bool conv_columns_fit(const struct op_desc *desc);

/* Prepares a kernel if they fit. */
status_t conv_columns_prepare(struct kernel *kernel) FSDPD_MUST_USE;

#endif
