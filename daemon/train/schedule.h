/* Learning rates over the epochs. */
#ifndef FSDPD_TRAIN_SCHEDULE_H
#define FSDPD_TRAIN_SCHEDULE_H

#include "train/job.h"

/*
 * The rate of the epoch after `epoch` (from 1), given that epoch's rate. SCHEDULE_STEP is PyTorch's
 * StepLR: the current rate is multiplied by gamma, in double, after every step_size epochs, which
 * may differ in the last bit from initial * gamma^n.
 */
double schedule_next_rate(const struct train_job *job, uint32_t epoch, double rate);

#endif
