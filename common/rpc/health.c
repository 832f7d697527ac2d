/*
 * The standard health service. One entry per service and one for the server as a whole (""). A
 * watcher receives the current state at once and then every change; a slow reader receives only the
 * newest. Watchers belong to their calls. Everything runs on the loop's thread.
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "grpc/health/v1/health.pb-c.h"
#include "rpc/server_internal.h"

typedef Grpc__Health__V1__HealthCheckRequest Request;
typedef Grpc__Health__V1__HealthCheckResponse Response;
typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus State;

#define STATE(name) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##name

struct health_entry {
    char *service;
    State state;
};

struct health_watcher {
    struct rpc_call *call;
    const struct health_entry *entry; /* NULL: a service that does not exist */
    int sent;                         /* the last state sent; -1 before the first */
    struct health_watcher *next, **link;
};

struct rpc_health {
    struct health_entry *entries;
    int count;
    struct health_watcher *watchers;
};

struct rpc_health *rpc_health_new(const struct rpc_service *services, int count)
{
    struct rpc_health *health = mem_alloc(sizeof *health);
    health->count = count + 1;
    health->entries = mem_alloc_array((size_t)health->count, sizeof *health->entries);
    for (int i = 0; i < health->count; i++)
        health->entries[i] =
            (struct health_entry){.service = mem_strdup(i == 0 ? "" : services[i - 1].name),
                                  .state = STATE(NOT_SERVING)};
    return health;
}

void rpc_health_free(struct rpc_health *health)
{
    if (health == NULL) return;
    for (int i = 0; i < health->count; i++) free(health->entries[i].service);
    free(health->entries);
    free(health);
}

static const struct health_entry *find(const struct rpc_health *health, const char *service)
{
    for (int i = 0; i < health->count; i++)
        if (strcmp(health->entries[i].service, service) == 0) return &health->entries[i];
    return NULL;
}

/* Sends the current state unless the watcher has it. While an older state is still queued this
 * waits for on_writable, except for the last state. */
static void send_state(struct health_watcher *watcher, bool last)
{
    State state = watcher->entry ? watcher->entry->state : STATE(SERVICE_UNKNOWN);
    if (watcher->sent == (int)state || (!last && rpc_call_queued(watcher->call) > 0)) return;
    Response response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = state;
    watcher->sent = (int)state;
    rpc_call_send(watcher->call, &response.base);
}

void rpc_health_set(struct rpc_health *health, const char *service, bool serving)
{
    for (int i = 0; i < health->count; i++)
        if (service == NULL || strcmp(health->entries[i].service, service) == 0)
            health->entries[i].state = serving ? STATE(SERVING) : STATE(NOT_SERVING);
    for (struct health_watcher *watcher = health->watchers; watcher; watcher = watcher->next)
        send_state(watcher, false);
}

void rpc_health_end(struct rpc_health *health)
{
    for (int i = 0; i < health->count; i++) health->entries[i].state = STATE(NOT_SERVING);
    for (struct health_watcher *watcher = health->watchers; watcher; watcher = watcher->next)
        send_state(watcher, true);
}

static void on_check(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    const Request *request = (const Request *)message;
    const struct health_entry *entry = find(service, request->service);
    if (entry == NULL) {
        rpc_call_finish(call, status_new(STATUS_NOT_FOUND, "there is no service \"%s\"",
                                         request->service));
        return;
    }
    Response response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = entry->state;
    rpc_call_reply(call, &response.base);
}

static void on_watch(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct rpc_health *health = service;
    const Request *request = (const Request *)message;
    struct health_watcher *watcher = mem_alloc(sizeof *watcher);
    watcher->call = call;
    watcher->entry = find(health, request->service);
    watcher->sent = -1;
    watcher->next = health->watchers;
    if (watcher->next) watcher->next->link = &watcher->next;
    watcher->link = &health->watchers;
    health->watchers = watcher;
    rpc_call_set_user(call, watcher);
    send_state(watcher, false);
}

static void on_watch_writable(struct rpc_call *call, void *service)
{
    (void)service;
    send_state(rpc_call_user(call), false);
}

static void on_watch_closed(struct rpc_call *call, bool cancelled, void *service)
{
    (void)cancelled;
    (void)service;
    struct health_watcher *watcher = rpc_call_user(call);
    *watcher->link = watcher->next;
    if (watcher->next) watcher->next->link = watcher->link;
    free(watcher);
}

static const struct rpc_method check_method = {
    .path = "/grpc.health.v1.Health/Check",
    .kind = RPC_UNARY,
    .request = &grpc__health__v1__health_check_request__descriptor,
    .response = &grpc__health__v1__health_check_response__descriptor,
};

static const struct rpc_method watch_method = {
    .path = "/grpc.health.v1.Health/Watch",
    .kind = RPC_SERVER_STREAM,
    .request = &grpc__health__v1__health_check_request__descriptor,
    .response = &grpc__health__v1__health_check_response__descriptor,
};

const struct rpc_handler rpc_health_handlers[] = {
    {.method = &check_method, .on_start = on_check},
    {.method = &watch_method,
     .on_start = on_watch,
     .on_writable = on_watch_writable,
     .on_closed = on_watch_closed},
};
const int rpc_health_handler_count = COUNT_OF(rpc_health_handlers);
