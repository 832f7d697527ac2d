/*
 * A server's life: its methods, where it listens, and how it ends. The server owns its gRPC server
 * and goes when gRPC has shut it down, every armed request has come back, every call is over and
 * the timer of the grace period has closed. Everything runs on the loop's thread.
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
    LOOKAHEAD_BYTES = 64 << 10,       /* read ahead of the handler, per stream */
    CONCURRENT_STREAMS = 1024,        /* per connection */
    HANDSHAKE_TIMEOUT_MS = 20 * 1000, /* for a connection that says nothing */
    KEEPALIVE_MS = 60 * 1000,         /* a vanished peer is noticed after this and the next */
    KEEPALIVE_TIMEOUT_MS = 20 * 1000,
    PATIENCE_MS = 100,                /* for the statuses of calls that a closing server ends */
    PING_INTERVAL_MIN_MS = 10 * 1000, /* clients may ping this often; ours do every 30 s */
};

static grpc_arg integer(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

static grpc_server *create_grpc_server(void)
{
    grpc_arg list[] = {
        integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RPC_MESSAGE_MAX),
        integer(GRPC_ARG_ALLOW_REUSEPORT, 0),
        integer(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        integer(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, LOOKAHEAD_BYTES),
        integer(GRPC_ARG_MAX_CONCURRENT_STREAMS, CONCURRENT_STREAMS),
        integer(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_TIMEOUT_MS),
        integer(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
        integer(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        integer(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, PING_INTERVAL_MIN_MS),
        integer(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        /* Compressed messages are refused: a small one can unfold to any size. */
        integer(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE),
        integer(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
    };
    grpc_channel_args args = {sizeof list / sizeof *list, list};
    return grpc_server_create(&args, NULL);
}

static void add_slots(struct rpc_server *server, const struct rpc_handler *handlers, int count,
                      void *service, bool own)
{
    server->slots = mem_resize_array(server->slots, (size_t)(server->slot_count + count),
                                     sizeof *server->slots);
    for (int i = 0; i < count; i++)
        server->slots[server->slot_count++] =
            (struct rpc_slot){.handler = &handlers[i], .service = service, .own = own};
}

static void server_free(struct rpc_server *server)
{
    free(server->slots);
    rpc_health_free(server->health);
    rpc_reflection_free(server->reflection);
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
    for (int i = 0; i < service_count; i++)
        add_slots(server, services[i].handlers, services[i].handler_count, services[i].user, false);
    add_slots(server, rpc_health_handlers, rpc_health_handler_count, server->health, true);
    add_slots(server, rpc_reflection_handlers, rpc_reflection_handler_count, server->reflection,
              true);
    for (int i = 0; i < server->slot_count; i++)
        for (int k = 0; k < i; k++) {
            const char *path = server->slots[i].handler->method->path;
            if (strcmp(path, server->slots[k].handler->method->path)) continue;
            server_free(server);
            return status_new(STATUS_ALREADY_EXISTS, "method %s has two handlers", path);
        }

    server->server = create_grpc_server();
    grpc_server_register_completion_queue(server->server, rpc_runtime_queue(runtime), NULL);
    for (int i = 0; i < server->slot_count; i++) {
        const struct rpc_method *method = server->slots[i].handler->method;
        bool payload = method->kind == RPC_UNARY || method->kind == RPC_SERVER_STREAM;
        server->slots[i].registered =
            grpc_server_register_method(server->server, method->path, NULL,
                                        payload ? GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER
                                                : GRPC_SRM_PAYLOAD_NONE,
                                        0);
        if (server->slots[i].registered == NULL) abort(); /* only duplicates are refused */
    }
    *server_out = server;
    return STATUS_OKAY;
}

static int bind_port(struct rpc_server *server, const char *normal)
{
    /* gRPC decodes percent signs here too; only a path can hold any. */
    char *target = rpc_address_unix_path(normal) ? rpc_address_target(normal) : mem_strdup(normal);
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    int port = grpc_server_add_http2_port(server->server, target, credentials);
    grpc_server_credentials_release(credentials);
    free(target);
    return port;
}

static status_t listen_failed(const char *normal)
{
    int error = rpc_address_probe(normal);
    return status_new(STATUS_UNAVAILABLE, "cannot listen on %s: %s", normal,
                      error ? strerror(error) : "gRPC refused it");
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
    /* The socket must never have more than its mode, not even between bind and a chmod. */
    mode_t before = umask((mode_t) ~(mode ? mode : 0660) & 0777);
    int bound = bind_port(server, normal);
    umask(before);
    return bound ? STATUS_OKAY : listen_failed(normal);
}

status_t rpc_server_listen(struct rpc_server *server, const char *address, int mode, int *port)
{
    char *normal;
    TRY(rpc_address_parse(address, &normal));
    status_t status = NULL;
    if (rpc_address_unix_path(normal)) {
        status = listen_unix(server, normal, mode);
    } else {
        int bound = bind_port(server, normal);
        if (bound == 0) status = listen_failed(normal);
        else if (port) *port = bound;
    }
    free(normal);
    return status;
}

status_t rpc_server_start(struct rpc_server *server)
{
    if (server->started || server->closing)
        return status_new(STATUS_FAILED_PRECONDITION, "the server was started or closed before");
    server->started = true;
    grpc_server_start(server->server);
    rpc_acceptors_start(server);
    for (int i = 0; i < server->slot_count; i++) rpc_call_arm(server, &server->slots[i]);
    rpc_call_arm(server, NULL);
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
    grpc_server_destroy(server->server);
    server_free(server);
    if (closed) closed(user);
}

void rpc_server_settle(struct rpc_server *server)
{
    if (!server->shut_down || server->armed > 0 || server->calls || server->timer_closing) return;
    if (server->acceptors != NULL) return;
    server->timer_closing = true;
    uv_close((uv_handle_t *)&server->grace, on_grace_closed);
}

static void on_shut_down(struct rpc_tag *tag, bool ok)
{
    (void)ok;
    struct rpc_server *server = tag->owner;
    server->shut_down = true;
    rpc_server_settle(server);
}

static void on_patience_over(uv_timer_t *timer)
{
    struct rpc_server *server = timer->data;
    grpc_server_cancel_all_calls(server->server);
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
    server->shutdown_tag = (struct rpc_tag){.done = on_shut_down, .owner = server};
    /* gRPC removes the files of Unix sockets itself. */
    grpc_server_shutdown_and_notify(server->server, rpc_runtime_queue(server->runtime),
                                    &server->shutdown_tag);
    uv_timer_init(rpc_runtime_loop(server->runtime), &server->grace);
    server->grace.data = server;
    if (grace_ms > 0) uv_timer_start(&server->grace, on_grace_over, (uint64_t)grace_ms, 0);
    else on_grace_over(&server->grace);
}
