/* Products of two tensors' matrices by oneDNN: one primitive for all of them. An operand that lacks
 * the first dimensions is the same matrix in each. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/program.h"

/* `count` matrices, or one for all. */
static status_t describe(const struct kernel *kernel, const struct tensor_type *type, int64_t count,
                         bool transposed, dnnl_memory_desc_t *format)
{
    int64_t rows = type->dims[type->dim_count - 2], columns = type->dims[type->dim_count - 1];
    dnnl_dims_t dims = {type->dim_count > 2 ? count : 1, transposed ? columns : rows,
                        transposed ? rows : columns};
    dnnl_dims_t strides = {rows * columns, transposed ? 1 : columns, transposed ? columns : 1};
    TRY_DNNL(kernel, "describe memory",
             dnnl_memory_desc_init_by_strides(format, 3, dims, dnnl_f32, strides));
    return NULL;
}

status_t cpu_prepare_matmul(struct kernel *kernel)
{
    const struct op_desc *desc = &kernel->desc;
    const struct tensor_type *y = &desc->outputs[0];
    int64_t count =
        tensor_element_count(y) / (y->dims[y->dim_count - 2] * y->dims[y->dim_count - 1]);
    dnnl_memory_desc_t formats[3];
    TRY(describe(kernel, &desc->inputs[0], count, desc->attrs.matmul.first, &formats[0]));
    TRY(describe(kernel, &desc->inputs[1], count, desc->attrs.matmul.second, &formats[1]));
    TRY(describe(kernel, y, count, false, &formats[2]));
    dnnl_primitive_desc_t primitive_desc = NULL;
    TRY(program_matmul(kernel, formats, NULL, desc->accumulate[0], &primitive_desc));
    TRY(program_new(kernel, primitive_desc));
    TRY(program_bind(kernel, DNNL_ARG_SRC, 0, &formats[0], false));
    TRY(program_bind(kernel, DNNL_ARG_WEIGHTS, 1, &formats[1], false));
    TRY(program_bind(kernel, DNNL_ARG_DST, PROGRAM_OUTPUT, &formats[2], false));
    return program_finish(kernel);
}
