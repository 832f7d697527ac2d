/*
 * A small HTTP server for monitoring: /metrics for Prometheus, /livez and /readyz for service
 * managers and load balancers. It changes nothing and authenticates no client, so it listens only
 * at the configured address.
 */
#ifndef FSDPD_COORDINATOR_HTTP_H
#define FSDPD_COORDINATOR_HTTP_H

#include "coordinator/core/internal.h"

/* Listens at HOST:PORT; port 0 picks a port, which is logged. UNAVAILABLE states why it cannot
 * listen. */
status_t http_start(struct coordinator *c, const char *address) FSDPD_MUST_USE;

/* Shuts the server down; http_is_gone tells when the coordinator's shutdown can continue. */
void http_close(struct coordinator *c);
bool http_is_gone(const struct coordinator *c);

#endif
