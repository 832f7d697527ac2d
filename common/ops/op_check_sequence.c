/* Checks of the parts of transformers: embeddings, norms, positions, attention, the head. */
#include <math.h>

#include "ops/op_check.h"

/* All dimensions but the last; `x` has at least one. */
static struct tensor_type rows_of(const struct tensor_type *x)
{
    struct tensor_type rows = *x;
    rows.dim_count--;
    return rows;
}

static int64_t last_of(const struct tensor_type *x)
{
    return x->dims[x->dim_count - 1];
}

static status_t check_has_last(const struct op_info *info, struct operand x)
{
    char shape[128];
    if (x.type->dim_count >= 1) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s must have a last dimension", info->name,
                      x.name, tensor_format_shape(x.type, shape));
}

/* Checks an optional operand against the shape required by `source`. */
static status_t check_optional(const struct op_info *info, struct operand operand,
                               const struct tensor_type *expected, struct operand source)
{
    if (operand.type == NULL) return NULL;
    return op_check_shape(info, operand.name, operand.type, expected, source.name, source.type);
}

static status_t check_range(const struct op_info *info, const char *name, double value, bool valid)
{
    if (valid) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s is %g, which is not possible", info->name,
                      name, value);
}

/* The last operand of a sum, a product or a quotient, or SUM_LEADING's output: the last dimensions
 * of the other operands. */
status_t op_check_broadcast(const struct op_desc *desc, const struct op_info *info)
{
    bool sum = desc->kind == OP_SUM_LEADING;
    struct operand whole = op_check_input(desc, 0);
    struct operand part =
        sum ? op_check_output(desc, 0) : op_check_input(desc, desc->input_count - 1);
    int missing = whole.type->dim_count - part.type->dim_count;
    struct tensor_type expected = *whole.type;
    if (missing > 0) {
        expected.dim_count -= missing;
        for (int i = 0; i < expected.dim_count; i++)
            expected.dims[i] = whole.type->dims[i + missing];
    }
    TRY(op_check_shape(info, part.name, part.type, &expected, whole.name, whole.type));
    if (sum) return NULL;
    if (desc->kind == OP_DIV_BACKWARD)
        TRY(op_check_shape(info, info->inputs[1].name, &desc->inputs[1], whole.type, whole.name,
                           whole.type));
    return op_check_shape(info, info->outputs[0].name, &desc->outputs[0], whole.type, whole.name,
                          whole.type);
}

status_t op_check_scale(const struct op_desc *desc, const struct op_info *info)
{
    double factor = desc->attrs.scale.factor, offset = desc->attrs.scale.offset;
    bool scale = desc->kind == OP_SCALE;
    TRY(check_range(info, "factor", factor, isfinite((float)factor)));
    TRY(check_range(info, "offset", offset, scale ? isfinite((float)offset) : offset == 0));
    return op_check_same_shapes(desc, info);
}

status_t op_check_elements(const struct op_desc *desc, const struct op_info *info)
{
    double parameter = desc->attrs.function.parameter;
    TRY(check_range(info, "parameter", parameter, isfinite((float)parameter)));
    return op_check_same_shapes(desc, info);
}

/* The last dimensions of y, and before them all or none of its first ones. */
static status_t check_factor(const struct op_info *info, struct operand factor, struct operand y,
                             int64_t rows, int64_t columns)
{
    struct tensor_type expected = *y.type;
    int kept = factor.type->dim_count == 2 ? 2 : y.type->dim_count;
    expected.dims[kept - 2] = rows;
    expected.dims[kept - 1] = columns;
    expected.dim_count = kept;
    return op_check_shape(info, factor.name, factor.type, &expected, y.name, y.type);
}

status_t op_check_matmul(const struct op_desc *desc, const struct op_info *info)
{
    struct operand a = op_check_input(desc, 0), b = op_check_input(desc, 1);
    struct operand y = op_check_output(desc, 0);
    bool first = desc->attrs.matmul.first, second = desc->attrs.matmul.second;
    if (a.type->dim_count < 2) return op_check_rank(info, a.name, a.type, 2);
    if (b.type->dim_count < 2) return op_check_rank(info, b.name, b.type, 2);
    if (y.type->dim_count < 2) return op_check_rank(info, y.name, y.type, 2);
    int64_t m = y.type->dims[y.type->dim_count - 2], n = last_of(y.type);
    int64_t k = a.type->dims[a.type->dim_count - (first ? 2 : 1)];
    TRY(check_factor(info, a, y, first ? k : m, first ? m : k));
    return check_factor(info, b, y, second ? n : k, second ? k : n);
}

status_t op_check_embedding(const struct op_desc *desc, const struct op_info *info)
{
    bool forward = desc->kind == OP_EMBEDDING;
    struct operand indices = op_check_input(desc, 0);
    struct operand weight = forward ? op_check_input(desc, 1) : op_check_output(desc, 0);
    struct operand y = forward ? op_check_output(desc, 0) : op_check_input(desc, 1);
    TRY(op_check_rank(info, weight.name, weight.type, 2));
    TRY(check_range(info, "the number of rows", (double)weight.type->dims[0],
                    weight.type->dims[0] <= INT32_MAX));
    int64_t padding = desc->attrs.embedding.padding_index;
    TRY(check_range(info, "padding_index", (double)padding,
                    padding >= -1 && padding < weight.type->dims[0]));
    struct tensor_type expected = *indices.type;
    char shape[128];
    if (expected.dim_count >= TENSOR_MAX_DIMS)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s has too many dimensions", info->name,
                          indices.name, tensor_format_shape(indices.type, shape));
    expected.dims[expected.dim_count++] = weight.type->dims[1];
    return op_check_shape(info, y.name, y.type, &expected, indices.name, indices.type);
}

/* The first two dimensions are those of `x`. */
static status_t check_starts(const struct op_info *info, struct operand starts, struct operand x)
{
    if (starts.type == NULL) return NULL;
    struct tensor_type expected = *x.type;
    expected.dtype = DTYPE_I32;
    expected.dim_count = 2;
    if (x.type->dim_count < 2) return op_check_rank(info, x.name, x.type, 2);
    return check_optional(info, starts, &expected, x);
}

status_t op_check_arange(const struct op_desc *desc, const struct op_info *info)
{
    struct operand x = op_check_input(desc, 0);
    TRY(check_has_last(info, x));
    int64_t time = last_of(x.type);
    double end = desc->attrs.arange.start + (double)desc->attrs.arange.step * (double)(time - 1);
    TRY(check_range(info, "the last element", end, end >= INT32_MIN && end <= INT32_MAX));
    struct tensor_type expected = tensor_type_make(DTYPE_I32, 1, &time);
    struct operand starts = op_check_input(desc, 1);
    if (starts.type != NULL) {
        TRY(check_starts(info, starts, x));
        expected = *starts.type;
    }
    return op_check_shape(info, info->outputs[0].name, &desc->outputs[0], &expected, x.name,
                          x.type);
}

status_t op_check_token_positions(const struct op_desc *desc, const struct op_info *info)
{
    struct operand tokens = op_check_input(desc, 0);
    TRY(op_check_rank(info, tokens.name, tokens.type, 2));
    double id = desc->attrs.padding_mask.id, end = id + (double)tokens.type->dims[1];
    TRY(check_range(info, "id", id, id >= 0));
    TRY(check_range(info, "the last position", end, end <= INT32_MAX));
    return op_check_same_shapes(desc, info);
}

status_t op_check_tokens(const struct op_desc *desc, const struct op_info *info)
{
    struct operand x = op_check_input(desc, 0), y = op_check_output(desc, 0);
    TRY(op_check_rank(info, x.name, x.type, 2));
    TRY(op_check_rank(info, y.name, y.type, 2));
    int64_t start = desc->attrs.tokens.start, count = desc->attrs.tokens.count;
    bool inside = start >= 0 && start <= x.type->dims[1] - y.type->dims[1];
    TRY(check_range(info, "start", (double)start, inside));
    TRY(check_range(info, "count", (double)count, count >= 1 && count <= OP_MAX_TOKENS));
    struct tensor_type expected = *y.type;
    expected.dims[0] = x.type->dims[0];
    return op_check_shape(info, y.name, y.type, &expected, x.name, x.type);
}

/* Operands of a norm by role; absent where the op does not have them. */
struct norm {
    struct operand x, y, weight, bias, mean, rstd, first_other, second_other;
};

static struct norm norm_of(const struct op_desc *desc)
{
    switch (desc->kind) {
    case OP_LAYER_NORM:
        return (struct norm){.x = op_check_input(desc, 0),
                             .y = op_check_output(desc, 0),
                             .weight = op_check_input(desc, 1),
                             .bias = op_check_input(desc, 2),
                             .mean = op_check_output(desc, 1),
                             .rstd = op_check_output(desc, 2),
                             .first_other = op_check_input(desc, 3),
                             .second_other = op_check_output(desc, 3)};
    case OP_LAYER_NORM_BACKWARD:
        return (struct norm){.x = op_check_input(desc, 1),
                             .y = op_check_input(desc, 0),
                             .weight = op_check_input(desc, 2),
                             .bias = op_check_output(desc, 2),
                             .mean = op_check_input(desc, 3),
                             .rstd = op_check_input(desc, 4),
                             .first_other = op_check_input(desc, 5),
                             .second_other = op_check_output(desc, 0)};
    case OP_RMS_NORM:
        return (struct norm){.x = op_check_input(desc, 0),
                             .y = op_check_output(desc, 0),
                             .weight = op_check_input(desc, 1),
                             .rstd = op_check_output(desc, 1),
                             .first_other = op_check_input(desc, 2),
                             .second_other = op_check_output(desc, 2)};
    default:
        return (struct norm){.x = op_check_input(desc, 1),
                             .y = op_check_input(desc, 0),
                             .weight = op_check_input(desc, 2),
                             .rstd = op_check_input(desc, 3),
                             .first_other = op_check_input(desc, 4),
                             .second_other = op_check_output(desc, 0)};
    }
}

/* A sum requires a residual; the gradient of x includes the other gradient. */
static status_t check_pair(const struct op_desc *desc, const struct op_info *info,
                           const struct norm *norm)
{
    bool forward = desc->kind == OP_LAYER_NORM || desc->kind == OP_RMS_NORM;
    bool first = norm->first_other.type != NULL, second = norm->second_other.type != NULL;
    if (forward ? first == second : second || !first) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s: %s without %s", info->name,
                      first ? norm->first_other.name : norm->second_other.name,
                      first ? norm->second_other.name : norm->first_other.name);
}

/* Whether the op is a norm that says a sum. */
static bool has_sum(const struct op_desc *desc)
{
    if (desc->kind == OP_LAYER_NORM) return desc->output_present[3];
    return desc->kind == OP_RMS_NORM && desc->output_present[2];
}

status_t op_check_norm(const struct op_desc *desc, const struct op_info *info)
{
    TRY(check_has_last(info, op_check_input(desc, 0)));
    if (desc->kind == OP_SOFTMAX || desc->kind == OP_SOFTMAX_BACKWARD)
        return op_check_same_shapes(desc, info);
    double eps = desc->attrs.norm.eps;
    TRY(check_range(info, "eps", eps, eps >= 0 && isfinite(eps)));
    if (desc->attrs.norm.rounded && !has_sum(desc))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: rounded without sum", info->name);
    struct norm norm = norm_of(desc);
    TRY(check_pair(desc, info, &norm));
    TRY(check_has_last(info, norm.x));
    TRY(op_check_shape(info, norm.y.name, norm.y.type, norm.x.type, norm.x.name, norm.x.type));
    int64_t columns = last_of(norm.x.type);
    struct tensor_type row = tensor_type_make(DTYPE_F32, 1, &columns), rows = rows_of(norm.x.type);
    TRY(check_optional(info, norm.weight, &row, norm.x));
    TRY(check_optional(info, norm.bias, &row, norm.x));
    if (desc->kind == OP_LAYER_NORM_BACKWARD || desc->kind == OP_RMS_NORM_BACKWARD)
        TRY(check_optional(info, op_check_output(desc, 1), &row, norm.x));
    TRY(check_optional(info, norm.mean, &rows, norm.x));
    TRY(check_optional(info, norm.rstd, &rows, norm.x));
    TRY(check_optional(info, norm.first_other, norm.x.type, norm.x));
    return check_optional(info, norm.second_other, norm.x.type, norm.x);
}

/* One factor for each pair of columns that is turned. */
static status_t check_factors(const struct op_desc *desc, const struct op_info *info)
{
    const struct op_weights *lists[] = {&desc->attrs.rope.short_factors,
                                        &desc->attrs.rope.long_factors};
    int64_t rotary = desc->attrs.rope.rotary_dim;
    int64_t pairs = (rotary > 0 ? rotary : desc->attrs.rope.head_dim) / 2;
    if (desc->attrs.rope.scaling != ROPE_SCALING_LONGROPE) pairs = 0;
    for (int i = 0; i < 2; i++) {
        int64_t count = lists[i]->values != NULL ? lists[i]->count : 0;
        if (count != pairs)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: %lld %s factors for %lld pairs",
                              info->name, (long long)count, i == 0 ? "short" : "long",
                              (long long)pairs);
        for (int64_t k = 0; k < count; k++) {
            float factor = lists[i]->values[k];
            TRY(check_range(info, i == 0 ? "short" : "long", (double)factor,
                            factor > 0 && isfinite(factor)));
        }
    }
    return NULL;
}

status_t op_check_rope(const struct op_desc *desc, const struct op_info *info)
{
    struct operand x = op_check_input(desc, 0);
    TRY(op_check_rank(info, x.name, x.type, 3));
    int64_t head = desc->attrs.rope.head_dim;
    TRY(check_range(info, "head_dim", (double)head,
                    head >= 2 && head % 2 == 0 && x.type->dims[2] % head == 0));
    int64_t rotary = desc->attrs.rope.rotary_dim;
    TRY(check_range(info, "rotary_dim", (double)rotary,
                    rotary >= 0 && rotary % 2 == 0 && rotary <= head));
    double theta = desc->attrs.rope.theta, factor = desc->attrs.rope.factor;
    TRY(check_range(info, "theta", theta, theta > 0 && isfinite(theta)));
    enum rope_scaling scaling = desc->attrs.rope.scaling;
    if (scaling != ROPE_SCALING_NONE)
        TRY(check_range(info, "factor", factor, factor > 0 && isfinite(factor)));
    if (scaling == ROPE_SCALING_LLAMA3) {
        double low = desc->attrs.rope.low_freq_factor, high = desc->attrs.rope.high_freq_factor;
        TRY(check_range(info, "low_freq_factor", low, low > 0 && isfinite(low)));
        TRY(check_range(info, "high_freq_factor", high, high > low && isfinite(high)));
    }
    if (scaling == ROPE_SCALING_YARN) {
        double fast = desc->attrs.rope.beta_fast, slow = desc->attrs.rope.beta_slow;
        TRY(check_range(info, "theta", theta, theta > 1));
        TRY(check_range(info, "beta_slow", slow, slow > 0 && isfinite(slow)));
        TRY(check_range(info, "beta_fast", fast, fast >= slow && isfinite(fast)));
    }
    double magnitude = desc->attrs.rope.magnitude;
    if (scaling >= ROPE_SCALING_YARN)
        TRY(check_range(info, "magnitude", magnitude, magnitude > 0 && isfinite((float)magnitude)));
    TRY(check_factors(desc, info));
    int64_t context = desc->attrs.rope.original_context;
    if (scaling >= ROPE_SCALING_LLAMA3)
        TRY(check_range(info, "original_context", (double)context,
                        context >= 1 && context <= INT32_MAX));
    TRY(check_starts(info, op_check_input(desc, 1), x));
    int64_t positions = desc->attrs.rope.positions;
    TRY(check_range(info, "positions", (double)positions,
                    positions == 0 || (positions >= x.type->dims[1] && positions <= INT32_MAX &&
                                       desc->input_present[1])));
    struct operand y = op_check_output(desc, 0);
    return op_check_shape(info, y.name, y.type, x.type, x.name, x.type);
}

/* One row for each distance of a key from a query. */
static int64_t distances_of(int64_t time)
{
    return 2 * time - 1;
}

status_t op_check_distance_buckets(const struct op_desc *desc, const struct op_info *info)
{
    struct operand tokens = op_check_input(desc, 0);
    TRY(check_has_last(info, tokens));
    double count = desc->attrs.buckets.count, far = desc->attrs.buckets.max_distance;
    TRY(check_range(info, "the number of buckets", count,
                    count >= 4 && desc->attrs.buckets.count % 2 == 0));
    TRY(check_range(info, "max_distance", far, far > count / 4));
    int64_t distances = distances_of(last_of(tokens.type));
    struct tensor_type expected = tensor_type_make(DTYPE_I32, 1, &distances);
    return op_check_shape(info, info->outputs[0].name, &desc->outputs[0], &expected, tokens.name,
                          tokens.type);
}

static status_t check_alibi(const struct op_desc *desc, const struct op_info *info)
{
    double alibi = desc->attrs.attention.alibi;
    bool bias = desc->input_present[desc->kind == OP_ATTENTION ? 4 : 7];
    TRY(check_range(info, "alibi", alibi, alibi >= 0 && alibi <= 64));
    if (alibi > 0 && (!desc->attrs.attention.causal || bias))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: alibi needs causal attention without a bias", info->name);
    if (alibi == 0 && desc->attrs.attention.rounded)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: rounded without alibi", info->name);
    return NULL;
}

/* Operands of attention by role, forward or backward; the gradients have the same shapes. */
static status_t check_heads(const struct op_desc *desc, const struct op_info *info,
                            struct operand q)
{
    int64_t heads = desc->attrs.attention.heads, kv_heads = desc->attrs.attention.kv_heads;
    TRY(check_range(info, "heads", (double)heads, heads >= 1 && heads <= INT32_MAX));
    TRY(check_range(info, "kv_heads", (double)kv_heads,
                    kv_heads >= 1 && kv_heads <= heads && heads % kv_heads == 0));
    double scale = desc->attrs.attention.scale, p = desc->attrs.attention.p;
    TRY(check_range(info, "scale", scale, scale >= 0 && isfinite(scale)));
    TRY(check_range(info, "p", p, p >= 0 && p < 1));
    double softcap = desc->attrs.attention.softcap;
    int64_t window = desc->attrs.attention.window;
    TRY(check_range(info, "softcap", softcap, softcap >= 0 && isfinite((float)softcap)));
    TRY(check_range(info, "window", (double)window, window >= 0));
    TRY(check_alibi(desc, info));
    TRY(op_check_rank(info, q.name, q.type, 3));
    double scores =
        (double)q.type->dims[0] * (double)heads * (double)q.type->dims[1] * (double)q.type->dims[1];
    /* For dropout's generator, as in check_dropout. */
    if (p > 0) TRY(check_range(info, "the number of probabilities", scores, scores <= 0x1p34));
    return NULL;
}

static status_t check_bias(const struct op_desc *desc, const struct op_info *info, struct operand q)
{
    bool forward = desc->kind == OP_ATTENTION;
    struct operand bias = op_check_input(desc, forward ? 4 : 7);
    struct operand dbias = forward ? bias : op_check_output(desc, 3);
    struct tensor_type expected =
        tensor_type_make(DTYPE_F32, 2,
                         (int64_t[]){distances_of(q.type->dims[1]), desc->attrs.attention.heads});
    if ((dbias.type == NULL) != (bias.type == NULL))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: gradients must be those of the inputs",
                          info->name);
    TRY(check_optional(info, bias, &expected, q));
    return check_optional(info, dbias, &expected, q);
}

/* The cache of a causal attention, whose rows have positions. */
static status_t check_cache(const struct op_desc *desc, const struct op_info *info,
                            struct operand q, int64_t width)
{
    struct operand keys = op_check_output(desc, 2), values = op_check_output(desc, 3);
    if (desc->kind != OP_ATTENTION || (keys.type == NULL && values.type == NULL)) return NULL;
    const struct operand *only = keys.type != NULL ? &keys : &values;
    if (keys.type == NULL || values.type == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: a cache of %s only", info->name,
                          only->name);
    if (!desc->attrs.attention.causal || !desc->input_present[5] || desc->input_present[3] ||
        desc->input_present[4] || desc->output_present[1] || desc->attrs.attention.p > 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: a cache needs causal attention and starts, and has neither mask, "
                          "bias, log-sum-exp nor dropout",
                          info->name);
    TRY(op_check_rank(info, keys.name, keys.type, 3));
    struct tensor_type expected = *q.type;
    expected.dims[1] = keys.type->dims[1];
    expected.dims[2] = width;
    TRY(op_check_shape(info, keys.name, keys.type, &expected, q.name, q.type));
    return op_check_shape(info, values.name, values.type, &expected, q.name, q.type);
}

status_t op_check_attention(const struct op_desc *desc, const struct op_info *info)
{
    bool forward = desc->kind == OP_ATTENTION;
    int first = forward ? 0 : 1;
    struct operand q = op_check_input(desc, first), k = op_check_input(desc, first + 1),
                   v = op_check_input(desc, first + 2);
    struct operand mask = op_check_input(desc, forward ? 3 : 6);
    struct operand y = forward ? op_check_output(desc, 0) : op_check_input(desc, 4);
    struct operand lse = forward ? op_check_output(desc, 1) : op_check_input(desc, 5);
    TRY(check_heads(desc, info, q));
    if ((k.type == NULL) != (v.type == NULL))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s without %s", info->name,
                          k.type == NULL ? v.name : k.name, k.type == NULL ? k.name : v.name);
    int64_t heads = desc->attrs.attention.heads, kv_heads = desc->attrs.attention.kv_heads;
    int64_t width = last_of(q.type), parts = k.type == NULL ? heads + 2 * kv_heads : heads;
    char shape[128];
    if (width % parts != 0)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %s %s is not %lld heads wide", info->name,
                          q.name, tensor_format_shape(q.type, shape), (long long)parts);
    struct tensor_type expected = *q.type;
    expected.dims[2] = width / parts * kv_heads;
    TRY(check_optional(info, k, &expected, q));
    TRY(check_optional(info, v, &expected, q));
    struct operand dk = forward ? k : op_check_output(desc, 1);
    struct operand dv = forward ? v : op_check_output(desc, 2);
    if ((dk.type == NULL) != (k.type == NULL) || (dv.type == NULL) != (v.type == NULL))
        return status_new(STATUS_INVALID_ARGUMENT, "%s: gradients must be those of the inputs",
                          info->name);
    TRY(check_optional(info, dk, &expected, q));
    TRY(check_optional(info, dv, &expected, q));
    expected.dims[2] = width / parts * heads;
    TRY(op_check_shape(info, y.name, y.type, &expected, q.name, q.type));
    if (!forward) {
        struct operand dy = op_check_input(desc, 0), dq = op_check_output(desc, 0);
        TRY(op_check_shape(info, dy.name, dy.type, &expected, q.name, q.type));
        TRY(op_check_shape(info, dq.name, dq.type, q.type, q.name, q.type));
    }
    expected = tensor_type_make(DTYPE_F32, 3, (int64_t[]){q.type->dims[0], heads, q.type->dims[1]});
    TRY(check_optional(info, lse, &expected, q));
    expected = tensor_type_make(DTYPE_U8, 2, q.type->dims);
    TRY(check_optional(info, mask, &expected, q));
    TRY(check_bias(desc, info, q));
    TRY(check_cache(desc, info, q, width / parts * kv_heads));
    return check_starts(info, op_check_input(desc, forward ? 5 : 8), q);
}

status_t op_check_head(const struct op_desc *desc, const struct op_info *info)
{
    struct operand x = op_check_input(desc, 0), weight = op_check_input(desc, 1);
    if (desc->attrs.loss.label_smoothing != 0)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: label_smoothing is %g, expected 0",
                          info->name, desc->attrs.loss.label_smoothing);
    TRY(check_has_last(info, x));
    TRY(op_check_rank(info, weight.name, weight.type, 2));
    int64_t classes = weight.type->dims[0];
    TRY(check_range(info, "the number of classes", (double)classes, classes <= INT32_MAX));
    struct tensor_type matrix =
        tensor_type_make(DTYPE_F32, 2, (int64_t[]){classes, last_of(x.type)});
    struct tensor_type column = tensor_type_make(DTYPE_F32, 1, &classes), rows = rows_of(x.type);
    struct tensor_type one = tensor_type_make(DTYPE_F32, 1, (int64_t[]){1});
    TRY(op_check_shape(info, weight.name, weight.type, &matrix, x.name, x.type));
    TRY(check_optional(info, op_check_input(desc, 2), &column, weight));
    TRY(check_optional(info, op_check_input(desc, 3), &rows, x));
    TRY(check_optional(info, op_check_output(desc, 0), &one, x));
    if (desc->kind == OP_LINEAR_CROSS_ENTROPY)
        return check_optional(info, op_check_output(desc, 1), &one, x);
    TRY(check_optional(info, op_check_output(desc, 1), x.type, x));
    TRY(check_optional(info, op_check_output(desc, 2), &matrix, x));
    return check_optional(info, op_check_output(desc, 3), &column, weight);
}
