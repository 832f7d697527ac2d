/*
 * Parts of graph_build, in the order in which it uses them: graph_build.c appends the forward ops,
 * fuse.c merges neighbours, graph_compact drops what nothing needs, precision.c lowers the
 * precision, gradients.c appends the backward ops, checkpointing.c repeats forward ops among them.
 * Private to libmodel.
 */
#ifndef FSDPD_MODEL_GRAPH_BUILDER_H
#define FSDPD_MODEL_GRAPH_BUILDER_H

#include "model/graph.h"
#include "model/layers.h"

struct program_call;

struct graph_builder {
    struct graph *graph;
    int value_capacity, op_capacity;
};

/* Takes ownership of `name`. Returns the value's number. */
int builder_add_value(struct graph_builder *builder, enum value_kind kind,
                      const struct tensor_type *type, char *name);

/* Adds an op with no operands yet. Takes ownership of `name`. The pointer is valid until the next
 * op is added. */
struct graph_op *builder_add_op(struct graph_builder *builder, enum op_kind kind,
                                const union op_attrs *attrs, int module, char *name);

/* Makes `value` output `slot` of the last op; sets its producer if it has none. */
void builder_set_output(struct graph_builder *builder, int slot, int value);

/* Appends the loss of pairs: `x` has the embeddings of the batch's texts, (batch * texts, width).
 * attrs.contrast.factor is that of the cosines. */
void graph_add_contrast(struct graph_builder *builder, const struct graph_options *options,
                        const char *name, const union op_attrs *attrs, int x);

/* The same of each row of `a` (batch, width) among those of `b`, of the same type, and of each of
 * `b` among `a`: the mean of both. The factor is that of their products as they are; `scale`, a
 * value of shape (1), or -1, multiplies them, too. */
void graph_add_towers(struct graph_builder *builder, const struct graph_options *options,
                      const char *name, const union op_attrs *attrs, int a, int b, int scale);

/* The same of triplets: x has (3 batch, width), and the layer the margin. */
void graph_add_triplet(struct graph_builder *builder, const char *name, const struct layer *layer,
                       int x);

/* The weight of a call that has one, as its op reads it: that of a line as an image's. */
struct tensor_type shape_of_weight(const struct model *model, const struct program_call *call);

/* Infers the type of a call's result, and completes those attributes that depend on the inputs'
 * shapes. Inputs that the call lacks are NULL; the first is always present. INVALID_ARGUMENT for
 * errors that op_desc_check could not detect. */
status_t shape_infer(const struct model *model, const struct program_call *call,
                     const struct tensor_type *const inputs[LAYER_MAX_TENSORS],
                     union op_attrs *attrs, struct tensor_type *y) FSDPD_MUST_USE;

/* Merges ops that every device can run as one: see fuse.c. Marks merged ops in `dead`, by op. */
void graph_fuse(struct graph *graph, const struct graph_options *options, bool *dead);

/* Drops dead ops, ops that neither the loss nor the count needs, and values that are left unused;
 * renumbers: input, target, starts, reference, parameters in order, then the rest in order of
 * production. */
void graph_compact(struct graph *graph, const bool *dead);

/* With compute_dtype bf16: makes the forward ops compute in it, except for the loss. */
void graph_lower_precision(struct graph_builder *builder, const struct graph_options *options);

/* INVALID_ARGUMENT if no trainable parameter reaches the loss. */
status_t graph_add_gradients(struct graph_builder *builder,
                             const struct graph_options *options) FSDPD_MUST_USE;

/* By module: the outermost module that options->checkpoint selects, of itself and those around it,
 * or -1. Returns the first pattern that selects none, or NULL. */
const char *graph_checkpoint_owners(const struct model *model, const struct graph_options *options,
                                    int *owner);

/* Repeats the forward ops of checkpointed modules before their backward ops. INVALID_ARGUMENT for a
 * pattern that matches no module. */
status_t graph_checkpoint(struct graph_builder *builder,
                          const struct graph_options *options) FSDPD_MUST_USE;

#endif
