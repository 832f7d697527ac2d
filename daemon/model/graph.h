/*
 * The arithmetic of one step as a graph: static single assignment over typed tensors. The order of
 * the ops is one in which they can run; backward ops follow all forward ops. Building infers and
 * checks every shape, fuses what every device can fuse (fuse.c), and for training appends the
 * gradients. The last forward op makes the loss or, in training a model of tokens, the first
 * backward op does (linear_cross_entropy_backward).
 *
 * The gradient is that of the loss as the model file states it (a sum or a mean over this rank's
 * batch). The first op that writes a parameter's gradient overwrites it; later ones (a module that
 * is used twice, a tied parameter) accumulate. A tied parameter shares the gradient of the one it
 * is tied to. Frozen parameters have none, and nothing is computed for them.
 *
 * Gradient rules: one function per op in gradients*.c.
 */
#ifndef FSDPD_MODEL_GRAPH_H
#define FSDPD_MODEL_GRAPH_H

#include "model/model.h"
#include "ops/op.h"

enum value_kind {
    VALUE_INPUT,     /* the batch: (batch, ...sample) f32, or (batch, time) i32 tokens; of a
                      * model of pairs (batch * texts, time), a sample's texts together */
    VALUE_TARGET,    /* (batch) i32; with targets of tokens (batch, time); for a model with
                      * `targets` (batch, ...targets) f32 */
    VALUE_STARTS,    /* (batch, time) i32; only if graph_options.documents */
    VALUE_PARAMETER, /* one per distinct parameter that is used */
    VALUE_PARAMETER_GRADIENT, /* shape of its parameter; f32 always */
    VALUE_BUFFER,             /* a parameter that is a buffer, as an op leaves it: only an output.
                               * Ops that only read it read a VALUE_PARAMETER */
    VALUE_ACTIVATION,         /* made by the forward pass */
    VALUE_GRADIENT,           /* made by the backward pass */
    VALUE_LOSS,               /* (1) f32 */
    VALUE_CORRECT,            /* (1) f32; only if graph_options.count_correct */
    VALUE_TALLY,              /* (sums, columns) f32; only if graph_options.tally */
    VALUE_PREFERENCE,         /* (PREFERENCE_SUMS) f32; only of TARGET_PREFERENCE */
    VALUE_CACHE,              /* an attention's keys or values of graph_options.cache: only an
                               * output, and state */
    VALUE_LOGITS,             /* (batch, vocabulary) f32 or bf16; only of graph_options.cache */
    VALUE_REFERENCE, /* the reference's sums of log-probabilities, as SEQUENCE_LOG_PROBS has them:
                      * (batch * texts) f32 or, with documents, (batch, time); only if
                      * model->precomputed */
};

struct graph_value {
    enum value_kind kind;
    struct tensor_type type;
    int parameter; /* of VALUE_PARAMETER, VALUE_PARAMETER_GRADIENT and VALUE_BUFFER; otherwise -1 */
    int producer;  /* the op that first writes it, -1 for inputs and parameters */
    int repeats;   /* checkpointing: the activation whose bytes this one repeats; otherwise -1 */
    char *name;    /* for dumps: "conv1.output", "d(conv1.output)" */
};

struct graph_op {
    enum op_kind kind;
    union op_attrs attrs;
    int inputs[OP_MAX_INPUTS];   /* values; -1 where absent */
    int outputs[OP_MAX_OUTPUTS]; /* values; -1 where absent */
    bool accumulate[OP_MAX_OUTPUTS];
    int module; /* innermost module of the op; 0 for the model's own lines */
    bool exact; /* in f32, whatever the precision: part of the loss */
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
    int input, target, loss;
    int starts, correct, tally, logits; /* values; -1 unless requested */
    int reference;                      /* the same; only if model->precomputed */
};

enum { GRAPH_TALLY_CLASSES = 4096, GRAPH_TALLY_NUMBERS = 256 };

/* What backward computes again of selected modules: all that it needs, or what costs little: what
 * convolutions, linear layers and attention make is then kept. */
enum recompute { RECOMPUTE_ALL, RECOMPUTE_CHEAP };

struct graph_options {
    int64_t batch_size; /* of this rank */
    int world;          /* ranks over whose batches SyncBatchNorm normalises, and a loss of pairs
                         * compares; 0: 1 */
    int64_t time;       /* of a model of tokens: the length of a window; 0 means model->context,
                         * more than that is INVALID_ARGUMENT */
    bool train;         /* dropout active and backward ops appended */
    bool dropout;       /* false: no dropout, even in training */
    bool documents;     /* of a model of tokens: windows hold several documents, at whose borders
                         * attention and positions end; ops.h has the value's meaning */
    bool count_correct; /* also count the rows whose largest output is the target */
    /* Also make the sums of which metrics of the task are computed (OP_TALLY), of at most
     * GRAPH_TALLY_CLASSES classes or labels, or GRAPH_TALLY_NUMBERS numbers. Not with a head that
     * is fused with the loss. */
    bool tally;
    int ranks; /* with `tally`: of the group; 0: 1 */
    /*
     * Not 0: the graph continues sequences of up to that many tokens, at most the model's context.
     * It has no loss, but logits: for each sequence those of the last row whose target is not
     * below 0. `starts` says where rows are (ops.h), so a row's position is its number less it.
     * UNIMPLEMENTED for a model whose rows see later ones, or that a cache does not fit.
     */
    int64_t cache;
    bool every_row; /* with `cache`: logits of all rows, (batch, time, vocabulary) */
    /* With `cache`: the most rows of a step of all graphs that share it; at least `time`. A layer
     * with a window keeps the positions of that and of these rows, in a ring. 0: all positions. */
    int64_t cache_rows;
    /* Keeps the last linear layer and the loss separate: the loss's op reads all logits as its
     * first input. For tests that compare the logits. */
    bool keep_logits;
    /* With `train`: even the first op that writes a parameter's gradient adds to it, so gradients
     * must be zero before the first of several steps. */
    bool accumulate;
    /* With `train`: patterns (text_glob_match) of modules whose activations are computed again in
     * the backward pass instead of kept; a module inside a selected one belongs to it. */
    const char *const *checkpoint;
    int checkpoint_count;
    enum recompute recompute;
    /* DTYPE_BF16: convolutions, matmuls and all ops between them compute in bf16, the loss and
     * log_softmax in f32 (0 is DTYPE_F32: all in f32). Ops then find each parameter in the type
     * that parameter_dtypes has for it; parameters in f32 (all, if NULL) are cast first. */
    enum dtype compute_dtype;
    const enum dtype *parameter_dtypes;
    /* By module: the type it computes in, where that differs from compute_dtype. An op that is in
     * no such module and reads no parameters has the type of its inputs, f32 if one of them is f32.
     * May be NULL. */
    const enum dtype *module_dtypes;
};

/* Whether the values of this kind are copied to the device before a step. */
static inline bool graph_is_batch(enum value_kind kind)
{
    return kind == VALUE_INPUT || kind == VALUE_TARGET || kind == VALUE_STARTS ||
           kind == VALUE_REFERENCE;
}

/* The values of a batch by their order in the plan; -1: it has none of this kind. */
enum { GRAPH_BATCH_VALUES = 4 };
static inline int graph_batch_value(const struct graph *graph, int i)
{
    const int values[GRAPH_BATCH_VALUES] = {graph->input, graph->target, graph->starts,
                                            graph->reference};
    return values[i];
}

/* The op that makes the loss; of a sum of losses, its first term's. */
static inline int graph_loss_op(const struct graph *graph)
{
    int op = graph->values[graph->loss].producer;
    while (graph->ops[op].kind == OP_ADD) op = graph->values[graph->ops[op].inputs[0]].producer;
    return op;
}

/* The samples of a batch; each has a target, or one for each token. */
static inline int64_t graph_samples(const struct graph *graph)
{
    return graph->values[graph->input].type.dims[0] / graph->model->texts;
}

/* The number of sums that the graph makes; 0: none. */
static inline int graph_tally_count(const struct graph *graph)
{
    if (graph == NULL || graph->tally < 0) return 0;
    const struct tensor_type *sums = &graph->values[graph->tally].type;
    return (int)(sums->dims[0] * sums->dims[1]);
}

/* Errors are INVALID_ARGUMENT and name the module, the line of the model file and both shapes, or
 * the pattern that matches no module. */
status_t graph_build(const struct model *model, const struct graph_options *options,
                     struct graph **graph) FSDPD_MUST_USE;
void graph_free(struct graph *graph); /* accepts NULL */

/*
 * Chooses layouts for a device that prefers channels last: a four-dimensional activation or
 * gradient becomes LAYOUT_CHANNELS_LAST if all of its ops support that. A RESHAPE between a
 * channels-last and a plain value is then a real copy. Inputs and parameters stay plain, except
 * that an input with one channel may have either layout.
 */
void graph_use_channels_last(struct graph *graph);

/* Describes the op and its operands' types for the kernels. */
void graph_describe_op(const struct graph *graph, int op, struct op_desc *desc);

#endif
