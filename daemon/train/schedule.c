/* Learning rates over epochs and steps; see schedule.h. Pure functions; any thread. */
#include "train/schedule.h"

#include <math.h>

double schedule_next_rate(const struct train_job *job, uint32_t epoch, double rate)
{
    if (job->schedule != SCHEDULE_STEP) return rate;
    return epoch % job->schedule_step_size == 0 ? rate * job->schedule_gamma : rate;
}

static bool is_annealed(const struct train_job *job)
{
    return job->schedule == SCHEDULE_LINEAR || job->schedule == SCHEDULE_COSINE;
}

double schedule_factor(const struct train_job *job, uint64_t step, double place, double places)
{
    uint64_t warmup = job->schedule_warmup_steps, total = job->schedule_total_steps;
    double start = job->schedule_warmup_start_factor, end = job->schedule_end_factor;
    if (step < warmup) return start + (1 - start) * ((double)step / (double)warmup);
    if (!is_annealed(job)) return 1;
    if (total > 0) {
        place = (double)step;
        places = (double)total;
    }
    if (place >= places) return end;
    double begin = (double)warmup;
    double done = place > begin ? (place - begin) / (places - begin) : 0;
    if (job->schedule == SCHEDULE_LINEAR) return 1 + (end - 1) * done;
    return end + (1 - end) * (1 + cos(M_PI * done)) / 2;
}
