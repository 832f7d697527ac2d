/*
 * Doors: one gRPC server per identity; see internal.h. Also the settings of these servers, and the
 * bounds of what one peer's connections may take. Everything runs on the loop's thread.
 */
#include <errno.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "rpc/internal.h"

enum {
    LOOKAHEAD_BYTES = 64 << 10,       /* read ahead of the handler, per stream */
    CONCURRENT_STREAMS = 1024,        /* per connection */
    METADATA_MAX = 16 << 10,          /* headers of a call, in bytes */
    HANDSHAKE_TIMEOUT_MS = 20 * 1000, /* for a connection that says nothing */
    KEEPALIVE_MS = 60 * 1000,         /* a vanished peer is noticed after this and the next */
    KEEPALIVE_TIMEOUT_MS = 20 * 1000,
    PING_INTERVAL_MIN_MS = 10 * 1000, /* clients may ping this often; ours do every 30 s */
    PING_STRIKES = 2,                 /* too early so often: the connection is closed */
    SWEEP_MS = 100,
};

/* What a user's connections may take together in gRPC's buffers; workers' are not bounded. */
static const size_t user_buffers = (size_t)256 << 20;

/* A connection that was handed to gRPC, which closes it without telling: it is gone once its
 * descriptor is another file or none. */
struct rpc_connection {
    int fd;
    ino_t inode;
};

static grpc_arg integer(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

static grpc_server *create_grpc_server(bool bounded)
{
    grpc_resource_quota *quota = NULL;
    grpc_arg list[] = {
        integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RPC_MESSAGE_MAX),
        integer(GRPC_ARG_MAX_METADATA_SIZE, METADATA_MAX),
        integer(GRPC_ARG_ALLOW_REUSEPORT, 0),
        integer(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        integer(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, LOOKAHEAD_BYTES),
        integer(GRPC_ARG_MAX_CONCURRENT_STREAMS, CONCURRENT_STREAMS),
        integer(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_TIMEOUT_MS),
        integer(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        integer(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        integer(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, PING_INTERVAL_MIN_MS),
        integer(GRPC_ARG_HTTP2_MAX_PING_STRIKES, PING_STRIKES),
        integer(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        /* Compressed messages are refused: a small one can unfold to any size. */
        integer(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE),
        integer(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
        {0}, /* the quota */
    };
    size_t count = sizeof list / sizeof *list - 1;
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

static struct rpc_door *find(const struct rpc_server *server, const struct rpc_peer *peer)
{
    struct rpc_door *door = server->doors;
    for (; door != NULL; door = door->next)
        if (!door->retiring && door->peer.kind == peer->kind && door->peer.uid == peer->uid &&
            door->peer.roles == peer->roles)
            break;
    return door;
}

/* Whether the bounds are for it: a user of a Unix socket, but not root and fsdpd's own. */
static bool is_counted(const struct rpc_peer *peer)
{
    return peer->kind == RPC_PEER_UNIX && (peer->roles & RPC_WORKER) == 0;
}

/* Forgets the connections that gRPC has closed. */
static void sweep(struct rpc_door *door)
{
    int kept = 0;
    for (int i = 0; i < door->connection_count; i++) {
        struct stat info;
        const struct rpc_connection *connection = &door->connections[i];
        if (fstat(connection->fd, &info) == 0 && info.st_ino == connection->inode)
            door->connections[kept++] = *connection;
    }
    door->connection_count = kept;
    door->swept_at = uv_now(rpc_runtime_loop(door->server->runtime));
}

/* Lets a door go that nobody uses. False if there is none. */
static bool retire_one(struct rpc_server *server)
{
    for (struct rpc_door *door = server->doors; door != NULL; door = door->next) {
        if (!is_counted(&door->peer) || door->retiring || door->calls > 0) continue;
        sweep(door);
        if (door->connection_count > 0) continue;
        door->retiring = true;
        server->counted_doors--;
        rpc_door_shutdown(door);
        return true;
    }
    return false;
}

struct rpc_door *rpc_door_open(struct rpc_server *server, const struct rpc_peer *peer)
{
    struct rpc_door *door = find(server, peer);
    if (door != NULL) return door;
    bool counted = is_counted(peer);
    char *name =
        peer->kind == RPC_PEER_UNIX ? rpc_peer_unix_name(peer->uid) : mem_strdup(peer->name);
    if (name == NULL ||
        (counted && server->counted_doors >= server->limits.users && !retire_one(server))) {
        free(name);
        return NULL;
    }
    door = mem_alloc(sizeof *door);
    door->server = server;
    door->peer = *peer;
    door->peer.name = door->name = name;
    door->grpc = create_grpc_server(counted);
    grpc_server_register_completion_queue(door->grpc, rpc_runtime_queue(server->runtime), NULL);
    door->registered = mem_alloc_array((size_t)server->slot_count, sizeof *door->registered);
    for (int i = 0; i < server->slot_count; i++) {
        const struct rpc_method *method = server->slots[i].handler->method;
        bool payload = method->kind == RPC_UNARY || method->kind == RPC_SERVER_STREAM;
        door->registered[i] =
            grpc_server_register_method(door->grpc, method->path, NULL,
                                        payload ? GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER
                                                : GRPC_SRM_PAYLOAD_NONE,
                                        0);
        if (door->registered[i] == NULL) abort(); /* only duplicates are refused */
    }
    door->next = server->doors;
    server->doors = door;
    server->counted_doors += counted;
    server->doors_open++;
    if (server->started) rpc_door_start(door);
    return door;
}

void rpc_door_start(struct rpc_door *door)
{
    grpc_server_start(door->grpc);
    for (int i = 0; i < door->server->slot_count; i++) rpc_call_arm(door, &door->server->slots[i]);
    rpc_call_arm(door, NULL);
}

/* Whether the peer may have one more connection, which is then counted. */
static bool count_connection(struct rpc_door *door, int fd)
{
    int most = door->server->limits.connections_per_user;
    if (!is_counted(&door->peer)) return true;
    uint64_t now = uv_now(rpc_runtime_loop(door->server->runtime));
    if (door->connection_count >= most && now - door->swept_at >= SWEEP_MS) sweep(door);
    struct stat info;
    if (door->connection_count >= most || fstat(fd, &info) != 0) return false;
    MEM_GROW(door->connections, door->connection_count, door->connection_capacity);
    door->connections[door->connection_count++] =
        (struct rpc_connection){.fd = fd, .inode = info.st_ino};
    return true;
}

void rpc_door_connect(struct rpc_door *door, int fd)
{
    if (!count_connection(door, fd)) {
        close(fd);
        return;
    }
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    grpc_server_add_channel_from_fd(door->grpc, fd, credentials);
    grpc_server_credentials_release(credentials);
}

static void on_shut_down(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct rpc_door *door = tag->owner;
    struct rpc_server *server = door->server;
    door->shut_down = true;
    server->doors_open--;
    rpc_door_settle(door);
    rpc_server_settle(server);
}

void rpc_door_settle(struct rpc_door *door)
{
    if (!door->retiring || !door->shut_down || door->armed > 0 || door->calls > 0) return;
    struct rpc_door **link = &door->server->doors;
    while (*link != door) link = &(*link)->next;
    *link = door->next;
    rpc_door_free(door);
}

void rpc_door_shutdown(struct rpc_door *door)
{
    if (door->shutdown_tag.owner != NULL) return; /* it is retiring */
    door->shutdown_tag = (struct rpc_tag){.done = on_shut_down, .owner = door};
    grpc_server_shutdown_and_notify(door->grpc, rpc_runtime_queue(door->server->runtime),
                                    &door->shutdown_tag);
}

void rpc_door_free(struct rpc_door *door)
{
    grpc_server_destroy(door->grpc);
    free(door->registered);
    free(door->connections);
    free(door->name);
    free(door);
}
