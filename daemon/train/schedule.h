/* Learning rates: a rate per epoch, times a factor per step. docs/job-file.md has the formulas. */
#ifndef FSDPD_TRAIN_SCHEDULE_H
#define FSDPD_TRAIN_SCHEDULE_H

#include "setup/schedules.h"

/*
 * The rate of the epoch after `epoch` (from 1), given that epoch's rate. SCHEDULE_STEP is PyTorch's
 * StepLR: the current rate is multiplied by gamma, in double, after every step_size epochs, which
 * may differ in the last bit from initial * gamma^n.
 */
double schedule_next_rate(const struct train_schedule *schedule, uint32_t epoch, double rate);

/*
 * The factor for the rate of step `step` (from 0), in closed form: warm-up, then the schedule's
 * curve. Warm-up, inverse_sqrt, phases of a given length and an end set by the job count the steps
 * taken. Without such an end the schedule follows the job's progress: `place` of `places`, which
 * are the step and the steps of the whole job unless another group ran the first ones.
 */
double schedule_factor(const struct train_schedule *schedule, uint64_t step, double place,
                       double places);

#endif
