/*
 * Listeners over HTTP; see http.h. Connections wait in a lobby until they have sent something whole
 * (the headers, or a ClientHello), so a silent one blocks no other client. libmicrohttpd has no
 * thread of its own here: the loop watches its epoll descriptor and runs its pending work, so
 * handlers see the coordinator's state between two callbacks.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/http/http_internal.h"
#include "rpc/address.h"
#include "rpc/lobby.h"
#include "rpc/tls.h"

enum {
    CONNECTIONS_MAX = 32,
    GUARDED_MAX = 256,     /* those of a guarded listener, */
    PER_ADDRESS_MAX = 160, /* and of them of one address, which may be a proxy's */
    WAITING_MAX = 32,
    GUARDED_WAITING = 128,  /* browsers come all at once, when fsdpd is there again */
    WAITING_MS = 10 * 1000, /* of a guarded listener limits.silence_seconds, twice: until it is
                             * admitted, and from then on until its request is whole */
    IDLE_SECONDS = 15,
    CONNECTION_MEMORY = 16384,
    TICK_MS = 500,
    UNREAD_BYTES = 64 << 10, /* of an answer, in the kernel */
    DISCARDED_BYTES = 1 << 20, /* of a client that is refused */
    /* A client that vanished while it follows a stream: probed after this silence, at these
     * intervals, and closed after this number of them. */
    PROBE_SECONDS = 30,
    PROBE_INTERVAL = 10,
    PROBES = 3,
};

/* ---- on the loop ---- */

static void on_due(uv_timer_t *timer);
static void on_tick(uv_timer_t *tick);

static void run(struct http_listener *listener)
{
    MHD_UNSIGNED_LONG_LONG timeout;
    MHD_run(listener->daemon);
    if (MHD_get_timeout(listener->daemon, &timeout) == MHD_YES)
        uv_timer_start(&listener->timer, on_due, timeout, 0);
    else uv_timer_stop(&listener->timer);
}

static void on_due(uv_timer_t *timer)
{
    run(timer->data);
}

void http_run_soon(struct http_listener *listener)
{
    if (!listener->http->closing) uv_timer_start(&listener->timer, on_due, 0, 0);
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    run(poll->data);
}

static int waiting_ms(const struct http_listener *listener)
{
    return listener->site.guarded ? listener->http->c->options.limits.silence_ms : WAITING_MS;
}

/* The kernel would take megabytes of a stream that its client never reads. */
static void bound_unread(int fd)
{
    const int bytes = UNREAD_BYTES;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes); /* as it is, at the worst */
}

static void on_connection(void *user, struct MHD_Connection *mhd, void **state,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http_listener *listener = user;
    struct http_connection *connection = *state;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (connection == NULL) return;
        list_remove(&listener->connections, &connection->node);
        free(connection);
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info == NULL) return;
    *state = connection = mem_alloc(sizeof *connection);
    connection->fd = info->connect_fd;
    connection->mhd = mhd;
    connection->origin = *listener->admitted;
    bound_unread(connection->fd);
    connection->since = uv_now(listener->http->c->loop);
    list_append(&listener->connections, &connection->node);
    if (!uv_is_active((uv_handle_t *)&listener->tick))
        uv_timer_start(&listener->tick, on_tick, TICK_MS, TICK_MS);
}

void http_part_gone(struct http *http)
{
    struct coordinator *c = http->c;
    if (--http->open_parts > 0) return;
    free(http->listeners);
    free(http);
    pages_free(c);
    c->http = NULL;
    coordinator_part_gone(c);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct http_listener *listener = handle->data;
    struct http *http = listener->http;
    if (--listener->open_handles > 0) return;
    MHD_stop_daemon(listener->daemon);
    for (int i = 0; i < http->count; i++)
        if (http->listeners[i] == listener) {
            LIST_REMOVE(http->listeners, http->count, i);
            break;
        }
    free(listener);
    http_part_gone(http);
}

/* Its daemon stops when its handles are closed. */
static void close_listener(struct http_listener *listener)
{
    if (uv_is_closing((uv_handle_t *)&listener->poll)) return;
    uv_close((uv_handle_t *)&listener->poll, on_handle_closed);
    uv_close((uv_handle_t *)&listener->timer, on_handle_closed);
    uv_close((uv_handle_t *)&listener->tick, on_handle_closed);
}

/* libmicrohttpd does not always notice that a client has reset a connection while it wrote a stream
 * to it, and the connection would keep its place until it is idle for long: it looks again. */
static void notice_reset(struct http_listener *listener, struct http_connection *connection)
{
    struct tcp_info info;
    socklen_t size = sizeof info;
    if (connection->request != NULL && connection->request->suspended) return;
    if (getsockopt(connection->fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
        info.tcpi_state != TCP_CLOSE)
        return;
    MHD_suspend_connection(connection->mhd);
    MHD_resume_connection(connection->mhd);
    http_run_soon(listener);
}

/* A connection whose request does not arrive in time: libmicrohttpd finds it closed. And requests
 * that last longer than their tokens. */
static void on_tick(uv_timer_t *tick)
{
    struct http_listener *listener = tick->data;
    uint64_t now = uv_now(listener->http->c->loop);
    uint64_t most = (uint64_t)waiting_ms(listener);
    LIST_EACH(node, &listener->connections)
    {
        struct http_connection *connection = LIST_ITEM(node, struct http_connection, node);
        notice_reset(listener, connection);
        if (!connection->arrived && now - connection->since > most)
            shutdown(connection->fd, SHUT_RDWR);
        else if (connection->request != NULL) http_check_again(connection->request, now);
    }
    if (listener->connections.count > 0) return;
    uv_timer_stop(tick);
    if (listener->lobby == NULL) close_listener(listener);
}

/* ---- listeners ---- */

static unsigned count_connections(const struct http_listener *listener)
{
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(listener->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info != NULL ? info->num_connections : 0;
}

static int most_connections(const struct http_listener *listener)
{
    return listener->site.guarded ? GUARDED_MAX : CONNECTIONS_MAX;
}

static void notice_vanished(int fd)
{
    const int on = 1, idle = PROBE_SECONDS, interval = PROBE_INTERVAL, count = PROBES,
              unanswered_ms = 1000 * (PROBE_SECONDS + PROBE_INTERVAL * PROBES);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof unanswered_ms);
}

/* The request has arrived, or a handshake begins: it occupies a slot of libmicrohttpd from now on.
 */
static void admit(void *entrance, int fd, const struct rpc_origin *origin)
{
    struct http_listener *listener = *(struct http_listener **)entrance;
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &size) != 0) {
        close(fd);
        return;
    }
    notice_vanished(fd);
    listener->admitted = origin;
    /* Closes fd on failure. */
    MHD_add_connection(listener->daemon, fd, (struct sockaddr *)&peer, size);
    run(listener);
}

static bool has_room(void *entrance, const struct rpc_origin *origin)
{
    const struct http_listener *listener = *(struct http_listener **)entrance;
    if (count_connections(listener) >= (unsigned)most_connections(listener)) return false;
    int count = 0;
    LIST_EACH(node, &listener->connections)
    {
        const struct http_connection *connection = LIST_ITEM(node, struct http_connection, node);
        count += strcmp(connection->origin.host, origin->host) == 0;
    }
    return count < PER_ADDRESS_MAX;
}

/* Before a handshake of TLS there is no answer. */
static void turn_away(void *entrance, int fd)
{
    const struct http_listener *listener = *(struct http_listener **)entrance;
    AUTO(buf_deinit) struct buf answer = {0};
    if (!listener->tls) {
        http_write_full(listener, &answer);
        (void)send(fd, answer.data, answer.length, MSG_DONTWAIT | MSG_NOSIGNAL);
        shutdown(fd, SHUT_WR);
        /* What the client has sent would reset the connection, and it might lose the answer. */
        (void)recv(fd, NULL, DISCARDED_BYTES, MSG_DONTWAIT | MSG_TRUNC);
    }
    close(fd);
}

static bool is_loopback(int fd)
{
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    if (getsockname(fd, (struct sockaddr *)&own, &size) != 0) return false;
    const struct sockaddr_in *v4 = (const void *)&own;
    const struct sockaddr_in6 *v6 = (const void *)&own;
    return own.ss_family == AF_INET
               ? ntohl(v4->sin_addr.s_addr) >> 24 == 127
               : own.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

static status_t bind_site(const struct http_site *site, char **normal, int *fd, int *port)
{
    int count = 0;
    TRY(rpc_address_parse(site->address, normal));
    if (strncmp(*normal, "unix:", 5) == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "expected HOST:PORT, found %s", site->address);
    TRY(rpc_address_listen(*normal, fd, 1, &count, port));
    if (!site->guarded || site->pems != NULL || is_loopback(*fd)) return NULL;
    close(*fd);
    return status_new(STATUS_PERMISSION_DENIED,
                      "%s: beyond the loopback interface it needs TLS (tls.ca, tls.certificate, "
                      "tls.key), as everyone on the way could read its tokens",
                      site->address);
}

static struct MHD_Daemon *start_daemon(struct http_listener *listener)
{
    const struct rpc_pems *pems = listener->site.pems;
    const struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    const struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_KEY, 0, pems != NULL ? pems->key : NULL},
        {MHD_OPTION_HTTPS_MEM_CERT, 0, pems != NULL ? pems->certificate : NULL},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)"NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"},
        {MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME |
                     (pems != NULL ? (unsigned)MHD_USE_TLS : 0u);
    return MHD_start_daemon(flags, 0, NULL, NULL, http_on_request, listener, MHD_OPTION_ARRAY,
                            pems != NULL ? tls : none, MHD_OPTION_NOTIFY_COMPLETED,
                            http_on_completed, listener, MHD_OPTION_NOTIFY_CONNECTION,
                            on_connection, listener, MHD_OPTION_CONNECTION_LIMIT,
                            (unsigned)most_connections(listener),
                            MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS,
                            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY,
                            MHD_OPTION_END);
}

static status_t open_listener(struct http *http, struct http_listener *listener)
{
    uv_loop_t *loop = http->c->loop;
    listener->daemon = start_daemon(listener);
    listener->site.pems = NULL; /* libmicrohttpd has read them */
    const union MHD_DaemonInfo *info =
        listener->daemon != NULL ? MHD_get_daemon_info(listener->daemon, MHD_DAEMON_INFO_EPOLL_FD)
                                 : NULL;
    if (info == NULL || uv_poll_init(loop, &listener->poll, info->epoll_fd) != 0) {
        if (listener->daemon != NULL) MHD_stop_daemon(listener->daemon);
        return status_new(STATUS_UNAVAILABLE, "libmicrohttpd did not start");
    }
    uv_timer_init(loop, &listener->timer);
    uv_timer_init(loop, &listener->tick);
    listener->poll.data = listener->timer.data = listener->tick.data = listener;
    uv_poll_start(&listener->poll, UV_READABLE, on_event);
    listener->open_handles = 3;
    http->open_parts++;
    MEM_GROW(http->listeners, http->count, http->capacity);
    http->listeners[http->count++] = listener;
    return NULL;
}

static void open_lobby(struct http_listener *listener)
{
    const struct rpc_lobby_options options = {.most = listener->site.guarded ? GUARDED_WAITING
                                                                             : WAITING_MAX,
                                              .deadline_ms = waiting_ms(listener),
                                              .has_room = has_room,
                                              .admit = admit,
                                              .refuse = turn_away};
    listener->lobby = rpc_lobby_new(listener->http->c->loop, &options);
    listener->entrance = mem_alloc(sizeof *listener->entrance);
    *listener->entrance = listener;
    listener->http->open_parts++;
}

status_t http_listen(struct coordinator *c, const struct http_site *site)
{
    AUTO_FREE char *normal = NULL;
    int fd = -1, port = 0;
    TRY(status_wrap(bind_site(site, &normal, &fd, &port), "%s", site->key));
    struct http *http = c->http != NULL ? c->http : mem_alloc(sizeof *http);
    struct http_listener *listener = mem_alloc(sizeof *listener);
    http->c = c;
    *listener = (struct http_listener){.http = http,
                                       .site = *site,
                                       .tls = site->pems != NULL,
                                       .port = port};
    status_t status = open_listener(http, listener);
    if (status != NULL) {
        close(fd);
        free(listener);
        if (http->count == 0) {
            free(http->listeners);
            free(http);
        }
        return status_wrap(status, "%s", site->key);
    }
    c->http = http;
    open_lobby(listener);
    status =
        rpc_lobby_listen(listener->lobby, fd, listener->tls ? rpc_opening_tls : rpc_opening_http1,
                         listener->entrance);
    if (status != NULL) {
        close(fd);
        return status_wrap(status, "%s",
                           site->key); /* the coordinator's shutdown closes the rest */
    }
    rpc_lobby_start(listener->lobby);
    log_event(LOG_INFO, site->event, "address=%.*s:%d%s", (int)(strrchr(normal, ':') - normal),
              normal, port, listener->tls ? " tls" : "");
    return NULL;
}

/* Connections that the old one has continue there; it is closed after the last of them. */
static void replace(struct http_listener *old, const struct rpc_pems *pems)
{
    struct http_listener *listener = mem_alloc(sizeof *listener);
    *listener = (struct http_listener){.http = old->http,
                                       .site = old->site,
                                       .tls = true,
                                       .port = old->port};
    listener->site.pems = pems;
    status_t status = open_listener(old->http, listener);
    if (status != NULL) {
        log_event(LOG_WARNING, "certificate_not_used", "key=%s error=\"%s\"", old->site.key,
                  status_message(status));
        status_free(status);
        free(listener);
        return;
    }
    listener->lobby = old->lobby;
    listener->entrance = old->entrance;
    *listener->entrance = listener;
    old->lobby = NULL;
    if (old->connections.count == 0) close_listener(old);
}

void http_renew(struct coordinator *c, const struct rpc_pems *pems)
{
    struct http *http = c->http;
    int count = http != NULL && !http->closing ? http->count : 0;
    for (int i = 0; i < count; i++)
        if (http->listeners[i]->tls && http->listeners[i]->lobby != NULL)
            replace(http->listeners[i], pems);
}

/* ---- closing ---- */

static void on_lobby_gone(void *user)
{
    http_part_gone(user);
}

void http_close(struct coordinator *c)
{
    struct http *http = c->http;
    if (http == NULL || http->closing) return;
    http->closing = true;
    for (int i = 0; i < http->count; i++) {
        struct http_listener *listener = http->listeners[i];
        LIST_EACH(node, &listener->connections)
        {
            struct http_connection *connection = LIST_ITEM(node, struct http_connection, node);
            if (connection->request != NULL) http_leave(connection->request);
        }
        close_listener(listener);
        if (listener->lobby == NULL) continue;
        rpc_lobby_close(listener->lobby, on_lobby_gone, http);
        free(listener->entrance);
    }
}

bool http_is_gone(const struct coordinator *c)
{
    return c->http == NULL;
}
