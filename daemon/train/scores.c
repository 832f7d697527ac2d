/* Metrics of tasks; see scores.h. */
#include "train/scores.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

enum { COUNT, MEAN_X, MEAN_Y, XX, YY, XY, SQUARES, MOMENTS };

static int rows_of(const struct score_sums *sums)
{
    return sums->kind == TALLY_NUMBERS ? MOMENTS : TALLY_COUNTS;
}

void score_sums_init(struct score_sums *sums, const struct graph *graph)
{
    *sums = (struct score_sums){.columns = 0};
    if (graph_tally_count(graph) == 0) return;
    const struct graph_value *tally = &graph->values[graph->tally];
    sums->kind = graph->ops[tally->producer].attrs.tally.kind;
    if (sums->kind == TALLY_ROWS) return; /* of which reference.c makes use */
    sums->columns = (int)tally->type.dims[1];
    sums->ranks = (int)graph->ops[tally->producer].attrs.tally.ranks;
    sums->sums = mem_alloc_array((size_t)(rows_of(sums) * sums->columns), sizeof *sums->sums);
}

void score_sums_deinit(struct score_sums *sums)
{
    free(sums->sums);
    *sums = (struct score_sums){.columns = 0};
}

/*
 * Adds a rank's moments of a column to those so far, which loses nothing where the means are far
 * above what varies: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
 * computing sample variances", 1979.
 */
static void merge_moments(struct score_sums *sums, int column, const float *more)
{
    double *own[MOMENTS], from[TALLY_MOMENTS];
    for (int i = 0; i < MOMENTS; i++) own[i] = &sums->sums[i * sums->columns + column];
    for (int i = 0; i < TALLY_MOMENTS; i++) from[i] = more[i * sums->columns + column];
    double before = *own[COUNT], count = from[0], all = before + count;
    if (count == 0) return;
    double dx = from[1] + from[2] - *own[MEAN_X], dy = from[3] + from[4] - *own[MEAN_Y];
    double share = before * count / all;
    *own[COUNT] = all;
    *own[MEAN_X] += dx * count / all;
    *own[MEAN_Y] += dy * count / all;
    *own[XX] += from[5] + dx * dx * share;
    *own[YY] += from[6] + dy * dy * share;
    *own[XY] += from[7] + dx * dy * share;
    *own[SQUARES] += from[8];
}

void score_sums_add(struct score_sums *sums, const float *more)
{
    if (sums->kind == TALLY_NUMBERS) {
        for (int rank = 0; rank < sums->ranks; rank++)
            for (int c = 0; c < sums->columns; c++)
                merge_moments(sums, c, more + rank * TALLY_MOMENTS * sums->columns);
        return;
    }
    for (int i = 0; i < rows_of(sums) * sums->columns; i++) sums->sums[i] += more[i];
}

void score_sums_clear(struct score_sums *sums)
{
    for (int i = 0; i < rows_of(sums) * sums->columns; i++) sums->sums[i] = 0;
}

static double sum_of(const struct score_sums *sums, int row, int column)
{
    return sums->sums[row * sums->columns + column];
}

/* A class that is neither selected nor wanted has none. */
static double f1_of(const struct score_sums *sums, int column)
{
    double right = sum_of(sums, 0, column);
    double all = sum_of(sums, 1, column) + sum_of(sums, 2, column);
    return all > 0 ? 2 * right / all : NAN;
}

/* The mean over the classes that occur; a label that does not occur counts as 0. */
static double mean_f1(const struct score_sums *sums)
{
    double total = 0;
    int count = 0;
    for (int c = 0; c < sums->columns; c++) {
        double f1 = f1_of(sums, c);
        if (isnan(f1) && sums->kind == TALLY_CLASSES) continue;
        total += isnan(f1) ? 0 : f1;
        count++;
    }
    return count > 0 ? total / count : NAN;
}

/* NAN if one of the two does not vary. */
static double pearson_of(const struct score_sums *sums, int column)
{
    double xx = sum_of(sums, XX, column), yy = sum_of(sums, YY, column);
    double xy = sum_of(sums, XY, column);
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : NAN;
}

static void score_numbers(const struct score_sums *sums, struct train_scores *scores)
{
    double correlations = 0, squares = 0, count = 0;
    for (int c = 0; c < sums->columns; c++) {
        correlations += pearson_of(sums, c);
        squares += sum_of(sums, SQUARES, c);
        count += sum_of(sums, COUNT, c);
    }
    scores->pearson = correlations / sums->columns;
    scores->mse = count > 0 ? squares / count : NAN;
}

/* Of decisions on labels: those that were neither missed nor made in error. */
static double label_accuracy(const struct score_sums *sums, double samples)
{
    double wrong = 0;
    for (int c = 0; c < sums->columns; c++)
        wrong += sum_of(sums, 1, c) + sum_of(sums, 2, c) - 2 * sum_of(sums, 0, c);
    return samples > 0 ? 1 - wrong / samples : NAN;
}

struct train_scores score_sums_compute(const struct score_sums *sums, enum model_target target,
                                       double loss, double correct, double samples)
{
    struct train_scores scores = {NAN, NAN, NAN, NAN, NAN};
    if (target == TARGET_TOKEN) scores.perplexity = exp(loss);
    else if (target != TARGET_NUMBERS && target != TARGET_PREFERENCE && target != TARGET_REWARD &&
             samples > 0)
        scores.accuracy = correct / samples;
    if (sums->columns == 0) return scores;
    switch (sums->kind) {
    case TALLY_CLASSES: scores.f1 = sums->columns == 2 ? f1_of(sums, 1) : mean_f1(sums); break;
    case TALLY_LABELS:
        scores.f1 = mean_f1(sums);
        scores.accuracy = label_accuracy(sums, samples);
        break;
    case TALLY_NUMBERS: score_numbers(sums, &scores); break;
    case TALLY_ROWS: break;
    }
    return scores;
}
