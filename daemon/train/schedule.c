/* Learning rates over the epochs; see schedule.h. */
#include "train/schedule.h"

double schedule_next_rate(const struct train_job *job, uint32_t epoch, double rate)
{
    switch (job->schedule) {
    case SCHEDULE_CONSTANT: return rate;
    case SCHEDULE_STEP:
        return epoch % job->schedule_step_size == 0 ? rate * job->schedule_gamma : rate;
    }
    return rate;
}
