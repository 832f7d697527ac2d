/*
 * The link; see link.h. The channel, the streams and the timers belong to the loop's thread. What
 * other threads wait for (answers, uploads' progress, gates) is guarded by one lock with one
 * condition: there are at most a few waiters, and each knows its own state.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "config.h"
#include "worker/link_internal.h"
#include "worker/methods.h"

enum { RECONNECT_MS = 500, STORE_SET_MS = 10000, FLUSH_MS = 1000 };

static void open_stream(struct link *link);
static void close_channel(struct link *link);

/* Sending. */

static void send_message(struct link *link, const Fsdpd__V1__WorkerMessage *message)
{
    if (link->stream != NULL) rpc_stream_send(link->stream, &message->base);
}

struct posted_message {
    struct link *link;
    Fsdpd__V1__WorkerMessage *message;
};

static void send_posted(void *argument)
{
    struct posted_message *posted = argument;
    send_message(posted->link, posted->message);
    fsdpd__v1__worker_message__free_unpacked(posted->message, NULL);
    free(posted);
}

void link_post(struct link *link, Fsdpd__V1__WorkerMessage *message)
{
    struct posted_message *posted = mem_alloc(sizeof *posted);
    *posted = (struct posted_message){link, message};
    mailbox_post(link->mailbox, send_posted, posted);
}

/* What stands in messages without blanks; "localhost" if the host has no name. */
static char *host_name(char *host, size_t size)
{
    if (gethostname(host, size) != 0 || host[0] == '\0') snprintf(host, size, "localhost");
    host[size - 1] = '\0';
    for (char *c = host; *c != '\0'; c++)
        if (*c <= ' ' || *c >= 0x7f || *c == '/') *c = '-';
    return host;
}

static void send_hello(struct link *link)
{
    Fsdpd__V1__Hello hello = FSDPD__V1__HELLO__INIT;
    hello.id = (char *)link->id;
    hello.device = (char *)link->options->device;
    hello.version = (char *)PACKAGE_VERSION;
    hello.memory_bytes = link->memory_bytes;
    hello.pid = getpid();
    hello.address = link->address;
    char host[128];
    hello.host = host_name(host, sizeof host);
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_HELLO;
    message.hello = &hello;
    send_message(link, &message);
}

static void on_heartbeat(uv_timer_t *timer)
{
    struct link *link = timer->data;
    Fsdpd__V1__Heartbeat heartbeat = FSDPD__V1__HEARTBEAT__INIT;
    heartbeat.step = link->callbacks.step(link->callbacks.user);
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_HEARTBEAT;
    message.heartbeat = &heartbeat;
    send_message(link, &message);
}

/* Receiving. */

static void on_message(struct rpc_stream *stream, const ProtobufCMessage *base, void *user)
{
    struct link *link = user;
    const struct link_callbacks *callbacks = &link->callbacks;
    const Fsdpd__V1__CoordinatorMessage *message = (const Fsdpd__V1__CoordinatorMessage *)base;
    if (link->closing) { /* nobody is there any more to act on it */
        if (link->stream == stream) rpc_stream_read(stream);
        return;
    }
    switch (message->message_case) {
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_WELCOME:
        if (message->welcome->heartbeat_ms > 0)
            uv_timer_start(&link->heartbeat, on_heartbeat, message->welcome->heartbeat_ms,
                           message->welcome->heartbeat_ms);
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_PLAN:
        callbacks->on_plan(callbacks->user, message->plan);
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ASSIGNMENT:
        callbacks->on_assignment(callbacks->user, message->assignment);
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ORDER:
        callbacks->on_order(callbacks->user, message->order);
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_DRAIN: callbacks->on_drain(callbacks->user); break;
    default: break; /* from a newer coordinator: additive, so not for us */
    }
    if (link->stream == stream) rpc_stream_read(stream);
}

static void on_reconnect(uv_timer_t *timer)
{
    struct link *link = timer->data;
    if (link->callbacks.busy(link->callbacks.user))
        uv_timer_start(timer, on_reconnect, RECONNECT_MS, 0);
    else open_stream(link);
}

static void on_stream_closed(struct rpc_stream *stream, status_t status, void *user)
{
    (void)stream;
    struct link *link = user;
    link->stream = NULL;
    if (link->closing) {
        status_free(status);
        close_channel(link);
        return;
    }
    uv_timer_stop(&link->heartbeat);
    uv_timer_start(&link->reconnect, on_reconnect, RECONNECT_MS, 0);
    if (status == NULL) status = status_new(STATUS_UNAVAILABLE, "the coordinator ended the link");
    link->callbacks.on_lost(link->callbacks.user, status);
}

static void open_stream(struct link *link)
{
    static const struct rpc_stream_callbacks callbacks = {
        .on_message = on_message,
        .on_closed = on_stream_closed,
    };
    link->stream =
        rpc_stream_open(link->channel, &worker_method_attach, NULL, 0, false, &callbacks, link);
    send_hello(link);
    rpc_stream_read(link->stream);
}

/* Lifecycle. */

/*
 * The local address from which the coordinator is reached: connecting a datagram socket chooses a
 * route without sending anything. Over a Unix socket everybody is on this host.
 */
static char *find_address(const char *coordinator)
{
    const char *fallback = "127.0.0.1";
    if (strncmp(coordinator, "unix:", 5) == 0) return mem_strdup(fallback);
    char *host = mem_strdup(coordinator);
    char *colon = strrchr(host, ':');
    if (colon == NULL) {
        free(host);
        return mem_strdup(fallback);
    }
    *colon = '\0';
    char *bare = host;
    if (bare[0] == '[' && colon > host && colon[-1] == ']') {
        colon[-1] = '\0';
        bare++;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *found = NULL;
    char text[NI_MAXHOST];
    snprintf(text, sizeof text, "%s", fallback);
    if (getaddrinfo(bare, colon + 1, &hints, &found) == 0) {
        int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        struct sockaddr_storage local;
        socklen_t length = sizeof local;
        if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
            getsockname(fd, (struct sockaddr *)&local, &length) == 0)
            getnameinfo((struct sockaddr *)&local, length, text, sizeof text, NULL, 0,
                        NI_NUMERICHOST);
        if (fd >= 0) close(fd);
        freeaddrinfo(found);
    }
    free(host);
    return mem_strdup(text);
}

status_t link_new(uv_loop_t *loop, struct mailbox *mailbox, const struct worker_options *options,
                  const char *id, uint64_t memory_bytes, const struct link_callbacks *callbacks,
                  struct link **out)
{
    struct rpc_runtime *runtime;
    TRY(rpc_runtime_new(loop, &runtime));
    struct rpc_channel *channel;
    status_t status = rpc_channel_new(runtime, options->coordinator, &options->security, &channel);
    if (status != NULL) {
        rpc_runtime_close(runtime, NULL, NULL);
        return status;
    }
    struct link *link = mem_alloc(sizeof *link);
    *link = (struct link){
        .loop = loop,
        .mailbox = mailbox,
        .options = options,
        .id = id,
        .memory_bytes = memory_bytes,
        .callbacks = *callbacks,
        .address =
            options->address ? mem_strdup(options->address) : find_address(options->coordinator),
        .runtime = runtime,
        .channel = channel,
        .handles_open = 2,
    };
    uv_timer_init(loop, &link->heartbeat);
    uv_timer_init(loop, &link->reconnect);
    link->heartbeat.data = link->reconnect.data = link;
    pthread_mutex_init(&link->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&link->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    open_stream(link);
    *out = link;
    return NULL;
}

static void finish_close(struct link *link)
{
    void (*closed)(void *user) = link->closed;
    void *user = link->closed_user;
    pthread_cond_destroy(&link->changed);
    pthread_mutex_destroy(&link->lock);
    free(link->address);
    free(link);
    if (closed != NULL) closed(user);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct link *link = handle->data;
    if (--link->handles_open == 0) finish_close(link);
}

static void on_runtime_closed(void *user)
{
    struct link *link = user;
    uv_close((uv_handle_t *)&link->heartbeat, on_timer_closed);
    uv_close((uv_handle_t *)&link->reconnect, on_timer_closed);
}

static void on_channel_closed(void *user)
{
    struct link *link = user;
    rpc_runtime_close(link->runtime, on_runtime_closed, link);
}

static void close_channel(struct link *link)
{
    if (link->channel_closing) return;
    link->channel_closing = true;
    uv_timer_stop(&link->reconnect);
    rpc_channel_close(link->channel, on_channel_closed, link);
}

static void on_flush_timeout(uv_timer_t *timer)
{
    close_channel(timer->data);
}

void link_close(struct link *link, void (*closed)(void *user), void *user)
{
    link->closing = true;
    link->closed = closed;
    link->closed_user = user;
    uv_timer_stop(&link->heartbeat);
    uv_timer_stop(&link->reconnect);
    if (link->stream == NULL) {
        close_channel(link);
        return;
    }
    /* A stream that is cut off may lose what was said last; one that ends well does not. */
    rpc_stream_finish_sending(link->stream);
    uv_timer_start(&link->reconnect, on_flush_timeout, FLUSH_MS, 0);
}

const char *link_address(const struct link *link)
{
    return link->address;
}

/* Waiting. */

void link_close_gate(struct link *link, struct gate *gate, const char *why)
{
    pthread_mutex_lock(&link->lock);
    if (gate->closed == NULL) gate->closed = mem_strdup(why);
    pthread_cond_broadcast(&link->changed);
    pthread_mutex_unlock(&link->lock);
}

void gate_deinit(struct gate *gate)
{
    free(gate->closed);
    *gate = (struct gate){0};
}

bool link_wait(struct link *link, const struct gate *gate, const bool *done)
{
    while (!*done && gate->closed == NULL) pthread_cond_wait(&link->changed, &link->lock);
    return *done;
}

/* One call to the rendezvous store. Made by the waiter; freed by whoever leaves last. */
struct store_call {
    struct link *link;
    bool is_get;
    Fsdpd__V1__StoreSetRequest set;
    Fsdpd__V1__StoreGetRequest get;
    bool done, abandoned; /* guarded by link->lock */
    status_t status;
    uint8_t *value;
    size_t size;
};

static void store_call_free(struct store_call *call)
{
    free(call->set.store);
    free(call->set.key);
    free(call->set.value.data);
    free(call->get.store);
    free(call->get.key);
    free(call->value);
    free(call);
}

static void on_store_answer(status_t status, const ProtobufCMessage *response, void *user)
{
    struct store_call *call = user;
    struct link *link = call->link;
    pthread_mutex_lock(&link->lock);
    bool abandoned = call->abandoned;
    if (!abandoned) {
        call->done = true;
        call->status = status;
        if (status == NULL && call->is_get) {
            const Fsdpd__V1__StoreGetResponse *answer =
                (const Fsdpd__V1__StoreGetResponse *)response;
            call->size = answer->value.len;
            call->value = mem_dup(answer->value.data, answer->value.len);
        }
        pthread_cond_broadcast(&link->changed);
    }
    pthread_mutex_unlock(&link->lock);
    if (abandoned) {
        status_free(status);
        store_call_free(call);
    }
}

static void start_store_call(void *argument)
{
    struct store_call *call = argument;
    if (call->is_get) /* the server answers at its own timeout; a margin lets that answer arrive */
        rpc_channel_call(call->link->channel, &worker_method_store_get, &call->get.base,
                         (int64_t)call->get.timeout_ms + STORE_SET_MS, false, on_store_answer,
                         call);
    else
        rpc_channel_call(call->link->channel, &worker_method_store_set, &call->set.base,
                         STORE_SET_MS, false, on_store_answer, call);
}

/* On true the call is the caller's again; on false it was left to the loop's thread. */
static bool store_call_run(struct store_call *call, struct gate *gate, status_t *status)
{
    struct link *link = call->link;
    mailbox_post(link->mailbox, start_store_call, call);
    pthread_mutex_lock(&link->lock);
    bool done = link_wait(link, gate, &call->done);
    *status = done ? call->status : status_new(STATUS_ABORTED, "%s", gate->closed);
    if (!done) call->abandoned = true;
    pthread_mutex_unlock(&link->lock);
    return done;
}

status_t link_store_set(struct link *link, struct gate *gate, const char *store, const char *key,
                        const void *value, size_t size)
{
    struct store_call *call = mem_alloc(sizeof *call);
    call->link = link;
    fsdpd__v1__store_set_request__init(&call->set);
    fsdpd__v1__store_get_request__init(&call->get);
    call->get.store = call->get.key = NULL;
    call->set.store = mem_strdup(store);
    call->set.key = mem_strdup(key);
    call->set.value.data = mem_dup(value, size);
    call->set.value.len = size;
    status_t status;
    if (store_call_run(call, gate, &status)) store_call_free(call);
    return status_wrap(status, "rendezvous: setting %s", key);
}

status_t link_store_get(struct link *link, struct gate *gate, const char *store, const char *key,
                        int64_t timeout_ms, void **value, size_t *size)
{
    struct store_call *call = mem_alloc(sizeof *call);
    call->link = link;
    call->is_get = true;
    fsdpd__v1__store_set_request__init(&call->set);
    fsdpd__v1__store_get_request__init(&call->get);
    call->set.store = call->set.key = NULL;
    call->get.store = mem_strdup(store);
    call->get.key = mem_strdup(key);
    call->get.timeout_ms = (uint32_t)timeout_ms;
    status_t status;
    bool done = store_call_run(call, gate, &status);
    if (status == NULL) {
        *value = call->value;
        *size = call->size;
        call->value = NULL;
    }
    if (done) store_call_free(call);
    return status_wrap(status, "rendezvous: waiting for %s", key);
}
