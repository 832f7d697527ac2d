/*
 * HTTP/1.1 on the coordinator's loop: listeners, their limits, and a table of routes for each. Of a
 * guarded listener every route has roles: a request has a token (calls/tokens.h) whose user has one
 * of them, names this host, and comes from no page of another origin (http_checks.h). Its
 * connections are encrypted, or do not leave the host. Each connection is for one request.
 */
#ifndef FSDPD_COORDINATOR_HTTP_H
#define FSDPD_COORDINATOR_HTTP_H

#include "base/buf.h"
#include "coordinator/core/internal.h"

struct http_request;

struct http_route {
    const char *path;
    const char *methods; /* "GET, HEAD" */
    unsigned roles;      /* of a guarded listener: enum rpc_role, one of them is enough */
    /* The request has arrived: calls http_answer or http_refuse, or else http_hold. */
    void (*answer)(struct http_request *request);
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
bool http_is_gone(const struct coordinator *c);

/* ---- for the functions of routes ---- */

struct coordinator *http_coordinator(const struct http_request *request);
const struct rpc_peer *http_peer(const struct http_request *request); /* of a guarded listener */
const struct buf *http_body(const struct http_request *request);

/* Answers with this text, which it takes. Once for a request; from a held one also later. */
void http_answer(struct http_request *request, unsigned code, const char *type, struct buf *text);

/* Answers with an error, in JSON as that API has it, or, if the listener is not guarded, as text.
 * Owns `status`. */
void http_refuse(struct http_request *request, status_t status);

/* The answer follows later. `over` is called once: it was sent, or the client or the listener is
 * gone, and `request` is invalid from then on. */
void http_hold(struct http_request *request, void (*over)(void *user), void *user);

#endif
