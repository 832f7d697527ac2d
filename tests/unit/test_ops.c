/*
 * The table of ops: the descriptions that op_desc_check accepts and refuses (its messages must name
 * the op and the shapes), window arithmetic at the edges of its range, and the figures of work.
 * test_ops_losses.c and test_ops_sequence.c have more ops.
 */
#include "op_fixture.h"
#include "ops/op_attributes.h"
#include "tests/testing.h"

TEST(table)
{
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        const struct op_info *info = op_info_get((enum op_kind)kind);
        ck_assert_ptr_nonnull(info->name);
        ck_assert_int_gt(info->input_count, 0);
        ck_assert_int_gt(info->output_count, 0);
        for (int i = 0; i < OP_MAX_INPUTS; i++)
            ck_assert_int_eq(info->inputs[i].name != NULL, i < info->input_count);
        for (int i = 0; i < OP_MAX_OUTPUTS; i++)
            ck_assert_int_eq(info->outputs[i].name != NULL, i < info->output_count);
        for (int other = 0; other < kind; other++)
            ck_assert_str_ne(info->name, op_info_get((enum op_kind)other)->name);
    }
}

static size_t attribute_size(const struct op_attribute *attribute)
{
    switch (attribute->type) {
    case ATTRIBUTE_I64: return attribute->pair ? 2 * sizeof(int64_t) : sizeof(int64_t);
    case ATTRIBUTE_I32:
    case ATTRIBUTE_U32:
    case ATTRIBUTE_CHOICE: return sizeof(int32_t);
    case ATTRIBUTE_REAL: return sizeof(double);
    case ATTRIBUTE_FLAG: return sizeof(bool);
    case ATTRIBUTE_WEIGHTS: return sizeof(struct op_weights);
    }
    return 0;
}

static bool has_byte(const struct op_attribute *attributes, size_t byte)
{
    for (const struct op_attribute *it = attributes; it->name != NULL; it++)
        if (byte >= it->offset && byte < it->offset + attribute_size(it)) return true;
    return false;
}

/* Every byte of the arm except padding belongs to a row; texts and hashes would lack a field
 * without one. */
#define CHECK_ARM(arm)                                                                             \
    do {                                                                                           \
        __typeof__(((union op_attrs *)NULL)->arm) value;                                           \
        memset(&value, 0xff, sizeof value);                                                        \
        __builtin_clear_padding(&value);                                                           \
        for (size_t byte = 0; byte < sizeof value; byte++)                                         \
            if (((const unsigned char *)&value)[byte] != 0)                                        \
                ck_assert_msg(has_byte(op_##arm##_attributes, byte), #arm ": byte %zu has no row", \
                              byte);                                                               \
        for (int kind = 0; kind < OP_KIND_COUNT; kind++)                                           \
            checked[kind] |= op_info_get((enum op_kind)kind)->attributes == op_##arm##_attributes; \
    } while (0)

TEST(every_attribute_has_a_row)
{
    bool checked[OP_KIND_COUNT] = {false};
    CHECK_ARM(conv);
    CHECK_ARM(linear);
    CHECK_ARM(pool);
    CHECK_ARM(dropout);
    CHECK_ARM(loss);
    CHECK_ARM(element_loss);
    CHECK_ARM(tally);
    CHECK_ARM(function);
    CHECK_ARM(matmul);
    CHECK_ARM(recurrent);
    CHECK_ARM(contrast);
    CHECK_ARM(preference);
    CHECK_ARM(avg_pool);
    CHECK_ARM(group_norm);
    CHECK_ARM(batch_norm);
    CHECK_ARM(transpose);
    CHECK_ARM(slice);
    CHECK_ARM(concat);
    CHECK_ARM(mean);
    CHECK_ARM(gelu);
    CHECK_ARM(embedding);
    CHECK_ARM(scale);
    CHECK_ARM(arange);
    CHECK_ARM(padding_mask);
    CHECK_ARM(norm);
    CHECK_ARM(rope);
    CHECK_ARM(attention);
    CHECK_ARM(buckets);
    CHECK_ARM(tokens);
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        const struct op_info *info = op_info_get((enum op_kind)kind);
        ck_assert_msg(checked[kind] || info->attributes == NULL, "%s: not among these", info->name);
    }
}

/* Golden tests cover the text; it has every value that differs from the default. */
TEST(attributes_are_printed_unless_usual)
{
    struct op_desc desc = desc_of(OP_LINEAR_BACKWARD_WEIGHTS);
    struct buf text = {0};
    op_attributes_print(desc.kind, &desc.attrs, &text);
    ck_assert_str_eq(buf_text(&text), "");
    desc.attrs.linear.transposed = true;
    desc.attrs.linear.activation = ACTIVATION_GELU_TANH;
    op_attributes_print(desc.kind, &desc.attrs, &text);
    ck_assert_str_eq(buf_text(&text), " transposed gelu_tanh");
    buf_clear(&text);
    desc = desc_of(OP_CONV2D);
    desc.attrs.conv.stride[0] = desc.attrs.conv.stride[1] = 1;
    desc.attrs.conv.dilation[0] = desc.attrs.conv.dilation[1] = 1;
    desc.attrs.conv.padding[1] = 3;
    desc.attrs.conv.groups = 2;
    op_attributes_print(desc.kind, &desc.attrs, &text);
    ck_assert_str_eq(buf_text(&text), " padding=0x3 groups=2");
    buf_clear(&text);
    desc = desc_of(OP_ARANGE);
    desc.attrs.arange.start = -2;
    desc.attrs.arange.step = 3;
    op_attributes_print(desc.kind, &desc.attrs, &text);
    ck_assert_str_eq(buf_text(&text), " from -2 by 3");
    buf_clear(&text);
    desc = desc_of(OP_ATTENTION);
    desc.attrs.attention.heads = 4;
    desc.attrs.attention.kv_heads = 2;
    desc.attrs.attention.causal = true;
    desc.attrs.attention.p = 0.5;
    op_attributes_print(desc.kind, &desc.attrs, &text);
    ck_assert_str_eq(buf_text(&text), " heads=4 kv_heads=2 causal p=0.5 stream=0");
    buf_deinit(&text);
}

TEST(window_output)
{
    ck_assert_int_eq(op_window_output(28, 3, 1, 0, 1), 26);
    ck_assert_int_eq(op_window_output(24, 2, 2, 0, 1), 12);
    ck_assert_int_eq(op_window_output(25, 2, 2, 0, 1), 12);
    ck_assert_int_eq(op_window_output(224, 7, 2, 3, 1), 112);
    ck_assert_int_eq(op_window_output(10, 3, 1, 0, 4), 2);
    ck_assert_int_eq(op_window_output(9, 3, 1, 0, 4), 1);
    ck_assert_int_eq(op_window_output(8, 3, 1, 0, 4), 0);
    ck_assert_int_eq(op_window_output(1, 1, 5, 0, INT64_MAX), 1);
    static const int64_t hostile[][5] = {
        {0, 1, 1, 0, 1},
        {1, 0, 1, 0, 1},
        {1, 1, 0, 0, 1},
        {1, 1, 1, -1, 1},
        {1, 1, 1, 0, 0},
        {INT64_MAX, 1, 1, 0, 1},
        {1, INT64_MAX, 1, 0, 1},
        {1, 1, 1, INT64_MAX, 1},
        {1, 2, 1, 0, INT64_MAX},
        {INT64_MIN, 1, 1, 0, 1},
        {1, 1, INT64_MIN, 0, 1},
        {5, 3, 1, 0, INT64_MAX / 2 + 1},
        {5, 5, 1, 0, (int64_t)1 << 62},
    };
    for (size_t i = 0; i < COUNT_OF(hostile); i++) {
        const int64_t *h = hostile[i];
        ck_assert_int_le(op_window_output(h[0], h[1], h[2], h[3], h[4]), 0);
    }
}

static struct op_desc conv2(void)
{
    struct op_desc desc = desc_of(OP_CONV2D);
    desc.inputs[0] = type_of(DTYPE_F32, 4, 64, 32, 26, 26);
    desc.inputs[1] = type_of(DTYPE_F32, 4, 64, 32, 3, 3);
    desc.inputs[2] = type_of(DTYPE_F32, 1, 64, 0, 0, 0);
    desc.outputs[0] = type_of(DTYPE_F32, 4, 64, 64, 24, 24);
    for (int i = 0; i < 2; i++) desc.attrs.conv.stride[i] = desc.attrs.conv.dilation[i] = 1;
    desc.attrs.conv.groups = 1;
    return desc;
}

static struct op_desc linear(void)
{
    struct op_desc desc = desc_of(OP_LINEAR);
    desc.inputs[0] = type_of(DTYPE_F32, 2, 64, 9216, 0, 0);
    desc.inputs[1] = type_of(DTYPE_F32, 2, 128, 9216, 0, 0);
    desc.inputs[2] = type_of(DTYPE_F32, 1, 128, 0, 0, 0);
    desc.outputs[0] = type_of(DTYPE_F32, 2, 64, 128, 0, 0);
    return desc;
}

static struct op_desc pool(void)
{
    struct op_desc desc = desc_of(OP_MAX_POOL2D);
    desc.inputs[0] = type_of(DTYPE_F32, 4, 2, 3, 8, 8);
    desc.outputs[0] = type_of(DTYPE_F32, 4, 2, 3, 4, 4);
    desc.outputs[1] = type_of(DTYPE_U8, 4, 2, 3, 4, 4);
    for (int i = 0; i < 2; i++) desc.attrs.pool.kernel[i] = desc.attrs.pool.stride[i] = 2;
    return desc;
}

TEST(operands)
{
    REFUSES(conv2(), desc.kind = OP_KIND_COUNT, "kind", "unknown");
    REFUSES(conv2(), desc.attrs.conv.activation = (enum op_activation)9, "activation 9", "unknown");
    REFUSES(conv2(), desc.kind = (enum op_kind) - 1, "kind", "unknown");
    REFUSES(conv2(), desc.input_count = 2, "2 inputs", "expected 3");
    REFUSES(conv2(), desc.output_count = 2, "2 outputs", "and 1");
    REFUSES(conv2(), desc.input_present[1] = false, "weight", "missing");
    REFUSES(conv2(), desc.output_present[0] = false, "output", "missing");
    REFUSES(conv2(), desc.inputs[0].dtype = DTYPE_I32, "i32", "f32");
    REFUSES(conv2(), desc.inputs[0].dtype = (enum dtype)77, "unknown", "f32");
    REFUSES(conv2(), desc.inputs[0].dim_count = 7, "7", "6");
    REFUSES(conv2(), desc.inputs[0].dim_count = -1, "-1", "6");
    REFUSES(conv2(), desc.inputs[0].dims[0] = 0, "(0, 32, 26, 26)", "positive");
    REFUSES(conv2(), desc.inputs[0].dims[2] = -5, "-5", "positive");
    REFUSES(conv2(), desc.inputs[0].dims[0] = INT64_MAX, "input", "2^40");
    REFUSES(pool(), desc.accumulate[1] = true, "indices", "accumulated");
    REFUSES(pool(), desc.outputs[1].dtype = DTYPE_F32, "f32", "u8");
    REFUSES(loss(OP_NLL_LOSS), desc.inputs[1].dtype = DTYPE_F32, "f32", "i32");
    struct op_desc desc = conv2();
    desc.input_present[2] = false;
    desc.inputs[2].dim_count = 99; /* absent: ignored */
    ck_assert_status_ok(op_desc_check(&desc));
}

TEST(conv)
{
    REFUSES(conv2(), desc.inputs[1].dims[1] = 16, "(64, 32, 26, 26)", "(64, 16, 3, 3)");
    REFUSES(conv2(), desc.inputs[2].dims[0] = 63, "(63,)", "(64,)");
    REFUSES(conv2(), desc.outputs[0].dims[2] = 25, "(64, 64, 25, 24)", "(64, 64, 24, 24)");
    REFUSES(conv2(), desc.outputs[0].dims[0] = 63, "(63, 64, 24, 24)", "(64, 64, 24, 24)");
    REFUSES(conv2(), desc.inputs[0].dim_count = 3, "(64, 32, 26)", "4 dimensions");
    REFUSES(conv2(), desc.inputs[1].dims[2] = 27, "(27, 3)", "(64, 32, 26, 26)");
    REFUSES(conv2(), desc.attrs.conv.stride[1] = 0, "stride", "(1, 0)");
    REFUSES(conv2(), desc.attrs.conv.stride[0] = INT64_MAX, "stride", "9223372036854775807");
    REFUSES(conv2(), desc.attrs.conv.padding[0] = -1, "padding", "-1");
    REFUSES(conv2(), desc.attrs.conv.padding[0] = INT64_MAX, "padding", "2147483647");
    REFUSES(conv2(), desc.attrs.conv.dilation[0] = 0, "dilation", "(0, 1)");
    REFUSES(conv2(), desc.attrs.conv.dilation[0] = 13, "dilation (13, 1)", "larger");
    REFUSES(conv2(), desc.attrs.conv.groups = 0, "0 groups", "32");
    REFUSES(conv2(), desc.attrs.conv.groups = 3, "3 groups", "64 output channels");
    REFUSES(conv2(), desc.attrs.conv.groups = 2, "(64, 16, 3, 3)", "(64, 32, 26, 26)");
    REFUSES(conv2(), desc.attrs.conv.activation = (enum op_activation)9, "activation", "9");
    struct op_desc backward = desc_of(OP_CONV2D_BACKWARD_DATA);
    struct op_desc forward = conv2();
    backward.attrs = forward.attrs;
    backward.inputs[0] = forward.outputs[0];
    backward.inputs[1] = forward.inputs[1];
    backward.outputs[0] = forward.inputs[0];
    REFUSES(backward, desc.attrs.conv.activation = ACTIVATION_RELU, "activation", "1");
    REFUSES(backward, desc.inputs[0].dims[1] = 60, "(64, 60, 24, 24)", "(64, 64, 24, 24)");
    struct op_desc weights = desc_of(OP_CONV2D_BACKWARD_WEIGHTS);
    weights.attrs = forward.attrs;
    weights.inputs[0] = forward.inputs[0];
    weights.inputs[1] = forward.outputs[0];
    weights.outputs[0] = forward.inputs[1];
    weights.outputs[1] = forward.inputs[2];
    REFUSES(weights, desc.outputs[0].dims[3] = 4, "(64, 64, 24, 24)", "(64, 64, 24, 23)");
    REFUSES(weights, desc.outputs[1].dims[0] = 1, "(1,)", "(64,)");
}

TEST(linear)
{
    REFUSES(linear(), desc.inputs[1].dims[1] = 4608, "(64, 9216)", "(128, 4608)");
    REFUSES(linear(), desc.inputs[1].dim_count = 1, "(128,)", "2 dimensions");
    REFUSES(linear(), desc.inputs[0].dim_count = 0, "input", "last dimension");
    REFUSES(linear(), desc.outputs[0].dims[1] = 127, "(64, 127)", "(64, 128)");
    REFUSES(linear(), desc.outputs[0].dim_count = 1, "(64,)", "(64, 128)");
    REFUSES(linear(), desc.inputs[2].dims[0] = 64, "(64,)", "(128,)");
    REFUSES(linear(), desc.attrs.linear.transposed = true, "(128, 9216)", "(9216, 9216)");
    REFUSES(linear(), desc.attrs.linear.activation = (enum op_activation)3, "activation 3",
            "unknown");
    REFUSES(with_gelu(linear()), desc.attrs.linear.activation = ACTIVATION_RELU, "preactivation",
            "without gelu");
    REFUSES(with_gelu(linear()), desc.outputs[1].dims[1] = 64, "(64, 64)", "(64, 128)");
    REFUSES(with_gelu(linear()), desc.accumulate[0] = true, "gelu", "added");
    REFUSES(with_gelu(linear()), desc.accumulate[1] = true, "gelu", "added");
    struct op_desc data = desc_of(OP_LINEAR_BACKWARD_DATA);
    data.inputs[0] = linear().outputs[0];
    data.inputs[1] = linear().inputs[1];
    data.outputs[0] = linear().inputs[0];
    REFUSES(data, desc.attrs.linear.activation = ACTIVATION_RELU, "activation 1", "not possible");
    REFUSES(data, desc.attrs.linear.activation = ACTIVATION_GELU_TANH, "preactivation", "missing");
    REFUSES(with_gelu(data), desc.attrs.linear.activation = ACTIVATION_NONE, "preactivation",
            "without gelu");
    REFUSES(with_gelu(data), desc.inputs[2].dims[1] = 128, "(64, 128)", "(64, 9216)");
    REFUSES(with_gelu(data), desc.accumulate[0] = true, "gelu", "added");
    struct op_desc weights = desc_of(OP_LINEAR_BACKWARD_WEIGHTS);
    weights.inputs[0] = linear().inputs[0];
    weights.inputs[1] = linear().outputs[0];
    weights.outputs[0] = linear().inputs[1];
    weights.outputs[1] = linear().inputs[2];
    REFUSES(weights, desc.attrs.linear.activation = ACTIVATION_GELU_TANH, "activation 2",
            "not possible");
    struct op_desc desc = linear();
    desc.inputs[0] = type_of(DTYPE_F32, 1, 9216, 0, 0, 0);
    desc.outputs[0] = type_of(DTYPE_F32, 1, 128, 0, 0, 0);
    ck_assert_status_ok(op_desc_check(&desc));
}

TEST(pool)
{
    REFUSES(pool(), desc.attrs.pool.kernel[0] = 0, "kernel", "(0, 2)");
    REFUSES(pool(), desc.attrs.pool.kernel[0] = 128, "(128, 2)", "255");
    REFUSES(pool(), desc.attrs.pool.kernel[0] = INT32_MAX, "kernel", "255");
    REFUSES(pool(), desc.attrs.pool.stride[0] = 0, "stride", "(0, 2)");
    REFUSES(pool(), desc.attrs.pool.padding[1] = 2, "padding", "half");
    REFUSES(pool(), desc.attrs.pool.kernel[1] = 9, "(2, 9)", "(2, 3, 8, 8)");
    REFUSES(pool(), desc.outputs[0].dims[3] = 5, "(2, 3, 4, 5)", "(2, 3, 4, 4)");
    REFUSES(pool(), desc.outputs[1].dims[3] = 5, "indices", "(2, 3, 4, 5)");
}

TEST(others)
{
    struct op_desc same = desc_of(OP_ADD);
    same.inputs[0] = same.inputs[1] = same.outputs[0] = type_of(DTYPE_F32, 2, 3, 4, 0, 0);
    REFUSES(same, desc.inputs[1].dims[0] = 1, "(1, 4)", "(3, 4)");
    REFUSES(same, desc.outputs[0].dim_count = 1, "(3,)", "(3, 4)");

    struct op_desc dropout = desc_of(OP_DROPOUT);
    dropout.inputs[0] = dropout.outputs[0] = type_of(DTYPE_F32, 2, 3, 4, 0, 0);
    REFUSES(dropout, desc.attrs.dropout.p = 1, "p is 1", "p < 1");
    REFUSES(dropout, desc.attrs.dropout.p = -0.1, "-0.1", "0 <= p");
    REFUSES(dropout, desc.attrs.dropout.p = NAN, "nan", "p < 1");
    REFUSES(dropout, desc.inputs[0].dims[0] = (int64_t)1 << 33, "2^34", "(8589934592, 4)");

    struct op_desc reshape = desc_of(OP_RESHAPE);
    reshape.inputs[0] = type_of(DTYPE_F32, 4, 64, 64, 12, 12);
    reshape.outputs[0] = type_of(DTYPE_F32, 2, 64, 9216, 0, 0);
    REFUSES(reshape, desc.outputs[0].dims[1] = 9215, "(64, 64, 12, 12)", "(64, 9215)");
}

static struct op_desc move(enum op_kind kind)
{
    struct op_desc desc = desc_of(kind);
    desc.inputs[0] = desc.inputs[1] = desc.outputs[0] = type_of(DTYPE_F32, 3, 4, 6, 5, 0);
    switch (kind) {
    case OP_TRANSPOSE:
        desc.attrs.transpose.dims[0] = 1;
        desc.attrs.transpose.dims[1] = 2;
        desc.outputs[0] = type_of(DTYPE_F32, 3, 4, 5, 6, 0);
        break;
    case OP_SLICE:
        desc.attrs.slice.dim = 1;
        desc.attrs.slice.start = 2;
        desc.outputs[0].dims[1] = 4;
        break;
    case OP_CONCAT:
        desc.attrs.concat.dim = 1;
        desc.inputs[0] = type_of(DTYPE_F32, 2, 2, 5, 0, 0);
        desc.outputs[0].dims[1] = 8;
        break;
    default:
        desc.attrs.mean.dim = 1;
        desc.inputs[1] = type_of(DTYPE_U8, 2, 4, 6, 0, 0);
        desc.outputs[0] = type_of(DTYPE_F32, 2, 4, 5, 0, 0);
        break;
    }
    return desc;
}

TEST(moves)
{
    REFUSES(move(OP_TRANSPOSE), desc.attrs.transpose.dims[1] = 3, "(4, 6, 5)", "no dimension 3");
    REFUSES(move(OP_TRANSPOSE), desc.attrs.transpose.dims[0] = -1, "(4, 6, 5)", "no dimension -1");
    REFUSES(move(OP_TRANSPOSE), desc.attrs.transpose.dims[0] = 2, "2 and 2", "ascend");
    REFUSES(move(OP_TRANSPOSE), desc.outputs[0] = desc.inputs[0], "(4, 6, 5)", "(4, 5, 6)");
    REFUSES(move(OP_SLICE), desc.attrs.slice.start = 3, "4 from 3", "of 6");
    REFUSES(move(OP_SLICE), desc.attrs.slice.start = -1, "4 from -1", "of 6");
    REFUSES(move(OP_SLICE), desc.attrs.slice.start = INT64_MAX, "4 from", "of 6");
    REFUSES(move(OP_SLICE), desc.attrs.slice.dim = 7, "(4, 6, 5)", "no dimension 7");
    REFUSES(move(OP_SLICE), desc.outputs[0] = type_of(DTYPE_F32, 2, 4, 6, 0, 0), "(4, 6)",
            "(4, 5)");
    REFUSES(move(OP_CONCAT), desc.outputs[0].dims[1] = 9, "(4, 9, 5)", "(4, 8, 5)");
    REFUSES(move(OP_CONCAT), desc.inputs[0].dims[1] = 4, "(2, 4)", "(2, 5)");
    REFUSES(move(OP_CONCAT), desc.inputs[0].dim_count = 1, "(2,)", "(4, 8, 5)");
    REFUSES(move(OP_CONCAT), desc.attrs.concat.dim = 3, "(4, 8, 5)", "no dimension 3");
    REFUSES(move(OP_MEAN), desc.attrs.mean.dim = 3, "(4, 6, 5)", "no dimension 3");
    REFUSES(move(OP_MEAN), desc.attrs.mean.dim = 0, "(4, 6)", "(4,)");
    REFUSES(move(OP_MEAN), desc.inputs[1].dims[1] = 5, "mask", "(4, 6)");
    REFUSES(move(OP_MEAN), desc.attrs.mean.sum = true, "sum", "mask");
    REFUSES(move(OP_MEAN), (desc.attrs.mean.dim = 0, desc.input_present[1] = false), "(4, 5)",
            "(6, 5)");
    REFUSES(move(OP_MEAN), (desc.attrs.mean.last = true, desc.input_present[1] = false), "last",
            "mask");
}

static struct op_desc average(void)
{
    struct op_desc desc = desc_of(OP_AVG_POOL2D);
    desc.inputs[0] = type_of(DTYPE_F32, 4, 2, 3, 8, 8);
    desc.outputs[0] = type_of(DTYPE_F32, 4, 2, 3, 4, 4);
    for (int i = 0; i < 2; i++) desc.attrs.avg_pool.kernel[i] = desc.attrs.avg_pool.stride[i] = 2;
    return desc;
}

static struct op_desc group_norm(void)
{
    struct op_desc desc = desc_of(OP_GROUP_NORM);
    desc.attrs.group_norm.groups = 2;
    desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 3, 3, 6, 5, 0);
    desc.inputs[1] = desc.inputs[2] = type_of(DTYPE_F32, 1, 6, 0, 0, 0);
    desc.outputs[1] = desc.outputs[2] = type_of(DTYPE_F32, 2, 3, 2, 0, 0);
    return desc;
}

static struct op_desc batch_norm(void)
{
    struct op_desc desc = desc_of(OP_BATCH_NORM);
    desc.attrs.batch_norm.momentum = 0.1;
    desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 4, 3, 6, 5, 2);
    desc.inputs[1] = desc.inputs[2] = type_of(DTYPE_F32, 1, 6, 0, 0, 0);
    desc.inputs[3] = type_of(DTYPE_I32, 1, 3, 0, 0, 0);
    for (int i = 1; i < 5; i++) desc.outputs[i] = desc.inputs[1];
    desc.outputs[5] = type_of(DTYPE_F32, 1, 2, 0, 0, 0);
    return desc;
}

TEST(batches)
{
    REFUSES(batch_norm(), desc.attrs.batch_norm.eps = -1, "eps", "-1");
    REFUSES(batch_norm(), desc.attrs.batch_norm.momentum = 1.5, "momentum", "1.5");
    REFUSES(batch_norm(), desc.inputs[1].dims[0] = 5, "(5,)", "(6,)");
    REFUSES(batch_norm(), desc.inputs[3].dims[0] = 6, "target", "(3,)");
    REFUSES(batch_norm(), desc.outputs[4].dims[0] = 3, "running variance", "(6,)");
    REFUSES(batch_norm(), desc.outputs[5].dims[0] = 1, "count", "(2,)");
    struct op_desc over_ranks = batch_norm(), own = desc_of(OP_BATCH_MOMENTS);
    over_ranks.input_present[4] = true;
    over_ranks.inputs[4] = type_of(DTYPE_F32, 2, 3, 13, 0, 0);
    REFUSES(over_ranks, desc.inputs[4].dims[1] = 12, "moments", "(3, 13)");
    REFUSES(over_ranks, desc.inputs[4].dim_count = 1, "moments is (3,)", "(3, 13)");
    own.inputs[0] = over_ranks.inputs[0];
    own.inputs[1] = over_ranks.inputs[3];
    own.outputs[0] = type_of(DTYPE_F32, 1, 13, 0, 0, 0);
    REFUSES(own, desc.inputs[1].dims[0] = 4, "target", "(3,)");
    REFUSES(own, desc.outputs[0].dims[0] = 6, "moments is (6,)", "(13,)");
    struct op_desc sums = desc_of(OP_BATCH_NORM_SUMS), all = desc_of(OP_GATHER_RANKS);
    sums.inputs[0] = sums.inputs[1] = over_ranks.inputs[0];
    sums.inputs[2] = sums.inputs[3] = over_ranks.inputs[1];
    sums.inputs[4] = over_ranks.inputs[3];
    sums.outputs[0] = all.inputs[0] = own.outputs[0];
    REFUSES(sums, desc.inputs[3].dims[0] = 5, "rstd", "(6,)");
    REFUSES(sums, desc.outputs[0].dims[0] = 12, "sums is (12,)", "(13,)");
    all.outputs[0] = over_ranks.inputs[4];
    REFUSES(all, desc.outputs[0].dims[1] = 12, "(3, 12)", "(3, 13)");
    REFUSES(all, desc.outputs[0].dim_count = 0, "()", "(1, 13)");
    REFUSES(batch_norm(), desc.inputs[0].dim_count = desc.outputs[0].dim_count = 1, "(3,)",
            "no channels");
}

TEST(averages_and_groups)
{
    REFUSES(average(), desc.outputs[0].dims[3] = 3, "(2, 3, 4, 3)", "(2, 3, 4, 4)");
    REFUSES(average(), desc.attrs.avg_pool.kernel[0] = 9, "(9, 2)", "(2, 3, 8, 8)");
    REFUSES(average(), desc.attrs.avg_pool.kernel[0] = 0, "kernel", "(0, 2)");
    REFUSES(average(), desc.attrs.avg_pool.stride[1] = 0, "stride", "(2, 0)");
    REFUSES(average(), desc.attrs.avg_pool.padding[1] = 2, "(0, 2)", "half");
    REFUSES(average(), desc.inputs[0].dim_count = 3, "(2, 3, 8)", "4 dimensions");
    REFUSES(average(), desc.attrs.avg_pool.adaptive = true;
            desc.outputs[0].dims[1] = 2, "(2, 2, 4, 4)", "(2, 3, 4, 4)");
    REFUSES(group_norm(), desc.attrs.group_norm.groups = 4, "4 groups", "(3, 6, 5)");
    REFUSES(group_norm(), desc.attrs.group_norm.groups = 0, "0 groups", "(3, 6, 5)");
    REFUSES(group_norm(), desc.attrs.group_norm.eps = -1, "eps", "-1");
    REFUSES(group_norm(), desc.inputs[1].dims[0] = 5, "(5,)", "(6,)");
    REFUSES(group_norm(), desc.outputs[2].dims[1] = 3, "(3, 3)", "(3, 2)");
    REFUSES(group_norm(), desc.outputs[1].dtype = DTYPE_BF16, "bf16", "f32");
}

TEST(broadcast)
{
    struct tensor_type x = type_of(DTYPE_F32, 3, 2, 5, 7, 0);
    struct op_desc add = same(OP_ADD, x), sum = same(OP_SUM_LEADING, x);
    add.inputs[1] = sum.outputs[0] = type_of(DTYPE_F32, 2, 5, 7, 0, 0);
    REFUSES(add, desc.inputs[1].dims[0] = 2, "(2, 7)", "(5, 7)");
    REFUSES(add, desc.inputs[1].dims[1] = 1, "(5, 1)", "(2, 5, 7)");
    REFUSES(add, desc.inputs[1] = type_of(DTYPE_F32, 4, 1, 2, 5, 7), "(1, 2, 5, 7)", "(2, 5, 7)");
    REFUSES(add, desc.outputs[0] = desc.inputs[1], "output is (5, 7)", "(2, 5, 7)");
    REFUSES(add, desc.inputs[1].dtype = DTYPE_BF16, "bf16", "f32");
    REFUSES(sum, desc.outputs[0].dims[0] = 2, "(2, 7)", "(5, 7)");
    REFUSES(sum, desc.outputs[0] = type_of(DTYPE_F32, 4, 1, 2, 5, 7), "(1, 2, 5, 7)", "(2, 5, 7)");
    sum.outputs[0].dim_count = 0; /* the sum of all */
    ck_assert_status_ok(op_desc_check(&sum));
    add.inputs[1].dim_count = 0;
    ck_assert_status_ok(op_desc_check(&add));
}

TEST(arithmetic)
{
    struct op_desc div = same(OP_DIV, type_of(DTYPE_F32, 3, 2, 5, 7, 0));
    div.inputs[1] = type_of(DTYPE_F32, 2, 5, 7, 0, 0);
    ck_assert_status_ok(op_desc_check(&div));
    REFUSES(div, desc.inputs[1].dims[1] = 1, "(5, 1)", "(2, 5, 7)");
    div.kind = OP_MUL;
    ck_assert_status_ok(op_desc_check(&div));
    REFUSES(div, desc.outputs[0] = desc.inputs[1], "output is (5, 7)", "(2, 5, 7)");
    struct op_desc backward = same(OP_DIV_BACKWARD, type_of(DTYPE_F32, 3, 2, 5, 7, 0));
    backward.inputs[2] = type_of(DTYPE_F32, 1, 7, 0, 0, 0);
    ck_assert_status_ok(op_desc_check(&backward));
    REFUSES(backward, desc.inputs[2].dims[0] = 5, "(5,)", "(2, 5, 7)");
    REFUSES(backward, desc.inputs[1].dims[0] = 1, "(1, 5, 7)", "(2, 5, 7)");
    REFUSES(backward, desc.outputs[0].dims[0] = 1, "(1, 5, 7)", "(2, 5, 7)");
    struct op_desc scale = same(OP_SCALE, type_of(DTYPE_F32, 1, 3, 0, 0, 0));
    scale.attrs.scale.factor = -2;
    scale.attrs.scale.offset = 0.5;
    ck_assert_status_ok(op_desc_check(&scale));
    REFUSES(scale, desc.attrs.scale.factor = 1e39, "factor", "not possible");
    REFUSES(scale, desc.attrs.scale.offset = NAN, "offset", "not possible");
    REFUSES(scale, desc.kind = OP_RECIPROCAL, "offset", "not possible");
}

TEST(activations)
{
    static const enum op_kind kinds[] = {OP_SCALE,
                                         OP_GELU,
                                         OP_GELU_BACKWARD,
                                         OP_SILU,
                                         OP_SILU_BACKWARD,
                                         OP_SILU_MUL,
                                         OP_SOFTMAX,
                                         OP_SILU_MUL_BACKWARD,
                                         OP_TANH,
                                         OP_TANH_BACKWARD,
                                         OP_SOFTMAX_BACKWARD,
                                         OP_RECIPROCAL,
                                         OP_SIGMOID,
                                         OP_SQUARED_RELU,
                                         OP_SIGMOID_BACKWARD,
                                         OP_SQUARED_RELU_BACKWARD,
                                         OP_GELU_MUL,
                                         OP_GELU_MUL_BACKWARD,
                                         OP_FUNCTION,
                                         OP_FUNCTION_BACKWARD};
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        struct op_desc all = same(kinds[i], type_of(DTYPE_F32, 2, 3, 4, 0, 0));
        const struct op_info *info = op_info_get(kinds[i]);
        int last_input = info->input_count - 1, last_output = info->output_count - 1;
        REFUSES(all, desc.outputs[last_output].dims[1] = 5, "(3, 5)", "(3, 4)");
        REFUSES(all, desc.outputs[last_output].dim_count = 1, "(3,)", "(3, 4)");
        if (last_input > 0) REFUSES(all, desc.inputs[last_input].dims[0] = 1, "(1, 4)", "(3, 4)");
        REFUSES(all, desc.inputs[0].dtype = DTYPE_I32, "i32", "f32");
        REFUSES(all, desc.input_present[last_input] = false, info->inputs[last_input].name,
                "missing");
        struct op_desc half = same(kinds[i], type_of(DTYPE_BF16, 2, 3, 4, 0, 0));
        if (kinds[i] == OP_SOFTMAX || kinds[i] == OP_SOFTMAX_BACKWARD)
            refuses(&half, "bf16", "f32");
        else REFUSES(half, desc.accumulate[0] = true, info->outputs[0].name, "accumulated");
    }
    REFUSES(same(OP_SOFTMAX, type_of(DTYPE_F32, 1, 4, 0, 0, 0)), desc.inputs[0].dim_count = 0, "()",
            "last dimension");
}

TEST(work)
{
    struct op_desc desc = conv2();
    ck_assert_double_eq(op_desc_flops(&desc), 2.0 * 64 * 64 * 24 * 24 * 32 * 9);
    ck_assert_uint_eq(op_desc_bytes(&desc),
                      4 * (64ull * 32 * 676 + 64 * 32 * 9 + 64 + 64ull * 64 * 576));
    desc.input_present[2] = false;
    ck_assert_uint_eq(op_desc_bytes(&desc),
                      4 * (64ull * 32 * 676 + 64 * 32 * 9 + 64ull * 64 * 576));
    desc = linear();
    ck_assert_double_eq(op_desc_flops(&desc), 2.0 * 64 * 9216 * 128);
    desc = pool();
    ck_assert_double_eq(op_desc_flops(&desc), 0);
    ck_assert_uint_eq(op_desc_bytes(&desc), 4 * (384 + 96) + 96);
    /* At most the rows of a table that the tokens can name, unless it is zeroed. */
    struct op_desc embedding = desc_of(OP_EMBEDDING);
    embedding.inputs[0] = type_of(DTYPE_I32, 2, 2, 8, 0, 0);
    embedding.inputs[1] = type_of(DTYPE_BF16, 2, 50257, 768, 0, 0);
    embedding.outputs[0] = type_of(DTYPE_BF16, 3, 2, 8, 768, 0);
    ck_assert_uint_eq(op_desc_bytes(&embedding), 16 * 4 + 2 * 16 * 768 * 2);
    embedding.inputs[1].dims[0] = 5;
    ck_assert_uint_eq(op_desc_bytes(&embedding), 16 * 4 + (5 + 16) * 768 * 2);
    struct op_desc gradient = desc_of(OP_EMBEDDING_BACKWARD);
    gradient.inputs[0] = embedding.inputs[0];
    gradient.inputs[1] = embedding.outputs[0];
    gradient.outputs[0] = type_of(DTYPE_F32, 2, 50257, 768, 0, 0);
    ck_assert_uint_eq(op_desc_bytes(&gradient), 16 * 4 + 16 * 768 * 2 + 50257ull * 768 * 4);
    gradient.accumulate[0] = true;
    ck_assert_uint_eq(op_desc_bytes(&gradient), 16 * 4 + 16 * 768 * 2 + 16 * 768 * 4);
    /* A gradient costs as much as its forward pass. */
    struct op_desc weights = desc_of(OP_LINEAR_BACKWARD_WEIGHTS);
    weights.inputs[0] = type_of(DTYPE_F32, 2, 64, 9216, 0, 0);
    weights.inputs[1] = type_of(DTYPE_F32, 2, 64, 128, 0, 0);
    weights.outputs[0] = type_of(DTYPE_F32, 2, 128, 9216, 0, 0);
    weights.outputs[1] = type_of(DTYPE_F32, 1, 128, 0, 0, 0);
    ck_assert_status_ok(op_desc_check(&weights));
    ck_assert_double_eq(op_desc_flops(&weights), 2.0 * 64 * 9216 * 128);
    /* Two products of (16, 8) and (8, 16) for each of 2 * 4 heads; causal, a triangle of them. */
    desc = attention(true);
    ck_assert_double_eq(op_desc_flops(&desc), 2.0 * 2 * 16 * 16 * 8 * 2 * 4);
    desc.attrs.attention.causal = true;
    ck_assert_double_eq(op_desc_flops(&desc), 2.0 * 2 * (16 * 17 / 2) * 8 * 2 * 4);
    desc.attrs.attention.window = 3; /* the first rows see one and two keys */
    ck_assert_double_eq(op_desc_flops(&desc), 2.0 * 2 * (1 + 2 + 14 * 3) * 8 * 2 * 4);
    desc.attrs.attention.window = 100;
    ck_assert_double_eq(op_desc_flops(&desc), 2.0 * 2 * (16 * 17 / 2) * 8 * 2 * 4);
    desc.attrs.attention.causal = false;
    ck_assert_double_eq(op_desc_flops(&desc), 2.0 * 2 * 16 * 16 * 8 * 2 * 4);
    desc.attrs.attention.window = 3; /* both ends see less than five keys */
    ck_assert_double_eq(op_desc_flops(&desc), 2.0 * 2 * (2 * 3 + 2 * 4 + 12 * 5) * 8 * 2 * 4);
    desc = attention_backward(true);
    ck_assert_double_eq(op_desc_flops(&desc), 2.0 * 5 * 16 * 16 * 8 * 2 * 4);
    desc = head();
    ck_assert_double_eq(op_desc_flops(&desc), 3 * 2.0 * 2 * 16 * 32 * 65);
}
