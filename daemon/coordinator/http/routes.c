/* The tables of routes; see routes.h. */
#include "coordinator/http/routes.h"

#include <microhttpd.h>

#include "base/array.h"
#include "fsdpd/v1/methods.h"

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

static const struct http_route monitoring[] = {
    {"/", "GET, HEAD", 0, .answer = monitoring_root},
    {"/metrics", "GET, HEAD", 0, .answer = monitoring_metrics},
    {"/livez", "GET, HEAD", 0, .answer = monitoring_livez},
    {"/readyz", "GET, HEAD", 0, .answer = monitoring_readyz},
};

enum { SAMPLES = RPC_USER | RPC_OPERATOR, SEES = RPC_OBSERVER | RPC_USER | RPC_OPERATOR };

/* Of methods that only read. A watcher's cancel_if_left is no parameter: it changes something. */
#define READS(path, method_, parameters_)                                                          \
    {                                                                                              \
        path, "GET, HEAD", SEES, reads_answer, .method = &(method_), .parameters = (parameters_)   \
    }
#define FOLLOWS(path, method_, parameters_)                                                        \
    {                                                                                              \
        path, "GET", SEES, reads_answer, .method = &(method_), .parameters = (parameters_)         \
    }

static const struct http_route served[] = {
    {"/", "GET, HEAD", 0, .answer = pages_live},
    {"/page.css", "GET, HEAD", 0, .answer = pages_style},
    {"/page.js", "GET, HEAD", 0, .answer = pages_script},
    {"/v1/page", "GET, HEAD", SEES, .answer = pages_lists},
    {"/v1/jobs/*/page", "GET, HEAD", SEES, .answer = pages_job},
    {"/v1/completions", "POST", SAMPLES, .answer = completions_complete},
    {"/v1/models", "GET, HEAD", SAMPLES, .answer = completions_models},
    READS("/v1/version", control_get_version, NULL),
    READS("/v1/workers", control_list_workers, "page_size, page_token"),
    READS("/v1/jobs", control_list_jobs, "page_size, page_token, name, owner, array, fold"),
    READS("/v1/jobs/*", control_get_job, NULL),
    READS("/v1/jobs/*/why", control_explain_job, NULL),
    READS("/v1/jobs/*/history", control_get_history, "page_size, page_token"),
    READS("/v1/jobs/*/checkpoints", control_list_checkpoints, "page_size, page_token"),
    FOLLOWS("/v1/jobs/*/events", control_watch_job, "after_sequence"),
    FOLLOWS("/v1/jobs/*/metrics", control_get_metrics, "attempt, every, changes, after_sequence"),
    FOLLOWS("/v1/jobs/*/logs", control_get_logs, "attempt, after_position, tail, follow"),
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
