/*
 * An op's attributes as data: these rows drive printing, hashing and checking, so a new attribute
 * needs only a row beside its field in union op_attrs. The rows of a kind are op_info's
 * `attributes`, terminated by one without a name. Pure functions; any thread.
 */
#ifndef FSDPD_OPS_OP_ATTRIBUTES_H
#define FSDPD_OPS_OP_ATTRIBUTES_H

#include <stddef.h>

#include "base/buf.h"
#include "ops/op.h"

enum op_attribute_type {
    ATTRIBUTE_I64,
    ATTRIBUTE_I32,
    ATTRIBUTE_U32,
    ATTRIBUTE_REAL,
    ATTRIBUTE_FLAG,
    ATTRIBUTE_CHOICE, /* an enum */
    ATTRIBUTE_WEIGHTS,
};

struct op_attribute {
    const char *name; /* in errors: "padding_index" */
    size_t offset;    /* offset in union op_attrs */
    enum op_attribute_type type;
    bool pair;    /* two of them: height and width */
    double usual; /* not printed */

    const char *print;          /* prefix of the value; NULL: " name=". A flag prints only this */
    const char *const *choices; /* for a CHOICE: the text of each value, NULL for the default */
    int choice_count;

    /* Whether to print it; NULL: unless it is `usual`. */
    bool (*shown)(const union op_attrs *attrs);
};

extern const struct op_attribute op_conv_attributes[], op_linear_attributes[], op_pool_attributes[],
    op_dropout_attributes[], op_avg_pool_attributes[], op_group_norm_attributes[],
    op_batch_norm_attributes[], op_transpose_attributes[], op_slice_attributes[],
    op_concat_attributes[], op_mean_attributes[], op_loss_attributes[], op_tally_attributes[],
    op_contrast_attributes[], op_preference_attributes[], op_element_loss_attributes[],
    op_function_attributes[], op_recurrent_attributes[], op_matmul_attributes[],
    op_gelu_attributes[], op_embedding_attributes[], op_arange_attributes[],
    op_padding_mask_attributes[], op_norm_attributes[], op_rope_attributes[],
    op_attention_attributes[], op_scale_attributes[], op_buckets_attributes[],
    op_tokens_attributes[];

/* Appends the attributes that are not usual: " stride=2x2 relu". */
void op_attributes_print(enum op_kind kind, const union op_attrs *attrs, struct buf *text);

/* The number of its values, for op_attribute_bits. */
int64_t op_attribute_count(const struct op_attribute *attribute, const union op_attrs *attrs);

/* The bits of value number `index`, for hashing. */
uint64_t op_attribute_bits(const struct op_attribute *attribute, const union op_attrs *attrs,
                           int64_t index);

/* Rejects an unknown choice. The kind's own check covers all other conditions. */
status_t op_attributes_check(enum op_kind kind, const union op_attrs *attrs) FSDPD_MUST_USE;

#endif
