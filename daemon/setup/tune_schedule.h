/* How long the first steps of a job with fsdp.tune try its candidates. Pure. */
#ifndef FSDPD_SETUP_TUNE_SCHEDULE_H
#define FSDPD_SETUP_TUNE_SCHEDULE_H

#include <stdint.h>

enum { TUNE_STEPS_MAX = 200, TUNE_MEASURED_MAX = 20 };

/* Which candidates a run has time for, and how long each takes. */
struct tune_schedule {
    int count;          /* with the job's own units; below 2: the run is too short to try any */
    int warm, measured; /* steps of each */
};

/* For a run of `steps` with `count` candidates: at most 5 % of the steps, and TUNE_STEPS_MAX. */
struct tune_schedule tune_schedule(uint64_t steps, int count);

#endif
