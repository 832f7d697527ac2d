/* What modules of several calls register, print and do: LSTM, GRU and attention with its
 * projections; trace_leaf.c makes their calls. The tables of layers.c have their signatures. Pure.
 */
#include "model/layers_internal.h"

#include <math.h>
#include <string.h>

#include "base/array.h"

static status_t check_batch_first(const struct bound *bound)
{
    if (bound_boolean(bound, "batch_first")) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s(): only batch_first=True: the batch is dimension 0",
                      bound->signature->name);
}

static status_t make_recurrent(const struct bound *bound, enum op_recurrence kind,
                               struct layer *layer)
{
    const char *name = bound->signature->name;
    TRY(check_batch_first(bound));
    if (bound_integer(bound, "num_layers") > LAYER_MAX_STACK)
        return status_new(STATUS_INVALID_ARGUMENT, "%s(): num_layers is at most %d, found %lld",
                          name, LAYER_MAX_STACK, (long long)bound_integer(bound, "num_layers"));
    layer->attrs.recurrent.kind = kind;
    layer->stack = (int)bound_integer(bound, "num_layers");
    layer->both = bound_boolean(bound, "bidirectional");
    layer->p = bound_real(bound, "dropout");
    return NULL;
}

status_t make_lstm(const struct bound *bound, struct layer *layer)
{
    return make_recurrent(bound, RECURRENCE_LSTM, layer);
}

status_t make_gru(const struct bound *bound, struct layer *layer)
{
    return make_recurrent(bound, RECURRENCE_GRU, layer);
}

/* Of each layer and direction: both weights, then both biases. */
int recurrent_parameters(const struct bound *bound,
                         struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
#define NAMES(l, end)                                                                              \
    {                                                                                              \
        "weight_ih_l" #l end, "weight_hh_l" #l end, "bias_ih_l" #l end, "bias_hh_l" #l end         \
    }
#define BOTH(l)                                                                                    \
    {                                                                                              \
        NAMES(l, ""), NAMES(l, "_reverse")                                                         \
    }
    static const char *const names[LAYER_MAX_STACK][2][4] = {BOTH(0), BOTH(1), BOTH(2), BOTH(3),
                                                             BOTH(4), BOTH(5), BOTH(6), BOTH(7)};
#undef BOTH
#undef NAMES
    int64_t width = bound_integer(bound, "hidden_size");
    int64_t columns = (strcmp(bound->signature->name, "GRU") == 0 ? 3 : 4) * width;
    int directions = bound_boolean(bound, "bidirectional") ? 2 : 1, count = 0;
    for (int l = 0; l < bound_integer(bound, "num_layers"); l++)
        for (int d = 0; d < directions; d++)
            for (int k = 0; k < (bound_boolean(bound, "bias") ? 4 : 2); k++) {
                int64_t inputs = l > 0 ? directions * width : bound_integer(bound, "input_size");
                int64_t dims[] = {columns, k == 0 ? inputs : width};
                parameters[count++] =
                    (struct layer_parameter){.name = names[l][d][k],
                                             .type =
                                                 tensor_type_make(DTYPE_F32, k < 2 ? 2 : 1, dims),
                                             .init = INIT_UNIFORM,
                                             .bound = 1 / sqrt((double)width)};
            }
    return count;
}

void recurrent_print(const struct bound *bound, struct buf *text)
{
    buf_printf(text, "%lld, %lld", (long long)bound_integer(bound, "input_size"),
               (long long)bound_integer(bound, "hidden_size"));
    if (bound_integer(bound, "num_layers") != 1) print_argument(bound, "num_layers", text);
    if (!bound_boolean(bound, "bias")) print_argument(bound, "bias", text);
    print_argument(bound, "batch_first", text);
    if (bound_real(bound, "dropout") != 0) print_argument(bound, "dropout", text);
    if (bound_boolean(bound, "bidirectional")) print_argument(bound, "bidirectional", text);
}

status_t make_multihead(const struct bound *bound, struct layer *layer)
{
    int64_t width = bound_integer(bound, "embed_dim"), heads = bound_integer(bound, "num_heads");
    TRY(check_batch_first(bound));
    if (width % heads != 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "MultiheadAttention(): num_heads=%lld does not divide embed_dim=%lld",
                          (long long)heads, (long long)width);
    layer->attrs.attention.heads = layer->attrs.attention.kv_heads = heads;
    layer->attrs.attention.p = bound_real(bound, "dropout");
    return NULL;
}

/* PyTorch draws out_proj first, also its bias, which is zeros then: a range of 0 draws these. */
int multihead_parameters(const struct bound *bound,
                         struct layer_parameter parameters[LAYER_MAX_PARAMETERS])
{
    int64_t width = bound_integer(bound, "embed_dim");
    struct tensor_type in = tensor_type_make(DTYPE_F32, 2, (int64_t[]){3 * width, width});
    struct tensor_type out = tensor_type_make(DTYPE_F32, 2, (int64_t[]){width, width});
    double deviation = sqrt(2.0 / (double)(4 * width));
    const struct layer_parameter all[] = {
        {.name = "in_proj_weight",
         .type = in,
         .init = INIT_UNIFORM,
         .bound = sqrt(3.0) * deviation},
        {.name = "in_proj_bias",
         .type = tensor_type_make(DTYPE_F32, 1, in.dims),
         .init = INIT_ZEROS},
        {.name = "out_proj.weight",
         .type = out,
         .init = INIT_UNIFORM,
         .bound = weight_bound(width)},
        {.name = "out_proj.bias",
         .type = tensor_type_make(DTYPE_F32, 1, out.dims),
         .init = INIT_UNIFORM},
    };
    int step = bound_boolean(bound, "bias") ? 1 : 2, count = 0;
    for (int i = 0; i < 4; i += step) {
        parameters[count] = all[i];
        parameters[count++].drawn = (i < 2 ? 2 : -2) / step;
    }
    return count;
}

void multihead_print(const struct bound *bound, struct buf *text)
{
    buf_printf(text, "%lld, %lld", (long long)bound_integer(bound, "embed_dim"),
               (long long)bound_integer(bound, "num_heads"));
    if (bound_real(bound, "dropout") != 0) print_argument(bound, "dropout", text);
    if (!bound_boolean(bound, "bias")) print_argument(bound, "bias", text);
    print_argument(bound, "batch_first", text);
}
