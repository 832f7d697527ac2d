/*
 * Direct preference optimization (Rafailov et al., NeurIPS 2023), as TRL's DPOTrainer has it: a
 * model with adapters learns from pairs of documents, a chosen one and a rejected one, by how much
 * more it prefers the chosen one than its reference does. The reference is the model without its
 * adapters: not a second model, but calls of the same modules. This is a rewrite of a model that
 * was read and adapted: behind each call that an adapter reaches stands the same call without it,
 * so that a unit is gathered once for both; and the loss compares what both make of the targets.
 *
 * Or the reference is the model as it began, so that all of it may be trained: the parameters that
 * are trained have frozen copies, and the calls behind them stand twice. A copy is a parameter as
 * others are, in units of its own beside those of its original, so that it is sharded, gathered,
 * kept as model.base_dtype says, and in checkpoints; but a state_dict has none.
 *
 * Or that is known before training: the log-probabilities of every pair come with a batch, as
 * struct graph's `reference`, and the model stays one.
 *
 * Or a reward model (Bradley and Terry, 1952), as TRL's RewardTrainer has it: the loss of a model
 * that makes one number of a text becomes that of the two numbers of a pair. It has no reference.
 * If texts are packed, it makes a number of every token, and the last one of a text counts.
 */
#ifndef FSDPD_MODEL_PREFERENCE_H
#define FSDPD_MODEL_PREFERENCE_H

#include "model/model.h"
#include "ops/op.h"

enum model_reference {
    REFERENCE_ADAPTER,     /* the model without its adapters */
    REFERENCE_COPY,        /* the model as it began: frozen copies */
    REFERENCE_PRECOMPUTED, /* the same; what it made of each pair is in the batches */
};

struct model_preference {
    bool reward; /* no reference: `loss` is the sigmoid's, beta 1 and label_smoothing 0 */
    enum op_preference loss;
    double beta;            /* above 0 */
    double label_smoothing; /* of the sigmoid: the share of pairs whose order is wrong */
    enum model_reference reference;
    bool packed; /* a row has the texts of several pairs, and not one of two */
};

/* Rewrites the model. INVALID_ARGUMENT names the job's key; the model is then as it was. */
status_t model_prefer(struct model *model,
                      const struct model_preference *preference) FSDPD_MUST_USE;

#endif
