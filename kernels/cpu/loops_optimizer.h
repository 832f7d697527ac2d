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

/* Adam adds its decay to the gradient, AdamW shrinks the parameter; the other's term has no
 * effect. */
LOOP loop_adam(size_t n, float *param, const float *grad, float *average, float *square_average,
               const struct adam_args *args)
{
    float beta1 = args->beta1, rest1 = args->one_minus_beta1, decay = args->weight_decay;
    float beta2 = args->beta2, rest2 = args->one_minus_beta2, shrink = args->shrink;
    float rate = args->corrected_lr, root = args->corrected_root, eps = args->eps;
    float scale = args->grad_scale;
    SIMD for (size_t i = 0; i < n; i++)
    {
        float p = param[i] * shrink, scaled = grad[i] * scale;
        float g = decay == 0 ? scaled : __builtin_fmaf(p, decay, scaled);
        float m = __builtin_fmaf(g, rest1, beta1 * average[i]);
        float v = __builtin_fmaf(rest2 * g, g, beta2 * square_average[i]);
        average[i] = m;
        square_average[i] = v;
        param[i] = p + -rate * m / (sqrtf(v) / root + eps);
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

/* As torch.lerp: from the nearer end. */
LOOP loop_average(size_t n, float *average, const float *param, const struct average_args *args)
{
    float weight = args->weight, rest = 1 - weight;
    bool far = weight >= 0.5f;
    SIMD for (size_t i = 0; i < n; i++)
    {
        float distance = param[i] - average[i];
        average[i] = far ? __builtin_fmaf(-distance, rest, param[i])
                         : __builtin_fmaf(distance, weight, average[i]);
    }
}
