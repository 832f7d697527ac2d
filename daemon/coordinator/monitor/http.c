/*
 * HTTP; see http.h. Connections wait in a lobby until their request has arrived, and are closed
 * after the answer, so a silent connection blocks no other client. libmicrohttpd has no thread of
 * its own here: the loop watches its epoll descriptor and runs its pending work, so handlers see
 * the coordinator's state between two callbacks.
 */
#include "coordinator/monitor/http.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/monitor/certificate.h"
#include "coordinator/monitor/metrics.h"
#include "coordinator/monitor/scrubber.h"
#include "rpc/address.h"
#include "rpc/lobby.h"
#include "rpc/rpc.h"

enum {
    CONNECTIONS_MAX = 32,
    WAITING_MAX = 32,
    WAITING_MS = 10 * 1000,
    IDLE_SECONDS = 15,
    CONNECTION_MEMORY = 16384,
};

struct http {
    struct coordinator *c;
    struct MHD_Daemon *daemon;
    struct rpc_lobby *lobby;
    uv_poll_t poll;
    uv_timer_t timer;
    int open_parts; /* the two handles and the lobby */
};

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code, const char *type,
                              struct buf *text)
{
    size_t length = text->length;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(length, buf_take(text), MHD_RESPMEM_MUST_FREE);
    if (response == NULL) return MHD_NO;
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "Connection", "close");
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, "Allow", "GET, HEAD");
    enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_size, void **state)
{
    static const char plain[] = "text/plain; charset=utf-8";
    static int seen;
    struct http *http = user;
    struct buf text = {0};
    (void)version, (void)data;
    if (*state == NULL) { /* only the headers; answered once the (empty) body has arrived */
        *state = &seen;
        return MHD_YES;
    }
    if (*data_size > 0) { /* no request needs a body */
        *data_size = 0;
        return MHD_YES;
    }
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        buf_add_text(&text, "only GET and HEAD\n");
        return answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, plain, &text);
    }
    if (strcmp(url, "/metrics") == 0) {
        metrics_write(http->c, &text);
        return answer(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", &text);
    }
    if (strcmp(url, "/livez") == 0) { /* running at all is the answer */
        bool stuck = http->c->rpc_stuck;
        buf_add_text(&text, stuck ? "gRPC does not respond\n" : "ok\n");
        return answer(connection, stuck ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK, plain, &text);
    }
    if (strcmp(url, "/readyz") == 0) {
        const char *why = NULL;
        bool ready = metrics_is_ready(http->c, &why);
        buf_printf(&text, "%s\n", ready ? "ok" : why);
        size_t length = text.length;
        certificate_describe(http->c, &text);
        if (text.length > length) buf_add_char(&text, '\n');
        length = text.length;
        scrubber_describe(http->c, &text);
        if (text.length > length) buf_add_char(&text, '\n');
        return answer(connection, ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, plain, &text);
    }
    if (strcmp(url, "/") == 0) {
        buf_add_text(&text, "fsdpd: /metrics /livez /readyz\n");
        return answer(connection, MHD_HTTP_OK, plain, &text);
    }
    buf_add_text(&text, "not found\n");
    return answer(connection, MHD_HTTP_NOT_FOUND, plain, &text);
}

/* ---- on the loop ---- */

static unsigned count_connections(struct http *http)
{
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info != NULL ? info->num_connections : 0;
}

static void on_due(uv_timer_t *timer);

static void run(struct http *http)
{
    MHD_UNSIGNED_LONG_LONG timeout;
    MHD_run(http->daemon);
    if (MHD_get_timeout(http->daemon, &timeout) == MHD_YES)
        uv_timer_start(&http->timer, on_due, timeout, 0);
    else uv_timer_stop(&http->timer);
}

static void on_due(uv_timer_t *timer)
{
    run(timer->data);
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    run(poll->data);
}

/* The request has arrived completely: it occupies a slot of libmicrohttpd only while it is
 * answered. */
static void admit(void *entrance, int fd, const struct rpc_origin *origin)
{
    struct http *http = entrance;
    (void)origin;
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &size) != 0) {
        close(fd);
        return;
    }
    MHD_add_connection(http->daemon, fd, (struct sockaddr *)&peer, size); /* closes fd on failure */
    run(http);
}

static bool has_room(void *entrance, const struct rpc_origin *origin)
{
    (void)origin;
    return count_connections(entrance) < CONNECTIONS_MAX;
}

status_t http_start(struct coordinator *c, const char *address)
{
    AUTO_FREE char *normal = NULL;
    TRY(rpc_address_parse(address, &normal));
    int fd = -1, port = 0, count = 0;
    status_t status = NULL;
    if (strncmp(normal, "unix:", 5) == 0)
        status = status_new(STATUS_INVALID_ARGUMENT, "expected HOST:PORT, found %s", address);
    else status = rpc_address_listen(normal, &fd, 1, &count, &port);
    if (status != NULL) return status;
    struct http *http = mem_alloc(sizeof *http);
    http->c = c;
    http->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL,
                                    on_request, http, MHD_OPTION_CONNECTION_LIMIT,
                                    (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
                                    (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                    (size_t)CONNECTION_MEMORY, MHD_OPTION_END);
    const union MHD_DaemonInfo *info =
        http->daemon != NULL ? MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    if (info == NULL || uv_poll_init(c->loop, &http->poll, info->epoll_fd) != 0) {
        if (http->daemon != NULL) MHD_stop_daemon(http->daemon);
        close(fd);
        free(http);
        return status_new(STATUS_UNAVAILABLE, "libmicrohttpd did not start");
    }
    uv_timer_init(c->loop, &http->timer);
    http->poll.data = http->timer.data = http;
    http->open_parts = 3;
    uv_poll_start(&http->poll, UV_READABLE, on_event);
    const struct rpc_lobby_options lobby = {.most = WAITING_MAX,
                                            .deadline_ms = WAITING_MS,
                                            .has_room = has_room,
                                            .admit = admit};
    http->lobby = rpc_lobby_new(c->loop, &lobby);
    c->http = http;
    status = rpc_lobby_listen(http->lobby, fd, rpc_opening_http1, http);
    if (status != NULL) {
        close(fd);
        return status; /* the coordinator's shutdown closes the rest */
    }
    rpc_lobby_start(http->lobby);
    log_event(LOG_INFO, "metrics_served", "address=%.*s:%d", (int)(strrchr(normal, ':') - normal),
              normal, port);
    return NULL;
}

static void on_part_gone(void *user)
{
    struct http *http = user;
    struct coordinator *c = http->c;
    if (--http->open_parts > 0) return;
    MHD_stop_daemon(http->daemon);
    free(http);
    c->http = NULL;
    coordinator_part_gone(c);
}

static void on_handle_closed(uv_handle_t *handle)
{
    on_part_gone(handle->data);
}

void http_close(struct coordinator *c)
{
    struct http *http = c->http;
    if (http == NULL || uv_is_closing((uv_handle_t *)&http->poll)) return;
    uv_close((uv_handle_t *)&http->poll, on_handle_closed);
    uv_close((uv_handle_t *)&http->timer, on_handle_closed);
    rpc_lobby_close(http->lobby, on_part_gone, http);
}

bool http_is_gone(const struct coordinator *c)
{
    return c->http == NULL;
}
