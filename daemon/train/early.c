/* See early.h. */
#include "train/early.h"

#include <inttypes.h>

#include "base/mem.h"

void early_stop_note(struct saved_early_stop *seen, const struct early_stop *settings,
                     uint64_t step, double loss, double accuracy)
{
    double value = settings->metric == EARLY_STOP_LOSS ? loss : accuracy;
    bool down = settings->mode == BEST_AUTO ? settings->metric == EARLY_STOP_LOSS
                                            : settings->mode == BEST_MIN;
    double gain = down ? seen->best - value : value - seen->best;
    if (settings->patience == 0) return;
    if (seen->known && !(gain > settings->min_delta)) {
        seen->stale++;
        return;
    }
    *seen = (struct saved_early_stop){.known = true, .best = value, .step = step};
}

bool early_stop_is_due(const struct saved_early_stop *seen, const struct early_stop *settings)
{
    return settings->patience > 0 && seen->known && seen->stale >= settings->patience;
}

char *early_stop_reason(const struct saved_early_stop *seen, const struct early_stop *settings,
                        const char *set)
{
    const char *metric = settings->metric == EARLY_STOP_LOSS ? "loss" : "accuracy";
    return mem_printf("the %s of the last %" PRIu64
                      " evaluation%s%s%s is not better than %g of step "
                      "%" PRIu64 " by more than %g (train.early_stop)",
                      metric, seen->stale, seen->stale == 1 ? "" : "s",
                      set[0] != '\0' ? " of " : "", set, seen->best, seen->step,
                      settings->min_delta);
}
