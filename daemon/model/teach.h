/*
 * Distillation (Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2015): a
 * model of classes or tokens also learns from what another one, its frozen teacher, makes of the
 * same batch. This is a rewrite of a model that was read and adapted: the teacher becomes its
 * module `teacher`, behind all others, and its loss a sum of two terms,
 *
 *     (1 - share) loss + share T^2 kl_div(log_softmax(output / T), log_softmax(teacher / T)),
 *
 * of which the second is divided by the targets that count, as the first is.
 *
 * The teacher's parameters are as a reference's of dpo (preference.h): frozen, in units of their
 * own, gathered, and in checkpoints; but no state_dict has them, and nothing is drawn for them. It
 * runs as in evaluation, without dropout.
 */
#ifndef FSDPD_MODEL_TEACH_H
#define FSDPD_MODEL_TEACH_H

#include "model/model.h"

struct model_teaching {
    double temperature; /* above 0 */
    double share;       /* of the teacher's term: above 0 and below 1 */
};

/*
 * Rewrites the model; calls may refer to numbers of `teacher`, which must outlive it. *first
 * becomes the number of the teacher's first parameter; the others follow in its order.
 * INVALID_ARGUMENT says what does not fit; the model is then as it was.
 */
status_t model_teach(struct model *model, const struct model *teacher,
                     const struct model_teaching *teaching, int *first) FSDPD_MUST_USE;

#endif
