/* What layers for images register, print and do. The tables of layers.c have their signatures.
 * Pure. */
#include "model/layers_internal.h"

#include "base/array.h"

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

status_t make_batch_norm(const struct bound *bound, struct layer *layer)
{
    double momentum = bound_real(bound, "momentum");
    if (!bound_boolean(bound, "track_running_stats"))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s(): track_running_stats=False is not supported; GroupNorm needs no "
                          "running statistics",
                          bound->signature->name);
    if (!(momentum >= 0 && momentum <= 1))
        return status_new(STATUS_INVALID_ARGUMENT, "%s(): momentum=%g, expected 0 to 1",
                          bound->signature->name, momentum);
    layer->attrs.batch_norm.eps = bound_real(bound, "eps");
    layer->attrs.batch_norm.momentum = momentum;
    return NULL;
}

status_t make_sync_batch_norm(const struct bound *bound, struct layer *layer)
{
    layer->attrs.batch_norm.sync = true;
    return make_batch_norm(bound, layer);
}

int batch_norm_parameters(const struct bound *bound,
                          struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
    int64_t channels = bound_integer(bound, "num_features"), two = 2;
    struct tensor_type type = tensor_type_make(DTYPE_F32, 1, &channels);
    struct tensor_type count = tensor_type_make(DTYPE_F32, 1, &two);
    const struct layer_parameter all[] = {
        {.name = "weight", .type = type, .init = INIT_ONES},
        {.name = "bias", .type = type, .init = INIT_ZEROS},
        {.name = "running_mean",
         .type = type,
         .buffer = MODEL_BUFFER_STATISTIC,
         .init = INIT_ZEROS},
        {.name = "running_var", .type = type, .buffer = MODEL_BUFFER_STATISTIC, .init = INIT_ONES},
        {.name = "num_batches_tracked",
         .type = count,
         .buffer = MODEL_BUFFER_COUNT,
         .init = INIT_ZEROS},
    };
    int made = 0;
    for (int i = bound_boolean(bound, "affine") ? 0 : 2; i < (int)COUNT_OF(all); i++)
        parameters[made++] = all[i];
    return made;
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

void batch_norm_print(const struct bound *bound, struct buf *text)
{
    buf_printf(text, "%lld", (long long)bound_integer(bound, "num_features"));
    print_argument(bound, "eps", text);
    print_argument(bound, "momentum", text);
    print_argument(bound, "affine", text);
    print_argument(bound, "track_running_stats", text);
}

/* ---- lines of pixels: images of one row ---- */

static status_t set_line(const struct bound *bound, struct layer *layer, int64_t *stride,
                         int64_t *padding)
{
    layer->line = true;
    if (stride != NULL) stride[0] = 1;
    if (padding != NULL) padding[0] = 0;
    if (padding == NULL || bound_get(bound, "padding")->kind != CONSTANT_PAIR) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s(): argument 'padding': expected one number",
                      bound->signature->name);
}

status_t make_conv_line(const struct bound *bound, struct layer *layer)
{
    TRY(make_conv2d(bound, layer));
    layer->attrs.conv.dilation[0] = 1;
    return set_line(bound, layer, layer->attrs.conv.stride, layer->attrs.conv.padding);
}

status_t make_max_pool_line(const struct bound *bound, struct layer *layer)
{
    TRY(make_max_pool2d(bound, layer));
    layer->attrs.pool.kernel[0] = 1;
    return set_line(bound, layer, layer->attrs.pool.stride, layer->attrs.pool.padding);
}

status_t make_avg_pool_line(const struct bound *bound, struct layer *layer)
{
    TRY(make_avg_pool2d(bound, layer));
    layer->attrs.avg_pool.kernel[0] = 1;
    return set_line(bound, layer, layer->attrs.avg_pool.stride, layer->attrs.avg_pool.padding);
}

status_t make_adaptive_avg_pool_line(const struct bound *bound, struct layer *layer)
{
    TRY(make_adaptive_avg_pool2d(bound, layer));
    layer->sizes[0] = 1;
    return set_line(bound, layer, NULL, NULL);
}

status_t make_batch_norm_line(const struct bound *bound, struct layer *layer)
{
    layer->line = true;
    return make_batch_norm(bound, layer);
}

int conv_line_parameters(const struct bound *bound,
                         struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
    int64_t dims[] = {bound_integer(bound, "out_channels"),
                      bound_integer(bound, "in_channels") / bound_integer(bound, "groups"),
                      bound_integer(bound, "kernel_size")};
    struct tensor_type weight = tensor_type_make(DTYPE_F32, 3, dims);
    return weight_and_bias(&weight, bound_boolean(bound, "bias"), parameters);
}

static void print_line(const struct bound *bound, const char *name, struct buf *text)
{
    buf_printf(text, "%s%s=(%lld,)", text->length ? ", " : "", name,
               (long long)bound_integer(bound, name));
}

void conv_line_print(const struct bound *bound, struct buf *text)
{
    buf_printf(text, "%lld, %lld", (long long)bound_integer(bound, "in_channels"),
               (long long)bound_integer(bound, "out_channels"));
    print_line(bound, "kernel_size", text);
    print_line(bound, "stride", text);
    if (bound_integer(bound, "padding") != 0) print_line(bound, "padding", text);
    if (bound_integer(bound, "dilation") != 1) print_line(bound, "dilation", text);
    if (bound_integer(bound, "groups") != 1) print_argument(bound, "groups", text);
    if (!bound_boolean(bound, "bias")) print_argument(bound, "bias", text);
}

void avg_pool_line_print(const struct bound *bound, struct buf *text)
{
    bool none = bound_none(bound, "stride");
    print_line(bound, "kernel_size", text);
    buf_printf(text, ", stride=(%lld,)",
               (long long)bound_integer(bound, none ? "kernel_size" : "stride"));
    print_line(bound, "padding", text);
}
