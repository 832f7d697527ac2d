/* The ops of sequences: the descriptions that op_desc_check accepts and refuses; see test_ops.c. */
#include "op_fixture.h"
#include "tests/testing.h"

TEST(attention)
{
    REFUSES(attention(false), desc.attrs.attention.heads = 0, "heads", "0");
    REFUSES(attention(false), desc.attrs.attention.kv_heads = 3, "kv_heads", "3");
    REFUSES(attention(false), desc.attrs.attention.kv_heads = 8, "kv_heads", "8");
    REFUSES(attention(false), desc.attrs.attention.heads = INT64_MAX, "heads", "possible");
    REFUSES(attention(false), desc.attrs.attention.scale = -1, "scale", "-1");
    REFUSES(attention(false), desc.attrs.attention.scale = INFINITY, "scale", "inf");
    REFUSES(attention(false), desc.attrs.attention.p = 1, "p is 1", "possible");
    REFUSES(attention(false), desc.attrs.attention.p = NAN, "p is", "nan");
    REFUSES(attention(false), desc.inputs[0].dim_count = 2, "query", "3 dimensions");
    REFUSES(attention(false), desc.inputs[0].dims[2] = 30, "(2, 16, 30)", "4 heads");
    REFUSES(attention(true), desc.inputs[0].dims[2] = 68, "(2, 16, 68)", "8 heads");
    REFUSES(attention(false), desc.inputs[1].dims[2] = 32, "(2, 16, 32)", "(2, 16, 16)");
    REFUSES(attention(false), desc.inputs[2].dims[1] = 17, "value", "(2, 17, 16)");
    REFUSES(attention(false), desc.input_present[2] = false, "key", "without value");
    REFUSES(attention(true), desc.input_present[2] = true, "value", "without key");
    REFUSES(attention(true), desc.inputs[3].dims[1] = 15, "mask", "(2, 15)");
    REFUSES(attention(true), desc.inputs[3].dtype = DTYPE_F32, "mask", "u8");
    REFUSES(attention(true),
            (desc.input_present[5] = true, desc.inputs[5] = type_of(DTYPE_I32, 2, 2, 15, 0, 0)),
            "starts", "(2, 16)");
    REFUSES(attention_backward(true),
            (desc.input_present[8] = true, desc.inputs[8] = type_of(DTYPE_I32, 2, 2, 15, 0, 0)),
            "starts", "(2, 16)");
    REFUSES(attention(true), desc.outputs[0].dims[2] = 64, "(2, 16, 64)", "(2, 16, 32)");
    REFUSES(attention(true), desc.outputs[1].dims[1] = 2, "log-sum-exp", "(2, 4, 16)");
    REFUSES(attention_backward(false), desc.output_present[1] = false, "gradients", "inputs");
    REFUSES(attention_backward(true), desc.output_present[2] = true, "gradients", "inputs");
    REFUSES(attention_backward(false), desc.inputs[0].dims[1] = 15, "gradient", "(2, 15, 32)");
    REFUSES(attention_backward(false), desc.outputs[0].dims[2] = 16, "gradient", "(2, 16, 16)");
    REFUSES(attention_backward(false), desc.outputs[2].dims[2] = 32, "gradient", "(2, 16, 32)");
    REFUSES(attention_backward(false), desc.input_present[5] = false, "log-sum-exp", "missing");
    /* Dropout counts 2^34 probabilities; without it there may be more. */
    struct op_desc desc = attention(true);
    desc.inputs[0].dims[1] = desc.outputs[0].dims[1] = desc.outputs[1].dims[2] = 1 << 17;
    desc.inputs[3].dims[1] = 1 << 17;
    ck_assert_status_ok(op_desc_check(&desc));
    desc.attrs.attention.p = 0.1;
    refuses(&desc, "number of probabilities", "1.37439e+11");
}

TEST(attention_over_a_cache)
{
    struct op_desc cached = attention(false);
    cached.attrs.attention.causal = true;
    cached.input_present[3] = cached.input_present[4] = cached.output_present[1] = false;
    cached.input_present[5] = cached.output_present[2] = cached.output_present[3] = true;
    cached.inputs[5] = type_of(DTYPE_I32, 2, 2, 16, 0, 0);
    cached.outputs[2] = cached.outputs[3] = type_of(DTYPE_F32, 3, 2, 40, 16, 0);
    ck_assert_status_ok(op_desc_check(&cached));
    REFUSES(cached, desc.outputs[2].dims[2] = 32, "keys", "(2, 40, 32)");
    REFUSES(cached, desc.outputs[3].dims[1] = 41, "values", "(2, 41, 16)");
    REFUSES(cached, desc.output_present[2] = false, "cache of values", "only");
    REFUSES(cached, desc.output_present[3] = false, "cache of keys", "only");
    REFUSES(cached, desc.attrs.attention.causal = false, "cache", "causal");
    REFUSES(cached, desc.input_present[5] = false, "cache", "starts");
    REFUSES(cached, desc.attrs.attention.p = 0.1, "cache", "dropout");
    REFUSES(cached, desc.output_present[1] = true, "cache", "log-sum-exp");
}

static struct op_desc rope(void)
{
    struct op_desc desc = desc_of(OP_ROPE);
    desc.attrs.rope.head_dim = 8;
    desc.attrs.rope.theta = 10000;
    desc.attrs.rope.scaling = ROPE_SCALING_LLAMA3;
    desc.attrs.rope.factor = 8;
    desc.attrs.rope.low_freq_factor = 1;
    desc.attrs.rope.high_freq_factor = 4;
    desc.attrs.rope.original_context = 8192;
    desc.inputs[0] = desc.outputs[0] = type_of(DTYPE_F32, 3, 2, 16, 32, 0);
    return desc;
}

TEST(rope)
{
    REFUSES(rope(), desc.attrs.rope.head_dim = 0, "head_dim", "0");
    REFUSES(rope(), desc.attrs.rope.head_dim = 7, "head_dim", "7");
    REFUSES(rope(), desc.attrs.rope.head_dim = 12, "head_dim", "12");
    REFUSES(rope(), desc.attrs.rope.theta = 0, "theta", "0");
    REFUSES(rope(), desc.attrs.rope.theta = NAN, "theta", "nan");
    REFUSES(rope(), desc.attrs.rope.scaling = (enum rope_scaling)7, "scaling", "7");
    REFUSES(rope(), desc.attrs.rope.factor = 0, "factor", "0");
    REFUSES(rope(), desc.attrs.rope.low_freq_factor = -1, "low_freq_factor", "-1");
    REFUSES(rope(), desc.attrs.rope.high_freq_factor = 1, "high_freq_factor", "1");
    REFUSES(rope(), desc.attrs.rope.original_context = 0, "original_context", "0");
    REFUSES(rope(), desc.inputs[0].dim_count = 2, "input", "3 dimensions");
    REFUSES(rope(), desc.outputs[0].dims[1] = 15, "(2, 15, 32)", "(2, 16, 32)");
    REFUSES(rope(),
            (desc.input_present[1] = true, desc.inputs[1] = type_of(DTYPE_I32, 2, 2, 15, 0, 0)),
            "starts", "(2, 16)");
}

TEST(head)
{
    REFUSES(head(), desc.inputs[1].dims[1] = 31, "(65, 31)", "(2, 16, 32)");
    REFUSES(head(), desc.inputs[1].dim_count = 1, "weight", "2 dimensions");
    REFUSES(head(), desc.inputs[2].dims[0] = 64, "bias", "(64,)");
    REFUSES(head(), desc.inputs[3].dims[1] = 17, "target", "(2, 17)");
    REFUSES(head(), desc.inputs[3].dtype = DTYPE_F32, "target", "i32");
    REFUSES(head(), desc.input_present[3] = false, "target", "missing");
    REFUSES(head(), desc.outputs[0].dims[0] = 2, "loss", "(2,)");
    REFUSES(head(), desc.output_present[0] = false, "loss", "missing");
    REFUSES(head(), desc.outputs[1].dims[2] = 31, "gradient", "(2, 16, 31)");
    REFUSES(head(), desc.outputs[2].dims[0] = 64, "gradient", "(64, 32)");
    REFUSES(head(), desc.outputs[3].dims[0] = 64, "gradient", "(64,)");
    REFUSES(head(), desc.attrs.loss.reduction = (enum op_reduction)5, "reduction", "5");
    struct op_desc forward = desc_of(OP_LINEAR_CROSS_ENTROPY), backward = head();
    for (int i = 0; i < 4; i++) forward.inputs[i] = backward.inputs[i];
    forward.outputs[0] = forward.outputs[1] = backward.outputs[0];
    REFUSES(forward, desc.outputs[1].dims[0] = 2, "count", "(2,)");
}

TEST(windows_and_caps)
{
    struct op_desc windowed = attention(true);
    windowed.attrs.attention.causal = true;
    windowed.attrs.attention.window = 4;
    windowed.attrs.attention.softcap = 30;
    ck_assert_status_ok(op_desc_check(&windowed));
    windowed.attrs.attention.causal = false;
    ck_assert_status_ok(op_desc_check(&windowed));
    REFUSES(windowed, desc.attrs.attention.window = -1, "window is -1", "not possible");
    REFUSES(windowed, desc.attrs.attention.softcap = -1, "softcap is -1", "not possible");
    REFUSES(windowed, desc.attrs.attention.softcap = 1e39, "softcap", "not possible");
}

TEST(alibi_is_causal_and_has_no_bias)
{
    struct op_desc alibi = attention(true);
    alibi.attrs.attention.causal = alibi.attrs.attention.rounded = true;
    alibi.attrs.attention.alibi = 8;
    ck_assert_status_ok(op_desc_check(&alibi));
    REFUSES(alibi, desc.attrs.attention.alibi = 65, "alibi is 65", "not possible");
    REFUSES(alibi, desc.attrs.attention.alibi = 0, "rounded", "without alibi");
    REFUSES(alibi, desc.attrs.attention.causal = false, "alibi", "causal");
    REFUSES(alibi,
            (desc.input_present[4] = true, desc.inputs[4] = type_of(DTYPE_F32, 2, 31, 4, 0, 0)),
            "alibi", "without a bias");
}

TEST(biases_by_distance)
{
    struct op_desc biased = attention(true), gradient = attention_backward(true);
    biased.input_present[4] = true;
    biased.inputs[4] = type_of(DTYPE_F32, 2, 31, 4, 0, 0);
    ck_assert_status_ok(op_desc_check(&biased));
    REFUSES(biased, desc.inputs[4].dims[0] = 32, "bias", "(31, 4)");
    REFUSES(biased, desc.inputs[4].dims[1] = 2, "(31, 2)", "(31, 4)");
    REFUSES(biased, desc.inputs[4].dtype = DTYPE_BF16, "bias", "f32");
    gradient.input_present[7] = gradient.output_present[3] = true;
    gradient.inputs[7] = gradient.outputs[3] = biased.inputs[4];
    ck_assert_status_ok(op_desc_check(&gradient));
    REFUSES(gradient, desc.output_present[3] = false, "gradients", "inputs");
    REFUSES(gradient, desc.outputs[3].dims[0] = 16, "bias's gradient", "(31, 4)");
    struct op_desc buckets = desc_of(OP_DISTANCE_BUCKETS);
    buckets.attrs.buckets.count = 32;
    buckets.attrs.buckets.max_distance = 128;
    buckets.inputs[0] = type_of(DTYPE_I32, 2, 2, 16, 0, 0);
    buckets.outputs[0] = type_of(DTYPE_I32, 1, 31, 0, 0, 0);
    ck_assert_status_ok(op_desc_check(&buckets));
    REFUSES(buckets, desc.attrs.buckets.count = 31, "number of buckets", "31");
    REFUSES(buckets, desc.attrs.buckets.count = 2, "number of buckets", "2");
    REFUSES(buckets, desc.attrs.buckets.max_distance = 8, "max_distance", "8");
    REFUSES(buckets, desc.outputs[0].dims[0] = 16, "(16,)", "(31,)");
}

TEST(partial_and_scaled_positions)
{
    struct op_desc turned = desc_of(OP_ROPE);
    turned.inputs[0] = turned.outputs[0] = type_of(DTYPE_F32, 3, 2, 5, 24, 0);
    turned.attrs.rope.head_dim = 12;
    turned.attrs.rope.rotary_dim = 4;
    turned.attrs.rope.theta = 10000;
    ck_assert_status_ok(op_desc_check(&turned));
    REFUSES(turned, desc.attrs.rope.rotary_dim = 14, "rotary_dim is 14", "not possible");
    REFUSES(turned, desc.attrs.rope.positions = 9, "positions is 9", "not possible");
    REFUSES(turned, desc.attrs.rope.rotary_dim = 3, "rotary_dim is 3", "not possible");
    static const float factors[] = {1, 2, 0};
    struct op_desc longer = turned;
    longer.attrs.rope.scaling = ROPE_SCALING_LONGROPE;
    longer.attrs.rope.factor = longer.attrs.rope.magnitude = 2;
    longer.attrs.rope.original_context = 8192;
    longer.attrs.rope.short_factors = (struct op_weights){factors, 2};
    longer.attrs.rope.long_factors = longer.attrs.rope.short_factors;
    REFUSES(longer, desc.attrs.rope.long_factors.count = 1, "1 long factors for 2 pairs", "rope");
    REFUSES(longer, desc.attrs.rope.short_factors.values = NULL, "0 short factors for 2", "rope");
    REFUSES(longer, desc.attrs.rope.short_factors.values = factors + 1, "short is 0", "possible");
    REFUSES(longer, desc.attrs.rope.magnitude = 0, "magnitude is 0", "possible");
    REFUSES(longer, desc.attrs.rope.scaling = ROPE_SCALING_LINEAR, "2 short factors for", "rope");
    turned.attrs.rope.scaling = ROPE_SCALING_YARN;
    turned.attrs.rope.factor = turned.attrs.rope.magnitude = turned.attrs.rope.beta_slow = 2;
    turned.attrs.rope.beta_fast = 32;
    turned.attrs.rope.original_context = 64;
    ck_assert_status_ok(op_desc_check(&turned));
    REFUSES(turned, desc.attrs.rope.theta = 1, "theta is 1", "not possible");
    REFUSES(turned, desc.attrs.rope.beta_fast = 1, "beta_fast is 1", "not possible");
    REFUSES(turned, desc.attrs.rope.magnitude = 0, "magnitude is 0", "not possible");
    REFUSES(turned, desc.attrs.rope.original_context = 0, "original_context is 0", "not possible");
}

TEST(columns)
{
    struct op_desc narrow = same(OP_SLICE, type_of(DTYPE_F32, 3, 2, 5, 7, 0));
    narrow.outputs[0].dims[2] = 3;
    narrow.attrs.slice.dim = 2;
    narrow.attrs.slice.start = 4;
    ck_assert_status_ok(op_desc_check(&narrow));
    REFUSES(narrow, desc.attrs.slice.start = 5, "3 from 5", "dimension 2, of 7");
    REFUSES(narrow, desc.attrs.slice.start = -1, "3 from -1", "dimension 2, of 7");
    REFUSES(narrow, desc.outputs[0].dims[2] = 8, "8 from 4", "dimension 2, of 7");
    REFUSES(narrow, desc.outputs[0].dims[1] = 4, "(2, 4, 3)", "(2, 5, 7)");
    REFUSES(narrow, desc.inputs[0].dim_count = 0, "no dimension 2", "()");
    struct op_desc backward = same(OP_SLICE_BACKWARD, type_of(DTYPE_F32, 2, 5, 7, 0, 0));
    backward.attrs.slice.dim = 1;
    backward.inputs[0].dims[1] = 3;
    ck_assert_status_ok(op_desc_check(&backward));
    REFUSES(backward, desc.inputs[1].dims[1] = 3, "(5, 3)", "(5, 7)");
    REFUSES(backward, desc.attrs.slice.start = INT64_MAX, "3 from", "dimension 1, of 7");
}

TEST(embedding)
{
    struct op_desc forward = desc_of(OP_EMBEDDING), backward = desc_of(OP_EMBEDDING_BACKWARD);
    struct tensor_type tokens = type_of(DTYPE_I32, 2, 8, 16, 0, 0);
    struct tensor_type table = type_of(DTYPE_F32, 2, 100, 32, 0, 0);
    struct tensor_type y = type_of(DTYPE_F32, 3, 8, 16, 32, 0);
    forward.attrs.embedding.padding_index = backward.attrs.embedding.padding_index = -1;
    forward.inputs[0] = backward.inputs[0] = tokens;
    forward.inputs[1] = backward.outputs[0] = table;
    forward.outputs[0] = backward.inputs[1] = y;
    REFUSES(forward, desc.inputs[0].dtype = DTYPE_F32, "indices", "i32");
    REFUSES(forward, desc.inputs[1].dim_count = 1, "(100,)", "2 dimensions");
    REFUSES(forward, desc.outputs[0].dims[2] = 31, "(8, 16, 31)", "(8, 16, 32)");
    REFUSES(forward, desc.outputs[0].dim_count = 2, "(8, 16)", "(8, 16, 32)");
    REFUSES(forward, desc.attrs.embedding.padding_index = 100, "padding_index is 100", "possible");
    REFUSES(forward, desc.attrs.embedding.padding_index = -2, "padding_index is -2", "possible");
    REFUSES(forward, desc.inputs[1].dims[0] = (int64_t)1 << 31, "number of rows", "possible");
    REFUSES(forward, for (int i = 2; i < 6; i++) desc.inputs[0].dims[i] = 1;
            desc.inputs[0].dim_count = 6, "(8, 16, 1, 1, 1, 1)", "too many dimensions");
    REFUSES(forward, desc.inputs[1].dtype = DTYPE_BF16;
            desc.outputs[0].dtype = DTYPE_F32, "f32", "bf16");
    REFUSES(backward, desc.outputs[0].dims[1] = 31, "(8, 16, 32)", "(8, 16, 31)");
    REFUSES(backward, desc.outputs[0].dtype = DTYPE_BF16, "weight's gradient", "f32");
    backward.inputs[1].dtype = DTYPE_BF16; /* its gradient is still f32 */
    backward.accumulate[0] = true;
    ck_assert_status_ok(op_desc_check(&backward));
}

TEST(tokens)
{
    struct op_desc arange = desc_of(OP_ARANGE), mask = desc_of(OP_PADDING_MASK);
    arange.inputs[0] = mask.inputs[0] = type_of(DTYPE_I32, 2, 8, 16, 0, 0);
    arange.outputs[0] = type_of(DTYPE_I32, 1, 16, 0, 0, 0);
    arange.attrs.arange.step = 1;
    mask.outputs[0] = type_of(DTYPE_U8, 2, 8, 16, 0, 0);
    struct op_desc restarted = arange;
    restarted.input_present[1] = true;
    restarted.inputs[1] = restarted.outputs[0] = restarted.inputs[0];
    REFUSES(restarted, desc.inputs[1].dims[0] = 7, "starts", "(8, 16)");
    REFUSES(restarted, desc.outputs[0] = arange.outputs[0], "(16,)", "(8, 16)");
    REFUSES(arange, desc.outputs[0].dims[0] = 8, "(8,)", "(16,)");
    REFUSES(arange, desc.inputs[0].dim_count = 0, "()", "last dimension");
    REFUSES(arange, desc.attrs.arange.start = INT32_MAX - 14, "last element", "2.14748e+09");
    REFUSES(arange, desc.attrs.arange.step = INT32_MIN, "last element", "possible");
    REFUSES(arange, desc.accumulate[0] = true, "output", "accumulated");
    REFUSES(mask, desc.outputs[0].dtype = DTYPE_F32, "mask", "u8");
    REFUSES(mask, desc.outputs[0].dims[1] = 15, "(8, 15)", "(8, 16)");
}

TEST(tokens_of_rows)
{
    struct op_desc tokens = desc_of(OP_TOKENS);
    tokens.inputs[0] = type_of(DTYPE_F32, 2, 8, 16, 0, 0);
    tokens.outputs[0] = type_of(DTYPE_I32, 2, 8, 5, 0, 0);
    tokens.attrs.tokens.start = 11;
    tokens.attrs.tokens.count = OP_MAX_TOKENS;
    ck_assert_status_ok(op_desc_check(&tokens));
    REFUSES(tokens, desc.attrs.tokens.start = 12, "start is 12", "possible");
    REFUSES(tokens, desc.attrs.tokens.start = -1, "start is -1", "possible");
    REFUSES(tokens, desc.attrs.tokens.count = 0, "count is 0", "possible");
    REFUSES(tokens, desc.attrs.tokens.count++, "count is 1.67772e+07", "possible");
    REFUSES(tokens, desc.outputs[0].dims[0] = 7, "(7, 5)", "(8, 5)");
    REFUSES(tokens, desc.outputs[0].dim_count = 1, "(8,)", "2 dimensions");
    REFUSES(tokens, desc.inputs[0].dtype = DTYPE_BF16, "input", "f32");
    REFUSES(tokens, desc.outputs[0].dtype = DTYPE_F32, "output", "i32");
}

static struct op_desc norm(enum op_kind kind)
{
    struct op_desc desc = same(kind, type_of(DTYPE_F32, 3, 2, 5, 7, 0));
    struct tensor_type row = type_of(DTYPE_F32, 1, 7, 0, 0, 0);
    struct tensor_type rows = type_of(DTYPE_F32, 2, 2, 5, 0, 0);
    bool centered = kind == OP_LAYER_NORM || kind == OP_LAYER_NORM_BACKWARD;
    desc.attrs.norm.eps = 1e-5;
    if (kind == OP_LAYER_NORM || kind == OP_RMS_NORM) {
        desc.inputs[1] = row;
        if (centered) desc.inputs[2] = row;
        desc.outputs[1] = rows;
        if (centered) desc.outputs[2] = rows;
    } else {
        desc.inputs[2] = row;
        desc.inputs[3] = rows;
        if (centered) desc.inputs[4] = rows;
        desc.outputs[1] = desc.outputs[2] = row;
    }
    return desc;
}

TEST(norm)
{
    REFUSES(norm(OP_LAYER_NORM), desc.inputs[1].dims[0] = 6, "(6,)", "(7,)");
    REFUSES(norm(OP_LAYER_NORM), desc.inputs[2].dim_count = 0, "bias", "(7,)");
    REFUSES(norm(OP_LAYER_NORM), desc.outputs[1].dims[0] = 3, "mean", "(3, 5)");
    REFUSES(norm(OP_LAYER_NORM), desc.outputs[2].dim_count = 1, "rstd", "(2, 5)");
    REFUSES(norm(OP_LAYER_NORM), desc.outputs[2].dtype = DTYPE_BF16, "rstd", "f32");
    REFUSES(norm(OP_LAYER_NORM), desc.outputs[0].dims[0] = 1, "(1, 5, 7)", "(2, 5, 7)");
    REFUSES(norm(OP_LAYER_NORM), desc.inputs[3].dims[2] = 8, "residual", "(2, 5, 8)");
    REFUSES(norm(OP_LAYER_NORM), desc.outputs[3].dims[1] = 8, "sum", "(2, 8, 7)");
    REFUSES(norm(OP_LAYER_NORM), desc.input_present[3] = false, "sum", "without residual");
    REFUSES(norm(OP_LAYER_NORM), desc.output_present[3] = false, "residual", "without sum");
    REFUSES(norm(OP_LAYER_NORM), desc.attrs.norm.eps = -1e-9, "eps", "-1e-09");
    REFUSES(norm(OP_LAYER_NORM), desc.attrs.norm.eps = NAN, "eps", "nan");
    REFUSES(norm(OP_LAYER_NORM), desc.attrs.norm.eps = INFINITY, "eps", "inf");
    REFUSES(norm(OP_LAYER_NORM), desc.inputs[0].dim_count = 0, "()", "last dimension");
    REFUSES(norm(OP_LAYER_NORM_BACKWARD), desc.attrs.norm.rounded = true, "layer_norm_backward",
            "rounded without sum");
    REFUSES(norm(OP_RMS_NORM), desc.inputs[1].dims[0] = 6, "(6,)", "(7,)");
    REFUSES(norm(OP_RMS_NORM), desc.outputs[1].dims[1] = 6, "rstd", "(2, 6)");
    REFUSES(norm(OP_RMS_NORM), desc.input_present[2] = false, "sum", "without residual");
    REFUSES(norm(OP_RMS_NORM), desc.attrs.norm.eps = -1, "eps", "-1");
    REFUSES(norm(OP_LAYER_NORM_BACKWARD), desc.inputs[0].dims[0] = 3, "(3, 5, 7)", "(2, 5, 7)");
    REFUSES(norm(OP_LAYER_NORM_BACKWARD), desc.inputs[2].dims[0] = 6, "weight", "(6,)");
    REFUSES(norm(OP_LAYER_NORM_BACKWARD), desc.inputs[3].dims[1] = 6, "mean", "(2, 6)");
    REFUSES(norm(OP_LAYER_NORM_BACKWARD), desc.inputs[5].dims[2] = 6, "other", "(2, 5, 6)");
    REFUSES(norm(OP_LAYER_NORM_BACKWARD), desc.outputs[1].dims[0] = 6, "weight's", "(6,)");
    REFUSES(norm(OP_LAYER_NORM_BACKWARD), desc.outputs[2].dims[0] = 6, "bias's", "(6,)");
    REFUSES(norm(OP_LAYER_NORM_BACKWARD), desc.output_present[0] = false, "other gradient",
            "without input's gradient");
    REFUSES(norm(OP_LAYER_NORM_BACKWARD), desc.input_present[3] = false, "mean", "missing");
    REFUSES(norm(OP_RMS_NORM_BACKWARD), desc.inputs[3].dim_count = 1, "rstd", "(2, 5)");
    REFUSES(norm(OP_RMS_NORM_BACKWARD), desc.outputs[1].dtype = DTYPE_BF16, "weight's", "f32");
    struct op_desc half = norm(OP_LAYER_NORM_BACKWARD);
    for (int i = 0; i < 3; i++) half.inputs[i].dtype = DTYPE_BF16;
    half.inputs[5].dtype = half.outputs[0].dtype = DTYPE_BF16;
    REFUSES(half, desc.accumulate[0] = true, "input's gradient", "accumulated");
    REFUSES(half, desc.inputs[5].dtype = DTYPE_F32, "other", "bf16");
    half.input_present[2] = half.input_present[5] = half.output_present[0] = false;
    ck_assert_status_ok(op_desc_check(&half));
}

TEST(products_of_matrices)
{
    struct op_desc product = same(OP_MATMUL, type_of(DTYPE_F32, 3, 2, 3, 4, 0));
    product.inputs[1] = type_of(DTYPE_F32, 3, 2, 4, 5, 0);
    product.outputs[0] = type_of(DTYPE_F32, 3, 2, 3, 5, 0);
    ck_assert_status_ok(op_desc_check(&product));
    ck_assert_double_eq(op_desc_flops(&product), 2 * 2 * 3 * 4 * 5);
    REFUSES(product, desc.inputs[1].dims[1] = 3, "(2, 3, 5)", "(2, 4, 5)");
    REFUSES(product, desc.inputs[0].dims[0] = 1, "(1, 3, 4)", "(2, 3, 4)");
    REFUSES(product, desc.inputs[0].dim_count = 1, "first input", "2 dimensions");
    REFUSES(product, desc.attrs.matmul.second = true, "(2, 4, 5)", "(2, 5, 4)");
    product.attrs.matmul.second = true;
    product.inputs[1] = type_of(DTYPE_F32, 2, 5, 4, 0, 0);
    ck_assert_status_ok(op_desc_check(&product));
}

/* An LSTM, or its gradient, of 2 sequences of 5 rows of 3 columns. */
static struct op_desc recurrent(bool backward)
{
    struct op_desc desc = desc_of(backward ? OP_RECURRENT_BACKWARD : OP_RECURRENT);
    struct tensor_type y = type_of(DTYPE_F32, 3, 2, 5, 3, 0),
                       x = type_of(DTYPE_F32, 3, 2, 5, 12, 0);
    desc.inputs[0] = backward ? y : x;
    desc.inputs[1] = y;
    desc.inputs[backward ? 2 : 1] = type_of(DTYPE_F32, 2, 12, 3, 0, 0);
    if (!backward) desc.inputs[2] = type_of(DTYPE_F32, 1, 12, 0, 0, 0);
    desc.inputs[3] = type_of(DTYPE_F32, 3, 2, 5, 15, 0);
    desc.outputs[0] = backward ? x : y;
    desc.outputs[1] = backward ? x : desc.inputs[3];
    desc.outputs[2] = y;
    return desc;
}

TEST(recurrences)
{
    struct op_desc forward = recurrent(false);
    ck_assert_double_eq(op_desc_flops(&forward), 2 * 10 * 12 * 3);
    REFUSES(recurrent(false), desc.inputs[0].dims[2] = 9, "(2, 5, 9)", "(2, 5, 12)");
    REFUSES(recurrent(false), desc.inputs[1].dims[1] = 4, "weight", "(12, 3)");
    REFUSES(recurrent(false), desc.inputs[2].dims[0] = 9, "bias", "(12,)");
    REFUSES(recurrent(false), desc.outputs[1].dims[2] = 12, "state", "(2, 5, 15)");
    REFUSES(recurrent(false), desc.outputs[0].dim_count = 2, "output", "3 dimensions");
    REFUSES(recurrent(false), desc.accumulate[0] = true, "output", "not added");
    REFUSES(recurrent(false), desc.attrs.recurrent.kind = RECURRENCE_GRU, "(2, 5, 12)",
            "(2, 5, 9)");
    REFUSES(recurrent(true), desc.inputs[0].dims[1] = 4, "gradient", "(2, 5, 3)");
    REFUSES(recurrent(true), desc.inputs[3].dims[2] = 12, "state", "(2, 5, 15)");
    REFUSES(recurrent(true), desc.outputs[1].dims[2] = 9, "hidden", "(2, 5, 12)");
    REFUSES(recurrent(true), desc.outputs[2].dims[2] = 12, "previous", "(2, 5, 3)");
}
