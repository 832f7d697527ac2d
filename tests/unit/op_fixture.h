/*
 * Shared by the tests of op_desc_check: what it refuses, and descriptions to start from. Everything
 * is static; a test uses what it needs.
 */
#ifndef FSDPD_TESTS_OP_FIXTURE_H
#define FSDPD_TESTS_OP_FIXTURE_H

#include "kernel_fixture.h"

static void refuses(const struct op_desc *desc, const char *first, const char *second)
{
    status_t status = op_desc_check(desc);
    ck_assert_msg(status != NULL, "accepted, although: %s %s", first, second);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    const char *message = status_message(status);
    ck_assert_msg(strstr(message, first) != NULL, "no \"%s\" in: %s", first, message);
    ck_assert_msg(strstr(message, second) != NULL, "no \"%s\" in: %s", second, message);
    if ((unsigned)desc->kind < OP_KIND_COUNT)
        ck_assert_msg(strstr(message, op_info_get(desc->kind)->name) == message, "%s", message);
    status_free(status);
}

#define REFUSES(make, change, first, second)                                                       \
    do {                                                                                           \
        struct op_desc desc = make;                                                                \
        ck_assert_status_ok(op_desc_check(&desc));                                                 \
        change;                                                                                    \
        refuses(&desc, first, second);                                                             \
    } while (0)

static struct op_desc same(enum op_kind kind, struct tensor_type type)
{
    struct op_desc desc = desc_of(kind);
    for (int i = 0; i < OP_MAX_INPUTS; i++) desc.inputs[i] = type;
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) desc.outputs[i] = type;
    return desc;
}

/* (2, 16, .): 4 heads of 8 columns, 2 of them for keys and values; side by side if packed. */
static struct op_desc attention(bool packed)
{
    struct op_desc desc = desc_of(OP_ATTENTION);
    desc.attrs.attention.heads = 4;
    desc.attrs.attention.kv_heads = 2;
    desc.input_present[1] = desc.input_present[2] = !packed;
    desc.inputs[0] = type_of(DTYPE_F32, 3, 2, 16, packed ? 64 : 32, 0);
    desc.inputs[1] = desc.inputs[2] = type_of(DTYPE_F32, 3, 2, 16, 16, 0);
    desc.inputs[3] = type_of(DTYPE_U8, 2, 2, 16, 0, 0);
    desc.outputs[0] = type_of(DTYPE_F32, 3, 2, 16, 32, 0);
    desc.outputs[1] = type_of(DTYPE_F32, 3, 2, 4, 16, 0);
    desc.output_present[2] = desc.output_present[3] = false; /* no cache */
    return desc;
}

static struct op_desc attention_backward(bool packed)
{
    struct op_desc forward = attention(packed), desc = desc_of(OP_ATTENTION_BACKWARD);
    desc.attrs = forward.attrs;
    desc.inputs[0] = desc.inputs[4] = forward.outputs[0];
    desc.inputs[5] = forward.outputs[1];
    desc.inputs[6] = forward.inputs[3];
    for (int i = 0; i < 3; i++) {
        desc.inputs[1 + i] = desc.outputs[i] = forward.inputs[i];
        desc.input_present[1 + i] = desc.output_present[i] = forward.input_present[i];
    }
    return desc;
}

static struct op_desc head(void)
{
    struct op_desc desc = desc_of(OP_LINEAR_CROSS_ENTROPY_BACKWARD);
    desc.inputs[0] = desc.outputs[1] = type_of(DTYPE_F32, 3, 2, 16, 32, 0);
    desc.inputs[1] = desc.outputs[2] = type_of(DTYPE_F32, 2, 65, 32, 0, 0);
    desc.inputs[2] = desc.outputs[3] = type_of(DTYPE_F32, 1, 65, 0, 0, 0);
    desc.inputs[3] = type_of(DTYPE_I32, 2, 2, 16, 0, 0);
    desc.outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
    return desc;
}

/* Of 64 rows and 10 classes. */
static struct op_desc loss(enum op_kind kind)
{
    struct op_desc desc = desc_of(kind);
    desc.inputs[0] = desc.outputs[1] = type_of(DTYPE_F32, 2, 64, 10, 0, 0);
    desc.inputs[1] = type_of(DTYPE_I32, 1, 64, 0, 0, 0);
    desc.outputs[0] = type_of(DTYPE_F32, 1, 1, 0, 0, 0);
    return desc;
}

#endif
