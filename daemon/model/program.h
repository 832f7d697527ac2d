/*
 * The forward section of a model file as a list of calls: names resolved, blocks expanded, loops
 * unrolled, arguments read. Only shapes are missing; graph_build adds them. Value 0 is the input;
 * value i + 1 is the result of call i. The last call is the loss.
 */
#ifndef FSDPD_MODEL_PROGRAM_H
#define FSDPD_MODEL_PROGRAM_H

#include "model/layers.h"

struct program_call {
    struct layer layer;
    int inputs[LAYER_MAX_TENSORS]; /* values; -1 where absent. The loss's target is not included,
                                    * unless it is the input */
    int weight, bias;              /* parameters; -1 where absent */
    int buffers[LAYER_MAX_BUFFERS]; /* of BATCH_NORM only: running_mean, running_var and
                                     * num_batches_tracked */
    int module; /* the leaf that is called, or the block whose forward section has this line */
    bool leaf;  /* the call is to a module, not a function */
    bool reads; /* no call: the value is the parameter `weight`, a block's own */
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
    float *loss_weights; /* of the loss's attributes; NULL: none */
    struct op_weights *factors; /* of positions' attributes, each list once */
    int factor_count, factor_capacity;
};

void program_free(struct model_program *program); /* accepts NULL */

#endif
