/* What LSTM and GRU register, print and do; trace_leaf.c makes their calls. The tables of layers.c
 * have their signatures. Pure. */
#include "model/layers_internal.h"

#include <math.h>
#include <string.h>

#include "base/array.h"

static status_t make_recurrent(const struct bound *bound, enum op_recurrence kind,
                               struct layer *layer)
{
    const char *name = bound->signature->name;
    if (!bound_boolean(bound, "batch_first"))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s(): only batch_first=True: the batch is dimension 0", name);
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
