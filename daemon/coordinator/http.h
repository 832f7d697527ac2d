/*
 * A small HTTP server for monitoring: /metrics for Prometheus, /livez and /readyz for whoever
 * starts and routes. It changes nothing and asks nobody who they are, so it listens where it is
 * told to and nowhere else.
 */
#ifndef FSDPD_COORDINATOR_HTTP_H
#define FSDPD_COORDINATOR_HTTP_H

#include "coordinator/internal.h"

/* Listens at HOST:PORT; port 0 picks one, which the log tells. UNAVAILABLE says why it cannot. */
status_t http_start(struct coordinator *c, const char *address) FSDPD_MUST_USE;

/* Ends it; the coordinator's closing goes on when it is gone (http_is_gone). */
void http_close(struct coordinator *c);
bool http_is_gone(const struct coordinator *c);

#endif
