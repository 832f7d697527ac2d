/*
 * Calibrations: workers that have been idle for a while measure a profile of their devices, once
 * for each make of device and number of workers; plans are then made with it. One worker of a host
 * has the devices of all of them measured. A calibration ends at once when a job is planned or
 * wants workers; it begins again when they have been idle as long. On the loop's thread.
 */
#ifndef FSDPD_COORDINATOR_CALIBRATION_H
#define FSDPD_COORDINATOR_CALIBRATION_H

#include "coordinator/workers/workers.h"
#include "fsdpd/v1/worker.pb-c.h"

/* Starts what is due. */
void calibration_tick(struct coordinator *c);

/* Ends all that run. Returns whether some have not ended yet; queue_changed follows then. */
bool calibration_stop(struct coordinator *c);

void calibration_report(struct worker *worker, const Fsdpd__V1__Calibration *report);

/* The measured profile to plan with on this worker; "": there is none. Valid until the next
 * report. */
const char *calibration_profile(struct worker *worker);

#endif
