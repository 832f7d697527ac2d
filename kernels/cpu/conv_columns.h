/*
 * The gradient of a convolution's weights as one matrix product, of the output's gradient and of
 * columns: the pixels that each output depends on, gathered side by side. oneDNN's own algorithm
 * works on rows of pixels, and is up to three times slower where these are short or strided.
 */
#ifndef FSDPD_KERNELS_CPU_CONV_COLUMNS_H
#define FSDPD_KERNELS_CPU_CONV_COLUMNS_H

#include "kernels/kernel.h"

/* Whether this gradient is faster that way. Only shapes, layouts and the processor decide, so that
 * the same job gives the same bits. */
bool conv_columns_fit(const struct op_desc *desc);

/* Prepares a kernel if they fit. */
status_t conv_columns_prepare(struct kernel *kernel) FSDPD_MUST_USE;

#endif
