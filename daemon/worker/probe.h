/* One half of a probe, whether two hosts can connect to each other; see ProbeOrder. On the loop's
 * thread. */
#ifndef FSDPD_WORKER_PROBE_H
#define FSDPD_WORKER_PROBE_H

#include <uv.h>

#include "fsdpd/v1/worker.pb-c.h"
#include "worker/settings.h"

/* Called once for each order; owns the report, which was made with malloc'ed memory. */
typedef void probe_done(void *user, Fsdpd__V1__ProbeReport *report);

/* A worker's socket that listens, for some seconds after the last order to do so. */
struct prober {
    uv_loop_t *loop;
    uv_timer_t timer;
    int socket;  /* -1: it does not listen */
    int running; /* orders that are not answered yet */
    probe_done *done;
    void *user;
};

void prober_init(struct prober *prober, uv_loop_t *loop, probe_done *done, void *user);
/* When no order runs; the loop then frees its timer. */
void prober_close(struct prober *prober);

void probe_start(struct prober *prober, const Fsdpd__V1__ProbeOrder *order);

/* ---- measuring.c ---- */

/*
 * Measuring a profile of this host's devices for the coordinator: a process of its own does it,
 * `fsdpd calibrate`, which can be ended at any time. On the loop's thread.
 */

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
