/*
 * A server's life: its methods, its addresses and its shutdown. The server owns its per-peer
 * servers. It is freed when gRPC has shut them down, every armed request has completed, every call
 * has ended and the timer of the grace period has closed. Everything runs on the loop's thread.
 */
#include <errno.h>
#include <grpc/grpc_security.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/mem.h"
#include "rpc/address.h"
#include "rpc/server_internal.h"

enum {
    PATIENCE_MS = 100, /* for sending the statuses of calls that a closing server ends */
    CONNECTIONS = 4096,
    WAITING = 64,
    RESERVED = 64,
    CONNECTIONS_PER_USER = 256,
    CONNECTIONS_PER_ADDRESS = 1024,
    CALLS_PER_USER = 1024,
    USERS = 1024,
    OWN_MESSAGE_MAX = 64 << 10, /* its name for health and reflection */
};

static void add_slots(struct rpc_server *server, const struct rpc_handler *handlers, int count,
                      const struct rpc_service *about, bool own)
{
    server->slots = mem_resize_array(server->slots, (size_t)(server->slot_count + count),
                                     sizeof *server->slots);
    for (int i = 0; i < count; i++)
        server->slots[server->slot_count++] =
            (struct rpc_slot){.handler = &handlers[i],
                              .service = about->user,
                              .roles = handlers[i].roles ? handlers[i].roles : about->roles,
                              .message_max = handlers[i].message_max ? handlers[i].message_max
                                                                     : about->message_max,
                              .own = own};
}

static void server_free(struct rpc_server *server)
{
    for (struct rpc_peer_server *peer_server = server->peer_servers, *next; peer_server;
         peer_server = next) {
        next = peer_server->next;
        rpc_peer_server_free(peer_server);
    }
    rpc_acceptors_free(server);
    free(server->slots);
    rpc_health_free(server->health);
    rpc_reflection_free(server->reflection);
    rpc_server_tls_free(server->tls);
    free(server);
}

status_t rpc_server_new(struct rpc_runtime *runtime, const struct rpc_service *services,
                        int service_count, const uint8_t *descriptor_set,
                        size_t descriptor_set_size, struct rpc_server **server_out)
{
    static const char *const own_services[] = {"grpc.health.v1.Health",
                                               "grpc.reflection.v1alpha.ServerReflection",
                                               "grpc.reflection.v1.ServerReflection"};
    enum { OWN_COUNT = COUNT_OF(own_services) };
    for (int i = 0; i < service_count; i++)
        if (services[i].roles == 0)
            return status_new(STATUS_INVALID_ARGUMENT, "service %s allows no role to call it",
                              services[i].name);
    AUTO_FREE const char **names =
        mem_alloc_array((size_t)service_count + OWN_COUNT, sizeof *names);
    for (int i = 0; i < service_count; i++) names[i] = services[i].name;
    for (int i = 0; i < OWN_COUNT; i++) names[service_count + i] = own_services[i];
    struct rpc_reflection *reflection = NULL;
    status_t status = rpc_reflection_new(names, service_count + OWN_COUNT, descriptor_set,
                                         descriptor_set_size, &reflection);
    if (status) return status;

    struct rpc_server *server = mem_alloc(sizeof *server);
    server->runtime = runtime;
    server->reflection = reflection;
    server->health = rpc_health_new(services, service_count);
    const struct rpc_service health = {.user = server->health,
                                       .roles = RPC_ANY_ROLE,
                                       .message_max = OWN_MESSAGE_MAX};
    const struct rpc_service reflected = {.user = server->reflection,
                                          .roles = RPC_ANY_ROLE,
                                          .message_max = OWN_MESSAGE_MAX};
    for (int i = 0; i < service_count; i++)
        add_slots(server, services[i].handlers, services[i].handler_count, &services[i], false);
    add_slots(server, rpc_health_handlers, rpc_health_handler_count, &health, true);
    add_slots(server, rpc_reflection_handlers, rpc_reflection_handler_count, &reflected, true);
    for (int i = 0; i < server->slot_count; i++)
        for (int k = 0; k < i; k++) {
            const char *path = server->slots[i].handler->method->path;
            if (strcmp(path, server->slots[k].handler->method->path)) continue;
            server_free(server);
            return status_new(STATUS_ALREADY_EXISTS, "method %s has two handlers", path);
        }

    const struct rpc_lobby_options lobby = {.most = WAITING,
                                            .deadline_ms = RPC_HANDSHAKE_MS,
                                            .has_room = rpc_acceptor_has_room,
                                            .admit = rpc_acceptor_admit};
    server->lobby = rpc_lobby_new(rpc_runtime_loop(runtime), &lobby);
    server->limits = (struct rpc_limits){.connections = CONNECTIONS,
                                         .connections_waiting = WAITING,
                                         .connections_reserved = RESERVED,
                                         .connections_per_user = CONNECTIONS_PER_USER,
                                         .connections_per_address = CONNECTIONS_PER_ADDRESS,
                                         .calls_per_user = CALLS_PER_USER,
                                         .users = USERS};
    *server_out = server;
    return NULL;
}

static status_t listen_unix(struct rpc_server *server, const char *normal, int mode)
{
    const char *path = rpc_address_unix_path(normal);
    struct stat info;
    if (lstat(path, &info) == 0) {
        if (!S_ISSOCK(info.st_mode))
            return status_new(STATUS_UNAVAILABLE,
                              "cannot listen on %s: a file that is not a socket is in the way",
                              normal);
        if (unlink(path) < 0 && errno != ENOENT)
            return status_new(STATUS_UNAVAILABLE,
                              "cannot listen on %s: the stale socket cannot be removed: %s", normal,
                              strerror(errno));
    }
    return rpc_acceptor_bind(server, path, mode ? mode : 0660);
}

void rpc_server_set_tls(struct rpc_server *server, struct rpc_pems *pems)
{
    if (server->tls == NULL) server->tls = rpc_server_tls_new();
    rpc_server_tls_set(server->tls, pems);
}

static status_t listen_tls(struct rpc_server *server, const char *normal, int *port)
{
    static const struct rpc_peer certified = {.kind = RPC_PEER_TLS, .name = "", .uid = (uid_t)-1};
    struct rpc_peer_server *peer_server = rpc_peer_server_open(server, &certified);
    if (peer_server->external == NULL &&
        !rpc_peer_server_use_tls(peer_server, rpc_server_tls_credentials(server->tls)))
        return status_new(STATUS_UNAVAILABLE, "cannot listen on %s: gRPC refused TLS", normal);
    return rpc_acceptor_bind_tcp(server, normal, peer_server, port);
}

status_t rpc_server_listen_tls(struct rpc_server *server, const char *address, int *port)
{
    AUTO_FREE char *normal = NULL;
    TRY(rpc_address_parse(address, &normal));
    status_t status;
    if (server->tls == NULL)
        status = status_new(STATUS_FAILED_PRECONDITION, "%s: TLS has no certificate yet", normal);
    else if (rpc_address_unix_path(normal))
        status = status_new(STATUS_INVALID_ARGUMENT, "%s: a Unix socket needs no TLS", normal);
    else status = listen_tls(server, normal, port);
    return status;
}

status_t rpc_server_listen(struct rpc_server *server, const char *address, int mode, int *port)
{
    AUTO_FREE char *normal = NULL;
    TRY(rpc_address_parse(address, &normal));
    return rpc_address_unix_path(normal) ? listen_unix(server, normal, mode)
                                         : rpc_acceptor_bind_tcp(server, normal, NULL, port);
}

void rpc_server_set_operators(struct rpc_server *server, const struct rpc_operators *operators)
{
    server->operators = *operators;
}

void rpc_server_set_limits(struct rpc_server *server, const struct rpc_limits *limits)
{
    server->limits = *limits;
    rpc_lobby_set_most(server->lobby, limits->connections_waiting);
}

status_t rpc_server_start(struct rpc_server *server)
{
    if (server->started || server->closing)
        return status_new(STATUS_FAILED_PRECONDITION, "the server was started or closed before");
    server->started = true;
    for (struct rpc_peer_server *peer_server = server->peer_servers; peer_server;
         peer_server = peer_server->next)
        rpc_peer_server_start(peer_server);
    rpc_lobby_start(server->lobby);
    rpc_health_set(server->health, NULL, true);
    return NULL;
}

void rpc_server_set_serving(struct rpc_server *server, const char *service, bool serving)
{
    rpc_health_set(server->health, service, serving);
}

static void on_grace_closed(uv_handle_t *handle)
{
    struct rpc_server *server = handle->data;
    void (*closed)(void *) = server->closed;
    void *user = server->closed_user;
    server_free(server);
    if (closed) closed(user);
}

void rpc_server_maybe_free(struct rpc_server *server)
{
    if (!server->closing || server->servers_open > 0 || server->armed > 0) return;
    if (server->calls || server->lobby || server->timer_closing) return;
    server->timer_closing = true;
    uv_close((uv_handle_t *)&server->grace, on_grace_closed);
}

static void on_patience_over(uv_timer_t *timer)
{
    struct rpc_server *server = timer->data;
    for (struct rpc_peer_server *peer_server = server->peer_servers; peer_server;
         peer_server = peer_server->next)
        grpc_server_cancel_all_calls(peer_server->grpc);
    rpc_server_maybe_free(
        server); /* without per-peer servers no shutdown completes later, so end here */
}

/* Calls end with a reason; clients that do not read it are disconnected a moment later. */
static void on_grace_over(uv_timer_t *timer)
{
    struct rpc_server *server = timer->data;
    rpc_call_finish_all(server, false);
    uv_timer_start(timer, on_patience_over, PATIENCE_MS, 0);
}

void rpc_server_close(struct rpc_server *server, int grace_ms, void (*closed)(void *user),
                      void *user)
{
    if (server->closing) return;
    server->closing = true;
    server->closed = closed;
    server->closed_user = user;
    rpc_health_end(server->health);
    rpc_call_finish_all(server, true);
    rpc_acceptors_close(server);
    for (struct rpc_peer_server *peer_server = server->peer_servers; peer_server;
         peer_server = peer_server->next)
        rpc_peer_server_shutdown(peer_server);
    uv_timer_init(rpc_runtime_loop(server->runtime), &server->grace);
    server->grace.data = server;
    if (grace_ms > 0) uv_timer_start(&server->grace, on_grace_over, (uint64_t)grace_ms, 0);
    else on_grace_over(&server->grace);
}
