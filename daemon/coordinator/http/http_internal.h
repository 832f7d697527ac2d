/* Shared by http.c, which has requests, and http_listener.c, which has connections; for these only.
 */
#ifndef FSDPD_COORDINATOR_HTTP_INTERNAL_H
#define FSDPD_COORDINATOR_HTTP_INTERNAL_H

#include <microhttpd.h>

#include "base/list.h"
#include "coordinator/http/http.h"
#include "rpc/lobby.h"

struct http_listener {
    struct http *http;
    struct http_site site;
    bool tls;
    int port;
    struct MHD_Daemon *daemon;
    struct rpc_lobby *lobby;         /* NULL: another listener has taken its place */
    struct http_listener **entrance; /* whom the lobby admits to; the lobby's */
    int open_handles;
    uv_poll_t poll;
    uv_timer_t timer, tick; /* the daemon's next work; deadlines, while there are connections */
    struct list connections;
    const struct rpc_origin *admitted; /* of the connection that libmicrohttpd is being given */
};

struct http {
    struct coordinator *c;
    struct http_listener **listeners;
    int count, capacity;
    int open_parts; /* listeners, lobbies and watches */
    bool closing;
};

struct http_connection {
    struct list_node node;
    int fd;
    struct MHD_Connection *mhd;
    struct rpc_origin origin;
    uint64_t since;
    bool arrived;                 /* its request is whole */
    struct http_request *request; /* while it is held */
};

struct http_request {
    struct http_listener *listener;
    struct MHD_Connection *connection;
    struct http_connection *origin;
    const struct http_route *route;
    char *part; /* of the path, in the place of the route's "*"; or NULL */
    struct rpc_peer peer;
    struct buf body;
    struct MHD_Response *response; /* made, not queued yet */
    unsigned code;
    bool held, suspended, left;
    uint64_t checked_at; /* its token; loop time in ms */
    struct buf stream; /* of an answer without an end: what the client lacks, from `sent` on */
    size_t sent;
    bool ended;
    void (*drained)(void *user);
    void (*over)(void *user);
    void *user;
    struct http_watch *watch;
};

/* ---- http_listener.c ---- */

/* libmicrohttpd has work: a request was resumed. */
void http_run_soon(struct http_listener *listener);

/* One of http's open_parts is closed. */
void http_part_gone(struct http *http);

/* ---- http.c: libmicrohttpd's callbacks; `user` is the listener ---- */

enum MHD_Result http_on_request(void *user, struct MHD_Connection *connection, const char *url,
                                const char *method, const char *version, const char *data,
                                size_t *data_size, void **state);
void http_on_completed(void *user, struct MHD_Connection *connection, void **state,
                       enum MHD_RequestTerminationCode code);

/* A whole answer: no connection is left for the client's request. */
void http_write_full(const struct http_listener *listener, struct buf *out);

/* Ends a held request whose token has been revoked or has expired; looks every few seconds. */
void http_check_again(struct http_request *request, uint64_t now);

/* A held request's client, or the listener, goes: it gets no answer. */
void http_leave(struct http_request *request);

#endif
