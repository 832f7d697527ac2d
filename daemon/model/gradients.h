/*
 * The gradient rules that gradients.c has from other files. A rule appends the ops that compute the
 * gradients of the op's inputs from `dy`, that of its first output; a loss has none, as its own
 * gradient is 1. Private to libmodel.
 */
#ifndef FSDPD_MODEL_GRADIENTS_H
#define FSDPD_MODEL_GRADIENTS_H

#include "model/backward.h"

/* Serves LAYER_NORM and RMS_NORM. */
void gradient_norm(struct backward *backward, const forward_op *op, int dy);
void gradient_group_norm(struct backward *backward, const forward_op *op, int dy);
void gradient_batch_norm(struct backward *backward, const forward_op *op, int dy);

void gradient_nll_loss(struct backward *backward, const forward_op *op, int dy);
void gradient_cross_entropy(struct backward *backward, const forward_op *op, int dy);
void gradient_element_loss(struct backward *backward, const forward_op *op, int dy);
void gradient_contrastive_loss(struct backward *backward, const forward_op *op, int dy);
void gradient_sequence_log_probs(struct backward *backward, const forward_op *op, int dy);
void gradient_preference_loss(struct backward *backward, const forward_op *op, int dy);

/*
 * If the graph ends in a head that was fused with its loss: makes this op the first backward op,
 * which also outputs the loss. The loss's own gradient is known, so the op need not wait for it.
 */
void gradient_turn_head(struct backward *backward);

#endif
