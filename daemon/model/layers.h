/*
 * The table of what model files can call: leaf modules (Conv2d, ...) and functions (relu, ...),
 * with PyTorch's signatures and defaults. A leaf module and the equivalent function become the same
 * `layer`.
 */
#ifndef FSDPD_MODEL_LAYERS_H
#define FSDPD_MODEL_LAYERS_H

#include "model/layer.h"

struct layer_type {
    struct signature signature;
    enum op_kind kind;

    /* Fills in the fields that are not 0; NULL if there are none. */
    status_t (*make)(const struct bound *bound, struct layer *layer);

    /* Leaf modules only: adds what PyTorch prints in the parentheses. */
    void (*print)(const struct bound *bound, struct buf *text);

    /* Leaf modules with parameters only; returns their number. */
    int (*parameters)(const struct bound *bound,
                      struct layer_parameter parameters[LAYER_MAX_PARAMETERS]);
};

/* NULL if there is none with that name. */
const struct layer_type *layer_find_module(const char *name);
const struct layer_type *layer_find_function(const char *name);

/* Makes the layer of a call with these arguments. Messages begin with the call: "Conv2d(): ...". */
status_t layer_make(const struct layer_type *type, const struct bound *bound,
                    struct layer *layer) FSDPD_MUST_USE;

/* "; did you mean 'Conv2d'?", or, if no name is close, "; the modules are ...". The `count` names
 * in `others` are candidates too. The caller frees. */
char *layer_suggest_module(const char *name, const char *const *others, size_t count);
char *layer_suggest_function(const char *name, const char *const *others, size_t count);
char *layer_suggest_loss(const char *name);

#endif
