/*
 * Inside train/: evaluates the parameters of a run between two of its steps, on the thread of
 * train_session_run. All ranks do so at the same boundary, and carry out orders between the
 * batches.
 */
#ifndef FSDPD_TRAIN_EVALUATE_H
#define FSDPD_TRAIN_EVALUATE_H

#include "train/run_state.h"

void tally_add(struct tally *tally, const struct tally *more);
double tally_mean(double sum, double count); /* NAN: of nothing */

/* printf would show the sign of a number that is none, which says nothing. */
double unsigned_nan(double value);

/* A set is its place in the session's sets. */

/* Adds what the evaluation counts over all ranks to `tally`, and its scores to the run's sums.
 * FAILED_PRECONDITION on all ranks if the loss is not finite. */
status_t run_evaluate(struct run *run, int set, struct tally *tally) FSDPD_MUST_USE;

/* With train.ema.evaluate the average takes the place of the parameters for as long as rows are
 * evaluated or prompts continued, also if that fails: what a worker keeps of its job are the
 * parameters. The executor is settled. */
status_t evaluation_place_average(struct run *run, bool in) FSDPD_MUST_USE;

struct train_scores evaluation_scores(const struct run *run, const struct tally *tally);

/* Compares an evaluation with those before, for train.early_stop and checkpoint.best. */
void evaluation_note(struct run *run, int set, const struct tally *tally);

/* Reports an evaluation that began then (clock_monotonic_ns), of which `tally` has the sums. */
void evaluation_report(struct run *run, int set, const struct tally *tally, double epoch,
                       int64_t began);

/* Evaluates the sets whose turn it is after this step, of which the windows are always the same,
 * and reports them. `last`: all that were not evaluated yet. */
status_t run_validate(struct run *run, bool last) FSDPD_MUST_USE;

/* Of the names of the sets. */
uint64_t evaluation_sets_hash(const struct train_session *session);

#endif
