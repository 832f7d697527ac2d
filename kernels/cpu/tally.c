/*
 * Tallies of evaluations: counts as floats, which are exact below 2^24, and moments in double. On
 * one thread: they read what a matmul before them wrote, once.
 */
#include <math.h>

#include "kernels/cpu/cpu.h"

static int64_t select_class(const float *row, int64_t columns)
{
    int64_t best = 0;
    for (int64_t i = 0; i < columns; i++) {
        if (isnan(row[i])) return i;
        if (row[i] > row[best]) best = i;
    }
    return best;
}

static void count(float *y, int64_t columns, int64_t column, bool selected, bool wanted)
{
    y[column] += selected && wanted;
    y[columns + column] += selected;
    y[2 * columns + column] += wanted;
}

static void count_classes(const struct kernel_call *call, int64_t rows, int64_t columns, float *y)
{
    const float *x = call->inputs[0];
    const int32_t *target = call->inputs[1];
    for (int64_t r = 0; r < rows; r++) {
        if (target[r] < 0) continue;
        int64_t best = select_class(x + r * columns, columns);
        count(y, columns, best, true, best == target[r]);
        if (best != target[r]) count(y, columns, target[r], false, true);
    }
}

static void count_labels(const struct kernel_call *call, int64_t rows, int64_t columns, float *y)
{
    const float *x = call->inputs[0], *numbers = call->inputs[2];
    for (int64_t i = 0; i < rows * columns; i++)
        if (!isnan(numbers[i])) count(y, columns, i % columns, x[i] > 0, numbers[i] > 0.5F);
}

/* The means first: sums of squares would lose what varies where they are large. `y`: this rank's
 * rows. */
static void sum_numbers(const struct kernel_call *call, int64_t rows, int64_t columns, float *y)
{
    const float *x = call->inputs[0], *numbers = call->inputs[2];
    for (int64_t c = 0; c < columns; c++) {
        double count = 0, a = 0, b = 0, aa = 0, bb = 0, ab = 0, squares = 0;
        for (int64_t i = c; i < rows * columns; i += columns) {
            if (isnan(numbers[i])) continue;
            count++;
            a += x[i];
            b += numbers[i];
        }
        if (count > 0) a /= count, b /= count;
        for (int64_t i = c; i < rows * columns; i += columns) {
            if (isnan(numbers[i])) continue;
            double da = x[i] - a, db = numbers[i] - b, away = (double)x[i] - numbers[i];
            aa += da * da;
            bb += db * db;
            ab += da * db;
            squares += away * away;
        }
        const double all[TALLY_MOMENTS] = {count, a,  a - (float)a, b,      b - (float)b,
                                           aa,    bb, ab,           squares};
        for (int64_t k = 0; k < TALLY_MOMENTS; k++) y[k * columns + c] += (float)all[k];
    }
}

static void add_row(const struct kernel_call *call, int64_t count, float *y)
{
    const float *x = call->inputs[0];
    for (int64_t i = 0; i < count; i++) y[i] += x[i];
}

static status_t run_tally(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *x = &kernel->desc.inputs[0];
    int64_t columns = x->dims[x->dim_count - 1], rows = tensor_element_count(x) / columns;
    int64_t sums = tensor_element_count(&kernel->desc.outputs[0]);
    float *y = call->outputs[0];
    for (int64_t i = 0; i < sums && !kernel->desc.accumulate[0]; i++) y[i] = 0;
    switch (kernel->desc.attrs.tally.kind) {
    case TALLY_CLASSES: count_classes(call, rows, columns, y); break;
    case TALLY_LABELS: count_labels(call, rows, columns, y); break;
    case TALLY_NUMBERS:
        sum_numbers(call, rows, columns, y + (int64_t)call->rank * TALLY_MOMENTS * columns);
        break;
    case TALLY_ROWS: add_row(call, rows * columns, y + (int64_t)call->rank * rows * columns); break;
    }
    return NULL;
}

status_t cpu_prepare_tally(struct kernel *kernel)
{
    kernel->run = run_tally;
    return NULL;
}
