/*
 * HTTP; see http.h. Connections wait in a lobby until they have sent something whole (the headers,
 * or a ClientHello), so a silent one blocks no other client. libmicrohttpd has no thread of its own
 * here: the loop watches its epoll descriptor and runs its pending work, so handlers see the
 * coordinator's state between two callbacks.
 *
 * A request that is held is suspended: libmicrohttpd neither reads nor watches its connection then,
 * so the loop watches whether its client hangs up.
 */
#include "coordinator/http/http.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/calls/tokens.h"
#include "coordinator/http/http_checks.h"
#include "rpc/address.h"
#include "rpc/lobby.h"
#include "rpc/tls.h"

enum {
    CONNECTIONS_MAX = 32,
    GUARDED_MAX = 64,     /* those of a guarded listener, */
    PER_ADDRESS_MAX = 32, /* and of them of one address */
    WAITING_MAX = 32,
    WAITING_MS = 10 * 1000, /* of a guarded listener limits.silence_seconds, twice: until it is
                             * admitted, and from then on until its request is whole */
    IDLE_SECONDS = 15,
    CONNECTION_MEMORY = 16384,
    BODY_MAX = 1 << 20, /* as that of a gRPC call that carries no job */
    TICK_MS = 500,
};

struct listener {
    struct http *http;
    struct http_site site;
    bool tls;
    int port;
    struct MHD_Daemon *daemon;
    struct rpc_lobby *lobby; /* NULL: another listener has taken its place */
    struct listener **door;  /* whom the lobby admits to; the lobby's */
    int open_handles;
    uv_poll_t poll;
    uv_timer_t timer, tick; /* the daemon's next work; deadlines, while there are connections */
    struct list connections;
};

struct http {
    struct coordinator *c;
    struct listener **listeners;
    int count, capacity;
    int open_parts; /* listeners, lobbies and watches */
    bool closing;
};

struct http_connection {
    struct list_node node;
    int fd;
    uint64_t since;
    bool arrived;                 /* its request is whole */
    struct http_request *request; /* while it is held */
};

/* Whether the client of a held request hangs up. */
struct watch {
    uv_poll_t poll;
    struct http *http;
    struct http_request *request;
};

struct http_request {
    struct listener *listener;
    struct MHD_Connection *connection;
    struct http_connection *origin;
    const struct http_route *route;
    struct rpc_peer peer;
    struct buf body;
    struct MHD_Response *response; /* made, not queued yet */
    unsigned code;
    bool held, suspended, left;
    void (*over)(void *user);
    void *user;
    struct watch *watch;
};

/* ---- on the loop ---- */

static void on_due(uv_timer_t *timer);
static void on_tick(uv_timer_t *tick);

static void run(struct listener *listener)
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

static void on_event(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    run(poll->data);
}

static int waiting_ms(const struct listener *listener)
{
    return listener->site.guarded ? listener->http->c->options.limits.silence_ms : WAITING_MS;
}

static void on_connection(void *user, struct MHD_Connection *mhd, void **state,
                          enum MHD_ConnectionNotificationCode code)
{
    struct listener *listener = user;
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
    connection->since = uv_now(listener->http->c->loop);
    list_append(&listener->connections, &connection->node);
    if (!uv_is_active((uv_handle_t *)&listener->tick))
        uv_timer_start(&listener->tick, on_tick, TICK_MS, TICK_MS);
}

static void part_gone(struct http *http)
{
    struct coordinator *c = http->c;
    if (--http->open_parts > 0) return;
    free(http->listeners);
    free(http);
    c->http = NULL;
    coordinator_part_gone(c);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct listener *listener = handle->data;
    struct http *http = listener->http;
    if (--listener->open_handles > 0) return;
    MHD_stop_daemon(listener->daemon);
    for (int i = 0; i < http->count; i++)
        if (http->listeners[i] == listener) {
            LIST_REMOVE(http->listeners, http->count, i);
            break;
        }
    free(listener);
    part_gone(http);
}

/* Its daemon stops when its handles are closed. */
static void close_listener(struct listener *listener)
{
    if (uv_is_closing((uv_handle_t *)&listener->poll)) return;
    uv_close((uv_handle_t *)&listener->poll, on_handle_closed);
    uv_close((uv_handle_t *)&listener->timer, on_handle_closed);
    uv_close((uv_handle_t *)&listener->tick, on_handle_closed);
}

/* A connection whose request does not arrive in time: libmicrohttpd finds it closed. */
static void on_tick(uv_timer_t *tick)
{
    struct listener *listener = tick->data;
    uint64_t now = uv_now(listener->http->c->loop);
    uint64_t most = (uint64_t)waiting_ms(listener);
    LIST_EACH(node, &listener->connections)
    {
        struct http_connection *connection = LIST_ITEM(node, struct http_connection, node);
        if (!connection->arrived && now - connection->since > most)
            shutdown(connection->fd, SHUT_RDWR);
    }
    if (listener->connections.count > 0) return;
    uv_timer_stop(tick);
    if (listener->lobby == NULL) close_listener(listener);
}

/* ---- held requests ---- */

static void on_watch_closed(uv_handle_t *handle)
{
    struct watch *watch = handle->data;
    struct http *http = watch->http;
    free(watch);
    part_gone(http);
}

static void unwatch(struct http_request *request)
{
    if (request->watch == NULL) return;
    uv_close((uv_handle_t *)&request->watch->poll, on_watch_closed);
    request->watch = NULL;
}

/* Tells the one who holds the request that it is over. */
static void release(struct http_request *request)
{
    void (*over)(void *user) = request->over;
    request->over = NULL;
    unwatch(request);
    if (request->origin != NULL) request->origin->request = NULL;
    if (over != NULL) over(request->user);
}

static void resume(struct http_request *request)
{
    if (!request->suspended) return;
    request->suspended = false;
    MHD_resume_connection(request->connection);
    if (!request->listener->http->closing) uv_timer_start(&request->listener->timer, on_due, 0, 0);
}

static void leave(struct http_request *request)
{
    request->left = true;
    release(request);
    resume(request);
}

static void on_hang_up(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    struct watch *watch = poll->data;
    leave(watch->request);
}

static void suspend(struct http_request *request)
{
    struct http *http = request->listener->http;
    request->suspended = true;
    request->origin->request = request;
    MHD_suspend_connection(request->connection);
    struct watch *watch = mem_alloc(sizeof *watch);
    if (uv_poll_init(http->c->loop, &watch->poll, request->origin->fd) != 0) {
        free(watch);
        return;
    }
    *watch = (struct watch){.poll = watch->poll, .http = http, .request = request};
    watch->poll.data = watch;
    request->watch = watch;
    http->open_parts++;
    uv_poll_start(&watch->poll, UV_DISCONNECT, on_hang_up);
}

static void on_completed(void *user, struct MHD_Connection *connection, void **state,
                         enum MHD_RequestTerminationCode code)
{
    struct http_request *request = *state;
    (void)user, (void)connection, (void)code;
    if (request == NULL) return;
    *state = NULL;
    release(request);
    if (request->response != NULL) MHD_destroy_response(request->response);
    free((char *)request->peer.name);
    buf_deinit(&request->body);
    free(request);
}

/* ---- answers ---- */

struct coordinator *http_coordinator(const struct http_request *request)
{
    return request->listener->http->c;
}

const struct rpc_peer *http_peer(const struct http_request *request)
{
    return &request->peer;
}

const struct buf *http_body(const struct http_request *request)
{
    return &request->body;
}

void http_hold(struct http_request *request, void (*over)(void *user), void *user)
{
    request->held = true;
    request->over = over;
    request->user = user;
}

void http_answer(struct http_request *request, unsigned code, const char *type, struct buf *text)
{
    size_t length = text->length;
    if (request->response != NULL || request->left) {
        buf_deinit(text);
        return;
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(length, buf_take(text), MHD_RESPMEM_MUST_FREE);
    request->code = code;
    request->response = response;
    if (response != NULL) {
        MHD_add_response_header(response, "Content-Type", type);
        MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
        MHD_add_response_header(response, "Cache-Control", "no-store");
        MHD_add_response_header(response, "Connection", "close");
        if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
            MHD_add_response_header(response, "Allow", request->route->methods);
        if (code == MHD_HTTP_UNAUTHORIZED)
            MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
        if (code == MHD_HTTP_TOO_MANY_REQUESTS)
            MHD_add_response_header(response, "Retry-After", "1");
    } else request->left = true;
    unwatch(request);
    resume(request);
}

static void add_json_text(struct buf *out, const char *text)
{
    buf_add_char(out, '"');
    for (const char *at = text; *at != '\0'; at++) {
        unsigned char byte = (unsigned char)*at;
        if (byte == '"' || byte == '\\') buf_printf(out, "\\%c", byte);
        else if (byte < ' ') buf_printf(out, "\\u%04x", byte);
        else buf_add_char(out, *at);
    }
    buf_add_char(out, '"');
}

static void refuse(struct http_request *request, unsigned code, const char *reason,
                   const char *message)
{
    struct buf text = {0};
    if (!request->listener->site.guarded) {
        buf_printf(&text, "%s\n", message);
        http_answer(request, code, "text/plain; charset=utf-8", &text);
        return;
    }
    buf_add_text(&text, "{\"error\": {\"message\": ");
    add_json_text(&text, message);
    buf_printf(&text, ", \"type\": \"%s\", \"param\": null, \"code\": ",
               code < MHD_HTTP_INTERNAL_SERVER_ERROR ? "invalid_request_error" : "server_error");
    add_json_text(&text, reason);
    buf_add_text(&text, "}}\n");
    http_answer(request, code, "application/json", &text);
}

static unsigned code_of(enum status_code code)
{
    switch (code) {
    case STATUS_INVALID_ARGUMENT:
    case STATUS_OUT_OF_RANGE: return MHD_HTTP_BAD_REQUEST;
    case STATUS_UNAUTHENTICATED: return MHD_HTTP_UNAUTHORIZED;
    case STATUS_PERMISSION_DENIED: return MHD_HTTP_FORBIDDEN;
    case STATUS_NOT_FOUND: return MHD_HTTP_NOT_FOUND;
    case STATUS_FAILED_PRECONDITION: return MHD_HTTP_CONFLICT;
    case STATUS_RESOURCE_EXHAUSTED: return MHD_HTTP_TOO_MANY_REQUESTS;
    case STATUS_UNIMPLEMENTED: return MHD_HTTP_NOT_IMPLEMENTED;
    case STATUS_UNAVAILABLE:
    case STATUS_ABORTED: return MHD_HTTP_SERVICE_UNAVAILABLE;
    case STATUS_DEADLINE_EXCEEDED: return MHD_HTTP_GATEWAY_TIMEOUT;
    default: return MHD_HTTP_INTERNAL_SERVER_ERROR;
    }
}

void http_refuse(struct http_request *request, status_t status)
{
    const char *reason = status_about(status).reason;
    if (reason == NULL) reason = status_code_name(status_code(status));
    refuse(request, code_of(status_code(status)), reason, status_message(status));
    status_free(status);
}

/* ---- requests ---- */

struct http_header {
    const char *name, *value;
    int count;
};

static enum MHD_Result on_header(void *user, enum MHD_ValueKind kind, const char *name,
                                 const char *value)
{
    struct http_header *header = user;
    (void)kind;
    if (strcasecmp(name, header->name) != 0) return MHD_YES;
    header->value = value != NULL ? value : "";
    header->count++;
    return MHD_YES;
}

static struct http_header find_header(struct http_request *request, const char *name)
{
    struct http_header header = {.name = name};
    MHD_get_connection_values(request->connection, MHD_HEADER_KIND, on_header, &header);
    return header;
}

/* Requests of a user that wait for their answers. */
static int count_held(const struct http *http, const char *name)
{
    int count = 0;
    for (int i = 0; i < http->count; i++) LIST_EACH(node, &http->listeners[i]->connections)
        {
            const struct http_request *request =
                LIST_ITEM(node, struct http_connection, node)->request;
            count += request != NULL && strcmp(request->peer.name, name) == 0;
        }
    return count;
}

/* Whether the client may use the route at all; answers if not. */
static void check_guarded(struct http_request *request)
{
    const struct listener *listener = request->listener;
    const struct http_header host = find_header(request, "Host"),
                             origin = find_header(request, "Origin"),
                             authorization = find_header(request, "Authorization");
    if (host.count != 1 || !http_host_is_ours(host.value, listener->tls, listener->port)) {
        refuse(request, MHD_HTTP_MISDIRECTED_REQUEST, "WRONG_HOST",
               "the request's Host is not the address of this fsdpd");
        return;
    }
    if (origin.count > 1 ||
        (origin.count == 1 && !http_origin_is_ours(origin.value, host.value, listener->tls))) {
        refuse(request, MHD_HTTP_FORBIDDEN, "WRONG_ORIGIN", "the request's Origin is another site");
        return;
    }
    const char *secret = authorization.count == 1 ? http_bearer(authorization.value) : NULL;
    if (secret == NULL) {
        refuse(request, MHD_HTTP_UNAUTHORIZED, "UNAUTHENTICATED",
               "expected the header Authorization: Bearer TOKEN; fsdpd token issue makes a token");
        return;
    }
    struct coordinator *c = listener->http->c;
    status_t status = tokens_identify(c, secret, &request->peer);
    if (status != NULL) {
        http_refuse(request, status);
        return;
    }
    if (count_held(listener->http, request->peer.name) < c->options.limits.calls_per_user) return;
    refuse(request, MHD_HTTP_TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED",
           "the user of this token has limits.calls_per_user requests already");
}

static void check_route(struct http_request *request, const char *url, const char *method)
{
    const struct http_site *site = &request->listener->site;
    for (int i = 0; i < site->route_count && request->route == NULL; i++)
        if (strcmp(url, site->routes[i].path) == 0) request->route = &site->routes[i];
    if (request->route == NULL) {
        refuse(request, MHD_HTTP_NOT_FOUND, "NOT_FOUND", "not found");
    } else if (!http_allows(request->route->methods, method)) {
        AUTO_FREE char *message = mem_printf("only %s", request->route->methods);
        char *comma = strchr(message, ',');
        if (comma != NULL) { /* "GET, HEAD" */
            AUTO_FREE char *first = message;
            message = mem_printf("%.*s and%s", (int)(comma - first), first, comma + 1);
        }
        refuse(request, MHD_HTTP_METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message);
    } else if (site->guarded && (request->peer.roles & request->route->roles) == 0) {
        refuse(request, MHD_HTTP_FORBIDDEN, "PERMISSION_DENIED",
               "the token's role may not do that");
    } else if (strcmp(method, "POST") == 0) {
        const struct http_header type = find_header(request, "Content-Type");
        if (type.count != 1 || !http_type_is_json(type.value))
            refuse(request, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE, "NOT_JSON",
                   "expected the header Content-Type: application/json");
    }
}

/* The headers have arrived. An error is sent when the body has, too, which is not kept then. */
static struct http_request *begin(struct listener *listener, struct MHD_Connection *connection,
                                  const char *url, const char *method)
{
    struct http_request *request = mem_alloc(sizeof *request);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    request->listener = listener;
    request->connection = connection;
    request->origin = info != NULL ? info->socket_context : NULL;
    if (listener->site.guarded) check_guarded(request);
    if (request->response == NULL) check_route(request, url, method);
    return request;
}

static enum MHD_Result send_answer(struct http_request *request)
{
    struct MHD_Response *response = request->response;
    if (request->left || response == NULL) return MHD_NO;
    request->response = NULL;
    enum MHD_Result result = MHD_queue_response(request->connection, request->code, response);
    MHD_destroy_response(response);
    return result;
}

static void add_body(struct http_request *request, const char *data, size_t size)
{
    if (request->response != NULL) return;
    if (size > BODY_MAX - request->body.length) {
        buf_deinit(&request->body);
        refuse(request, MHD_HTTP_CONTENT_TOO_LARGE, "RESOURCE_EXHAUSTED",
               "the request's body has more than 1 MiB");
        return;
    }
    buf_add(&request->body, data, size);
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_size, void **state)
{
    struct http_request *request = *state;
    (void)version;
    if (request == NULL) {
        *state = begin(user, connection, url, method);
        return MHD_YES;
    }
    if (*data_size > 0) {
        add_body(request, data, *data_size);
        *data_size = 0;
        return MHD_YES;
    }
    if (request->origin != NULL) request->origin->arrived = true;
    if (request->response == NULL && !request->left && !request->held)
        request->route->answer(request);
    if (request->response == NULL && request->held && !request->left) {
        suspend(request);
        return MHD_YES;
    }
    return send_answer(request);
}

/* ---- listeners ---- */

static unsigned count_connections(const struct listener *listener)
{
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(listener->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info != NULL ? info->num_connections : 0;
}

static int most_connections(const struct listener *listener)
{
    return listener->site.guarded ? GUARDED_MAX : CONNECTIONS_MAX;
}

/* The request has arrived, or a handshake begins: it occupies a slot of libmicrohttpd from now on.
 */
static void admit(void *entrance, int fd, const struct rpc_origin *origin)
{
    struct listener *listener = *(struct listener **)entrance;
    (void)origin;
    struct sockaddr_storage peer;
    socklen_t size = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &size) != 0) {
        close(fd);
        return;
    }
    /* Closes fd on failure. */
    MHD_add_connection(listener->daemon, fd, (struct sockaddr *)&peer, size);
    run(listener);
}

static bool has_room(void *entrance, const struct rpc_origin *origin)
{
    (void)origin;
    const struct listener *listener = *(struct listener **)entrance;
    return count_connections(listener) < (unsigned)most_connections(listener);
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

static struct MHD_Daemon *start_daemon(struct listener *listener)
{
    const struct rpc_pems *pems = listener->site.pems;
    const bool guarded = listener->site.guarded;
    const struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    const struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_KEY, 0, pems != NULL ? pems->key : NULL},
        {MHD_OPTION_HTTPS_MEM_CERT, 0, pems != NULL ? pems->certificate : NULL},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)"NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"},
        {MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME |
                     (pems != NULL ? (unsigned)MHD_USE_TLS : 0u);
    return MHD_start_daemon(flags, 0, NULL, NULL, on_request, listener, MHD_OPTION_ARRAY,
                            pems != NULL ? tls : none, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
                            listener, MHD_OPTION_NOTIFY_CONNECTION, on_connection, listener,
                            MHD_OPTION_CONNECTION_LIMIT, (unsigned)most_connections(listener),
                            MHD_OPTION_PER_IP_CONNECTION_LIMIT,
                            guarded ? (unsigned)PER_ADDRESS_MAX : 0u, MHD_OPTION_CONNECTION_TIMEOUT,
                            (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                            (size_t)CONNECTION_MEMORY, MHD_OPTION_END);
}

static status_t open_listener(struct http *http, struct listener *listener)
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

static void open_lobby(struct listener *listener)
{
    const struct rpc_lobby_options options = {.most = WAITING_MAX,
                                              .deadline_ms = waiting_ms(listener),
                                              .has_room = has_room,
                                              .admit = admit};
    listener->lobby = rpc_lobby_new(listener->http->c->loop, &options);
    listener->door = mem_alloc(sizeof *listener->door);
    *listener->door = listener;
    listener->http->open_parts++;
}

status_t http_listen(struct coordinator *c, const struct http_site *site)
{
    AUTO_FREE char *normal = NULL;
    int fd = -1, port = 0;
    TRY(status_wrap(bind_site(site, &normal, &fd, &port), "%s", site->key));
    struct http *http = c->http != NULL ? c->http : mem_alloc(sizeof *http);
    struct listener *listener = mem_alloc(sizeof *listener);
    http->c = c;
    *listener =
        (struct listener){.http = http, .site = *site, .tls = site->pems != NULL, .port = port};
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
    status = rpc_lobby_listen(listener->lobby, fd,
                              listener->tls ? rpc_opening_tls : rpc_opening_http1, listener->door);
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
static void replace(struct listener *old, const struct rpc_pems *pems)
{
    struct listener *listener = mem_alloc(sizeof *listener);
    *listener =
        (struct listener){.http = old->http, .site = old->site, .tls = true, .port = old->port};
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
    listener->door = old->door;
    *listener->door = listener;
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
    part_gone(user);
}

void http_close(struct coordinator *c)
{
    struct http *http = c->http;
    if (http == NULL || http->closing) return;
    http->closing = true;
    for (int i = 0; i < http->count; i++) {
        struct listener *listener = http->listeners[i];
        LIST_EACH(node, &listener->connections)
        {
            struct http_connection *connection = LIST_ITEM(node, struct http_connection, node);
            if (connection->request != NULL) leave(connection->request);
        }
        close_listener(listener);
        if (listener->lobby == NULL) continue;
        rpc_lobby_close(listener->lobby, on_lobby_gone, http);
        free(listener->door);
    }
}

bool http_is_gone(const struct coordinator *c)
{
    return c->http == NULL;
}
