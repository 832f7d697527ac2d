/*
 * The table of what model files can call: leaf modules (Conv2d, ...) and functions (relu, ...),
 * with PyTorch's signatures and defaults. A leaf module and the function of the same meaning become
 * the same `layer`.
 */
#ifndef FSDPD_MODEL_LAYERS_H
#define FSDPD_MODEL_LAYERS_H

#include "base/buf.h"
#include "model/arguments.h"
#include "model/model.h"
#include "ops/op.h"

/* One call's arithmetic, without its tensors. FLATTEN is a RESHAPE whose shape is not known yet. */
struct layer {
    enum op_kind kind;
    union op_attrs attrs;
    int start_dim, end_dim; /* of RESHAPE: the dimensions that become one; negative from the end */
    int dim;                /* of LOG_SOFTMAX and SOFTMAX; negative from the end */
};

/* A parameter that a leaf module registers. */
struct layer_parameter {
    const char *name; /* "weight" */
    struct tensor_type type;
    enum init_kind init;
    double bound;
    bool has_zero_row;
    int64_t zero_row;
};

enum { LAYER_MAX_PARAMETERS = 2, LAYER_MAX_TENSORS = 4 };

struct layer_type {
    struct signature signature;
    enum op_kind kind;

    /* Fills in what is not 0; NULL: nothing. */
    status_t (*make)(const struct bound *bound, struct layer *layer);

    /* Leaf modules only: adds what PyTorch prints in the parentheses. */
    void (*print)(const struct bound *bound, struct buf *text);

    /* Leaf modules with parameters only; returns how many. */
    int (*parameters)(const struct bound *bound,
                      struct layer_parameter parameters[LAYER_MAX_PARAMETERS]);
};

/* NULL if there is none of that name. */
const struct layer_type *layer_find_module(const char *name);
const struct layer_type *layer_find_function(const char *name);

/* What a call with these arguments does. Messages begin with the call: "Conv2d(): ...". */
status_t layer_make(const struct layer_type *type, const struct bound *bound,
                    struct layer *layer) FSDPD_MUST_USE;

/* "; did you mean 'Conv2d'?" or "", also among the `count` names in `others`. The caller frees. */
char *layer_suggest_module(const char *name, const char *const *others, size_t count);
char *layer_suggest_function(const char *name, const char *const *others, size_t count);

#endif
