/*
 * Tries other units in a run's first steps, and keeps the fastest: every candidate trains for some
 * steps, which changes no value, and the median time of a step decides. Every rank makes the same
 * moves; rank 0's clock counts. Inside train/.
 */
#ifndef FSDPD_TRAIN_TUNE_H
#define FSDPD_TRAIN_TUNE_H

#include "setup/session.h"
#include "setup/tune_schedule.h"

struct run;

struct tuning {
    bool ended;
    struct tune_schedule schedule;
    struct train_tuned result;
    int at, next; /* the candidate that trains, and the one to try after it */
    int taken;    /* steps of the former */
    int64_t times[TUNE_MEASURED_MAX];
};

/* Before the first step. */
void tune_begin(struct run *run);

void tune_deinit(struct run *run);

/* After every step, which took `ns`. An error ends the run. */
status_t tune_step(struct run *run, int64_t ns) FSDPD_MUST_USE;

/* Tries nothing more, and decides nothing; `why` is a whole sentence for the job's owner. */
void tune_end(struct run *run, const char *why);

#endif
