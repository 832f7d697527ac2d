/*
 * The metrics of an evaluation's task, from sums over all rows of all ranks: a mean of the ranks'
 * or batches' own metrics would be something else.
 */
#ifndef FSDPD_TRAIN_SCORES_H
#define FSDPD_TRAIN_SCORES_H

#include "model/graph.h"

/* NAN: not of this task, or not defined for these rows. */
struct train_scores {
    double accuracy;   /* share of rows, or of decisions on labels, that are right */
    double f1;         /* of two classes that of class 1; of others their mean, as of labels */
    double perplexity; /* of tokens: e to the loss */
    double pearson;    /* of numbers: the mean over their columns */
    double mse;        /* of numbers, over all of them */
};

struct score_sums {
    enum op_tally kind;
    int columns; /* 0: the graph makes no sums */
    int ranks;   /* of TALLY_NUMBERS: each has moments of its own in what is added */
    /* As OP_TALLY's. Of TALLY_NUMBERS how many count, the two means, the sums of squares, of
     * products and of squared differences, of all batches and ranks. */
    double *sums;
};

void score_sums_init(struct score_sums *sums, const struct graph *graph);
void score_sums_deinit(struct score_sums *sums); /* accepts a zeroed one */

/* Adds those of a batch. */
void score_sums_add(struct score_sums *sums, const float *more);

void score_sums_clear(struct score_sums *sums);

/* `loss` is the mean over `samples` targets, of which `correct` were found, if they are counted. */
struct train_scores score_sums_compute(const struct score_sums *sums, enum model_target target,
                                       double loss, double correct, double samples);

#endif
