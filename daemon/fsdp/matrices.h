/*
 * Whole matrices, for an optimizer that updates no less (optimizer_takes_matrices). A matrix lies
 * in its unit's flat parameter, cut anywhere between ranks. One rank of those that hold the unit
 * together, its owner, collects the pieces of its update, makes it orthogonal, and distributes the
 * result; where every rank has the whole unit, it only distributes. Owners are chosen so that all
 * ranks have about the same work. State stays where the flat parameter's elements are. Pure
 * functions; any thread.
 */
#ifndef FSDPD_FSDP_MATRICES_H
#define FSDPD_FSDP_MATRICES_H

#include <stdbool.h>
#include <stdint.h>

struct plan;

struct plan_matrix {
    int unit, parameter;
    int64_t offset; /* element of the flat parameter */
    int64_t rows, columns;
    int owner;     /* rank among plan_matrix_ranks */
    int64_t place; /* element in its BUFFER_MATRICES */
};

static inline int64_t plan_matrix_elements(const struct plan_matrix *matrix)
{
    return matrix->rows * matrix->columns;
}

/* Those of a unit, in the order of its flat parameter; returns their number. */
int plan_find_matrices(const struct plan *plan, int unit, const struct plan_matrix **matrices);

/* The ranks among which its matrices are divided, and this rank's number among them. */
int plan_matrix_ranks(const struct plan *plan, int unit);
int plan_matrix_rank(const struct plan *plan, int unit);

/* The elements of a matrix, from its first one on, that rank `rank` of these holds. */
struct plan_part {
    int64_t from, count;
};
struct plan_part plan_matrix_part(const struct plan *plan, const struct plan_matrix *matrix,
                                  int rank);

/* Floating-point operations of `steps` iterations on it. */
double plan_matrix_flops(const struct plan_matrix *matrix, int steps);

/* Of this rank's own matrices of the unit; of the rank that has most of all units. */
double plan_unit_matrix_flops(const struct plan *plan, int unit);
double plan_most_matrix_flops(const struct plan *plan);

/* Bytes of a unit's BUFFER_MATRICES, the same on every rank, and of the scratch memory that making
 * a matrix orthogonal takes. */
uint64_t plan_matrix_bytes(const struct plan *plan, int unit);
uint64_t plan_matrix_scratch(const struct plan *plan, int unit);

#endif
