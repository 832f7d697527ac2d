/*
 * Parts of op_desc_check: op_check.c checks every operand by itself, these functions check the
 * operands of one family of ops against each other. Messages name the op, the operand and both
 * shapes. Private to libops.
 */
#ifndef FSDPD_OPS_OP_CHECK_H
#define FSDPD_OPS_OP_CHECK_H

#include "ops/op.h"

/* An operand by its role, in any op. */
struct operand {
    const char *name;
    const struct tensor_type *type; /* NULL: absent */
};
struct operand op_check_input(const struct op_desc *desc, int index);
struct operand op_check_output(const struct op_desc *desc, int index);

status_t op_check_rank(const struct op_info *info, const char *operand,
                       const struct tensor_type *type, int dim_count) FSDPD_MUST_USE;

/* `source` is the operand that determines what `operand` must be. */
status_t op_check_shape(const struct op_info *info, const char *operand,
                        const struct tensor_type *found, const struct tensor_type *expected,
                        const char *source_name, const struct tensor_type *source) FSDPD_MUST_USE;

/* All operands have the shape of input 0. */
status_t op_check_same_shapes(const struct op_desc *desc,
                              const struct op_info *info) FSDPD_MUST_USE;

typedef status_t op_check_function(const struct op_desc *desc, const struct op_info *info);

op_check_function op_check_reshape, op_check_cast, op_check_conv, op_check_linear, op_check_pool,
    op_check_dropout, op_check_loss, op_check_element_loss, op_check_contrast, op_check_preference;
op_check_function op_check_avg_pool, op_check_group_norm, op_check_batch_norm,
    op_check_gather_ranks, op_check_transpose, op_check_slice, op_check_concat, op_check_mean,
    op_check_tally;
op_check_function op_check_broadcast, op_check_scale, op_check_elements, op_check_matmul,
    op_check_recurrent, op_check_token_positions, op_check_distance_buckets, op_check_embedding,
    op_check_arange, op_check_tokens, op_check_norm, op_check_rope, op_check_attention,
    op_check_head;

#endif
