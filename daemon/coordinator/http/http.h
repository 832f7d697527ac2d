/*
 * HTTP/1.1 on the coordinator's loop: listeners, their limits, and a table of routes for each. Of a
 * guarded listener every request names this host, and comes from no page of another origin
 * (http_checks.h), and all routes but public ones have roles: a request has a token
 * (calls/calls.h) whose user has one of them. Its
 * connections are encrypted, or do not leave the host. Each connection is for one request.
 */
#ifndef FSDPD_COORDINATOR_HTTP_H
#define FSDPD_COORDINATOR_HTTP_H

#include "base/buf.h"
#include "coordinator/core/internal.h"

struct http_request;

struct http_route {
    const char *path;    /* a part of it may be "*": any text without a slash */
    const char *methods; /* "GET, HEAD" */
    /* Of a guarded listener: enum rpc_role, one of them is enough; 0: no token is needed. */
    unsigned roles;
    /* The request has arrived: calls http_answer or http_refuse, or else http_hold. */
    void (*answer)(struct http_request *request);
    /* Of reads_answer: what it calls, and the fields of its request that clients may set. */
    const struct rpc_method *method;
    const char *parameters; /* "page_size, page_token"; NULL: none */
};

struct http_site {
    const char *key;     /* of its address, for messages: "http.listen" */
    const char *event;   /* of the log, when it listens */
    const char *address; /* HOST:PORT; port 0 picks one, which is logged */
    const struct http_route *routes;
    int route_count;
    bool guarded;
    const struct rpc_pems *pems; /* of a guarded one, read here; NULL: without TLS, on loopback */
};

/* `site` is copied; what it points to but the pems must outlive the coordinator. PERMISSION_DENIED:
 * a guarded address that is not of the loopback interface, without TLS. UNAVAILABLE states why it
 * cannot listen. */
status_t http_listen(struct coordinator *c, const struct http_site *site) FSDPD_MUST_USE;

/* Connections from now on see this certificate, at listeners with TLS. */
void http_renew(struct coordinator *c, const struct rpc_pems *pems);

/* Shuts all listeners down; http_is_gone tells when the coordinator's shutdown can continue. */
void http_close(struct coordinator *c);

/* Frees what is kept for the page, in pages.c; when the last listener is closed. */
void pages_free(struct coordinator *c);
bool http_is_gone(const struct coordinator *c);

/* ---- for the functions of routes ---- */

struct coordinator *http_coordinator(const struct http_request *request);
const struct rpc_peer *http_peer(const struct http_request *request); /* of a guarded listener */
const struct buf *http_body(const struct http_request *request);
const struct http_route *http_route(const struct http_request *request);

/* What the path has in the place of the route's "*"; "" without one. */
const char *http_part(const struct http_request *request);

/* Calls `visit` with each parameter of the request's query, until it returns an error. */
status_t http_each_parameter(const struct http_request *request,
                             status_t (*visit)(void *user, const char *name, const char *value),
                             void *user) FSDPD_MUST_USE;

/* Answers with this text, which it takes. Once for a request; from a held one also later. */
void http_answer(struct http_request *request, unsigned code, const char *type, struct buf *text);

/* Answers with an error, in JSON as that API has it, or, if the listener is not guarded, as text.
 * Owns `status`. */
void http_refuse(struct http_request *request, status_t status);

/*
 * Begins an answer that has no end yet, of a request that is also held (http_hold). http_stream_add
 * copies text for it, which waits here until the client reads; `drained` is called with http_hold's
 * user when all of it was passed on, and may add more. After http_stream_end nothing may be added.
 * Before, http_check_streams: RESOURCE_EXHAUSTED if no further one may begin.
 */
status_t http_check_streams(const struct http_request *request) FSDPD_MUST_USE;
void http_stream(struct http_request *request, const char *type, void (*drained)(void *user));
void http_stream_add(struct http_request *request, struct buf *text);
void http_stream_end(struct http_request *request);

/* Writes an error as http_refuse sends it, without an end of line. */
void http_add_error(struct buf *out, status_t status);

/* The answer follows later. `over` is called once: it was sent, or the client or the listener is
 * gone, and `request` is invalid from then on. */
void http_hold(struct http_request *request, void (*over)(void *user), void *user);

#endif
