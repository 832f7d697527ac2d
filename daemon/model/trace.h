/*
 * What the files that run forward sections share: one run of a section, and how calls are appended
 * to the program. Private to libmodel; see reader.h for the stages of reading.
 */
#ifndef FSDPD_MODEL_TRACE_H
#define FSDPD_MODEL_TRACE_H

#include "model/layers.h"
#include "model/reader.h"

struct variable {
    const char *name;
    int value;  /* -1 for a loop's variable */
    int module; /* the module that a loop's variable stands for, else -1 */
};

/* One run of one forward section. */
struct scope {
    struct reader *reader;
    int module;
    int line;
    int depth; /* of recursion, over all scopes */
    struct variable *variables;
    int variable_count, variable_capacity;
};

/* "<file>:<line>: " and, inside a block, "in layers.0: ". */
status_t scope_wrap(const struct scope *scope, status_t status);
status_t scope_error(const struct scope *scope, const char *format, ...) FSDPD_PRINTF(2, 3);

/* The constants that the section sees: the block's arguments and the model's. */
struct environment scope_environment(const struct scope *scope);

/* The value of an expression over tensors. */
status_t trace_evaluate(struct scope *scope, const struct expression *expression,
                        int *value) FSDPD_MUST_USE;

/* Whether an expression is a number rather than a tensor, and what it is. */
bool trace_is_number(const struct scope *scope, const struct expression *expression);
status_t trace_number(struct scope *scope, const struct expression *expression,
                      double *number) FSDPD_MUST_USE;

/* Appends a layer of two tensors or, with -1, of one; and x * factor + offset. */
status_t trace_layer(struct scope *scope, const struct layer *layer, const char *name,
                     const int *inputs, int *value) FSDPD_MUST_USE;
status_t trace_scale(struct scope *scope, double factor, double offset, int x,
                     int *value) FSDPD_MUST_USE;

/* A call of a function by its signature; and of one whose layer and inputs are known, which it
 * names. */
status_t trace_call(struct scope *scope, const struct layer_type *function,
                    const struct expression *call, int *value) FSDPD_MUST_USE;
status_t trace_function(struct scope *scope, const struct layer_type *function,
                        struct program_call *made, int *value) FSDPD_MUST_USE;

/* trace_leaf.c: makes a name that is unique among the model's calls; `uses` counts the earlier
 * ones. */
status_t trace_name(const struct scope *scope, const char *path, const char *function, int uses,
                    char **name) FSDPD_MUST_USE;

/* Appends a call; takes ownership of `call->name`. Layers of lines of pixels become those of
 * images. */
status_t trace_emit(struct scope *scope, const struct program_call *call,
                    int *value) FSDPD_MUST_USE;

/* "attn(x, x, x, mask=m, is_causal=True)": a MultiheadAttention's, which gives one tensor. */
status_t trace_multihead(struct scope *scope, int module, const struct expression *call,
                         int *value) FSDPD_MUST_USE;

/* A call of a module that has no forward section of its own. */
status_t trace_leaf(struct scope *scope, int module, int input, int *value) FSDPD_MUST_USE;

/* trace_shapes.c: "cat([a, b], dim=1)", "interpolate(x, 2)", and "chunk(x, 2, dim=1)[0]" or
 * "x[:, 1:]". */
status_t trace_cat(struct scope *scope, const struct layer_type *function,
                   const struct expression *call, int *value) FSDPD_MUST_USE;
status_t trace_interpolate(struct scope *scope, const struct layer_type *function,
                           const struct expression *call, int *value) FSDPD_MUST_USE;
status_t trace_part(struct scope *scope, const struct expression *part, int *value) FSDPD_MUST_USE;

/* One of several inputs, cut out of the row that a sample is. */
status_t trace_input(struct scope *scope, const struct model_input *input,
                     int *value) FSDPD_MUST_USE;

/* "amax(x, dim=1)", of which equal elements share the gradient. */
status_t trace_amax(struct scope *scope, const struct layer_type *function,
                    const struct expression *call, int *value) FSDPD_MUST_USE;

/* "x > 0", a mask of 0 and 1; and "where(x > 0, a, b)" or "masked_fill(x, x > 0, 0)". */
status_t trace_compare(struct scope *scope, const struct expression *comparison,
                       int *value) FSDPD_MUST_USE;
status_t trace_where(struct scope *scope, const struct layer_type *function,
                     const struct expression *call, int *value) FSDPD_MUST_USE;

#endif
