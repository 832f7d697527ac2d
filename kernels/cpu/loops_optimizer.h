/*
 * Optimizer steps; every fused multiply-add is PyTorch's. A gradient is scaled when it is read;
 * scaling by 1 changes no bit. Part of loops_body.h.
 */

LOOP loop_adadelta(size_t n, float *param, const float *grad, float *square_avg, float *acc_delta,
                   const struct adadelta_args *args)
{
    float lr = args->lr, rho = args->rho, eps = args->eps, decay = args->weight_decay;
    float rest = args->one_minus_rho, scale = args->grad_scale;
    if (decay == 0) {
        SIMD for (size_t i = 0; i < n; i++)
        {
            float g = grad[i] * scale, a = acc_delta[i];
            float v = __builtin_fmaf(rest * g, g, rho * square_avg[i]);
            float d = sqrtf(a + eps) / sqrtf(v + eps) * g;
            square_avg[i] = v;
            param[i] = __builtin_fmaf(d, -lr, param[i]);
            acc_delta[i] = __builtin_fmaf(rest * d, d, rho * a);
        }
    } else {
        SIMD for (size_t i = 0; i < n; i++)
        {
            float g = __builtin_fmaf(param[i], decay, grad[i] * scale), a = acc_delta[i];
            float v = __builtin_fmaf(rest * g, g, rho * square_avg[i]);
            float d = sqrtf(a + eps) / sqrtf(v + eps) * g;
            square_avg[i] = v;
            param[i] = __builtin_fmaf(d, -lr, param[i]);
            acc_delta[i] = __builtin_fmaf(rest * d, d, rho * a);
        }
    }
}

/* Without momentum the gradient itself takes the buffer's place. */
LOOP loop_sgd(size_t n, float *param, const float *grad, float *momentum_buffer,
              const struct sgd_args *args)
{
    float lr = args->lr, momentum = args->momentum, decay = args->weight_decay;
    float rest = args->one_minus_dampening, scale = args->grad_scale;
    bool first = args->first_step, nesterov = args->nesterov;
    if (momentum == 0) {
        SIMD for (size_t i = 0; i < n; i++)
        {
            float scaled = grad[i] * scale;
            float g = decay == 0 ? scaled : __builtin_fmaf(param[i], decay, scaled);
            param[i] = __builtin_fmaf(g, -lr, param[i]);
        }
        return;
    }
    SIMD for (size_t i = 0; i < n; i++)
    {
        float scaled = grad[i] * scale;
        float g = decay == 0 ? scaled : __builtin_fmaf(param[i], decay, scaled);
        float buffer = first ? g : __builtin_fmaf(g, rest, momentum * momentum_buffer[i]);
        momentum_buffer[i] = buffer;
        float step = nesterov ? __builtin_fmaf(buffer, momentum, g) : buffer;
        param[i] = __builtin_fmaf(step, -lr, param[i]);
    }
}

/*
 * Sums for a gradient's norm, in a fixed number of lanes, so that every level gives the same bits.
 * Squares of floats are exact in double.
 */
enum { NORM_LANES = 16 };

LOOP loop_sum_squares(size_t n, const float *values, double *result)
{
    double lanes[NORM_LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + NORM_LANES <= n; i += NORM_LANES) {
        SIMD for (size_t j = 0; j < NORM_LANES; j++) lanes[j] +=
            (double)values[i + j] * (double)values[i + j];
    }
    for (size_t j = 0; i + j < n; j++) lanes[j] += (double)values[i + j] * (double)values[i + j];
    for (size_t j = 0; j < NORM_LANES; j++) sum += lanes[j];
    *result = sum;
}

/* The largest magnitude; NaN if a value is NaN. */
LOOP loop_max_abs(size_t n, const float *values, double *max)
{
    float lanes[NORM_LANES] = {0}, most = 0;
    size_t i = 0;
    for (; i + NORM_LANES <= n; i += NORM_LANES) {
        SIMD for (size_t j = 0; j < NORM_LANES; j++)
        {
            float value = __builtin_fabsf(values[i + j]);
            lanes[j] = ((value > lanes[j]) | (value != value)) ? value : lanes[j];
        }
    }
    for (size_t j = 0; i + j < n; j++) {
        float value = __builtin_fabsf(values[i + j]);
        lanes[j] = ((value > lanes[j]) | (value != value)) ? value : lanes[j];
    }
    for (size_t j = 0; j < NORM_LANES; j++)
        most = ((lanes[j] > most) | (lanes[j] != lanes[j])) ? lanes[j] : most;
    *max = most;
}

/* Adam adds its decay to the gradient, AdamW shrinks the parameter; the other's term has no effect.
 * Of a parameter of value `param`; moves its averages. */
LOOP_INLINE float adam_value(float param, float grad, float *average, float *square_average,
                             const struct adam_args *args)
{
    float p = param * args->shrink, scaled = grad * args->grad_scale;
    float g = args->weight_decay == 0 ? scaled : __builtin_fmaf(p, args->weight_decay, scaled);
    float m = __builtin_fmaf(g, args->one_minus_beta1, args->beta1 * *average);
    float v = __builtin_fmaf(args->one_minus_beta2 * g, g, args->beta2 * *square_average);
    *average = m;
    *square_average = v;
    return p + -args->corrected_lr * m / (sqrtf(v) / args->corrected_root + args->eps);
}

LOOP loop_adam(size_t n, float *param, const float *grad, float *average, float *square_average,
               const struct adam_args *args)
{
    struct adam_args own = *args;
    SIMD for (size_t i = 0; i < n; i++)
    {
        float m = average[i], v = square_average[i];
        param[i] = adam_value(param[i], grad[i], &m, &v, &own);
        average[i] = m;
        square_average[i] = v;
    }
}

LOOP loop_adam_codes(size_t n, float *param, const float *grad, const struct adam_codes *codes,
                     float *average, float *square_average, const struct adam_args *args)
{
    struct adam_args own = *args;
    struct adam_codes from = *codes;
    SIMD for (size_t i = 0; i < n; i++)
    {
        float m = from.map[from.codes[i]] * from.scale;
        float v = from.square_map[from.square_codes[i]] * from.square_scale;
        param[i] = adam_value(param[i], grad[i], &m, &v, &own);
        average[i] = m;
        square_average[i] = v;
    }
}

/* As PyTorch, the root is inverted before it is multiplied. */
LOOP loop_radam(size_t n, float *param, const float *grad, float *average, float *square_average,
                const struct radam_args *args)
{
    struct radam_args own = *args;
    SIMD for (size_t i = 0; i < n; i++)
    {
        float p = param[i], scaled = grad[i] * own.grad_scale;
        float g = own.weight_decay == 0 ? scaled : __builtin_fmaf(p, own.weight_decay, scaled);
        float m = __builtin_fmaf(g, own.one_minus_beta1, own.beta1 * average[i]);
        float v = __builtin_fmaf(own.one_minus_beta2 * g, g, own.beta2 * square_average[i]);
        average[i] = m;
        square_average[i] = v;
        float step = m / own.correction * own.lr;
        float adapted = step * (1 / (sqrtf(v) + own.eps) * own.root) * own.rectified;
        param[i] = p - (own.rectified == 0 ? step : adapted);
    }
}

/* The sign of 0 is 0; the sign of a NaN is NaN, so that it shows in the loss. */
LOOP loop_lion(size_t n, float *param, const float *grad, float *average,
               const struct lion_args *args)
{
    float lr = args->lr, shrink = args->shrink, scale = args->grad_scale;
    float beta1 = args->beta1, rest1 = args->one_minus_beta1;
    float beta2 = args->beta2, rest2 = args->one_minus_beta2;
    SIMD for (size_t i = 0; i < n; i++)
    {
        float g = grad[i] * scale, m = average[i];
        float mean = m * beta1 + g * rest1;
        float sign = mean > 0 ? 1 : mean < 0 ? -1 : mean;
        param[i] = __builtin_fmaf(sign, -lr, param[i] * shrink);
        average[i] = __builtin_fmaf(g, rest2, beta2 * m);
    }
}

LOOP loop_adagrad(size_t n, float *param, const float *grad, float *sum,
                  const struct adagrad_args *args)
{
    float rate = args->decayed_lr, eps = args->eps, decay = args->weight_decay;
    float scale = args->grad_scale;
    SIMD for (size_t i = 0; i < n; i++)
    {
        float p = param[i], scaled = grad[i] * scale;
        float g = decay == 0 ? scaled : __builtin_fmaf(p, decay, scaled);
        float squares = __builtin_fmaf(g, g, sum[i]);
        sum[i] = squares;
        param[i] = p + -rate * g / (sqrtf(squares) + eps);
    }
}

/* As torch.lerp, by `step` of the way from the nearer end. */
LOOP_INLINE float lerp(float from, float to, bool near, float step)
{
    float begin = near ? from : to, end = near ? to : from;
    return __builtin_fmaf(end - begin, step, begin);
}

LOOP loop_average(size_t n, float *average, const float *param, const struct average_args *args)
{
    bool near = args->weight < 0.5f;
    float step = near ? args->weight : 1 - args->weight;
    SIMD for (size_t i = 0; i < n; i++) average[i] = lerp(average[i], param[i], near, step);
}

LOOP loop_muon_momentum(size_t n, float *grad, float *average, const struct muon_args *args)
{
    float keep = args->momentum, rest = args->one_minus_momentum, scale = args->grad_scale;
    bool near = rest < 0.5f, ahead_near = keep < 0.5f;
    float step = near ? rest : keep, ahead_step = ahead_near ? keep : rest;
    if (!args->nesterov) {
        SIMD for (size_t i = 0; i < n; i++) grad[i] = average[i] =
            lerp(average[i], grad[i] * scale, near, step);
        return;
    }
    SIMD for (size_t i = 0; i < n; i++)
    {
        float g = grad[i] * scale, m = lerp(average[i], g, near, step);
        average[i] = m;
        grad[i] = lerp(g, m, ahead_near, ahead_step);
    }
}

LOOP loop_muon(size_t n, float *param, const float *update, const struct muon_args *args)
{
    float lr = args->lr, shrink = args->shrink;
    SIMD for (size_t i = 0; i < n; i++) param[i] =
        __builtin_fmaf(update[i], -lr, param[i] * shrink);
}

LOOP loop_factor_row(size_t n, float *grad, float scale, float row, const float *columns,
                     float least)
{
    SIMD for (size_t i = 0; i < n; i++)
    {
        float variance = row * columns[i];
        grad[i] *= scale / sqrtf(variance > least ? variance : least);
    }
}

LOOP loop_variance(size_t n, float *grad, float scale, float *variance, float weight, float rest,
                   float least)
{
    bool near = weight < 0.5f;
    float step = near ? weight : rest;
    SIMD for (size_t i = 0; i < n; i++)
    {
        float g = grad[i] * scale, v = lerp(variance[i], g * g, near, step);
        variance[i] = v;
        grad[i] = g / sqrtf(v > least ? v : least);
    }
}

LOOP loop_scale(size_t n, float *values, float factor)
{
    SIMD for (size_t i = 0; i < n; i++) values[i] *= factor;
}

/* A block of 8-bit codes (kernels/packed.c). A NaN counts for nothing in the largest magnitude. */
LOOP loop_unpack_codes(size_t n, const uint8_t *codes, const float *map, float scale, float *values)
{
    SIMD for (size_t i = 0; i < n; i++) values[i] = map[codes[i]] * scale;
}

LOOP loop_pack_codes(size_t n, const float *values, const uint8_t *nearest, uint8_t *codes,
                     float *most)
{
    float lanes[NORM_LANES] = {0}, largest = 0;
    uint16_t steps[KERNEL_PACKED_BLOCK];
    for (size_t i = 0; i + NORM_LANES <= n; i += NORM_LANES) {
        SIMD for (size_t j = 0; j < NORM_LANES; j++)
        {
            float value = __builtin_fabsf(values[i + j]);
            lanes[j] = value > lanes[j] ? value : lanes[j];
        }
    }
    for (size_t j = 0; j < NORM_LANES; j++) largest = lanes[j] > largest ? lanes[j] : largest;
    for (size_t i = n - n % NORM_LANES; i < n; i++) {
        float value = __builtin_fabsf(values[i]);
        largest = value > largest ? value : largest;
    }
    *most = largest;
    float inverse = 1 / largest;
    SIMD for (size_t i = 0; i < n; i++)
    {
        float value = values[i] * inverse;
        value = value >= -1 ? value : -1; /* a NaN too */
        value = value <= 1 ? value : 1;
        steps[i] = (uint16_t)(int32_t)((value + 1) * 0.5f * 65535 + 0.5f);
    }
    _Pragma("GCC unroll 8") for (size_t i = 0; i < n; i++) codes[i] = nearest[steps[i]];
}
