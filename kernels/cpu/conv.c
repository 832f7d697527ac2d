/*
 * Convolutions: by winograd.h or conv_columns.c where these fit, else by oneDNN. Activations are
 * channels last inside (on AVX-512 this is within a few percent of the library's own blocked
 * formats, and saves their reorders); activations in plain order are transposed in the workspace.
 * Weights, which are small compared to the work, are always reordered to the blocked format that
 * the primitive prefers.
 */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/program.h"
#include "kernels/cpu/winograd.h"

/* Two ways to describe a convolution to the library, tried in this order. */
enum formats { FORMATS_CHANNELS_LAST, FORMATS_ANY, FORMATS_COUNT };

struct cpu_conv {
    const struct tensor_type *x, *weight, *y;
    bool bias;
    dnnl_memory_desc_t x_inner, weight_inner, bias_format, y_inner;
};

static dnnl_data_type_t data_type(const struct tensor_type *type)
{
    return type->dtype == DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

static status_t describe(const struct kernel *kernel, dnnl_data_type_t type, int dim_count,
                         const int64_t *dims, dnnl_format_tag_t tag, dnnl_memory_desc_t *format)
{
    dnnl_dims_t all = {0}; /* the library's type has room for twelve */
    for (int i = 0; i < dim_count; i++) all[i] = dims[i];
    TRY_DNNL(kernel, "describe memory",
             dnnl_memory_desc_init_by_tag(format, dim_count, all, type, tag));
    return NULL;
}

/* The layout of the caller's activations; one channel or one pixel counts as channels last. */
static status_t describe_activation(const struct kernel *kernel, const struct tensor_type *type,
                                    dnnl_memory_desc_t *format)
{
    bool last = type->layout == LAYOUT_CHANNELS_LAST || type->dims[1] == 1 ||
                type->dims[2] * type->dims[3] == 1;
    return describe(kernel, data_type(type), 4, type->dims, last ? dnnl_nhwc : dnnl_nchw, format);
}

static status_t describe_weight(const struct kernel *kernel, const struct tensor_type *type,
                                bool plain, dnnl_memory_desc_t *format)
{
    int64_t groups = kernel->desc.attrs.conv.groups;
    if (groups == 1)
        return describe(kernel, data_type(type), 4, type->dims,
                        plain ? dnnl_oihw : dnnl_format_tag_any, format);
    int64_t dims[5] = {groups, type->dims[0] / groups, type->dims[1], type->dims[2], type->dims[3]};
    return describe(kernel, data_type(type), 5, dims, plain ? dnnl_goihw : dnnl_format_tag_any,
                    format);
}

static status_t describe_inner(const struct kernel *kernel, struct cpu_conv *conv,
                               enum formats formats)
{
    dnnl_format_tag_t tag = formats == FORMATS_ANY ? dnnl_format_tag_any : dnnl_nhwc;
    TRY(describe(kernel, data_type(conv->x), 4, conv->x->dims, tag, &conv->x_inner));
    TRY(describe(kernel, data_type(conv->y), 4, conv->y->dims, tag, &conv->y_inner));
    TRY(describe_weight(kernel, conv->weight, false, &conv->weight_inner));
    return describe(kernel, data_type(conv->weight), 1, conv->weight->dims, dnnl_a,
                    &conv->bias_format);
}

/* The geometry in the library's terms. */
struct geometry {
    dnnl_dims_t stride, dilation, padding;
};

static struct geometry geometry_of(const struct op_desc *desc)
{
    struct geometry geometry;
    for (int i = 0; i < 2; i++) {
        geometry.stride[i] = desc->attrs.conv.stride[i];
        geometry.dilation[i] = desc->attrs.conv.dilation[i] - 1;
        geometry.padding[i] = desc->attrs.conv.padding[i];
    }
    return geometry;
}

/* oneDNN's gradient of the weights of a convolution of 1 x 1 with a stride first copies its input to
 * scratch memory; with channels last and a part of a vector of them it writes behind that. */
static bool oversteps(const struct op_desc *desc, const_dnnl_primitive_desc_t primitive_desc)
{
    enum { VECTOR = 16 };
    const int64_t *stride = desc->attrs.conv.stride;
    const char *name = NULL;
    return desc->kind == OP_CONV2D_BACKWARD_WEIGHTS && (stride[0] > 1 || stride[1] > 1) &&
           desc->inputs[0].dims[1] % VECTOR != 0 &&
           dnnl_primitive_desc_query(primitive_desc, dnnl_query_impl_info_str, 0, &name) ==
               dnnl_success &&
           strncmp(name, "jit_1x1", 7) == 0;
}

/* The library's first implementation that keeps to its memory. */
static dnnl_status_t make_first(const struct kernel *kernel, const_dnnl_op_desc_t desc,
                                const_dnnl_primitive_attr_t attributes, dnnl_engine_t engine,
                                const_dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *made)
{
    dnnl_primitive_desc_iterator_t all = NULL;
    dnnl_status_t error =
        dnnl_primitive_desc_iterator_create(&all, desc, attributes, engine, forward);
    while (error == dnnl_success) {
        *made = dnnl_primitive_desc_iterator_fetch(all);
        if (*made == NULL) error = dnnl_out_of_memory;
        if (error != dnnl_success || !oversteps(&kernel->desc, *made)) break;
        dnnl_primitive_desc_destroy(*made);
        error = dnnl_primitive_desc_iterator_next(all);
    }
    dnnl_primitive_desc_iterator_destroy(all);
    return error;
}

static status_t make_forward(const struct kernel *kernel, const struct cpu_conv *conv,
                             dnnl_primitive_desc_t *made)
{
    dnnl_engine_t engine = NULL;
    TRY(program_engine(kernel, &engine));
    struct geometry g = geometry_of(&kernel->desc);
    dnnl_convolution_desc_t desc;
    TRY_DNNL(kernel, "describe the convolution",
             dnnl_dilated_convolution_forward_desc_init(
                 &desc, dnnl_forward_training, dnnl_convolution_direct, &conv->x_inner,
                 &conv->weight_inner, conv->bias ? &conv->bias_format : NULL, &conv->y_inner,
                 g.stride, g.dilation, g.padding, g.padding));
    dnnl_primitive_attr_t attributes = NULL;
    TRY(program_attributes(kernel, false, &attributes));
    dnnl_status_t error = dnnl_primitive_desc_create(made, &desc, attributes, engine, NULL);
    dnnl_primitive_attr_destroy(attributes);
    TRY_DNNL(kernel, "prepare the convolution", error);
    return NULL;
}

static status_t make_backward(const struct kernel *kernel, const struct cpu_conv *conv,
                              dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *made)
{
    dnnl_engine_t engine = NULL;
    TRY(program_engine(kernel, &engine));
    struct geometry g = geometry_of(&kernel->desc);
    dnnl_convolution_desc_t desc;
    if (kernel->desc.kind == OP_CONV2D_BACKWARD_DATA)
        TRY_DNNL(kernel, "describe the convolution",
                 dnnl_dilated_convolution_backward_data_desc_init(
                     &desc, dnnl_convolution_direct, &conv->x_inner, &conv->weight_inner,
                     &conv->y_inner, g.stride, g.dilation, g.padding, g.padding));
    else
        TRY_DNNL(kernel, "describe the convolution",
                 dnnl_dilated_convolution_backward_weights_desc_init(
                     &desc, dnnl_convolution_direct, &conv->x_inner, &conv->weight_inner,
                     conv->bias ? &conv->bias_format : NULL, &conv->y_inner, g.stride, g.dilation,
                     g.padding, g.padding));
    dnnl_primitive_attr_t attributes = NULL;
    TRY(program_attributes(kernel, false, &attributes));
    dnnl_status_t error = make_first(kernel, &desc, attributes, engine, forward, made);
    dnnl_primitive_attr_destroy(attributes);
    TRY_DNNL(kernel, "prepare the convolution", error);
    return NULL;
}

static status_t make(const struct kernel *kernel, struct cpu_conv *conv, enum formats formats,
                     dnnl_primitive_desc_t *made)
{
    TRY(describe_inner(kernel, conv, formats));
    if (kernel->desc.kind == OP_CONV2D) return make_forward(kernel, conv, made);
    dnnl_primitive_desc_t forward = NULL;
    TRY(make_forward(kernel, conv, &forward));
    status_t status = make_backward(kernel, conv, forward, made);
    dnnl_primitive_desc_destroy(forward);
    return status;
}

/* Whether the library has only its own reference loops for this. */
static bool is_slow(const_dnnl_primitive_desc_t primitive_desc)
{
    const char *name = NULL;
    if (dnnl_primitive_desc_query(primitive_desc, dnnl_query_impl_info_str, 0, &name) !=
        dnnl_success)
        return true;
    return strncmp(name, "ref", 3) == 0;
}

static status_t choose(const struct kernel *kernel, struct cpu_conv *conv,
                       dnnl_primitive_desc_t *made)
{
    status_t first_error = NULL;
    dnnl_primitive_desc_t slow = NULL;
    for (int formats = 0; formats < FORMATS_COUNT; formats++) {
        dnnl_primitive_desc_t candidate = NULL;
        status_t status = make(kernel, conv, (enum formats)formats, &candidate);
        if (status != NULL) {
            first_error = status_first(first_error, status);
        } else if (!is_slow(candidate)) {
            status_free(first_error);
            if (slow != NULL) dnnl_primitive_desc_destroy(slow);
            *made = candidate;
            return NULL;
        } else if (slow == NULL) {
            slow = candidate;
        } else {
            dnnl_primitive_desc_destroy(candidate);
        }
    }
    if (slow == NULL) return first_error;
    status_free(first_error);
    *made = slow;
    return NULL;
}

static status_t bind_activation(struct kernel *kernel, int argument, int operand,
                                const struct tensor_type *type, bool add)
{
    dnnl_memory_desc_t format;
    TRY(describe_activation(kernel, type, &format));
    return program_bind(kernel, argument, operand, &format, add);
}

static status_t bind_weight(struct kernel *kernel, int argument, int operand,
                            const struct tensor_type *type, bool add)
{
    dnnl_memory_desc_t format;
    TRY(describe_weight(kernel, type, true, &format));
    return program_bind(kernel, argument, operand, &format, add);
}

static status_t bind_all(struct kernel *kernel, const struct cpu_conv *conv)
{
    const bool *add = kernel->desc.accumulate;
    switch (kernel->desc.kind) {
    case OP_CONV2D:
        TRY(bind_activation(kernel, DNNL_ARG_SRC, 0, conv->x, false));
        TRY(bind_weight(kernel, DNNL_ARG_WEIGHTS, 1, conv->weight, false));
        if (conv->bias) TRY(program_bind(kernel, DNNL_ARG_BIAS, 2, &conv->bias_format, false));
        return bind_activation(kernel, DNNL_ARG_DST, PROGRAM_OUTPUT, conv->y, add[0]);
    case OP_CONV2D_BACKWARD_DATA:
        TRY(bind_activation(kernel, DNNL_ARG_DIFF_DST, 0, conv->y, false));
        TRY(bind_weight(kernel, DNNL_ARG_WEIGHTS, 1, conv->weight, false));
        return bind_activation(kernel, DNNL_ARG_DIFF_SRC, PROGRAM_OUTPUT, conv->x, add[0]);
    default:
        TRY(bind_activation(kernel, DNNL_ARG_SRC, 0, conv->x, false));
        TRY(bind_activation(kernel, DNNL_ARG_DIFF_DST, 1, conv->y, false));
        TRY(bind_weight(kernel, DNNL_ARG_DIFF_WEIGHTS, PROGRAM_OUTPUT, conv->weight, add[0]));
        if (!conv->bias) return NULL;
        return program_bind(kernel, DNNL_ARG_DIFF_BIAS, PROGRAM_OUTPUT + 1, &conv->bias_format,
                            add[1]);
    }
}

static struct cpu_conv conv_of(const struct op_desc *desc)
{
    const struct tensor_type *in = desc->inputs, *out = desc->outputs;
    if (desc->kind == OP_CONV2D_BACKWARD_DATA)
        return (struct cpu_conv){.x = &out[0], .weight = &in[1], .y = &in[0]};
    if (desc->kind == OP_CONV2D_BACKWARD_WEIGHTS)
        return (struct cpu_conv){.x = &in[0],
                                 .weight = &out[0],
                                 .y = &in[1],
                                 .bias = desc->output_present[1]};
    return (struct cpu_conv){.x = &in[0],
                             .weight = &in[1],
                             .y = &out[0],
                             .bias = desc->input_present[2]};
}

status_t cpu_prepare_conv(struct kernel *kernel)
{
    struct cpu_conv conv = conv_of(&kernel->desc);
    if (!cpu_is_plain(conv.weight)) return reference_prepare(kernel);
    if (winograd_fits(&kernel->desc)) {
        winograd_prepare(kernel);
        return NULL;
    }
    if (conv_columns_fit(&kernel->desc)) return conv_columns_prepare(kernel);
    dnnl_primitive_desc_t primitive_desc = NULL;
    TRY(choose(kernel, &conv, &primitive_desc));
    TRY(program_new(kernel, primitive_desc));
    TRY(bind_all(kernel, &conv));
    if (kernel->desc.attrs.conv.activation == ACTIVATION_RELU) program_follow_with_relu(kernel);
    return program_finish(kernel);
}
