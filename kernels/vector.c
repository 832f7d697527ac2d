/*
 * The part of kernels.h that works on flat memory without preparation: optimizers and the helpers
 * of communicators. Each is one loop, split into one part per thread.
 */
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/kernel.h"
#include "kernels/kernels.h"

/* With fewer elements, waking a thread does not pay. */
enum { GRAIN = 16 * 1024 };

struct adadelta_job {
    float *param, *square_avg, *acc_delta;
    const float *grad;
    const struct adadelta_args *args;
};

static void run_adadelta(const void *argument, size_t begin, size_t end)
{
    const struct adadelta_job *job = argument;
    cpu_loops_get()->adadelta(end - begin, job->param + begin, job->grad + begin,
                              job->square_avg + begin, job->acc_delta + begin, job->args);
}

void kernel_adadelta(size_t n, float *param, const float *grad, float *square_avg, float *acc_delta,
                     const struct adadelta_args *args)
{
    struct adadelta_job job = {param, square_avg, acc_delta, grad, args};
    cpu_parallel(kernels_threads(), n, GRAIN, run_adadelta, &job);
}

struct sgd_job {
    float *param, *momentum_buffer;
    const float *grad;
    const struct sgd_args *args;
};

static void run_sgd(const void *argument, size_t begin, size_t end)
{
    const struct sgd_job *job = argument;
    cpu_loops_get()->sgd(end - begin, job->param + begin, job->grad + begin,
                         job->momentum_buffer != NULL ? job->momentum_buffer + begin : NULL,
                         job->args);
}

void kernel_sgd(size_t n, float *param, const float *grad, float *momentum_buffer,
                const struct sgd_args *args)
{
    struct sgd_job job = {param, momentum_buffer, grad, args};
    cpu_parallel(kernels_threads(), n, GRAIN, run_sgd, &job);
}

struct adam_job {
    float *param, *average, *square_average;
    const float *grad;
    const struct adam_args *args;
};

static void run_adam(const void *argument, size_t begin, size_t end)
{
    const struct adam_job *job = argument;
    cpu_loops_get()->adam(end - begin, job->param + begin, job->grad + begin, job->average + begin,
                          job->square_average + begin, job->args);
}

void kernel_adam(size_t n, float *param, const float *grad, float *average, float *square_average,
                 const struct adam_args *args)
{
    struct adam_job job = {param, average, square_average, grad, args};
    cpu_parallel(kernels_threads(), n, GRAIN, run_adam, &job);
}

struct lion_job {
    float *param, *average;
    const float *grad;
    const struct lion_args *args;
};

static void run_lion(const void *argument, size_t begin, size_t end)
{
    const struct lion_job *job = argument;
    cpu_loops_get()->lion(end - begin, job->param + begin, job->grad + begin, job->average + begin,
                          job->args);
}

void kernel_lion(size_t n, float *param, const float *grad, float *average,
                 const struct lion_args *args)
{
    struct lion_job job = {param, average, grad, args};
    cpu_parallel(kernels_threads(), n, GRAIN, run_lion, &job);
}

struct adagrad_job {
    float *param, *sum;
    const float *grad;
    const struct adagrad_args *args;
};

static void run_adagrad(const void *argument, size_t begin, size_t end)
{
    const struct adagrad_job *job = argument;
    cpu_loops_get()->adagrad(end - begin, job->param + begin, job->grad + begin, job->sum + begin,
                             job->args);
}

void kernel_adagrad(size_t n, float *param, const float *grad, float *sum,
                    const struct adagrad_args *args)
{
    struct adagrad_job job = {param, sum, grad, args};
    cpu_parallel(kernels_threads(), n, GRAIN, run_adagrad, &job);
}

double kernel_sum_squares(size_t n, const float *values)
{
    double result;
    cpu_loops_get()->sum_squares(n, values, &result);
    return result;
}

double kernel_max_abs(size_t n, const float *values)
{
    double result;
    cpu_loops_get()->max_abs(n, values, &result);
    return result;
}

void kernel_add(size_t n, float *to, const float *from)
{
    cpu_loops_get()->copy_add(n, to, from);
}

/* These use one thread each: communicators call them from their own lanes, while a kernel has the
 * other threads. */

void kernel_sum_ordered(size_t n, float *out, const float *const *parts, int part_count,
                        float scale)
{
    cpu_loops_get()->sum_ordered(n, out, parts, part_count, scale);
}

void kernel_bf16_to_f32(size_t n, float *out, const uint16_t *in)
{
    cpu_loops_get()->bf16_to_f32(n, out, in);
}

void kernel_f32_to_bf16(size_t n, uint16_t *out, const float *in)
{
    cpu_loops_get()->f32_to_bf16(n, out, in);
}

void kernel_sum_ordered_bf16(size_t n, float *out, const uint16_t *const *parts, int part_count,
                             float scale)
{
    cpu_loops_get()->sum_ordered_bf16(n, out, parts, part_count, scale);
}

void kernel_scale(size_t n, float *values, float scale)
{
    cpu_loops_get()->scale(n, values, scale);
}

void kernel_fused(size_t n, float *values, float factor, float offset)
{
    cpu_loops_get()->fused(n, values, factor, offset);
}

void kernel_box_muller(size_t blocks, float *values, float mean, float std)
{
    cpu_loops_get()->box_muller(blocks, values, mean, std);
}
