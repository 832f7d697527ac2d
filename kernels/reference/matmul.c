/* Reference products of matrices, one after the other; an operand of two dimensions is in each of
 * them. Tensors in plain order. */
#include "kernels/reference/reference.h"

status_t reference_matmul(const struct kernel *kernel, const struct kernel_call *call)
{
    const struct op_desc *desc = &kernel->desc;
    const struct tensor_type *a_type = &desc->inputs[0], *y_type = &desc->outputs[0];
    bool first = desc->attrs.matmul.first, second = desc->attrs.matmul.second;
    int64_t m = y_type->dims[y_type->dim_count - 2], n = y_type->dims[y_type->dim_count - 1];
    int64_t k = a_type->dims[a_type->dim_count - (first ? 2 : 1)];
    int64_t count = tensor_element_count(y_type) / (m * n);
    for (int64_t at = 0; at < count * m * n; at++) {
        int64_t matrix = at / (m * n), row = at / n % m, column = at % n;
        const float *a = call->inputs[0], *b = call->inputs[1];
        if (a_type->dim_count > 2) a += matrix * m * k;
        if (desc->inputs[1].dim_count > 2) b += matrix * k * n;
        double sum = 0;
        for (int64_t i = 0; i < k; i++)
            sum += (double)a[first ? i * m + row : row * k + i] *
                   b[second ? column * k + i : i * n + column];
        reference_put(kernel, 0, (float *)call->outputs[0] + at, sum);
    }
    return NULL;
}
