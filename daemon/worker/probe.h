/* One half of a probe, whether two hosts can connect to each other; see ProbeOrder. On the loop's
 * thread. */
#ifndef FSDPD_WORKER_PROBE_H
#define FSDPD_WORKER_PROBE_H

#include <uv.h>

#include "fsdpd/v1/worker.pb-c.h"

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

#endif
