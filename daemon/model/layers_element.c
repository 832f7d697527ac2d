/* Functions of single elements: what they print and which function they are. The tables of layers.c
 * have their signatures. Pure. */
#include "model/layers_internal.h"

void leaky_relu_print(const struct bound *bound, struct buf *text)
{
    print_argument(bound, "negative_slope", text);
    silu_print(bound, text);
}

void elu_print(const struct bound *bound, struct buf *text)
{
    print_argument(bound, "alpha", text);
    silu_print(bound, text);
}

#define FUNCTION(name, KIND, its_parameter)                                                        \
    status_t make_##name(const struct bound *bound, struct layer *layer)                           \
    {                                                                                              \
        (void)bound;                                                                               \
        layer->attrs.function.kind = FUNCTION_##KIND;                                              \
        layer->attrs.function.parameter = its_parameter;                                           \
        return NULL;                                                                               \
    }

FUNCTION(leaky_relu, LEAKY_RELU, bound_real(bound, "negative_slope"))
FUNCTION(elu, ELU, bound_real(bound, "alpha"))
FUNCTION(relu6, RELU6, 0)
FUNCTION(hardswish, HARDSWISH, 0)
FUNCTION(hardsigmoid, HARDSIGMOID, 0)
FUNCTION(exp, EXP, 0)
FUNCTION(log, LOG, 0)
FUNCTION(sqrt, SQRT, 0)
FUNCTION(abs, ABS, 0)
FUNCTION(pow, POW, bound_real(bound, "exponent"))

status_t make_identity(const struct bound *bound, struct layer *layer)
{
    (void)bound;
    layer->attrs.scale.factor = 1;
    return NULL;
}
