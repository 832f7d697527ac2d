/*
 * Ranks that are slower than the others. Ranks run in step, so a slow one slows them all down. What
 * counts is a rank's own time, without its waits for the others, which every heartbeat has.
 */
#ifndef FSDPD_COORDINATOR_STRAGGLERS_H
#define FSDPD_COORDINATOR_STRAGGLERS_H

#include "coordinator/jobs/attempt.h"

/*
 * After a rank's heartbeat. Once all ranks have done at least 50 steps, and five heartbeats have
 * passed, compares their times with the median (of an even number, the lower one of the two in the
 * middle). A rank that takes 1.5 times as long is slow until it takes less than 1.3 times as long;
 * the job's message has those ranks, and an event is recorded of each change.
 */
void stragglers_heartbeat(struct job *job);

#endif
