/*
 * The forward section of a model file as a list of calls: names resolved, blocks expanded, loops
 * unrolled, arguments read. Only shapes are missing; graph_build adds them. Value 0 is the input;
 * value i + 1 is the result of call i. The last call is the loss, or of a sum of losses the first
 * term.
 */
#ifndef FSDPD_MODEL_PROGRAM_H
#define FSDPD_MODEL_PROGRAM_H

#include "model/layers.h"

enum { MODEL_MAX_TERMS = 8 }; /* of a loss */

struct program_call {
    struct layer layer;
    int inputs[LAYER_MAX_TENSORS]; /* values; -1 where absent. A loss's second is what it
                                    * compares with: -1 is the target */
    int weight, bias;              /* parameters; -1 where absent */
    int buffers[LAYER_MAX_BUFFERS]; /* of BATCH_NORM only: running_mean, running_var and
                                     * num_batches_tracked */
    int module; /* the leaf that is called, or the block whose forward section has this line */
    bool leaf;  /* the call is to a module, not a function */
    bool reads; /* no call: the value is the parameter `weight`, a block's own */
    bool target;        /* no call: the value is the batch's targets */
    bool data;          /* the result is made of these alone */
    bool exact;         /* in f32, whatever the precision */
    bool other;         /* only terms of the loss other than the first need it */
    bool parametric;    /* the result is made of parameters alone */
    bool without_batch; /* the result has only such parameters in it, without their first dimension
                         * of 1, which stands for the batch */
    bool mask;          /* the result is 0 or 1: a comparison's, or made of such */
    int line;   /* line of the model file */
    char *name; /* unique: "conv1", "layers.0.relu", "relu_1" */
};

struct model_program {
    char *file_name;
    struct program_call *calls;
    int call_count, call_capacity;
    int terms; /* of the loss: calls of losses, of which the last call is the first term */
    float *loss_weights[MODEL_MAX_TERMS]; /* of the terms' attributes; NULL: none */
    struct op_weights *factors; /* of positions' attributes, each list once */
    int factor_count, factor_capacity;
};

void program_free(struct model_program *program); /* accepts NULL */

#endif
