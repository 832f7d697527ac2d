/* Optimizer steps; every fused multiply-add is PyTorch's. Part of loops_body.h. */

LOOP loop_adadelta(size_t n, float *param, const float *grad, float *square_avg, float *acc_delta,
                   const struct adadelta_args *args)
{
    float lr = args->lr, rho = args->rho, eps = args->eps, decay = args->weight_decay;
    float rest = args->one_minus_rho;
    if (decay == 0) {
        SIMD for (size_t i = 0; i < n; i++)
        {
            float g = grad[i], a = acc_delta[i];
            float v = __builtin_fmaf(rest * g, g, rho * square_avg[i]);
            float d = sqrtf(a + eps) / sqrtf(v + eps) * g;
            square_avg[i] = v;
            param[i] = __builtin_fmaf(d, -lr, param[i]);
            acc_delta[i] = __builtin_fmaf(rest * d, d, rho * a);
        }
    } else {
        SIMD for (size_t i = 0; i < n; i++)
        {
            float g = __builtin_fmaf(param[i], decay, grad[i]), a = acc_delta[i];
            float v = __builtin_fmaf(rest * g, g, rho * square_avg[i]);
            float d = sqrtf(a + eps) / sqrtf(v + eps) * g;
            square_avg[i] = v;
            param[i] = __builtin_fmaf(d, -lr, param[i]);
            acc_delta[i] = __builtin_fmaf(rest * d, d, rho * a);
        }
    }
}

/* The buffer is the gradient itself where there is no momentum. */
LOOP loop_sgd(size_t n, float *param, const float *grad, float *momentum_buffer,
              const struct sgd_args *args)
{
    float lr = args->lr, momentum = args->momentum, decay = args->weight_decay;
    float rest = args->one_minus_dampening;
    bool first = args->first_step, nesterov = args->nesterov;
    if (momentum == 0) {
        SIMD for (size_t i = 0; i < n; i++)
        {
            float g = decay == 0 ? grad[i] : __builtin_fmaf(param[i], decay, grad[i]);
            param[i] = __builtin_fmaf(g, -lr, param[i]);
        }
        return;
    }
    SIMD for (size_t i = 0; i < n; i++)
    {
        float g = decay == 0 ? grad[i] : __builtin_fmaf(param[i], decay, grad[i]);
        float buffer = first ? g : __builtin_fmaf(g, rest, momentum * momentum_buffer[i]);
        momentum_buffer[i] = buffer;
        float step = nesterov ? __builtin_fmaf(buffer, momentum, g) : buffer;
        param[i] = __builtin_fmaf(step, -lr, param[i]);
    }
}
