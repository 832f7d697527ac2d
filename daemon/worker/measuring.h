/*
 * Measuring a profile of this host's devices for the coordinator: a process of its own does it,
 * `fsdpd calibrate`, which can be ended at any time. On the loop's thread.
 */
#ifndef FSDPD_WORKER_MEASURING_H
#define FSDPD_WORKER_MEASURING_H

#include <uv.h>

#include "fsdpd/v1/worker.pb-c.h"
#include "worker/settings.h"

struct measuring;

/* Called once; owns the report, which was made with malloc'ed memory. `measuring` is freed. */
typedef void measuring_done(void *user, Fsdpd__V1__Calibration *report);

/* NULL if it cannot be started: then `done` was called already. */
struct measuring *measuring_start(uv_loop_t *loop, const struct worker_options *options,
                                  const Fsdpd__V1__CalibrationOrder *order, measuring_done *done,
                                  void *user);

/* Ends the process at once; `done` follows when it has ended. */
void measuring_stop(struct measuring *measuring);

#endif
