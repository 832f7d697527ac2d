/*
 * Accepted connections whose clients have not sent anything yet. A lobby accepts connections itself
 * and holds each one until its first bytes have arrived: a TLS ClientHello, the HTTP/2 preface, or
 * the headers of an HTTP/1 request. Only then does it pass the connection on to code that uses more
 * resources. Silent connections are limited to a small number and a short deadline. When the lobby
 * is full, a new connection replaces the oldest one of the origin (an address or a Unix user) with
 * the most connections, provided that one had a moment to send. Listening sockets share the places
 * evenly: a flood at one socket leaves the others' places free. Everything runs on the loop's
 * thread.
 */
#ifndef FSDPD_RPC_LOBBY_H
#define FSDPD_RPC_LOBBY_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "base/status.h"

struct rpc_lobby;

/* The origin of a connection. */
struct rpc_origin {
    char host[INET6_ADDRSTRLEN + 8]; /* an address, or "uid:1000" for a Unix socket */
    int port;                        /* 0 for a Unix socket */
};

/* The kind of a connection's first bytes. */
enum rpc_opening { RPC_OPENING_WRONG, RPC_OPENING_PART, RPC_OPENING_WHOLE };
enum rpc_opening rpc_opening_http2(const char *bytes, size_t size);
enum rpc_opening rpc_opening_tls(const char *bytes, size_t size);
enum rpc_opening rpc_opening_http1(const char *bytes, size_t size);

struct rpc_lobby_options {
    int most;        /* maximum number of waiting connections */
    int deadline_ms; /* deadline for a connection's first bytes */
    /* Whether a connection with its first bytes can be admitted now; otherwise it waits. NULL:
     * always. */
    bool (*has_room)(void *entrance, const struct rpc_origin *origin);
    /* Takes ownership of the connection, and may close it. */
    void (*admit)(void *entrance, int fd, const struct rpc_origin *origin);
    /* Takes ownership of a connection that gets no place: another has replaced it, or it had no
     * room until its deadline. NULL: it is closed. */
    void (*refuse)(void *entrance, int fd);
};

struct rpc_lobby *rpc_lobby_new(uv_loop_t *loop, const struct rpc_lobby_options *options);

/* Changes the maximum; connections that already wait stay. */
void rpc_lobby_set_most(struct rpc_lobby *lobby, int most);

/*
 * Adds a nonblocking listening socket, which the lobby closes when it is closed. `entrance` is
 * passed to `admit` with each of its connections. On failure the caller keeps the descriptor.
 */
status_t rpc_lobby_listen(struct rpc_lobby *lobby, int fd,
                          enum rpc_opening (*opening)(const char *bytes, size_t size),
                          void *entrance) FSDPD_MUST_USE;

/* Starts accepting on all sockets. */
void rpc_lobby_start(struct rpc_lobby *lobby);

/* Closes the sockets and all waiting connections; calls `gone` when the lobby is freed. */
void rpc_lobby_close(struct rpc_lobby *lobby, void (*gone)(void *user), void *user);

#endif
