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

struct step {
    float *param, *slots[2]; /* a slot may be NULL */
    const float *grad;
    const void *args;
};

static float *slot_at(const struct step *step, int slot, size_t begin)
{
    return step->slots[slot] != NULL ? step->slots[slot] + begin : NULL;
}

#define RUN(name, ...)                                                                             \
    static void run_##name(const void *argument, size_t begin, size_t end)                         \
    {                                                                                              \
        const struct step *step = argument;                                                        \
        cpu_loops_get()->name(end - begin, step->param + begin, step->grad + begin, __VA_ARGS__,   \
                              step->args);                                                         \
    }

#define SLOTS_ONE slot_at(step, 0, begin)
#define SLOTS_TWO slot_at(step, 0, begin), slot_at(step, 1, begin)
#define GIVEN_ONE first
#define GIVEN_TWO first, second

#define OPTIMIZER(name, ARRAYS)                                                                    \
    RUN(name, SLOTS_##ARRAYS)                                                                      \
    void kernel_##name(size_t n, float *param, const float *grad, OPTIMIZER_ARRAYS_##ARRAYS,       \
                       const struct name##_args *args)                                             \
    {                                                                                              \
        struct step step = {param, {GIVEN_##ARRAYS}, grad, args};                                  \
        cpu_parallel(kernels_threads(), n, GRAIN, run_##name, &step);                              \
    }
OPTIMIZER_KERNELS(OPTIMIZER)

static void run_average(const void *argument, size_t begin, size_t end)
{
    const struct step *step = argument;
    cpu_loops_get()->average(end - begin, step->param + begin, step->grad + begin, step->args);
}

void kernel_average(size_t n, float *average, const float *param, const struct average_args *args)
{
    struct step step = {.param = average, .grad = param, .args = args};
    cpu_parallel(kernels_threads(), n, GRAIN, run_average, &step);
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

void kernel_fused(size_t n, float *values, float factor, float offset)
{
    cpu_loops_get()->fused(n, values, factor, offset);
}

void kernel_box_muller(size_t blocks, float *values, float mean, float std)
{
    cpu_loops_get()->box_muller(blocks, values, mean, std);
}
