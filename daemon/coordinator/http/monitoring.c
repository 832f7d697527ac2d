/* What metrics.listen serves; see routes.h. */
#include <microhttpd.h>

#include "coordinator/http/routes.h"
#include "coordinator/monitor/monitor.h"

static const char plain[] = "text/plain; charset=utf-8";

void monitoring_metrics(struct http_request *request)
{
    struct buf text = {0};
    metrics_write(http_coordinator(request), &text);
    http_answer(request, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", &text);
}

/* Running at all is the answer. */
void monitoring_livez(struct http_request *request)
{
    struct buf text = {0};
    bool stuck = http_coordinator(request)->rpc_stuck;
    buf_add_text(&text, stuck ? "gRPC does not respond\n" : "ok\n");
    http_answer(request, stuck ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK, plain, &text);
}

void monitoring_readyz(struct http_request *request)
{
    struct coordinator *c = http_coordinator(request);
    struct buf text = {0};
    const char *why = NULL;
    bool ready = metrics_is_ready(c, &why);
    buf_printf(&text, "%s\n", ready ? "ok" : why);
    size_t length = text.length;
    certificate_describe(c, &text);
    if (text.length > length) buf_add_char(&text, '\n');
    length = text.length;
    scrubber_describe(c, &text);
    if (text.length > length) buf_add_char(&text, '\n');
    http_answer(request, ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, plain, &text);
}
