/* A layer: one call's arithmetic, and the functions that the tables of layers.c are made of. */
#ifndef FSDPD_MODEL_LAYER_H
#define FSDPD_MODEL_LAYER_H

#include "base/buf.h"
#include "model/arguments.h"
#include "model/model.h"
#include "ops/op.h"

enum { LAYER_MAX_PARAMETERS = 64, LAYER_MAX_BUFFERS = 3, LAYER_MAX_TENSORS = 5 };

/* One call's arithmetic, without its tensors. FLATTEN is a RESHAPE whose shape is still unknown. */
struct layer {
    enum op_kind kind;
    union op_attrs attrs;
    bool line;              /* of lines of pixels, (batch, channels, length), which are images of
                             * one row; BATCH_NORM also takes (batch, channels) */
    int start_dim, end_dim; /* of RESHAPE: the dimensions that `sizes` replace; negative from the
                             * end */
    int dim; /* of LOG_SOFTMAX, SOFTMAX, SLICE, CONCAT and MEAN; negative from the end */
    bool largest;                   /* of MEAN: not a mean, but the largest, by pools */
    int64_t sizes[BOUND_SHAPE_MAX]; /* of RESHAPE; BOUND_INFERRED follows from the others. Of an
                                     * adaptive AVG_POOL2D: the output's; of a transposed
                                     * convolution: its output_padding */
    int size_count;
    const char *function; /* of RESHAPE: its name, for messages */
    int64_t start, length; /* of SLICE; start is negative from the end, length 0 takes the
                            * dimension away. Of TOKENS the length */
    bool has_stop; /* of SLICE: it ends before `stop`, negative from the end, at most at the end */
    int64_t stop;
    int stack;             /* of RECURRENT: layers, each of which reads the one before */
    bool both;             /* of RECURRENT: in both directions of time, side by side; of a
                            * CONTRASTIVE_LOSS: also of the candidates among the anchors */
    double p;              /* of RECURRENT: of the dropout between layers */
    double margin, eps;    /* of a CONTRASTIVE_LOSS of triplets; margin 0: it is not one */
    bool swap;
    bool whole_rows;       /* of ELEMENT_LOSS: its mean is over rows */
    bool probabilities;    /* likewise: not their logarithms are what it compares with */
    int64_t chunks;        /* of SLICE: the number of equal parts, of which it takes number `start`;
                            * 0: see length */
};

enum { LAYER_MAX_STACK = 8 };

/* A parameter that a leaf module registers. */
struct layer_parameter {
    const char *name; /* "weight" */
    struct tensor_type type;
    enum buffer_kind buffer; /* these come last */
    enum init_kind init;
    double bound;
    int drawn; /* as many places later than the order of parameters says; earlier if negative */
    bool has_zero_row;
    int64_t zero_row;
};

typedef int layer_parameters_function(const struct bound *bound,
                                      struct layer_parameter parameters[LAYER_MAX_PARAMETERS]);
typedef void layer_print_function(const struct bound *bound, struct buf *text);
typedef status_t layer_make_function(const struct bound *bound, struct layer *layer);

#endif
