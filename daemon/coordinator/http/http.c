/*
 * Requests over HTTP; see http.h. A request that is held is suspended: libmicrohttpd neither reads
 * nor watches its connection then, so the loop watches whether its client hangs up.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "coordinator/calls/calls.h"
#include "coordinator/http/http_checks.h"
#include "coordinator/http/http_internal.h"
#include "print/json.h"

enum {
    BODY_MAX = 1 << 20, /* as that of a gRPC call that carries no job */
    STREAM_BLOCK = 8192,
    CHECKED_MS = 5000, /* a token, while its request is held */
    STREAMS_MAX = 128, /* fewer than the connections of an address: others are served beside them */
};

/* Whether the client of a held request hangs up. */
struct http_watch {
    uv_poll_t poll;
    struct http *http;
    struct http_request *request;
};

/* ---- held requests ---- */

static void on_watch_closed(uv_handle_t *handle)
{
    struct http_watch *watch = handle->data;
    struct http *http = watch->http;
    free(watch);
    http_part_gone(http);
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
    http_run_soon(request->listener);
}

void http_leave(struct http_request *request)
{
    request->left = true;
    release(request);
    resume(request);
}

static void on_hang_up(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    struct http_watch *watch = poll->data;
    http_leave(watch->request);
}

static void suspend(struct http_request *request)
{
    struct http *http = request->listener->http;
    request->suspended = true;
    request->origin->request = request;
    MHD_suspend_connection(request->connection);
    struct http_watch *watch = mem_alloc(sizeof *watch);
    if (uv_poll_init(http->c->loop, &watch->poll, request->origin->fd) != 0) {
        free(watch);
        return;
    }
    *watch = (struct http_watch){.poll = watch->poll, .http = http, .request = request};
    watch->poll.data = watch;
    request->watch = watch;
    http->open_parts++;
    uv_poll_start(&watch->poll, UV_DISCONNECT, on_hang_up);
}

void http_on_completed(void *user, struct MHD_Connection *connection, void **state,
                       enum MHD_RequestTerminationCode code)
{
    struct http_request *request = *state;
    (void)user, (void)connection, (void)code;
    if (request == NULL) return;
    *state = NULL;
    release(request);
    if (request->response != NULL) MHD_destroy_response(request->response);
    free((char *)request->peer.name);
    free((char *)request->peer.job);
    free(request->part);
    buf_deinit(&request->body);
    buf_deinit(&request->stream);
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

const struct http_route *http_route(const struct http_request *request)
{
    return request->route;
}

const char *http_part(const struct http_request *request)
{
    return request->part != NULL ? request->part : "";
}

struct http_parameters {
    status_t (*visit)(void *user, const char *name, const char *value);
    void *user;
    status_t status;
};

static enum MHD_Result on_parameter(void *user, enum MHD_ValueKind kind, const char *name,
                                    const char *value)
{
    struct http_parameters *all = user;
    (void)kind;
    all->status = all->visit(all->user, name, value != NULL ? value : "");
    return all->status == NULL ? MHD_YES : MHD_NO;
}

status_t http_each_parameter(const struct http_request *request,
                             status_t (*visit)(void *user, const char *name, const char *value),
                             void *user)
{
    struct http_parameters all = {.visit = visit, .user = user};
    MHD_get_connection_values(request->connection, MHD_GET_ARGUMENT_KIND, on_parameter, &all);
    return all.status;
}

void http_hold(struct http_request *request, void (*over)(void *user), void *user)
{
    request->held = true;
    request->over = over;
    request->user = user;
}

/* Of the page: its own two files, and requests to this listener. */
static const char policy[] =
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

static void set_response(struct http_request *request, unsigned code, const char *type,
                         struct MHD_Response *response)
{
    request->code = code;
    request->response = response;
    request->left |= response == NULL;
    if (response == NULL) return;
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Cache-Control", "no-store");
    MHD_add_response_header(response, "Connection", "close");
    if (request->listener->site.guarded) {
        MHD_add_response_header(response, "Content-Security-Policy", policy);
        MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    }
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, "Allow", request->route->methods);
    if (code == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    if (code == MHD_HTTP_TOO_MANY_REQUESTS || code == MHD_HTTP_SERVICE_UNAVAILABLE)
        MHD_add_response_header(response, "Retry-After", "1");
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
    set_response(request, code, type, response);
    unwatch(request);
    resume(request);
}

/* libmicrohttpd asks for text. Without any the request is suspended until there is. */
static ssize_t read_stream(void *user, uint64_t position, char *to, size_t most)
{
    struct http_request *request = user;
    (void)position;
    if (request->sent == request->stream.length) {
        buf_clear(&request->stream);
        request->sent = 0;
        if (!request->ended && !request->left) request->drained(request->user);
    }
    if (request->left) return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t count = request->stream.length - request->sent;
    if (count == 0 && request->ended) return MHD_CONTENT_READER_END_OF_STREAM;
    if (count == 0) {
        suspend(request);
        return 0;
    }
    if (count > most) count = most;
    memcpy(to, request->stream.data + request->sent, count);
    request->sent += count;
    return (ssize_t)count;
}

void http_stream(struct http_request *request, const char *type, void (*drained)(void *user))
{
    request->drained = drained;
    set_response(request, MHD_HTTP_OK, type,
                 MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream,
                                                   request, NULL));
    if (request->origin != NULL) request->origin->request = request;
}

static void wake_stream(struct http_request *request)
{
    unwatch(request);
    resume(request);
}

void http_stream_add(struct http_request *request, struct buf *text)
{
    if (!request->left) buf_add(&request->stream, text->data, text->length);
    wake_stream(request);
}

void http_stream_end(struct http_request *request)
{
    request->ended = true;
    wake_stream(request);
}

static void add_error(struct buf *out, unsigned code, const char *reason, const char *message)
{
    buf_add_text(out, "{\"error\": {\"message\": ");
    json_add_string(out, message);
    buf_printf(out, ", \"type\": \"%s\", \"param\": null, \"code\": ",
               code < MHD_HTTP_INTERNAL_SERVER_ERROR ? "invalid_request_error" : "server_error");
    json_add_string(out, reason);
    buf_add_text(out, "}}");
}

/* As JSON, or as text, for clients of a listener that is not guarded. The type of it. */
static const char *add_refusal(const struct http_listener *listener, struct buf *out, unsigned code,
                               const char *reason, const char *message)
{
    if (listener->site.guarded) add_error(out, code, reason, message);
    else buf_add_text(out, message);
    buf_add_char(out, '\n');
    return listener->site.guarded ? "application/json" : "text/plain; charset=utf-8";
}

static void refuse(struct http_request *request, unsigned code, const char *reason,
                   const char *message)
{
    struct buf text = {0};
    const char *type = add_refusal(request->listener, &text, code, reason, message);
    http_answer(request, code, type, &text);
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

static const char *reason_of(status_t status)
{
    const char *reason = status_about(status).reason;
    return reason != NULL ? reason : status_code_name(status_code(status));
}

void http_add_error(struct buf *out, status_t status)
{
    add_error(out, code_of(status_code(status)), reason_of(status), status_message(status));
}

void http_write_full(const struct http_listener *listener, struct buf *out)
{
    AUTO(buf_deinit) struct buf body = {0};
    const char *type = add_refusal(listener, &body, MHD_HTTP_SERVICE_UNAVAILABLE, "UNAVAILABLE",
                                   "all connections are in use; ask again");
    buf_printf(out,
               "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Type: %s\r\n"
               "Content-Length: %zu\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n%s",
               type, body.length, buf_text(&body));
}

void http_refuse(struct http_request *request, status_t status)
{
    refuse(request, code_of(status_code(status)), reason_of(status), status_message(status));
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

/* Requests of a user that wait for their answers; with NULL those with streams, of all users. */
static int count_held(const struct http *http, const char *name)
{
    int count = 0;
    for (int i = 0; i < http->count; i++) LIST_EACH(node, &http->listeners[i]->connections)
        {
            const struct http_request *request =
                LIST_ITEM(node, struct http_connection, node)->request;
            if (request == NULL) continue;
            count +=
                name != NULL ? strcmp(request->peer.name, name) == 0 : request->drained != NULL;
        }
    return count;
}

status_t http_check_streams(const struct http_request *request)
{
    if (count_held(request->listener->http, NULL) < STREAMS_MAX) return NULL;
    return status_new(STATUS_RESOURCE_EXHAUSTED, "%d streams are open already", STREAMS_MAX);
}

/* Whether the request is meant for this listener; answers if not. */
static void check_site(struct http_request *request)
{
    const struct http_listener *listener = request->listener;
    const struct http_header host = find_header(request, "Host"),
                             origin = find_header(request, "Origin");
    if (host.count != 1 || !http_host_is_ours(host.value, listener->tls, listener->port)) {
        refuse(request, MHD_HTTP_MISDIRECTED_REQUEST, "WRONG_HOST",
               "the request's Host is not the address of this fsdpd");
        return;
    }
    if (origin.count > 1 ||
        (origin.count == 1 && !http_origin_is_ours(origin.value, host.value, listener->tls))) {
        refuse(request, MHD_HTTP_FORBIDDEN, "WRONG_ORIGIN", "the request's Origin is another site");
    }
}

static const char *secret_of(struct http_request *request)
{
    const struct http_header authorization = find_header(request, "Authorization");
    return authorization.count == 1 ? http_bearer(authorization.value) : NULL;
}

/* Whose token the request has; answers if it has none. */
static void check_token(struct http_request *request)
{
    const struct http_listener *listener = request->listener;
    const char *secret = secret_of(request);
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
    request->checked_at = uv_now(c->loop);
    if (count_held(listener->http, request->peer.name) < c->options.limits.calls_per_user) return;
    refuse(request, MHD_HTTP_TOO_MANY_REQUESTS, "RESOURCE_EXHAUSTED",
           "the user of this token has limits.calls_per_user requests already");
}

void http_check_again(struct http_request *request, uint64_t now)
{
    if (request->checked_at == 0 || now - request->checked_at < CHECKED_MS) return;
    struct rpc_peer peer;
    status_t status = tokens_identify(request->listener->http->c, secret_of(request), &peer);
    free((char *)peer.name);
    free((char *)peer.job);
    request->checked_at = now;
    if (status != NULL) http_leave(request);
    status_free(status);
}

static void find_route(struct http_request *request, const char *url)
{
    const struct http_site *site = &request->listener->site;
    for (int i = 0; i < site->route_count && request->route == NULL; i++)
        if (http_path_matches(site->routes[i].path, url, &request->part))
            request->route = &site->routes[i];
}

/* Whether a client without a token may use the route, or learn that there is none. */
static bool is_public(const struct http_request *request)
{
    if (!request->listener->site.guarded) return true;
    return request->route != NULL && request->route->roles == 0;
}

/* Whether the client may use the route; answers if not. */
static void check_route(struct http_request *request, const char *method)
{
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
    } else if (!is_public(request) && (request->peer.roles & request->route->roles) == 0) {
        refuse(request, MHD_HTTP_FORBIDDEN, "PERMISSION_DENIED",
               "the token's role may not do that");
    } else if (request->peer.job != NULL && strcmp(http_part(request), request->peer.job) != 0) {
        refuse(request, MHD_HTTP_FORBIDDEN, "PERMISSION_DENIED", "the token is for one job");
    } else if (strcmp(method, "POST") == 0) {
        const struct http_header type = find_header(request, "Content-Type");
        if (type.count != 1 || !http_type_is_json(type.value))
            refuse(request, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE, "NOT_JSON",
                   "expected the header Content-Type: application/json");
    }
}

/* The headers have arrived. An error is sent when the body has, too, which is not kept then. */
static struct http_request *begin(struct http_listener *listener, struct MHD_Connection *connection,
                                  const char *url, const char *method)
{
    struct http_request *request = mem_alloc(sizeof *request);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    request->listener = listener;
    request->connection = connection;
    request->origin = info != NULL ? info->socket_context : NULL;
    find_route(request, url);
    if (listener->site.guarded) check_site(request);
    if (request->response == NULL && !is_public(request)) check_token(request);
    if (request->response == NULL) check_route(request, method);
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

enum MHD_Result http_on_request(void *user, struct MHD_Connection *connection, const char *url,
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
