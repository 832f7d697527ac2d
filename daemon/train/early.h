/*
 * Ending a run early: when `patience` evaluations in a row were not better than the best one before
 * them by more than `min_delta`, as transformers' EarlyStoppingCallback decides. All ranks have the
 * same evaluations, so all decide alike. What was seen is part of a checkpoint: a resumed run, and
 * one of another number of ranks, continues to count. What is best for checkpoint.best is found the
 * same way. Training thread.
 */
#ifndef FSDPD_TRAIN_EARLY_H
#define FSDPD_TRAIN_EARLY_H

#include "checkpoint/manifest.h"
#include "setup/job.h"

/* After an evaluation at `step`. */
void early_stop_note(struct saved_early_stop *seen, const struct early_stop *settings,
                     uint64_t step, double loss, double accuracy);

/* Whether none was better than the one after `step`. */
static inline bool early_stop_is_best(const struct saved_early_stop *seen, uint64_t step)
{
    return seen->known && seen->step == step;
}

bool early_stop_is_due(const struct saved_early_stop *seen, const struct early_stop *settings);

/* Why, as a sentence for the caller to free; `set` is the set's name. */
char *early_stop_reason(const struct saved_early_stop *seen, const struct early_stop *settings,
                        const char *set);

#endif
