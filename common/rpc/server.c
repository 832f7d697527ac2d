/*
 * A server's life: its methods, where it listens, and how it ends. The server owns its doors and
 * goes when gRPC has shut them down, every armed request has come back, every call is over and the
 * timer of the grace period has closed. Everything runs on the loop's thread.
 */
#include <errno.h>
#include <grpc/grpc_security.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "rpc/internal.h"

enum {
    PATIENCE_MS = 100, /* for the statuses of calls that a closing server ends */
    CONNECTIONS_PER_USER = 256,
    CALLS_PER_USER = 1024,
    USERS = 1024,
    OWN_MESSAGE_MAX = 64 << 10, /* to health and reflection: a name */
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
    for (struct rpc_door *door = server->doors, *next; door; door = next) {
        next = door->next;
        rpc_door_free(door);
    }
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
    enum { OWN_COUNT = sizeof own_services / sizeof *own_services };
    for (int i = 0; i < service_count; i++)
        if (services[i].roles == 0)
            return status_new(STATUS_INVALID_ARGUMENT, "service %s says nobody may call it",
                              services[i].name);
    const char **names = mem_alloc_array((size_t)service_count + OWN_COUNT, sizeof *names);
    for (int i = 0; i < service_count; i++) names[i] = services[i].name;
    for (int i = 0; i < OWN_COUNT; i++) names[service_count + i] = own_services[i];
    struct rpc_reflection *reflection = NULL;
    status_t status = rpc_reflection_new(names, service_count + OWN_COUNT, descriptor_set,
                                         descriptor_set_size, &reflection);
    free(names);
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

    server->limits = (struct rpc_limits){.connections_per_user = CONNECTIONS_PER_USER,
                                         .calls_per_user = CALLS_PER_USER,
                                         .users = USERS};
    *server_out = server;
    return STATUS_OKAY;
}

static status_t listen_unix(struct rpc_server *server, const char *normal, int mode)
{
    const char *path = rpc_address_unix_path(normal);
    struct stat info;
    if (lstat(path, &info) == 0) {
        if (!S_ISSOCK(info.st_mode))
            return status_new(STATUS_UNAVAILABLE,
                              "cannot listen on %s: a file that is no socket is in the way",
                              normal);
        if (unlink(path) < 0 && errno != ENOENT)
            return status_new(STATUS_UNAVAILABLE,
                              "cannot listen on %s: the old socket cannot be removed: %s", normal,
                              strerror(errno));
    }
    return rpc_acceptor_bind(server, path, mode ? mode : 0660);
}

/* Releases the credentials. */
static status_t listen_tcp(struct rpc_server *server, const struct rpc_peer *peer,
                           grpc_server_credentials *credentials, const char *normal, int *port)
{
    struct rpc_door *door = rpc_door_open(server, peer);
    int bound = grpc_server_add_http2_port(door->grpc, normal, credentials);
    grpc_server_credentials_release(credentials);
    if (bound == 0) {
        int error = rpc_address_probe(normal);
        return status_new(STATUS_UNAVAILABLE, "cannot listen on %s: %s", normal,
                          error ? strerror(error) : "gRPC refused it");
    }
    if (port) *port = bound;
    return STATUS_OKAY;
}

static status_t listen_insecure(struct rpc_server *server, const char *normal, int *port)
{
    static const struct rpc_peer anybody = {.kind = RPC_PEER_INSECURE,
                                            .name = "anonymous",
                                            .uid = (uid_t)-1,
                                            .roles = RPC_ANY_ROLE};
    return listen_tcp(server, &anybody, grpc_insecure_server_credentials_create(), normal, port);
}

status_t rpc_server_set_tls(struct rpc_server *server, const struct rpc_tls_files *files)
{
    struct rpc_pems pems;
    TRY(rpc_pems_read(files, true, &pems));
    if (server->tls == NULL) server->tls = rpc_server_tls_new();
    rpc_server_tls_set(server->tls, &pems);
    return STATUS_OKAY;
}

status_t rpc_server_listen_tls(struct rpc_server *server, const char *address, int *port)
{
    static const struct rpc_peer certified = {.kind = RPC_PEER_TLS, .name = "", .uid = (uid_t)-1};
    char *normal;
    TRY(rpc_address_parse(address, &normal));
    status_t status;
    if (server->tls == NULL)
        status = status_new(STATUS_FAILED_PRECONDITION, "%s: TLS has no certificate yet", normal);
    else if (rpc_address_unix_path(normal))
        status = status_new(STATUS_INVALID_ARGUMENT, "%s: a Unix socket needs no TLS", normal);
    else
        status =
            listen_tcp(server, &certified, rpc_server_tls_credentials(server->tls), normal, port);
    free(normal);
    return status;
}

status_t rpc_server_listen(struct rpc_server *server, const char *address, int mode, int *port)
{
    char *normal;
    TRY(rpc_address_parse(address, &normal));
    status_t status = rpc_address_unix_path(normal) ? listen_unix(server, normal, mode)
                                                    : listen_insecure(server, normal, port);
    free(normal);
    return status;
}

void rpc_server_set_operators(struct rpc_server *server, const struct rpc_operators *operators)
{
    server->operators = *operators;
}

void rpc_server_set_limits(struct rpc_server *server, const struct rpc_limits *limits)
{
    server->limits = *limits;
}

status_t rpc_server_start(struct rpc_server *server)
{
    if (server->started || server->closing)
        return status_new(STATUS_FAILED_PRECONDITION, "the server was started or closed before");
    server->started = true;
    for (struct rpc_door *door = server->doors; door; door = door->next) rpc_door_start(door);
    rpc_acceptors_start(server);
    rpc_health_set(server->health, NULL, true);
    return STATUS_OKAY;
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

void rpc_server_settle(struct rpc_server *server)
{
    if (!server->closing || server->doors_open > 0 || server->armed > 0) return;
    if (server->calls || server->acceptors || server->timer_closing) return;
    server->timer_closing = true;
    uv_close((uv_handle_t *)&server->grace, on_grace_closed);
}

static void on_patience_over(uv_timer_t *timer)
{
    struct rpc_server *server = timer->data;
    for (struct rpc_door *door = server->doors; door; door = door->next)
        grpc_server_cancel_all_calls(door->grpc);
    rpc_server_settle(
        server); /* one without doors has nobody else who would tell that it is over */
}

/* Clients are told why their calls end; those that do not read are cut off a moment later. */
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
    for (struct rpc_door *door = server->doors; door; door = door->next) rpc_door_shutdown(door);
    uv_timer_init(rpc_runtime_loop(server->runtime), &server->grace);
    server->grace.data = server;
    if (grace_ms > 0) uv_timer_start(&server->grace, on_grace_over, (uint64_t)grace_ms, 0);
    else on_grace_over(&server->grace);
}
