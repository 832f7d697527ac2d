/*
 * HTTP; see http.h. libmicrohttpd has no thread of its own here: its epoll descriptor is watched by
 * the loop, which lets it do what is due, so that handlers see the coordinator between two
 * callbacks.
 */
#include "coordinator/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/metrics.h"
#include "rpc/rpc.h"

enum { CONNECTIONS_MAX = 32, IDLE_SECONDS = 15, CONNECTION_MEMORY = 16384 };

struct http {
    struct coordinator *c;
    struct MHD_Daemon *daemon;
    uv_poll_t poll;
    uv_timer_t timer;
    int open_handles;
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
    if (*state == NULL) { /* the headers alone; answered when the (empty) body is there */
        *state = &seen;
        return MHD_YES;
    }
    if (*data_size > 0) { /* nobody needs a body here */
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
    if (strcmp(url, "/livez") == 0) { /* that this runs at all is the answer */
        bool stuck = http->c->rpc_stuck;
        buf_add_text(&text, stuck ? "gRPC does not answer\n" : "ok\n");
        return answer(connection, stuck ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK, plain, &text);
    }
    if (strcmp(url, "/readyz") == 0) {
        const char *why = NULL;
        bool ready = metrics_is_ready(http->c, &why);
        buf_printf(&text, "%s\n", ready ? "ok" : why);
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

static void on_due(uv_timer_t *timer);

static unsigned count_connections(struct http *http)
{
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info != NULL ? info->num_connections : 0;
}

/*
 * At its limit of connections libmicrohttpd listens no more, and it begins again only at the start
 * of a run. If the last connection ended in this run, nothing else would wake us for one: there is
 * room, and those who wait for it would wait for ever.
 */
static void run(struct http *http)
{
    MHD_UNSIGNED_LONG_LONG timeout;
    unsigned before = count_connections(http);
    MHD_run(http->daemon);
    if (count_connections(http) < before) uv_timer_start(&http->timer, on_due, 0, 0);
    else if (MHD_get_timeout(http->daemon, &timeout) == MHD_YES)
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

static status_t bind_address(const char *normal, int *fd_out, int *port)
{
    const char *colon = strrchr(normal, ':');
    bool brackets = normal[0] == '[';
    char *host = mem_strndup(normal + brackets, (size_t)(colon - normal) - 2 * (size_t)brackets);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int failed = getaddrinfo(host, colon + 1, &hints, &list), fd = -1, error = EADDRNOTAVAIL;
    free(host);
    for (struct addrinfo *i = list; failed == 0 && i != NULL && fd < 0; i = i->ai_next) {
        int one = 1;
        fd = socket(i->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (fd >= 0 && bind(fd, i->ai_addr, i->ai_addrlen) == 0 && listen(fd, 16) == 0) break;
        error = errno;
        if (fd >= 0) close(fd);
        fd = -1;
    }
    if (failed == 0) freeaddrinfo(list);
    if (fd < 0)
        return status_new(STATUS_UNAVAILABLE, "cannot listen on %s: %s", normal,
                          failed != 0 ? gai_strerror(failed) : strerror(error));
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &size) == 0)
        *port = ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                                    : ((struct sockaddr_in *)&address)->sin_port);
    *fd_out = fd;
    return NULL;
}

status_t http_start(struct coordinator *c, const char *address)
{
    char *normal = NULL;
    TRY(rpc_address_parse(address, &normal));
    int fd = -1, port = 0;
    status_t status = NULL;
    if (strncmp(normal, "unix:", 5) == 0)
        status = status_new(STATUS_INVALID_ARGUMENT, "expected HOST:PORT, found %s", address);
    else status = bind_address(normal, &fd, &port);
    if (status != NULL) {
        free(normal);
        return status;
    }
    struct http *http = mem_alloc(sizeof *http);
    http->c = c;
    http->daemon = MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, http,
                                    MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                                    (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
                                    (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                    (size_t)CONNECTION_MEMORY, MHD_OPTION_END);
    const union MHD_DaemonInfo *info =
        http->daemon != NULL ? MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    if (info == NULL || uv_poll_init(c->loop, &http->poll, info->epoll_fd) != 0) {
        if (http->daemon != NULL) MHD_stop_daemon(http->daemon);
        else close(fd);
        free(http);
        free(normal);
        return status_new(STATUS_UNAVAILABLE, "libmicrohttpd did not start");
    }
    uv_timer_init(c->loop, &http->timer);
    http->poll.data = http->timer.data = http;
    http->open_handles = 2;
    uv_poll_start(&http->poll, UV_READABLE, on_event);
    run(http);
    c->http = http;
    log_event(LOG_INFO, "metrics_served", "address=%.*s:%d", (int)(strrchr(normal, ':') - normal),
              normal, port);
    free(normal);
    return NULL;
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct http *http = handle->data;
    struct coordinator *c = http->c;
    if (--http->open_handles > 0) return;
    MHD_stop_daemon(http->daemon);
    free(http);
    c->http = NULL;
    coordinator_part_gone(c);
}

void http_close(struct coordinator *c)
{
    struct http *http = c->http;
    if (http == NULL || uv_is_closing((uv_handle_t *)&http->poll)) return;
    uv_close((uv_handle_t *)&http->poll, on_handle_closed);
    uv_close((uv_handle_t *)&http->timer, on_handle_closed);
}

bool http_is_gone(const struct coordinator *c)
{
    return c->http == NULL;
}
