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

/* What row `r` adds to the sums of column `c`; false if it does not count. */
static bool terms(const struct kernel *kernel, const struct kernel_call *call, int64_t r, int64_t c,
                  double sums[static TALLY_SUMS])
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
        double a = x[c], b = y;
        const double all[TALLY_SUMS] = {1, a, b, a * a, b * b, a * b, (a - b) * (a - b)};
        memcpy(sums, all, sizeof all);
        if (kernel->desc.attrs.tally.kind == TALLY_NUMBERS) return true;
        selected = x[c] > 0;
        wanted = y > 0.5F;
    }
    sums[0] = selected && wanted;
    sums[1] = selected;
    sums[2] = wanted;
    return true;
}

status_t reference_tally(const struct kernel *kernel, const struct kernel_call *call)
{
    int64_t rows = kernel_rows(&kernel->desc.inputs[0]);
    int64_t columns = kernel_columns(&kernel->desc.inputs[0]);
    int64_t sums = kernel->desc.outputs[0].dims[0];
    float *y = call->outputs[0];
    for (int64_t c = 0; c < columns; c++) {
        double total[TALLY_SUMS] = {0};
        for (int64_t r = 0; r < rows; r++) {
            double more[TALLY_SUMS];
            if (!terms(kernel, call, r, c, more)) continue;
            for (int64_t k = 0; k < sums; k++) total[k] += more[k];
        }
        for (int64_t k = 0; k < sums; k++) reference_put(kernel, 0, &y[k * columns + c], total[k]);
    }
    return NULL;
}
