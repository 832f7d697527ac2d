/* What layers for images register, print and do. The tables of layers.c have their signatures.
 * Pure. */
#include "model/layers_image.h"

#include "model/layers_sequence.h"

status_t make_avg_pool2d(const struct bound *bound, struct layer *layer)
{
    bool none = bound_none(bound, "stride");
    if (bound_boolean(bound, "ceil_mode"))
        return status_new(STATUS_INVALID_ARGUMENT, "%s(): ceil_mode is not supported",
                          bound->signature->name);
    bound_pair(bound, "kernel_size", layer->attrs.avg_pool.kernel);
    bound_pair(bound, none ? "kernel_size" : "stride", layer->attrs.avg_pool.stride);
    bound_pair(bound, "padding", layer->attrs.avg_pool.padding);
    layer->attrs.avg_pool.count_include_pad = bound_boolean(bound, "count_include_pad");
    return NULL;
}

status_t make_adaptive_avg_pool2d(const struct bound *bound, struct layer *layer)
{
    layer->attrs.avg_pool.adaptive = true;
    bound_pair(bound, "output_size", layer->sizes);
    return NULL;
}

status_t make_group_norm(const struct bound *bound, struct layer *layer)
{
    int64_t groups = bound_integer(bound, "num_groups");
    if (bound_integer(bound, "num_channels") % groups != 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "GroupNorm(): num_groups=%lld does not divide num_channels=%lld",
                          (long long)groups, (long long)bound_integer(bound, "num_channels"));
    layer->attrs.group_norm.groups = groups;
    layer->attrs.group_norm.eps = bound_real(bound, "eps");
    return NULL;
}

int group_norm_parameters(const struct bound *bound,
                          struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
    int64_t channels = bound_integer(bound, "num_channels");
    struct tensor_type type = tensor_type_make(DTYPE_F32, 1, &channels);
    if (!bound_boolean(bound, "affine")) return 0;
    parameters[0] = (struct layer_parameter){.name = "weight", .type = type, .init = INIT_ONES};
    parameters[1] = (struct layer_parameter){.name = "bias", .type = type, .init = INIT_ZEROS};
    return 2;
}

/* As PyTorch prints them: numbers without their names where it does. */

void avg_pool2d_print(const struct bound *bound, struct buf *text)
{
    char value[64];
    print_argument(bound, "kernel_size", text);
    bool none = bound_none(bound, "stride");
    buf_printf(text, ", stride=%s",
               constant_format(bound_get(bound, none ? "kernel_size" : "stride"), value));
    print_argument(bound, "padding", text);
}

void adaptive_avg_pool2d_print(const struct bound *bound, struct buf *text)
{
    print_argument(bound, "output_size", text);
}

void group_norm_print(const struct bound *bound, struct buf *text)
{
    buf_printf(text, "%lld, %lld", (long long)bound_integer(bound, "num_groups"),
               (long long)bound_integer(bound, "num_channels"));
    print_argument(bound, "eps", text);
    print_argument(bound, "affine", text);
}
