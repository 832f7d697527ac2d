/*
 * Adafactor (Shazeer and Stern), as torch.optim.Adafactor (2.15) computes it: a matrix's variance
 * is estimated from the means of its squared gradient over rows and columns. Sums are doubles. Each
 * is made by one thread, in the order of the elements.
 */
#include <string.h>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/kernel.h"
#include "kernels/kernels.h"

enum { GRAIN = 16 * 1024, LINE = 16 /* elements of a cache line */ };

/* Some elements of a stack of matrices. */
struct piece {
    const struct kernel_factor *of;
    float *values;
    double *row_sums, *column_sums;
    const float *rows, *columns;
    float *variance;
    float scale, least, weight, rest;
};

static int64_t least_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The elements of row `row` that the piece has: the first one, and their number. */
static int64_t row_part(const struct kernel_factor *of, int64_t row, int64_t *count)
{
    int64_t begin = row * of->width, end = begin + of->width;
    if (begin < of->first) begin = of->first;
    *count = least_of(end, of->first + of->count) - begin;
    return begin;
}

static size_t rows_per_grain(const struct kernel_factor *of)
{
    return (size_t)(GRAIN / of->width + 1);
}

static void sum_rows(const void *argument, size_t begin, size_t end)
{
    const struct piece *piece = argument;
    for (size_t r = begin; r < end; r++) {
        int64_t row = piece->of->first / piece->of->width + (int64_t)r, count;
        int64_t from = row_part(piece->of, row, &count);
        double sum = kernel_sum_squares((size_t)count, piece->values + (from - piece->of->first));
        piece->row_sums[row] = sum * piece->scale * piece->scale;
    }
}

static void sum_columns(const void *argument, size_t begin, size_t end)
{
    const struct piece *piece = argument;
    const struct kernel_factor *of = piece->of;
    double scale = (double)piece->scale * piece->scale;
    int64_t stop = of->first + of->count, count;
    for (int64_t row = of->first / of->width; row * of->width < stop; row++) {
        int64_t from = row_part(of, row, &count), column = from - row * of->width;
        double *sums = piece->column_sums + row / of->height * of->width;
        const float *values = piece->values + (from - of->first) - column;
        int64_t last = least_of(column + count, (int64_t)end);
        for (int64_t c = column > (int64_t)begin ? column : (int64_t)begin; c < last; c++)
            sums[c] += scale * ((double)values[c] * values[c]);
    }
}

void kernel_factor_sums(const struct kernel_factor *of, const float *grad, float scale,
                        double *rows, double *columns)
{
    struct piece piece = {.of = of,
                          .values = (float *)grad,
                          .row_sums = rows,
                          .column_sums = columns,
                          .scale = scale};
    int64_t first = of->first / of->width, last = (of->first + of->count - 1) / of->width;
    int64_t from = first / of->height * of->width, to = (last / of->height + 1) * of->width;
    memset(columns + from, 0, (size_t)(to - from) * sizeof *columns);
    cpu_parallel(kernels_threads(), (size_t)(last - first + 1), rows_per_grain(of), sum_rows,
                 &piece);
    cpu_parallel(kernels_threads(), (size_t)of->width, LINE, sum_columns, &piece);
}

static void update_rows(const void *argument, size_t begin, size_t end)
{
    const struct piece *piece = argument;
    const struct kernel_factor *of = piece->of;
    for (size_t r = begin; r < end; r++) {
        int64_t row = of->first / of->width + (int64_t)r, count;
        int64_t from = row_part(of, row, &count);
        const float *columns =
            piece->columns + row / of->height * of->width + (from - row * of->width);
        float *values = piece->values + (from - of->first), factor = piece->rows[row];
        cpu_loops_get()->factor_row((size_t)count, values, piece->scale, factor, columns,
                                    piece->least);
    }
}

void kernel_factor_update(const struct kernel_factor *of, float *grad, float scale,
                          const float *rows, const float *columns, float least)
{
    struct piece piece = {
        .of = of, .values = grad, .rows = rows, .columns = columns, .scale = scale, .least = least};
    int64_t first = of->first / of->width, last = (of->first + of->count - 1) / of->width;
    cpu_parallel(kernels_threads(), (size_t)(last - first + 1), rows_per_grain(of), update_rows,
                 &piece);
}

float kernel_lerp(float from, float to, float weight, float rest)
{
    return weight < 0.5F ? __builtin_fmaf(to - from, weight, from)
                         : __builtin_fmaf(from - to, rest, to);
}

static void update_vector(const void *argument, size_t begin, size_t end)
{
    const struct piece *piece = argument;
    cpu_loops_get()->variance(end - begin, piece->values + begin, piece->scale,
                              piece->variance + begin, piece->weight, piece->rest, piece->least);
}

void kernel_variance_update(size_t n, float *grad, float scale, float *variance, float weight,
                            float rest, float least)
{
    struct piece piece = {.values = grad,
                          .variance = variance,
                          .scale = scale,
                          .least = least,
                          .weight = weight,
                          .rest = rest};
    cpu_parallel(kernels_threads(), n, GRAIN, update_vector, &piece);
}

static void scale_values(const void *argument, size_t begin, size_t end)
{
    const struct piece *piece = argument;
    cpu_loops_get()->scale(end - begin, piece->values + begin, piece->scale);
}

void kernel_scale(size_t n, float *values, float scale)
{
    struct piece piece = {.values = values, .scale = scale};
    cpu_parallel(kernels_threads(), n, GRAIN, scale_values, &piece);
}
