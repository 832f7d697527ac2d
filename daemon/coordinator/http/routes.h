/* What the coordinator's two listeners over HTTP serve; see http.h. */
#ifndef FSDPD_COORDINATOR_ROUTES_H
#define FSDPD_COORDINATOR_ROUTES_H

#include "coordinator/http/http.h"

/*
 * Starts the listeners that the options have: `metrics_listen`, for monitoring, which changes
 * nothing and identifies no client, and `http_listen`, for users with tokens. `pems`: of the
 * coordinator's TLS; NULL without. Errors name the option.
 */
status_t routes_listen(struct coordinator *c, const struct rpc_pems *pems) FSDPD_MUST_USE;

/* ---- the functions of routes ---- */

/* /metrics for Prometheus, /livez and /readyz for service managers and load balancers. */
void monitoring_metrics(struct http_request *request);
void monitoring_livez(struct http_request *request);
void monitoring_readyz(struct http_request *request);

/* /v1/completions and /v1/models, as of OpenAI's API; see completions.c. */
void completions_complete(struct http_request *request);
void completions_models(struct http_request *request);

/* The page, without a token: it asks for one. Its files; the parts that its script asks for. */
void pages_live(struct http_request *request);
void pages_style(struct http_request *request);
void pages_script(struct http_request *request);
void pages_lists(struct http_request *request);
void pages_job(struct http_request *request);

/* What the route's method of Control answers, as JSON; see reads.c. */
void reads_answer(struct http_request *request);

#endif
