/*
 * Gradients of the reference library's ops of sequences against central differences of its own
 * forward pass: for a random weighting r of the output, d(sum(r * y)) / dx must equal the backward
 * op's result for r.
 */
#include "kernel_fixture.h"
#include "tests/testing.h"

enum { MOST = 2048 };

static struct random rng;

/* A forward op at a point, with all its results, and the weighting of output 0. */
struct forward {
    struct op_desc desc;
    float inputs[OP_MAX_INPUTS][MOST], outputs[OP_MAX_OUTPUTS][MOST], weighting[MOST];
    int32_t indices[MOST]; /* input 0 of an embedding */
};

static struct forward f;

static void run_forward(void)
{
    struct kernel_call call = {0};
    for (int i = 0; i < OP_MAX_INPUTS; i++) call.inputs[i] = f.inputs[i];
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) call.outputs[i] = f.outputs[i];
    if (f.desc.inputs[0].dtype == DTYPE_I32) call.inputs[0] = f.indices;
    run_once(KERNELS_REFERENCE, &f.desc, call);
}

static double weighted_output(void)
{
    double sum = 0;
    run_forward();
    int64_t count = tensor_element_count(&f.desc.outputs[0]);
    for (int64_t i = 0; i < count; i++) sum += (double)f.weighting[i] * f.outputs[0][i];
    return sum;
}

static void check_gradient(int varied, const float *gradient)
{
    int64_t count = tensor_element_count(&f.desc.inputs[varied]);
    double largest = 1;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(gradient[i]));
    for (int64_t i = 0; i < count; i++) {
        float *value = &f.inputs[varied][i], kept = *value;
        *value = kept + 0.01f;
        double above = weighted_output(), width = *value;
        *value = kept - 0.01f;
        width -= *value;
        double slope = (above - weighted_output()) / width;
        *value = kept;
        ck_assert_msg(fabs(slope - gradient[i]) <= 3e-4 * largest,
                      "%s: the gradient of %s at %lld is %g, the slope %g",
                      op_info_get(f.desc.kind)->name, op_info_get(f.desc.kind)->inputs[varied].name,
                      (long long)i, gradient[i], slope);
    }
    weighted_output(); /* the outputs of the point itself */
}

static void start(enum op_kind kind, struct tensor_type type)
{
    f.desc = desc_of(kind);
    for (int i = 0; i < OP_MAX_INPUTS; i++) f.desc.inputs[i] = type;
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) f.desc.outputs[i] = type;
    for (int i = 0; i < OP_MAX_INPUTS; i++) fill_random(&rng, f.inputs[i], MOST);
    fill_random(&rng, f.weighting, MOST);
}

/* A backward op whose operands are all of the forward's type. */
static void run_backward(enum op_kind kind, const float *const *inputs, float *first, float *second)
{
    struct op_desc desc = desc_of(kind);
    struct kernel_call call = {.outputs = {first, second}};
    desc.attrs = f.desc.attrs;
    for (int i = 0; i < desc.input_count; i++) {
        desc.inputs[i] = f.desc.inputs[0];
        call.inputs[i] = inputs[i];
    }
    desc.outputs[0] = desc.outputs[1] = f.desc.inputs[0];
    run_once(KERNELS_REFERENCE, &desc, call);
}

TESTS_BELOW(.timeout = 120);

LOOP_TEST(activations, 0, 11)
{
    static const enum op_kind kinds[][2] = {{OP_GELU, OP_GELU_BACKWARD},
                                            {OP_GELU, OP_GELU_BACKWARD},
                                            {OP_SILU, OP_SILU_BACKWARD},
                                            {OP_SILU_MUL, OP_SILU_MUL_BACKWARD},
                                            {OP_SOFTMAX, OP_SOFTMAX_BACKWARD},
                                            {OP_TANH, OP_TANH_BACKWARD},
                                            {OP_SIGMOID, OP_SIGMOID_BACKWARD},
                                            {OP_SQUARED_RELU, OP_SQUARED_RELU_BACKWARD},
                                            {OP_SCALE, OP_SCALE},
                                            {OP_GELU_MUL, OP_GELU_MUL_BACKWARD},
                                            {OP_GELU_MUL, OP_GELU_MUL_BACKWARD}};
    static float first[MOST], second[MOST];
    start(kinds[_i][0], type_of(DTYPE_F32, 3, 2, 5, 7, 0));
    f.desc.attrs.gelu.tanh = _i == 1 || _i == 10;
    bool gated = kinds[_i][0] == OP_SILU_MUL || kinds[_i][0] == OP_GELU_MUL,
         softmax = kinds[_i][0] == OP_SOFTMAX;
    bool from_output = softmax || kinds[_i][0] == OP_TANH || kinds[_i][0] == OP_SIGMOID;
    if (kinds[_i][0] == OP_SCALE) f.desc.attrs.scale.factor = -1.75;
    for (int i = 0; i < MOST; i++) f.inputs[0][i] *= from_output ? 2 : 5;
    run_forward();
    run_backward(kinds[_i][1],
                 (const float *[]){f.weighting, from_output ? f.outputs[0] : f.inputs[0],
                                   f.inputs[1]},
                 first, second);
    check_gradient(0, first);
    if (gated) check_gradient(1, second);
}

/* LSTM and GRU, in both directions of time. */
LOOP_TEST(recurrences, 0, 4)
{
    enum { WIDTH = 4 };
    static float dx[MOST];
    int64_t gates = _i & 1 ? 3 : 4;
    struct tensor_type y = type_of(DTYPE_F32, 3, 2, 5, WIDTH, 0), wide = y;
    start(OP_RECURRENT, y);
    f.desc.attrs.recurrent.kind = _i & 1 ? RECURRENCE_GRU : RECURRENCE_LSTM;
    f.desc.attrs.recurrent.reverse = _i & 2;
    wide.dims[2] *= gates;
    f.desc.inputs[0] = wide;
    f.desc.inputs[1] = type_of(DTYPE_F32, 2, gates * WIDTH, WIDTH, 0, 0);
    f.desc.inputs[2] = type_of(DTYPE_F32, 1, gates * WIDTH, 0, 0, 0);
    f.desc.outputs[1].dims[2] *= gates + 1;
    run_forward();
    struct op_desc desc = desc_of(OP_RECURRENT_BACKWARD);
    desc.attrs = f.desc.attrs;
    desc.inputs[0] = desc.inputs[1] = y;
    desc.inputs[2] = f.desc.inputs[1];
    desc.inputs[3] = f.desc.outputs[1];
    desc.outputs[0] = wide;
    desc.output_present[1] = desc.output_present[2] = false;
    run_once(KERNELS_REFERENCE, &desc,
             (struct kernel_call){.inputs = {f.weighting, f.outputs[0], f.inputs[1], f.outputs[1]},
                                  .outputs = {dx}});
    check_gradient(0, dx);
}

/* Away from the kinks; a logarithm, a root and a power of numbers above 0. */
LOOP_TEST(functions, 0, FUNCTION_AT_LEAST + 1)
{
    static float dx[MOST];
    start(OP_FUNCTION, type_of(DTYPE_F32, 2, 5, 7, 0, 0));
    f.desc.attrs.function.kind = (enum op_function)_i;
    f.desc.attrs.function.parameter = _i == FUNCTION_POW ? 2.5 : _i > FUNCTION_ABS ? 3 : 0.3;
    bool positive = _i == FUNCTION_LOG || _i == FUNCTION_SQRT || _i == FUNCTION_POW;
    for (int i = 0; i < MOST; i++) {
        float x = 4 * f.inputs[0][i];
        if (positive) x = fabsf(x) + 0.5f;
        for (int kink = -3; kink <= 6; kink += 3)
            if (fabsf(x - (float)kink) < 0.05f) x += 0.1f;
        f.inputs[0][i] = _i == FUNCTION_EXP ? x / 4 : x;
    }
    run_forward();
    run_backward(OP_FUNCTION_BACKWARD, (const float *[]){f.weighting, f.inputs[0]}, dx, NULL);
    check_gradient(0, dx);
}

/* Some columns; the gradient of the others is 0, or what it was. */
LOOP_TEST(columns, 0, 2)
{
    static float dx[MOST], other[MOST];
    start(OP_SLICE, type_of(DTYPE_F32, 3, 2, 3, 7, 0));
    f.desc.outputs[0].dims[2] = 4;
    f.desc.attrs.slice.dim = 2;
    f.desc.attrs.slice.start = 2;
    struct op_desc backward = desc_of(OP_SLICE_BACKWARD);
    backward.attrs = f.desc.attrs;
    backward.inputs[0] = f.desc.outputs[0];
    backward.inputs[1] = backward.outputs[0] = f.desc.inputs[0];
    backward.input_present[1] = _i == 1;
    fill_random(&rng, other, MOST);
    run_once(KERNELS_REFERENCE, &backward,
             (struct kernel_call){.inputs = {f.weighting, other}, .outputs = {dx}});
    for (int i = 0; i < 42 && _i == 1; i++) dx[i] -= other[i];
    check_gradient(0, dx);
}

/* Products and quotients, whose second operand repeats. */
LOOP_TEST(arithmetic, 0, 3)
{
    static float da[MOST], whole[MOST], db[MOST];
    static const enum op_kind kinds[] = {OP_MUL, OP_DIV, OP_RECIPROCAL};
    struct tensor_type type = type_of(DTYPE_F32, 3, 3, 4, 5, 0), part = type;
    start(kinds[_i], type);
    f.desc.attrs.scale.factor = 1.5;
    if (_i < 2) f.desc.inputs[1] = part = type_of(DTYPE_F32, 2, 4, 5, 0, 0);
    for (int i = 0; i < MOST; i++) f.inputs[_i == 1][i] += f.inputs[_i == 1][i] < 0 ? -1 : 1;
    run_forward();
    struct op_desc other = f.desc, sum = desc_of(OP_SUM_LEADING);
    struct kernel_call call = {.inputs = {f.weighting, f.inputs[1]}, .outputs = {da}};
    if (_i < 2) run_once(KERNELS_REFERENCE, &f.desc, call); /* dy * b, dy / b */
    if (_i == 0) {
        other.inputs[1] = type;
        call = (struct kernel_call){.inputs = {f.weighting, f.inputs[0]}, .outputs = {whole}};
    } else {
        other = desc_of(OP_DIV_BACKWARD);
        other.inputs[0] = other.inputs[1] = other.outputs[0] = type;
        other.inputs[2] = part;
        call = (struct kernel_call){.inputs = {f.weighting, f.outputs[0], f.inputs[_i == 1]},
                                    .outputs = {whole}};
    }
    run_once(KERNELS_REFERENCE, &other, call);
    if (_i == 2) {
        check_gradient(0, whole);
        return;
    }
    sum.inputs[0] = type;
    sum.outputs[0] = part;
    run_once(KERNELS_REFERENCE, &sum, (struct kernel_call){.inputs = {whole}, .outputs = {db}});
    check_gradient(0, da);
    check_gradient(1, db);
}

/* A sum's gradient with the dimensions that its operand lacks. */
TEST(broadcast)
{
    static float db[MOST];
    start(OP_ADD, type_of(DTYPE_F32, 4, 2, 3, 4, 5));
    f.desc.inputs[1] = type_of(DTYPE_F32, 2, 4, 5, 0, 0);
    struct op_desc sum = desc_of(OP_SUM_LEADING);
    sum.inputs[0] = f.desc.inputs[0];
    sum.outputs[0] = f.desc.inputs[1];
    run_once(KERNELS_REFERENCE, &sum,
             (struct kernel_call){.inputs = {f.weighting}, .outputs = {db}});
    check_gradient(0, f.weighting);
    check_gradient(1, db);
}

/* Rows that occur often, once and never, and one that is padding. */
TEST(embedding)
{
    static float dweight[MOST];
    start(OP_EMBEDDING, type_of(DTYPE_F32, 2, 6, 5, 0, 0));
    f.desc.inputs[0] = type_of(DTYPE_I32, 2, 2, 4, 0, 0);
    f.desc.outputs[0] = type_of(DTYPE_F32, 3, 2, 4, 5, 0);
    memcpy(f.indices, (int32_t[]){3, 0, 3, 5, 3, 1, 0, 3}, 8 * sizeof *f.indices);
    f.desc.attrs.embedding.padding_index = -1;
    struct op_desc backward = desc_of(OP_EMBEDDING_BACKWARD);
    backward.attrs = f.desc.attrs;
    backward.inputs[0] = f.desc.inputs[0];
    backward.inputs[1] = f.desc.outputs[0];
    backward.outputs[0] = f.desc.inputs[1];
    struct kernel_call call = {.inputs = {f.indices, f.weighting}, .outputs = {dweight}};
    run_once(KERNELS_REFERENCE, &backward, call);
    check_gradient(1, dweight);
    float kept = dweight[5]; /* of row 1 */
    ck_assert_float_ne(dweight[15], 0);
    backward.attrs.embedding.padding_index = 3;
    run_once(KERNELS_REFERENCE, &backward, call);
    for (int i = 15; i < 20; i++) ck_assert_float_eq(dweight[i], 0);
    ck_assert_float_eq(dweight[5], kept);
}

/* Both norms, with and without parameters; the sum with a residual has the gradient of x twice. */
LOOP_TEST(norms, 0, 16)
{
    static float dx[MOST], dweight[MOST], dbias[MOST], total[MOST];
    bool centered = _i & 1, weighted = _i & 2, residual = _i & 4;
    int residual_input = centered ? 3 : 2, rstd = centered ? 2 : 1, sum = centered ? 3 : 2;
    struct tensor_type type = type_of(DTYPE_F32, 3, 2, 3, 9, 0);
    struct tensor_type row = type_of(DTYPE_F32, 1, 9, 0, 0, 0);
    struct tensor_type rows = type_of(DTYPE_F32, 2, 2, 3, 0, 0);
    start(centered ? OP_LAYER_NORM : OP_RMS_NORM, type);
    f.desc.attrs.norm.eps = 0.125;
    f.desc.attrs.norm.one_plus = _i & 8;
    f.desc.inputs[1] = row;
    if (centered) f.desc.inputs[2] = row;
    f.desc.outputs[1] = rows;
    f.desc.outputs[rstd] = rows;
    f.desc.input_present[1] = weighted;
    if (centered) f.desc.input_present[2] = weighted;
    f.desc.input_present[residual_input] = f.desc.output_present[sum] = residual;
    run_forward();
    struct op_desc backward = desc_of(centered ? OP_LAYER_NORM_BACKWARD : OP_RMS_NORM_BACKWARD);
    backward.attrs = f.desc.attrs;
    const float *x = residual ? f.outputs[sum] : f.inputs[0];
    struct kernel_call call = {.inputs = {f.weighting, x, f.inputs[1]},
                               .outputs = {dx, dweight, dbias}};
    for (int i = 0; i < backward.input_count; i++) backward.inputs[i] = type;
    int at = 2;
    backward.input_present[at] = weighted;
    backward.inputs[at++] = row;
    if (centered) {
        call.inputs[at] = f.outputs[1];
        backward.inputs[at++] = rows;
    }
    call.inputs[at] = f.outputs[rstd];
    backward.inputs[at++] = rows;
    backward.input_present[at] = false;
    backward.outputs[0] = type;
    backward.outputs[1] = backward.outputs[2] = row;
    backward.output_present[1] = backward.output_present[2] = weighted;
    run_once(KERNELS_REFERENCE, &backward, call);
    check_gradient(0, dx);
    if (residual) check_gradient(residual_input, dx);
    if (weighted) check_gradient(1, dweight);
    if (weighted && centered) check_gradient(2, dbias);
    /* Adds another gradient. */
    backward.input_present[at] = true;
    call.inputs[at] = f.inputs[5];
    call.outputs[0] = total;
    run_once(KERNELS_REFERENCE, &backward, call);
    for (int i = 0; i < 54; i++)
        ck_assert_float_eq_tol(total[i], dx[i] + f.inputs[5][i], 1e-6f * (1 + fabsf(total[i])));
}
