/* The tables of routes; see routes.h. */
#include "coordinator/http/routes.h"

#include <microhttpd.h>

#include "base/array.h"

static void answer_text(struct http_request *request, const char *words)
{
    struct buf text = {0};
    buf_add_text(&text, words);
    http_answer(request, MHD_HTTP_OK, "text/plain; charset=utf-8", &text);
}

static void monitoring_root(struct http_request *request)
{
    answer_text(request, "fsdpd: /metrics /livez /readyz\n");
}

static void served_root(struct http_request *request)
{
    answer_text(request, "fsdpd: /v1/completions /v1/models\n");
}

static const struct http_route monitoring[] = {
    {"/", "GET, HEAD", 0, monitoring_root},
    {"/metrics", "GET, HEAD", 0, monitoring_metrics},
    {"/livez", "GET, HEAD", 0, monitoring_livez},
    {"/readyz", "GET, HEAD", 0, monitoring_readyz},
};

static const struct http_route served[] = {
    {"/", "GET, HEAD", RPC_USER | RPC_OPERATOR, served_root},
    {"/v1/completions", "POST", RPC_USER | RPC_OPERATOR, completions_complete},
    {"/v1/models", "GET, HEAD", RPC_USER | RPC_OPERATOR, completions_models},
};

status_t routes_listen(struct coordinator *c, const struct rpc_pems *pems)
{
    const struct http_site sites[] = {
        {.key = "metrics.listen",
         .event = "metrics_served",
         .address = c->options.metrics_listen,
         .routes = monitoring,
         .route_count = COUNT_OF(monitoring)},
        {.key = "http.listen",
         .event = "http_served",
         .address = c->options.http_listen,
         .routes = served,
         .route_count = COUNT_OF(served),
         .guarded = true,
         .pems = pems},
    };
    for (size_t i = 0; i < COUNT_OF(sites); i++)
        if (sites[i].address != NULL) TRY(http_listen(c, &sites[i]));
    return NULL;
}
