/*
 * What an optimizer needs that keeps the variance of a matrix as sums over its rows and columns
 * (optimizer_factors: Adafactor). A matrix lies in its unit's flat parameter, cut anywhere between
 * ranks. The rank that has its first element, its owner, keeps these sums. In a step every rank
 * adds up the squares of its own part (SQUARES), the owner collects these sums (COLLECT), adds them
 * in the order of the ranks and renews the state (FACTOR), and sends every rank what its part needs
 * (DISTRIBUTE). Then each rank makes updates of its gradients and adds up the squares of these and
 * of its parameters (UPDATE), all ranks exchange those sums (GATHER_SUMS), and the updates are
 * scaled by their quotients (SCALE). All sums are doubles, so that where a matrix is cut changes
 * them by rounding only. A unit that is whole on every rank needs no exchange.
 *
 * A parameter of more than two dimensions is a stack of matrices of the last two, as in
 * torch.optim.Adafactor. Vectors have the variance of each element, in the same slot.
 *
 * BUFFER_FACTORS of a unit has, in this order: the sums of this rank's part, of all rows and
 * columns of all matrices, doubles; the factors of all rows and columns, f32; of every rank and
 * parameter the sums of squares of the update and of the parameter, doubles; the sums of all ranks
 * that this rank collects, doubles. Pure functions; any thread.
 */
#ifndef FSDPD_FSDP_FACTORS_H
#define FSDPD_FSDP_FACTORS_H

#include "ops/tensor.h"

struct plan;
struct plan_instruction;

/* Values that are kept of a parameter. */
int64_t factor_words(const struct tensor_type *type);

struct plan_factor {
    int parameter;
    int64_t offset, elements; /* in the flat parameter */
    int64_t rows, columns;    /* of all matrices of the stack together; 0: it is a vector */
    int64_t height, width;    /* of one matrix */
    int owner;                /* of a matrix: a rank of those that hold the unit together */
    int64_t place;            /* of the rows among all sums of the unit; its columns follow */
    int64_t inbox;            /* of the first rank's sums among those that the owner collects */
};

/* Places in a unit's BUFFER_FACTORS, in floats; every one is even. */
struct plan_factor_room {
    int64_t sums;    /* of rows and columns together: of the doubles at 0, and of the floats */
    int64_t factors; /* where these begin */
    int64_t totals;  /* where the sums of rank 0's parameters begin; each rank has 4 * count */
    int64_t inbox;   /* where collected sums begin */
    int64_t end;     /* the same on every rank */
    int ranks, rank; /* that hold the unit together; 1: nothing is exchanged */
};

/* All parameters of a unit, in the order of its flat parameter; their number. The caller frees
 * them. `room` may be NULL. */
int plan_find_factors(const struct plan *plan, int unit, struct plan_factor **factors,
                      struct plan_factor_room *room);

/* The part of a parameter that a rank has, and of a matrix the rows and columns in it. */
struct plan_factor_part {
    int64_t from, count;
    int64_t first_row, rows, first_column, columns;
};
struct plan_factor_part plan_factor_part(const struct plan *plan, int unit,
                                         const struct plan_factor *factor, int rank);

/* A run of floats that COLLECT or DISTRIBUTE moves between two places of BUFFER_FACTORS. */
struct plan_factor_move {
    int from, to;
    int64_t source, target, count;
};
/* All that one of the two moves; their number. The caller frees them. */
int plan_find_factor_moves(const struct plan *plan, int unit, bool collects,
                           struct plan_factor_move **moves);

#endif
