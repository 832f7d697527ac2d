/*
 * The arithmetic of one step as a graph: static single assignment over typed tensors. Ops are in an
 * order in which they can be run; backward ops follow all forward ops. Building infers and checks
 * every shape, fuses what every device can fuse (fuse.c), and for training appends the gradients.
 * The loss is made by the last forward op or, in training a model of tokens, by the first backward
 * op (linear_cross_entropy_backward).
 *
 * The gradient is of the loss as the model file states it (a sum or a mean over this rank's batch).
 * The first op that writes a parameter's gradient overwrites it, later ones (a module that is used
 * twice, a tied parameter) accumulate; a tied parameter's gradient is that of the one it is tied
 * to. Frozen parameters get none, and nothing is computed for them.
 *
 * Gradient rules: one function per op in gradients.c.
 */
#ifndef FSDPD_MODEL_GRAPH_H
#define FSDPD_MODEL_GRAPH_H

#include "model/model.h"
#include "ops/op.h"

enum value_kind {
    VALUE_INPUT,              /* the batch: (batch, ...sample) f32, or (batch, time) i32 tokens */
    VALUE_TARGET,             /* (batch) i32; of a token model (batch, time) */
    VALUE_PARAMETER,          /* one per distinct parameter that is used */
    VALUE_PARAMETER_GRADIENT, /* shape of its parameter; f32 always */
    VALUE_ACTIVATION,         /* made by the forward pass */
    VALUE_GRADIENT,           /* made by the backward pass */
    VALUE_LOSS,               /* (1) f32 */
    VALUE_CORRECT,            /* (1) f32; only if graph_options.count_correct */
};

struct graph_value {
    enum value_kind kind;
    struct tensor_type type;
    int parameter; /* of VALUE_PARAMETER and its gradient; otherwise -1 */
    int producer;  /* the op that first writes it, -1 for inputs and parameters */
    int repeats;   /* the activation that this one has the same bytes as, -1: checkpointing */
    char *name;    /* for dumps: "conv1.output", "d(conv1.output)" */
};

struct graph_op {
    enum op_kind kind;
    union op_attrs attrs;
    int inputs[OP_MAX_INPUTS];   /* values; -1 where absent */
    int outputs[OP_MAX_OUTPUTS]; /* values; -1 where absent */
    bool accumulate[OP_MAX_OUTPUTS];
    int module; /* innermost module that the op belongs to; 0 for the model's own lines */
    bool backward;
    int forward; /* with gradients: the forward op that this one is, repeats or differentiates;
                  * forward_op_count for a head that is fused with its loss */
    char *name;  /* for dumps, traces and errors: "conv1", "max_pool2d", "conv1.backward_data" */
};

struct graph {
    const struct model *model; /* borrowed; must outlive the graph */
    struct graph_value *values;
    int value_count;
    struct graph_op *ops;
    int op_count;
    int forward_op_count;
    int input, target, loss, correct; /* values; correct is -1 unless asked for */
};

struct graph_options {
    int64_t batch_size; /* of this rank */
    int64_t time;       /* of a token model: the length of a window; 0 is model->context, more than
                         * that is INVALID_ARGUMENT */
    bool train;         /* dropout active and backward ops appended */
    bool dropout;       /* false: dropout does nothing even in training */
    bool count_correct; /* also count the rows whose largest output is the target */
    /* The last linear layer and the loss are not made one op: the loss's op reads all logits as its
     * first input. For tests that look at them. */
    bool keep_logits;
    /* With `train`: parameters' gradients are added to what is there from the first op on, which so
     * must hold zeros before the first of several steps. */
    bool accumulate;
    /* With `train`: patterns (text_glob_match) of modules whose activations are computed again in
     * the backward pass instead of being kept; a module inside a selected one is part of it. */
    const char *const *checkpoint;
    int checkpoint_count;
    /* DTYPE_BF16: convolutions, matmuls and all between them compute in bf16, the loss and
     * log_softmax in f32 (0 is DTYPE_F32: all in f32). Then parameter_dtypes says by parameter in
     * which type ops find it; what lies in f32 (all, if NULL) is cast first. */
    enum dtype compute_dtype;
    const enum dtype *parameter_dtypes;
    /* By module: in which type it computes, where that is not compute_dtype. What is in no such
     * module and reads no parameters follows what it reads, f32 if one of them is. May be NULL. */
    const enum dtype *module_dtypes;
};

/* INVALID_ARGUMENT names the module, the line of the model file and both shapes, or the pattern
 * that matches no module. */
status_t graph_build(const struct model *model, const struct graph_options *options,
                     struct graph **graph) FSDPD_MUST_USE;
void graph_free(struct graph *graph); /* accepts NULL */

/*
 * Chooses layouts for a device that prefers channels last: every four-dimensional activation and
 * gradient all of whose ops can take it becomes LAYOUT_CHANNELS_LAST. A RESHAPE between a
 * channels-last and a plain value is then a real copy. Inputs and parameters stay plain, except
 * that an input with one channel may be called either.
 */
void graph_use_channels_last(struct graph *graph);

/* The op with its operands' types, as kernels take it. */
void graph_describe_op(const struct graph *graph, int op, struct op_desc *desc);

/*
 * For people and golden tests, one line per op: outputs, kind, inputs, attributes that are not the
 * usual ones, the outputs' shapes, and after "#" the op's name. Values are numbers, parameters and
 * their gradients names; a gradient that is added to what is there has a "+" before it. "backward:"
 * stands between forward and backward ops. Caller frees.
 *
 *     %10 = conv2d(%0, conv1.weight, conv1.bias) relu (64, 32, 26, 26)  # conv1
 *     d(fc2.weight), +d(fc2.bias) = linear_backward_weights(%16, %20) (10, 128), (10,)  # fc2.b...
 */
char *graph_dump(const struct graph *graph);

#endif
