/*
 * dpo.reference: precomputed. Before the first step, the model as it began makes the
 * log-probabilities of every pair, those of validation included: it evaluates all rows, each rank
 * its share, and every rank keeps the sums of all. So training needs neither a second model nor a
 * second pass. Where the job has a directory of checkpoints, rank 0 keeps them there: a job that
 * continues, with any number of ranks, has the same numbers. On the training thread.
 */
#ifndef FSDPD_TRAIN_REFERENCE_H
#define FSDPD_TRAIN_REFERENCE_H

#include "train/run_state.h"

/*
 * With a new executor, before anything is resumed. *loaded: the executor has the parameters with
 * which the job began, as the sums were computed. NOT_FOUND, DATA_LOSS or FAILED_PRECONDITION on
 * all ranks if a job that must continue has lost them, or has other data.
 */
status_t run_find_reference(struct run *run, bool *loaded) FSDPD_MUST_USE;

#endif
