/*
 * Activations of transformers. Part of loops_body.h; loop_exp comes from loops_softmax.h.
 *
 * The normal distribution's tail is exp(-t^2/2) times a smooth function of t: 1 / (t + 3) times a
 * polynomial of degree 8 in (t - 3) / (t + 3), fitted for the least maximum relative error, 5e-8.
 * So GELU keeps its relative accuracy for negative values, where 1 + erf(x) loses it, and its slope
 * needs no second exponential.
 */

/* `complement` is 1 - sigmoid(x), computed separately because the difference would lose digits. */
LOOP_INLINE float loop_logistic(float x, float *complement)
{
    float e = loop_exp(-x), value = 1.0f / (1.0f + e);
    *complement = e * value;
    return x < -87.0f ? 0.0f : value;
}

LOOP_INLINE float silu_value(float x)
{
    float complement;
    return x * loop_logistic(x, &complement);
}

LOOP_INLINE float silu_slope(float x)
{
    float complement, s = loop_logistic(x, &complement);
    return __builtin_fmaf(x * s, complement, s);
}

enum { NORMAL_END = 13 }; /* beyond this the tail is below the smallest float */

/* The tail beyond t, 0 <= t <= NORMAL_END, and exp(-t^2/2) in `density`. Works as loop_exp, but
 * adds the square's rounding error and has no limits. A NaN stays a NaN. */
LOOP_INLINE float loop_normal_tail(float t, float *density)
{
    const float magic = 12582912.0f;
    union {
        float value;
        uint32_t bits;
    } rounded, power;
    float square = t * t, rest = __builtin_fmaf(t, t, -square);
    rounded.value = __builtin_fmaf(square, -0.5f * 1.44269504088896341f, magic);
    float k = rounded.value - magic;
    float e = __builtin_fmaf(square, -0.5f, k * -0.693359375f); /* the product is exact */
    e = __builtin_fmaf(k, 2.12194440e-4f, e);
    e = __builtin_fmaf(rest, -0.5f, e);
    float p = 1.9875691500e-4f;
    p = __builtin_fmaf(p, e, 1.3981999507e-3f);
    p = __builtin_fmaf(p, e, 8.3334519073e-3f);
    p = __builtin_fmaf(p, e, 4.1665795894e-2f);
    p = __builtin_fmaf(p, e, 1.6666665459e-1f);
    p = __builtin_fmaf(p, e, 5.0000001201e-1f);
    power.value = __builtin_fmaf(p, e * e, e) + 1.0f;
    power.bits += rounded.bits << 23;
    float r = 1.0f / (t + 3.0f);
    float v = __builtin_fmaf(-6.0f, r, 1.0f);
    float q = -2.6676856e-04f;
    q = __builtin_fmaf(q, v, -9.032543e-04f);
    q = __builtin_fmaf(q, v, 1.076039e-03f);
    q = __builtin_fmaf(q, v, 6.9239237e-03f);
    q = __builtin_fmaf(q, v, -1.0479936e-02f);
    q = __builtin_fmaf(q, v, -4.72561e-02f);
    q = __builtin_fmaf(q, v, 2.3001935e-01f);
    q = __builtin_fmaf(q, v, -5.093323e-01f);
    q = __builtin_fmaf(q, v, 7.2908366e-01f);
    *density = power.value;
    return power.value * (q * r);
}

LOOP_INLINE float gelu_value(float x)
{
    float t = __builtin_fabsf(x), density;
    t = t > NORMAL_END ? NORMAL_END : t;
    float tail = loop_normal_tail(t, &density);
    return x > 0.0f ? x * (1.0f - tail) : -t * tail;
}

LOOP_INLINE float gelu_slope(float x)
{
    float t = __builtin_fabsf(x), density;
    t = t > NORMAL_END ? NORMAL_END : t;
    float tail = loop_normal_tail(t, &density);
    /* The slopes at -x and x add up to 1. */
    float slope = __builtin_fmaf(t, density * -0.39894228f, tail);
    return x > 0.0f ? 1.0f - slope : slope;
}

/* (1 + tanh(z)) / 2 = sigmoid(2 z). */
LOOP_INLINE float gelu_tanh_value(float x)
{
    float unused, z = x * __builtin_fmaf(x * x, 0.0713548163f, 1.59576912f);
    return x * loop_logistic(z, &unused);
}

LOOP_INLINE float gelu_tanh_slope(float x)
{
    float limited = x > 14.0f ? 14.0f : x;
    limited = limited < -14.0f ? -14.0f : limited;
    float square = limited * limited, complement;
    float z = limited * __builtin_fmaf(square, 0.0713548163f, 1.59576912f);
    float s = loop_logistic(z, &complement);
    float dz = __builtin_fmaf(square, 0.214064449f, 1.59576912f);
    return __builtin_fmaf(limited * dz, s * complement, s);
}

LOOP loop_gelu(size_t n, float *y, const float *x, bool tanh, bool add)
{
    if (tanh) EACH(n, y, add, gelu_tanh_value(x[i]));
    else EACH(n, y, add, gelu_value(x[i]));
}

LOOP loop_gelu_backward(size_t n, float *dx, const float *dy, const float *x, bool tanh, bool add)
{
    if (tanh) EACH(n, dx, add, dy[i] * gelu_tanh_slope(x[i]));
    else EACH(n, dx, add, dy[i] * gelu_slope(x[i]));
}

/* Near 0 uses the Cephes library's polynomial for tanhf; the difference in the other form would
 * lose digits there. */
LOOP_INLINE float loop_tanh_value(float x)
{
    float size = __builtin_fabsf(x), square = x * x;
    float p = __builtin_fmaf(square, -5.70498872745e-3f, 2.06390887954e-2f);
    p = __builtin_fmaf(square, p, -5.37397155531e-2f);
    p = __builtin_fmaf(square, p, 1.33314422036e-1f);
    p = __builtin_fmaf(square, p, -3.33332819422e-1f);
    float near = __builtin_fmaf(square * x, p, x);
    float far = 1.0f - 2.0f / (1.0f + loop_exp(2.0f * (size < 20.0f ? size : 20.0f)));
    float value = __builtin_copysignf(size < 0.625f ? near : far, x);
    return x != x ? x : value;
}

LOOP loop_tanh(size_t n, float *y, const float *x, bool add)
{
    EACH(n, y, add, loop_tanh_value(x[i]));
}

LOOP loop_tanh_backward(size_t n, float *dx, const float *dy, const float *y, bool add)
{
    EACH(n, dx, add, dy[i] * __builtin_fmaf(-y[i], y[i], 1.0f));
}

LOOP loop_silu(size_t n, float *y, const float *x, bool add)
{
    EACH(n, y, add, silu_value(x[i]));
}

LOOP loop_silu_backward(size_t n, float *dx, const float *dy, const float *x, bool add)
{
    EACH(n, dx, add, dy[i] * silu_slope(x[i]));
}

LOOP loop_silu_mul(size_t n, float *y, const float *gate, const float *x, bool add)
{
    EACH(n, y, add, silu_value(gate[i]) * x[i]);
}

LOOP loop_silu_mul_backward(size_t n, float *dgate, float *dx, const float *dy, const float *gate,
                            const float *x, bool add_gate, bool add_x)
{
    if (!add_gate && !add_x) {
        SIMD for (size_t i = 0; i < n; i++)
        {
            float complement, s = loop_logistic(gate[i], &complement);
            float y = gate[i] * s, d = dy[i];
            dgate[i] = d * x[i] * __builtin_fmaf(y, complement, s);
            dx[i] = d * y;
        }
        return;
    }
    EACH(n, dgate, add_gate, dy[i] * x[i] * silu_slope(gate[i]));
    EACH(n, dx, add_x, dy[i] * silu_value(gate[i]));
}

LOOP loop_gelu_mul(size_t n, float *y, const float *gate, const float *x, bool tanh, bool add)
{
    if (tanh) EACH(n, y, add, gelu_tanh_value(gate[i]) * x[i]);
    else EACH(n, y, add, gelu_value(gate[i]) * x[i]);
}

LOOP loop_gelu_mul_backward(size_t n, float *dgate, float *dx, const float *dy, const float *gate,
                            const float *x, bool tanh, bool add_gate, bool add_x)
{
    if (tanh) {
        EACH(n, dgate, add_gate, dy[i] * x[i] * gelu_tanh_slope(gate[i]));
        EACH(n, dx, add_x, dy[i] * gelu_tanh_value(gate[i]));
    } else {
        EACH(n, dgate, add_gate, dy[i] * x[i] * gelu_slope(gate[i]));
        EACH(n, dx, add_x, dy[i] * gelu_value(gate[i]));
    }
}

LOOP loop_mul(size_t n, float *y, const float *a, const float *b, bool add)
{
    EACH(n, y, add, a[i] * b[i]);
}

LOOP loop_div(size_t n, float *y, const float *a, const float *b, bool add)
{
    EACH(n, y, add, a[i] / b[i]);
}

LOOP loop_div_backward(size_t n, float *db, const float *dy, const float *y, const float *b,
                       bool add)
{
    EACH(n, db, add, -dy[i] * (y[i] / b[i]));
}

LOOP loop_affine(size_t n, float *y, const float *x, float factor, float offset, bool add)
{
    EACH(n, y, add, __builtin_fmaf(x[i], factor, offset));
}

LOOP loop_reciprocal(size_t n, float *y, const float *x, float factor, bool add)
{
    EACH(n, y, add, factor / x[i]);
}

LOOP_INLINE float sigmoid_value(float x)
{
    float complement;
    return loop_logistic(x, &complement);
}

LOOP loop_sigmoid(size_t n, float *y, const float *x, bool add)
{
    EACH(n, y, add, sigmoid_value(x[i]));
}

LOOP loop_sigmoid_backward(size_t n, float *dx, const float *dy, const float *y, bool add)
{
    EACH(n, dx, add, dy[i] * __builtin_fmaf(-y[i], y[i], y[i]));
}

LOOP loop_squared_relu(size_t n, float *y, const float *x, bool add)
{
    EACH(n, y, add, x[i] <= 0 ? 0 : x[i] * x[i]);
}

LOOP loop_squared_relu_backward(size_t n, float *dx, const float *dy, const float *x, bool add)
{
    EACH(n, dx, add, x[i] <= 0 ? 0 : 2 * x[i] * dy[i]);
}

LOOP_INLINE float exp_value(float x)
{
    return x > 88.0f ? expf(x) : loop_exp(x);
}

LOOP loop_function(size_t n, float *y, const float *x, int kind, float parameter, bool add)
{
    switch ((enum op_function)kind) {
    case FUNCTION_LEAKY_RELU: EACH(n, y, add, x[i] > 0 ? x[i] : parameter * x[i]); break;
    case FUNCTION_ELU: EACH(n, y, add, x[i] > 0 ? x[i] : parameter * expm1f(x[i])); break;
    case FUNCTION_RELU6: EACH(n, y, add, x[i] < 0 ? 0 : x[i] > 6 ? 6 : x[i]); break;
    case FUNCTION_HARDSWISH:
        EACH(n, y, add, x[i] <= -3 ? 0 : x[i] >= 3 ? x[i] : x[i] * (x[i] + 3) / 6);
        break;
    case FUNCTION_HARDSIGMOID:
        EACH(n, y, add, x[i] <= -3 ? 0 : x[i] >= 3 ? 1 : (x[i] + 3) / 6);
        break;
    case FUNCTION_EXP: EACH(n, y, add, exp_value(x[i])); break;
    case FUNCTION_LOG: EACH(n, y, add, logf(x[i])); break;
    case FUNCTION_SQRT: EACH(n, y, add, sqrtf(x[i])); break;
    case FUNCTION_POW: EACH(n, y, add, powf(x[i], parameter)); break;
    case FUNCTION_ABS: EACH(n, y, add, __builtin_fabsf(x[i])); break;
    case FUNCTION_ABOVE: EACH(n, y, add, x[i] > parameter ? 1 : 0); break;
    case FUNCTION_AT_LEAST: EACH(n, y, add, x[i] >= parameter ? 1 : 0); break;
    }
}

LOOP loop_function_backward(size_t n, float *dx, const float *dy, const float *x, int kind,
                            float parameter, bool add)
{
    switch ((enum op_function)kind) {
    case FUNCTION_LEAKY_RELU: EACH(n, dx, add, x[i] > 0 ? dy[i] : parameter * dy[i]); break;
    case FUNCTION_ELU:
        EACH(n, dx, add, x[i] > 0 ? dy[i] : dy[i] * (parameter * exp_value(x[i])));
        break;
    case FUNCTION_RELU6: EACH(n, dx, add, x[i] > 0 && x[i] < 6 ? dy[i] : 0); break;
    case FUNCTION_HARDSWISH:
        EACH(n, dx, add, x[i] < -3 ? 0 : x[i] > 3 ? dy[i] : dy[i] * (x[i] / 3 + 0.5f));
        break;
    case FUNCTION_HARDSIGMOID: EACH(n, dx, add, x[i] > -3 && x[i] < 3 ? dy[i] / 6 : 0); break;
    case FUNCTION_EXP: EACH(n, dx, add, dy[i] * exp_value(x[i])); break;
    case FUNCTION_LOG: EACH(n, dx, add, dy[i] / x[i]); break;
    case FUNCTION_SQRT: EACH(n, dx, add, dy[i] * 0.5f / sqrtf(x[i])); break;
    case FUNCTION_POW:
        EACH(n, dx, add, parameter == 0 ? 0 : dy[i] * parameter * powf(x[i], parameter - 1));
        break;
    case FUNCTION_ABS: EACH(n, dx, add, x[i] > 0 ? dy[i] : x[i] < 0 ? -dy[i] : 0); break;
    case FUNCTION_ABOVE:
    case FUNCTION_AT_LEAST: EACH(n, dx, add, 0); break;
    }
}
