/*
 * Muon (Keller Jordan), as torch.optim.Muon (2.15) computes it, with f32 where that has bf16: the
 * update of a matrix is its momentum, made nearly orthogonal by an iteration of products, those of
 * oneDNN. The iteration works on the smaller of the two Gram matrices, so that nothing is
 * transposed. The calling thread's products have kernels_threads() threads.
 */
#include <math.h>
#include <string.h>

#include <oneapi/dnnl/dnnl.h>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/kernel.h"
#include "kernels/kernels.h"
#include "kernels/muon.h"

enum { GRAIN = 16 * 1024 };

struct muon_step {
    float *param, *average, *values;
    const void *args;
};

static void run_muon(const void *argument, size_t begin, size_t end)
{
    const struct muon_step *step = argument;
    cpu_loops_get()->muon(end - begin, step->param + begin, step->values + begin, step->args);
}

void kernel_muon(size_t n, float *param, const float *update, float *average,
                 const struct muon_args *args)
{
    struct muon_step step = {param, average, (float *)update, args};
    cpu_parallel(kernels_threads(), n, GRAIN, run_muon, &step);
}

static void run_momentum(const void *argument, size_t begin, size_t end)
{
    const struct muon_step *step = argument;
    cpu_loops_get()->muon_momentum(end - begin, step->values + begin, step->average + begin,
                                   step->args);
}

void kernel_muon_momentum(size_t n, float *grad, float *average, const struct muon_args *args)
{
    struct muon_step step = {NULL, average, grad, args};
    cpu_parallel(kernels_threads(), n, GRAIN, run_momentum, &step);
}

size_t kernel_muon_scratch(int64_t rows, int64_t columns)
{
    int64_t side = rows < columns ? rows : columns;
    return (size_t)(2 * side * side + rows * columns) * sizeof(float);
}

/* to = alpha * a * b + beta * to; dimensions are of the result, `depth` is what both have. */
static status_t multiply(const char *transposed, const int64_t sizes[3], float alpha,
                         const float *a, const float *b, float beta, float *to)
{
    int64_t rows = sizes[0], columns = sizes[1], depth = sizes[2];
    bool first = transposed[0] == 'T', second = transposed[1] == 'T';
    dnnl_status_t error =
        dnnl_sgemm(transposed[0], transposed[1], rows, columns, depth, alpha, a,
                   first ? rows : depth, b, second ? depth : columns, beta, to, columns);
    if (error == dnnl_success) return NULL;
    return status_new(STATUS_INTERNAL, "oneDNN cannot multiply %lld x %lld x %lld: error %d",
                      (long long)rows, (long long)depth, (long long)columns, (int)error);
}

/* One step of the iteration, from `x` to `next`. */
static status_t iterate(int64_t rows, int64_t columns, const float *x, float *next, float *gram)
{
    bool wide = rows <= columns;
    int64_t side = wide ? rows : columns, other = wide ? columns : rows;
    float *sum = gram + side * side;
    size_t gram_bytes = (size_t)(side * side) * sizeof(float);
    const int64_t square[] = {side, side, other}, inner[] = {side, side, side};
    const int64_t whole[] = {rows, columns, side};
    TRY(multiply(wide ? "NT" : "TN", square, 1, x, x, 0, gram));
    memcpy(sum, gram, gram_bytes);
    TRY(multiply("NN", inner, KERNEL_MUON_C, gram, gram, KERNEL_MUON_B, sum));
    memcpy(next, x, (size_t)(rows * columns) * sizeof(float));
    return multiply("NN", whole, 1, wide ? sum : x, wide ? x : sum, KERNEL_MUON_A, next);
}

status_t kernel_orthogonalize(int64_t rows, int64_t columns, int steps, float scale, float *matrix,
                              void *scratch)
{
    int64_t side = rows < columns ? rows : columns;
    size_t count = (size_t)(rows * columns);
    float *gram = scratch, *other = gram + 2 * side * side, *x = matrix;
    float norm = (float)sqrt(kernel_sum_squares(count, matrix));
    if (norm < KERNEL_MUON_EPS) norm = KERNEL_MUON_EPS;
    for (size_t i = 0; i < count; i++) matrix[i] /= norm;
    kernels_use_threads(kernels_threads());
    for (int step = 0; step < steps; step++) {
        float *next = x == matrix ? other : matrix;
        TRY(iterate(rows, columns, x, next, gram));
        x = next;
    }
    for (size_t i = 0; i < count; i++) matrix[i] = x[i] * scale;
    return NULL;
}
