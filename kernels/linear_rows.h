/* Which linear layers of graphs that continue sequences keep rows apart, in both libraries. */
#ifndef FSDPD_KERNELS_LINEAR_ROWS_H
#define FSDPD_KERNELS_LINEAR_ROWS_H

#include "ops/op.h"

/* Whether a LINEAR gives each row the bits that it has alone. Those of a prompt in bf16 are left to
 * products that are fast for many rows; they always come in the same number of a sequence. */
static inline bool linear_keeps_rows_apart(const struct op_desc *desc)
{
    const struct tensor_type *x = &desc->inputs[0];
    const bool prompt = x->dtype == DTYPE_BF16 && x->dim_count == 3 && x->dims[1] > 1;
    return desc->attrs.linear.rows_apart && !desc->accumulate[0] && !desc->output_present[1] &&
           !prompt;
}

#endif
