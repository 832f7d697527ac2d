/* Reference tallies: sums over rows, by column. */
#include <math.h>
#include <string.h>

#include "kernels/reference/reference.h"

static int64_t first_maximum(const float *row, int64_t columns)
{
    int64_t best = 0;
    for (int64_t i = 1; i < columns; i++)
        if (!isnan(row[best]) && (row[i] > row[best] || isnan(row[i]))) best = i;
    return best;
}

/* What row `r` adds to the counts of column `c`; false if it does not count. */
static bool terms(const struct kernel *kernel, const struct kernel_call *call, int64_t r, int64_t c,
                  double counts[static TALLY_COUNTS])
{
    int64_t columns = kernel_columns(&kernel->desc.inputs[0]);
    const float *x = (const float *)call->inputs[0] + r * columns;
    bool selected, wanted;
    if (kernel->desc.attrs.tally.kind == TALLY_CLASSES) {
        int32_t target = ((const int32_t *)call->inputs[1])[r];
        if (target < 0) return false;
        selected = first_maximum(x, columns) == c;
        wanted = target == c;
    } else {
        float y = ((const float *)call->inputs[2])[r * columns + c];
        if (isnan(y)) return false;
        selected = x[c] > 0;
        wanted = y > 0.5F;
    }
    counts[0] = selected && wanted;
    counts[1] = selected;
    counts[2] = wanted;
    return true;
}

/* Of column `c`: with means of 0 only their sums and the count are used. */
static void moments(const struct kernel *kernel, const struct kernel_call *call, int64_t c,
                    const double means[2], double sums[static 7])
{
    int64_t columns = kernel_columns(&kernel->desc.inputs[0]);
    int64_t count = tensor_element_count(&kernel->desc.inputs[0]);
    const float *x = call->inputs[0], *numbers = call->inputs[2];
    memset(sums, 0, 7 * sizeof *sums);
    for (int64_t i = c; i < count; i += columns) {
        double a = x[i] - means[0], b = numbers[i] - means[1], away = (double)x[i] - numbers[i];
        if (isnan(numbers[i])) continue;
        const double more[7] = {1, a, b, a * a, b * b, a * b, away * away};
        for (int k = 0; k < 7; k++) sums[k] += more[k];
    }
}

/* This rank's rows; those of the others are 0. */
static void tally_numbers(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t columns = kernel_columns(&kernel->desc.inputs[0]);
    int64_t rows = kernel->desc.outputs[0].dims[0], first = (int64_t)call->rank * TALLY_MOMENTS;
    float *y = call->outputs[0];
    for (int64_t c = 0; c < columns; c++) {
        double sums[7], means[2] = {0, 0};
        moments(kernel, call, c, means, sums);
        if (sums[0] > 0) means[0] = sums[1] / sums[0], means[1] = sums[2] / sums[0];
        moments(kernel, call, c, means, sums);
        const double all[TALLY_MOMENTS] = {sums[0],
                                           means[0],
                                           means[0] - (float)means[0],
                                           means[1],
                                           means[1] - (float)means[1],
                                           sums[3],
                                           sums[4],
                                           sums[5],
                                           sums[6]};
        for (int64_t k = 0; k < rows; k++) {
            bool own = k >= first && k < first + TALLY_MOMENTS;
            reference_put(kernel, 0, &y[k * columns + c], own ? all[k - first] : 0);
        }
    }
}

static void tally_rows(const struct kernel *kernel, const struct kernel_call *call)
{
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    int64_t columns = tensor_element_count(&kernel->desc.inputs[0]);
    for (int64_t i = 0; i < tensor_element_count(&kernel->desc.outputs[0]); i++)
        reference_put(kernel, 0, &y[i], i / columns == (int64_t)call->rank ? x[i % columns] : 0);
}

status_t reference_tally(const struct kernel *kernel, const struct kernel_call *call)
{
    if (kernel->desc.attrs.tally.kind == TALLY_ROWS) {
        tally_rows(kernel, call);
        return NULL;
    }
    int64_t rows = kernel_rows(&kernel->desc.inputs[0]);
    int64_t columns = kernel_columns(&kernel->desc.inputs[0]);
    float *y = call->outputs[0];
    if (kernel->desc.attrs.tally.kind == TALLY_NUMBERS) {
        tally_numbers(kernel, call);
        return NULL;
    }
    for (int64_t c = 0; c < columns; c++) {
        double total[TALLY_COUNTS] = {0};
        for (int64_t r = 0; r < rows; r++) {
            double more[TALLY_COUNTS];
            if (!terms(kernel, call, r, c, more)) continue;
            for (int64_t k = 0; k < TALLY_COUNTS; k++) total[k] += more[k];
        }
        for (int64_t k = 0; k < TALLY_COUNTS; k++)
            reference_put(kernel, 0, &y[k * columns + c], total[k]);
    }
    return NULL;
}
