/* Learning rates over epochs and steps; see schedule.h. Pure functions; any thread. */
#include "train/schedule.h"

#include <inttypes.h>
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

static uint64_t total_steps(const struct train_job *job, uint64_t steps)
{
    return job->schedule_total_steps > 0 ? job->schedule_total_steps : steps;
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

status_t schedule_check(const struct train_job *job, uint64_t steps)
{
    if (!is_annealed(job) || total_steps(job, steps) > job->schedule_warmup_steps)
        return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "schedule.warmup_steps: expected fewer than the %" PRIu64
                      " steps of the whole job, found %" PRIu64,
                      total_steps(job, steps), job->schedule_warmup_steps);
}
