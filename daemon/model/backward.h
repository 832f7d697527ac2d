/*
 * The backward pass while it is made: which values need a gradient, the gradients so far, and how a
 * rule appends its ops and adds to them. Private to libmodel.
 */
#ifndef FSDPD_MODEL_BACKWARD_H
#define FSDPD_MODEL_BACKWARD_H

#include "model/graph_builder.h"

struct backward {
    struct graph_builder *builder;
    bool *needed;  /* by forward value: it depends on a trainable parameter */
    int *gradient; /* by forward value: its gradient so far, or -1 */
    /* By forward value: its gradient has already passed the activation that made it. */
    bool *past_activation;
    int *parameter_gradient; /* by parameter: its gradient, or -1 before the first */
    bool accumulate;         /* even the first gradient of a parameter is added */
    int current;             /* the forward op being differentiated */
};

/* A copy of the op being differentiated: the graph's array moves while ops are added. */
typedef struct graph_op forward_op;

/* Whether the value depends on a trainable parameter. False for -1. */
bool backward_needs(const struct backward *backward, int value);

/* Appends an op with the attributes of `of` and no operands yet, named after it. The pointer is
 * valid until the next op is added. */
struct graph_op *backward_add_op(struct backward *backward, enum op_kind kind, const forward_op *of,
                                 const char *suffix);

/* Appends an op with one gradient as input and one as output: dx = kind(dy). */
struct graph_op *backward_add_unary(struct backward *backward, enum op_kind kind,
                                    const forward_op *op, const char *suffix, int dy);

/* Adds a gradient of `value` as output `slot` of the last op. Returns its number. */
int backward_add_gradient(struct backward *backward, int value, int slot);

/* Adds `gradient` to the gradient that `value` has so far. */
void backward_contribute(struct backward *backward, int value, int gradient);

/* Makes the gradient of the parameter `value` output `slot` of the last op. */
void backward_add_parameter_gradient(struct backward *backward, int value, int slot);

/* Adds an output to the forward op that only its gradient needs: the places of maxima, statistics,
 * the activation's input. Returns its number. */
int backward_add_forward_output(struct backward *backward, const forward_op *op, int slot,
                                struct tensor_type type, const char *suffix);

#endif
