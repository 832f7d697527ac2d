/*
 * Per-peer servers: one gRPC server per identity; see internal.h. Also their settings, and the
 * limits on the connections of one peer. Everything runs on the loop's thread.
 */
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/mem.h"
#include "rpc/external.h"
#include "rpc/peer_internal.h"
#include "rpc/server_internal.h"

enum {
    LOOKAHEAD_BYTES = 64 << 10, /* bytes read ahead of the handler, per stream */
    CONCURRENT_STREAMS = 1024,  /* per connection */
    METADATA_MAX = 16 << 10,    /* headers of a call, in bytes */
    KEEPALIVE_MS = 60 * 1000,   /* detects a vanished peer after this and the timeout */
    KEEPALIVE_TIMEOUT_MS = 20 * 1000,
    PING_INTERVAL_MIN_MS = 10 * 1000, /* between a client's pings; ours ping every 30 s */
    PING_STRIKES = 2,                 /* early pings tolerated before the connection is closed */
    SWEEP_MS = 100,
    HANDSHAKES = 64, /* TLS connections in their handshake at a time */
    HANDSHAKES_PER_ADDRESS = 32,
    LOG_EVERY_MS = 10 * 1000,
};

/* Bytes that one user's connections together may hold in gRPC's buffers; workers are not
 * limited. */
static const size_t user_buffers = (size_t)256 << 20;

/* A connection handed to gRPC, which closes it without notice: it is gone once its descriptor is
 * closed or refers to another file. */
struct rpc_connection {
    int fd;
    ino_t inode;
    struct rpc_origin origin;
    uint64_t since; /* start, in ms of the loop */
    bool proven;    /* the handshake is over, as far as there is one */
};

static grpc_arg integer(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

static void *keep_pointer(void *pointer)
{
    return pointer;
}

static void drop_pointer(void *pointer)
{
    (void)pointer;
}

static int compare_pointers(void *a, void *b)
{
    return (a > b) - (a < b);
}

/* A pointer to an object that outlives the gRPC server. */
static const grpc_arg_pointer_vtable pointer_table = {keep_pointer, drop_pointer, compare_pointers};

static grpc_server *create_grpc_server(bool bounded, void **external)
{
    grpc_resource_quota *quota = NULL;
    grpc_arg list[] = {
        integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RPC_MESSAGE_MAX),
        integer(GRPC_ARG_MAX_METADATA_SIZE, METADATA_MAX),
        integer(GRPC_ARG_ALLOW_REUSEPORT, 0),
        integer(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        integer(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, LOOKAHEAD_BYTES),
        integer(GRPC_ARG_MAX_CONCURRENT_STREAMS, CONCURRENT_STREAMS),
        integer(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, RPC_HANDSHAKE_MS),
        integer(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        integer(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        integer(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, PING_INTERVAL_MIN_MS),
        integer(GRPC_ARG_HTTP2_MAX_PING_STRIKES, PING_STRIKES),
        integer(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        /* Refuse compressed messages: a small one can expand to any size. */
        integer(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE),
        integer(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
        {.type = GRPC_ARG_POINTER,
         .key = (char *)RPC_EXTERNAL_PORT,
         .value.pointer = {external, &pointer_table}},
        {0}, /* the quota */
    };
    size_t count = COUNT_OF(list) - 1;
    if (bounded) {
        quota = grpc_resource_quota_create("user");
        grpc_resource_quota_resize(quota, user_buffers);
        list[count] = (grpc_arg){.type = GRPC_ARG_POINTER,
                                 .key = (char *)GRPC_ARG_RESOURCE_QUOTA,
                                 .value.pointer = {quota, grpc_resource_quota_arg_vtable()}};
        count++;
    }
    grpc_channel_args args = {count, list};
    grpc_server *server = grpc_server_create(&args, NULL);
    if (quota) grpc_resource_quota_unref(quota);
    return server;
}

static struct rpc_peer_server *find(const struct rpc_server *server, const struct rpc_peer *peer)
{
    struct rpc_peer_server *peer_server = server->peer_servers;
    for (; peer_server != NULL; peer_server = peer_server->next)
        if (!peer_server->retiring && peer_server->peer.kind == peer->kind &&
            peer_server->peer.uid == peer->uid && peer_server->peer.roles == peer->roles)
            break;
    return peer_server;
}

/* Whether the limits apply to the peer: a user of a Unix socket other than root and fsdpd's own. */
static bool is_counted(const struct rpc_peer *peer)
{
    return peer->kind == RPC_PEER_UNIX && (peer->roles & RPC_WORKER) == 0;
}

static uint64_t now_of(const struct rpc_server *server)
{
    return uv_now(rpc_runtime_loop(server->runtime));
}

/* Forgets connections that gRPC has closed. A connection older than the handshake's deadline has
 * completed it: gRPC would have closed it otherwise. */
static void sweep(struct rpc_peer_server *peer_server)
{
    int kept = 0, before = peer_server->connection_count;
    peer_server->swept_at = now_of(peer_server->server);
    peer_server->unproven = 0;
    for (int i = 0; i < before; i++) {
        struct stat info;
        struct rpc_connection *connection = &peer_server->connections[i];
        if (fstat(connection->fd, &info) != 0 || info.st_ino != connection->inode) continue;
        if (peer_server->swept_at - connection->since > RPC_HANDSHAKE_MS + SWEEP_MS)
            connection->proven = true;
        peer_server->unproven += !connection->proven;
        peer_server->connections[kept++] = *connection;
    }
    peer_server->connection_count = kept;
    peer_server->server->connection_count -= before - kept;
}

/* Does the same, unless it was done a moment ago. */
static void sweep_again(struct rpc_peer_server *peer_server)
{
    if (now_of(peer_server->server) - peer_server->swept_at >= SWEEP_MS) sweep(peer_server);
}

/* Shuts down an unused per-peer server. False if all are in use. */
static bool retire_one(struct rpc_server *server)
{
    for (struct rpc_peer_server *peer_server = server->peer_servers; peer_server != NULL;
         peer_server = peer_server->next) {
        if (!is_counted(&peer_server->peer) || peer_server->retiring || peer_server->calls > 0)
            continue;
        sweep(peer_server);
        if (peer_server->connection_count > 0) continue;
        peer_server->retiring = true;
        server->counted_servers--;
        rpc_peer_server_shutdown(peer_server);
        return true;
    }
    return false;
}

struct rpc_peer_server *rpc_peer_server_open(struct rpc_server *server, const struct rpc_peer *peer)
{
    struct rpc_peer_server *peer_server = find(server, peer);
    if (peer_server != NULL) return peer_server;
    bool counted = is_counted(peer);
    char *name =
        peer->kind == RPC_PEER_UNIX ? rpc_peer_unix_name(peer->uid) : mem_strdup(peer->name);
    if (name == NULL ||
        (counted && server->counted_servers >= server->limits.users && !retire_one(server))) {
        free(name);
        return NULL;
    }
    peer_server = mem_alloc(sizeof *peer_server);
    peer_server->server = server;
    peer_server->peer = *peer;
    peer_server->peer.name = peer_server->name = name;
    peer_server->grpc = create_grpc_server(counted, &peer_server->external);
    grpc_server_register_completion_queue(peer_server->grpc, rpc_runtime_queue(server->runtime),
                                          NULL);
    peer_server->registered =
        mem_alloc_array((size_t)server->slot_count, sizeof *peer_server->registered);
    for (int i = 0; i < server->slot_count; i++) {
        const struct rpc_method *method = server->slots[i].handler->method;
        bool payload = method->kind == RPC_UNARY || method->kind == RPC_SERVER_STREAM;
        peer_server->registered[i] =
            grpc_server_register_method(peer_server->grpc, method->path, NULL,
                                        payload ? GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER
                                                : GRPC_SRM_PAYLOAD_NONE,
                                        0);
        if (peer_server->registered[i] == NULL) abort(); /* fails only for duplicates */
    }
    peer_server->next = server->peer_servers;
    server->peer_servers = peer_server;
    server->counted_servers += counted;
    server->servers_open++;
    if (server->started) rpc_peer_server_start(peer_server);
    return peer_server;
}

void rpc_peer_server_start(struct rpc_peer_server *peer_server)
{
    grpc_server_start(peer_server->grpc);
    for (int i = 0; i < peer_server->server->slot_count; i++)
        rpc_call_arm(peer_server, &peer_server->server->slots[i]);
    rpc_call_arm(peer_server, NULL);
}

bool rpc_peer_server_use_tls(struct rpc_peer_server *peer_server,
                             grpc_server_credentials *credentials)
{
    grpc_server_add_http2_port(peer_server->grpc, RPC_EXTERNAL_PORT,
                               credentials); /* has no port number */
    grpc_server_credentials_release(credentials);
    return peer_server->external != NULL;
}

static int count_of(const struct rpc_peer_server *peer_server, const char *host, bool unproven_only)
{
    int count = 0;
    for (int i = 0; i < peer_server->connection_count; i++)
        if (!unproven_only || !peer_server->connections[i].proven)
            count += strcmp(peer_server->connections[i].origin.host, host) == 0;
    return count;
}

bool rpc_peer_server_has_room(struct rpc_peer_server *peer_server, const struct rpc_origin *origin)
{
    if (peer_server->unproven < HANDSHAKES_PER_ADDRESS) return true;
    sweep_again(peer_server);
    return peer_server->unproven < HANDSHAKES &&
           count_of(peer_server, origin->host, true) < HANDSHAKES_PER_ADDRESS;
}

void rpc_peer_server_prove(struct rpc_peer_server *peer_server, grpc_call *call)
{
    if (peer_server->unproven == 0) return;
    char *peer = grpc_call_get_peer(call); /* "ipv4:10.0.0.1:1234" */
    const char *colon = strrchr(peer, ':');
    int port = colon != NULL ? atoi(colon + 1) : 0;
    for (int i = 0; i < peer_server->connection_count; i++) {
        struct rpc_connection *connection = &peer_server->connections[i];
        if (connection->proven || connection->origin.port != port) continue;
        if (strstr(peer, connection->origin.host) == NULL) continue;
        connection->proven = true;
        peer_server->unproven--;
    }
    gpr_free(peer);
}

/* The limit that refuses the peer another connection; NULL: none. */
static const char *find_limit(struct rpc_peer_server *peer_server, const struct rpc_origin *origin)
{
    struct rpc_server *server = peer_server->server;
    const struct rpc_limits *limits = &server->limits;
    bool local = peer_server->peer.kind == RPC_PEER_UNIX;
    int most = limits->connections;
    if (local && !is_counted(&peer_server->peer)) most += limits->connections_reserved;
    if (server->connection_count >= most)
        for (struct rpc_peer_server *i = server->peer_servers; i != NULL; i = i->next)
            sweep_again(i);
    if (server->connection_count >= most) return "descriptors";
    int per_peer = local ? limits->connections_per_user : limits->connections_per_address;
    if ((local && !is_counted(&peer_server->peer)) || peer_server->connection_count < per_peer)
        return NULL;
    sweep_again(peer_server);
    int count = local ? peer_server->connection_count : count_of(peer_server, origin->host, false);
    if (count < per_peer) return NULL;
    return local ? "limits.connections_per_user" : "limits.connections_per_address";
}

/* Logs at most once per interval: a refused client may try again immediately. */
static void log_refusal(struct rpc_server *server, const char *limit,
                        const struct rpc_origin *origin)
{
    uint64_t now = now_of(server);
    if (server->refused_at != 0 && now - server->refused_at < LOG_EVERY_MS) return;
    server->refused_at = now;
    log_event(LOG_WARNING, "connection_refused", "from=%s limit=%s connections=%d", origin->host,
              limit, server->connection_count);
}

void rpc_peer_server_connect(struct rpc_peer_server *peer_server, int fd,
                             const struct rpc_origin *origin)
{
    struct stat info;
    const char *limit = find_limit(peer_server, origin);
    if (limit != NULL) log_refusal(peer_server->server, limit, origin);
    if (limit != NULL || fstat(fd, &info) != 0) {
        close(fd);
        return;
    }
    bool tls = peer_server->external != NULL;
    MEM_GROW(peer_server->connections, peer_server->connection_count,
             peer_server->connection_capacity);
    peer_server->connections[peer_server->connection_count++] =
        (struct rpc_connection){.fd = fd,
                                .inode = info.st_ino,
                                .origin = *origin,
                                .since = now_of(peer_server->server),
                                .proven = !tls};
    peer_server->server->connection_count++;
    peer_server->unproven += tls;
    if (tls) {
        rpc_external_connect(peer_server->external, fd);
        return;
    }
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    grpc_server_add_channel_from_fd(peer_server->grpc, fd, credentials);
    grpc_server_credentials_release(credentials);
}

static void on_shut_down(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct rpc_peer_server *peer_server = tag->owner;
    struct rpc_server *server = peer_server->server;
    peer_server->shut_down = true;
    server->servers_open--;
    rpc_peer_server_maybe_free(peer_server);
    rpc_server_maybe_free(server);
}

void rpc_peer_server_maybe_free(struct rpc_peer_server *peer_server)
{
    if (!peer_server->retiring || !peer_server->shut_down || peer_server->armed > 0 ||
        peer_server->calls > 0)
        return;
    struct rpc_peer_server **link = &peer_server->server->peer_servers;
    while (*link != peer_server) link = &(*link)->next;
    *link = peer_server->next;
    rpc_peer_server_free(peer_server);
}

void rpc_peer_server_shutdown(struct rpc_peer_server *peer_server)
{
    if (peer_server->shutdown_tag.owner != NULL) return; /* it is shutting down */
    peer_server->shutdown_tag = (struct rpc_tag){.done = on_shut_down, .owner = peer_server};
    grpc_server_shutdown_and_notify(peer_server->grpc,
                                    rpc_runtime_queue(peer_server->server->runtime),
                                    &peer_server->shutdown_tag);
}

void rpc_peer_server_free(struct rpc_peer_server *peer_server)
{
    grpc_server_destroy(peer_server->grpc);
    free(peer_server->registered);
    free(peer_server->connections);
    free(peer_server->name);
    free(peer_server);
}
