/* See tune_schedule.h. */
#include "setup/tune_schedule.h"

/* A candidate's first steps allocate, capture graphs and fill caches. */
enum { WARM = 2, MEASURED_MIN = 3, STEPS_PER_TRIED = 20 };

struct tune_schedule tune_schedule(uint64_t steps, int count)
{
    uint64_t budget = steps / STEPS_PER_TRIED;
    if (budget > TUNE_STEPS_MAX) budget = TUNE_STEPS_MAX;
    while (count > 1 && budget / (uint64_t)count < WARM + MEASURED_MIN) count--;
    if (count < 2) return (struct tune_schedule){0};
    int each = (int)budget / count - WARM;
    return (struct tune_schedule){
        .count = count,
        .warm = WARM,
        .measured = each > TUNE_MEASURED_MAX ? TUNE_MEASURED_MAX : each,
    };
}
