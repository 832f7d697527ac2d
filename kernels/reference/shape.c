/* Reference ops that move elements between shapes, in plain order, and means over a dimension. */
#include "kernels/reference/reference.h"

/* The indices of an element of `type` in plain order, and back. */
static void unravel(const struct tensor_type *type, int64_t index, int64_t *at)
{
    for (int i = type->dim_count - 1; i >= 0; i--) {
        at[i] = index % type->dims[i];
        index /= type->dims[i];
    }
}

static int64_t ravel(const struct tensor_type *type, const int64_t *at)
{
    int64_t index = 0;
    for (int i = 0; i < type->dim_count; i++) index = index * type->dims[i] + at[i];
    return index;
}

status_t reference_transpose(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct tensor_type *x_type = &kernel->desc.inputs[0], *y_type = &kernel->desc.outputs[0];
    const int64_t *dims = kernel->desc.attrs.transpose.dims;
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    int64_t count = tensor_element_count(y_type), at[TENSOR_MAX_DIMS];
    for (int64_t i = 0; i < count; i++) {
        unravel(y_type, i, at);
        int64_t kept = at[dims[0]];
        at[dims[0]] = at[dims[1]];
        at[dims[1]] = kept;
        reference_put(kernel, 0, &y[i], x[ravel(x_type, at)]);
    }
    return NULL;
}

status_t reference_slice(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    struct op_dim view = op_dim_of(&desc->inputs[0], desc->attrs.slice.dim);
    int64_t length = tensor_element_count(&desc->outputs[0]) / (view.outer * view.inner);
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    for (int64_t o = 0; o < view.outer; o++)
        for (int64_t l = 0; l < length; l++)
            for (int64_t i = 0; i < view.inner; i++) {
                int64_t from = (o * view.count + desc->attrs.slice.start + l) * view.inner + i;
                reference_put(kernel, 0, &y[(o * length + l) * view.inner + i], x[from]);
            }
    return NULL;
}

status_t reference_slice_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    struct op_dim view = op_dim_of(&desc->outputs[0], desc->attrs.slice.dim);
    int64_t length = tensor_element_count(&desc->inputs[0]) / (view.outer * view.inner);
    const float *dy = call->inputs[0], *other = desc->input_present[1] ? call->inputs[1] : NULL;
    float *dx = call->outputs[0];
    for (int64_t o = 0; o < view.outer; o++)
        for (int64_t n = 0; n < view.count; n++)
            for (int64_t i = 0; i < view.inner; i++) {
                int64_t l = n - desc->attrs.slice.start;
                int64_t at = (o * view.count + n) * view.inner + i;
                double gradient = other != NULL ? other[at] : 0;
                if (l >= 0 && l < length) gradient += dy[(o * length + l) * view.inner + i];
                reference_put(kernel, 0, &dx[at], gradient);
            }
    return NULL;
}

status_t reference_concat(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    struct op_dim view = op_dim_of(&desc->outputs[0], desc->attrs.concat.dim);
    float *y = call->outputs[0];
    int64_t first = 0;
    for (int k = 0; k < 2; k++) {
        const struct tensor_type *type = &desc->inputs[k];
        const float *x = call->inputs[k];
        int64_t missing = desc->outputs[0].dim_count - type->dim_count;
        struct op_dim part = op_dim_of(type, desc->attrs.concat.dim - missing);
        for (int64_t o = 0; o < view.outer; o++)
            for (int64_t n = 0; n < part.count; n++)
                for (int64_t i = 0; i < view.inner; i++) {
                    int64_t from = ((o % part.outer) * part.count + n) * view.inner + i;
                    int64_t to = (o * view.count + first + n) * view.inner + i;
                    reference_put(kernel, 0, &y[to], x[from]);
                }
        first += part.count;
    }
    return NULL;
}

/* The factor of each of the mean's `count` places, from their mask (NULL: all). */
static double mean_factor(const struct kernel *kernel, const uint8_t *mask, int64_t count,
                          int64_t place)
{
    int64_t selected = 0, last = 0;
    if (kernel->desc.attrs.mean.sum) return 1;
    if (mask == NULL) return 1 / (double)count;
    for (int64_t n = 0; n < count; n++) {
        selected += mask[n] != 0;
        if (mask[n] != 0) last = n;
    }
    if (kernel->desc.attrs.mean.last) return place == last;
    return mask[place] != 0 ? 1 / (double)selected : 0;
}

static const uint8_t *mask_row(const struct kernel *kernel, const struct kernel_call *call,
                               int64_t row, int64_t count)
{
    if (!kernel->desc.input_present[1]) return NULL;
    return (const uint8_t *)call->inputs[1] + row * count;
}

status_t reference_mean(const struct kernel *kernel, const struct kernel_call *call)
{
    struct op_dim view = op_dim_of(&kernel->desc.inputs[0], kernel->desc.attrs.mean.dim);
    const float *x = call->inputs[0];
    float *y = call->outputs[0];
    for (int64_t o = 0; o < view.outer; o++) {
        const uint8_t *mask = mask_row(kernel, call, o, view.count);
        for (int64_t i = 0; i < view.inner; i++) {
            double sum = 0;
            for (int64_t n = 0; n < view.count; n++)
                sum += x[(o * view.count + n) * view.inner + i] *
                       mean_factor(kernel, mask, view.count, n);
            reference_put(kernel, 0, &y[o * view.inner + i], sum);
        }
    }
    return NULL;
}

status_t reference_mean_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    struct op_dim view = op_dim_of(&kernel->desc.outputs[0], kernel->desc.attrs.mean.dim);
    const float *dy = call->inputs[0];
    float *dx = call->outputs[0];
    for (int64_t row = 0; row < view.outer * view.count; row++) {
        int64_t o = row / view.count;
        double factor = mean_factor(kernel, mask_row(kernel, call, o, view.count), view.count,
                                    row % view.count);
        for (int64_t i = 0; i < view.inner; i++)
            reference_put(kernel, 0, &dx[row * view.inner + i], dy[o * view.inner + i] * factor);
    }
    return NULL;
}
