/*
 * The link; see link.h. The channel, the streams and the timers belong to the loop's thread. The
 * state that other threads wait for (answers, uploads' progress, gates) is guarded by one lock with
 * one condition: there are at most a few waiters, and each knows its own state. The rendezvous
 * store's calls are in link_store.c.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/switches.h"
#include "config.h"
#include "fsdpd/v1/methods.h"
#include "proto/message.h"
#include "worker/link_internal.h"

enum { RETRY_FIRST_MS = 200, RETRY_MAX_MS = 5000, FLUSH_MS = 1000 };

static void open_stream(struct link *link);
static void close_channel(struct link *link);

static int64_t now_ms(void)
{
    return clock_monotonic_ns() / 1000000;
}

/* Sending. */

static void send_message(struct link *link, const Fsdpd__V1__WorkerMessage *message)
{
    MUST_OWN(&link->owner);
    if (link->stream != NULL) rpc_stream_send(link->stream, &message->base);
}

struct posted_message {
    struct link *link;
    Fsdpd__V1__WorkerMessage *message;
};

static void send_posted(void *argument)
{
    struct posted_message *posted = argument;
    struct link *link = posted->link;
    Fsdpd__V1__WorkerMessage *message = posted->message;
    bool kept = false;
    if (message->message_case == FSDPD__V1__WORKER_MESSAGE__MESSAGE_EVENT)
        outbox_add(&link->outbox, message, &kept);
    if (link->welcome) send_message(link, message);
    if (!kept) fsdpd__v1__worker_message__free_unpacked(message, NULL);
    free(posted);
}

void link_post(struct link *link, Fsdpd__V1__WorkerMessage *message)
{
    struct posted_message *posted = mem_alloc(sizeof *posted);
    *posted = (struct posted_message){link, message};
    mailbox_post(link->mailbox, send_posted, posted);
}

void link_post_leave(struct link *link)
{
    Fsdpd__V1__WorkerMessage *message = MESSAGE_NEW(message, fsdpd__v1__worker_message__init);
    message->message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_LEAVE;
    message->leave = MESSAGE_NEW(message->leave, fsdpd__v1__leave__init);
    link_post(link, message);
}

void link_post_event(struct link *link, const char *job, uint32_t attempt,
                     Fsdpd__V1__AttemptEvent *event)
{
    event->job = mem_strdup(job);
    event->attempt = attempt;
    Fsdpd__V1__WorkerMessage *message = MESSAGE_NEW(message, fsdpd__v1__worker_message__init);
    message->message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_EVENT;
    message->event = event;
    link_post(link, message);
}

struct posted_question {
    struct link *link;
    const char *job;
    uint32_t attempt;
    uint64_t step;
    struct buf *out;
    bool done; /* guarded by the link's lock */
};

static void answer_question(void *argument)
{
    struct posted_question *question = argument;
    struct link *link = question->link;
    outbox_pack_metrics(&link->outbox, question->job, question->attempt, question->step,
                        question->out);
    pthread_mutex_lock(&link->lock);
    question->done = true;
    pthread_cond_broadcast(&link->changed);
    pthread_mutex_unlock(&link->lock);
}

void link_pack_unrecorded(struct link *link, const char *job, uint32_t attempt, uint64_t step,
                          struct buf *out)
{
    struct posted_question question = {link, job, attempt, step, out, false};
    mailbox_post(link->mailbox, answer_question, &question);
    pthread_mutex_lock(&link->lock);
    while (!question.done) pthread_cond_wait(&link->changed, &link->lock);
    pthread_mutex_unlock(&link->lock);
}

static Fsdpd__V1__HeldAttempt *add_attempt(Fsdpd__V1__Hello *hello)
{
    hello->attempts =
        mem_resize_array(hello->attempts, hello->n_attempts + 1, sizeof *hello->attempts);
    Fsdpd__V1__HeldAttempt *held = MESSAGE_NEW(held, fsdpd__v1__held_attempt__init);
    return hello->attempts[hello->n_attempts++] = held;
}

/* The attempt that runs, and those that have ended without the coordinator's knowledge. */
static void add_attempts(struct link *link, Fsdpd__V1__Hello *hello)
{
    Fsdpd__V1__HeldAttempt *running = add_attempt(hello);
    if (!link->callbacks.held(link->callbacks.user, running)) {
        fsdpd__v1__held_attempt__free_unpacked(running, NULL);
        running = NULL;
        hello->n_attempts = 0;
    }
    const Fsdpd__V1__AttemptEvent *event;
    for (int position = 0; (event = outbox_next_attempt(&link->outbox, &position)) != NULL;) {
        if (running != NULL && running->attempt == event->attempt &&
            strcmp(running->job, event->job) == 0)
            continue;
        Fsdpd__V1__HeldAttempt *held = add_attempt(hello);
        held->job = mem_strdup(event->job);
        held->attempt = event->attempt;
    }
}

static void send_hello(struct link *link)
{
    Fsdpd__V1__Hello *hello = MESSAGE_NEW(hello, fsdpd__v1__hello__init);
    hello->id = mem_strdup(link->self.id);
    hello->device = mem_strdup(link->options->device);
    hello->version = mem_strdup(PACKAGE_VERSION);
    hello->memory_bytes = link->self.memory_bytes;
    hello->make = mem_strdup(link->self.make);
    hello->pid = getpid();
    hello->address = mem_strdup(link->address);
    char host[HOST_NAME_SIZE];
    hello->host = mem_strdup(host_name(host));
    hello->protocol = FSDPD__V1__HELLO__PROTOCOL__PROTOCOL_CURRENT;
    hello->shares_device = link->options->share_device;
    add_attempts(link, hello);
    hello->kept = link->callbacks.kept(link->callbacks.user);
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_HELLO;
    message.hello = hello;
    send_message(link, &message);
    fsdpd__v1__hello__free_unpacked(hello, NULL);
}

static void on_heartbeat(uv_timer_t *timer)
{
    struct link *link = timer->data;
    if (link->silence_ms > 0 && now_ms() - link->heard_at > link->silence_ms) {
        rpc_stream_cancel(link->stream); /* on_stream_closed follows */
        uv_timer_stop(timer);
        return;
    }
    Fsdpd__V1__Heartbeat heartbeat = FSDPD__V1__HEARTBEAT__INIT;
    link->callbacks.beat(link->callbacks.user, &heartbeat);
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_HEARTBEAT;
    message.heartbeat = &heartbeat;
    send_message(link, &message);
}

/* Receiving. */

static void set_attached(struct link *link, bool attached)
{
    link->welcome = attached;
    pthread_mutex_lock(&link->lock);
    link->attached = attached;
    pthread_cond_broadcast(&link->changed);
    pthread_mutex_unlock(&link->lock);
}

static void on_welcome(struct link *link, const Fsdpd__V1__Welcome *welcome)
{
    int64_t away_ms = link->lost_at != 0 ? now_ms() - link->lost_at : 0;
    if (link->outbox.count > 0 || away_ms >= 1000)
        log_event(LOG_INFO, "coordinator_found", "away_seconds=%.1f reports=%d", away_ms / 1000.0,
                  link->outbox.count);
    link->lost_at = 0;
    link->retry_ms = RETRY_FIRST_MS;
    link->silence_ms = (int)welcome->silence_ms;
    if (welcome->heartbeat_ms > 0)
        uv_timer_start(&link->heartbeat, on_heartbeat, welcome->heartbeat_ms,
                       welcome->heartbeat_ms);
    set_attached(link, true);
    for (int i = 0; i < link->outbox.count; i++) send_message(link, link->outbox.messages[i]);
    link_store_repeat(link);
}

static void on_release(struct link *link, const Fsdpd__V1__Release *release)
{
    outbox_acknowledge(&link->outbox, release->job, release->attempt, UINT64_MAX);
    link->callbacks.on_release(link->callbacks.user, release);
}

/* For tests on a host with one GPU: NCCL accepts a device twice if NCCL_HOSTID differs. Set it for
 * all workers of a job. */
static bool uses_nccl_anyway(void)
{
    return switch_is("FSDPD_CUDA_SHARED", "nccl");
}

static void on_message(struct rpc_stream *stream, const ProtobufCMessage *base, void *user)
{
    struct link *link = user;
    const struct link_callbacks *callbacks = &link->callbacks;
    Fsdpd__V1__CoordinatorMessage *message = (Fsdpd__V1__CoordinatorMessage *)base;
    if (link->closing) { /* nothing is left to act on it */
        if (link->stream == stream) rpc_stream_read(stream);
        return;
    }
    link->heard_at = now_ms();
    switch (message->message_case) {
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_WELCOME: on_welcome(link, message->welcome); break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ACK:
        outbox_acknowledge(&link->outbox, message->ack->job, message->ack->attempt,
                           message->ack->report);
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_RELEASE: on_release(link, message->release); break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_PLAN:
        message->plan->staged = message->plan->staged && !uses_nccl_anyway();
        callbacks->on_plan(callbacks->user, message->plan);
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_PLAN_CANCELLATION:
        callbacks->on_plan_cancelled(callbacks->user, message->plan_cancellation->request);
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ASSIGNMENT:
        message->assignment->staged = message->assignment->staged && !uses_nccl_anyway();
        callbacks->on_assignment(callbacks->user, message->assignment);
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ORDER:
        callbacks->on_order(callbacks->user, message->order);
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_DIAGNOSIS:
        callbacks->on_diagnosis(callbacks->user, message->diagnosis);
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_CALIBRATION:
        callbacks->on_calibration(callbacks->user, message->calibration);
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_PROBE:
        callbacks->on_probe(callbacks->user, message->probe);
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_DRAIN: callbacks->on_drain(callbacks->user); break;
    default: break; /* from a newer coordinator: additive, so not for us */
    }
    if (link->stream == stream) rpc_stream_read(stream);
}

static void on_reconnect(uv_timer_t *timer)
{
    struct link *link = timer->data;
    int64_t away_ms = now_ms() - link->lost_at;
    if (link->options->away_ms > 0 && away_ms >= link->options->away_ms)
        link->callbacks.on_away(link->callbacks.user, away_ms);
    if (!link->closing) open_stream(link);
}

/* Pauses grow, and differ between workers that lost the same coordinator. */
static void reconnect_later(struct link *link)
{
    int spread = link->retry_ms / 2;
    uint64_t pause =
        (uint64_t)(link->retry_ms - spread / 2 + (int)(uv_hrtime() / 1000 % (unsigned)spread));
    uv_timer_start(&link->reconnect, on_reconnect, pause, 0);
    link->retry_ms = link->retry_ms * 2 < RETRY_MAX_MS ? link->retry_ms * 2 : RETRY_MAX_MS;
}

static void on_stream_closed(struct rpc_stream *stream, status_t status, void *user)
{
    (void)stream;
    struct link *link = user;
    bool welcome = link->welcome;
    link->stream = NULL;
    set_attached(link, false);
    if (link->closing) {
        status_free(status);
        close_channel(link);
        return;
    }
    uv_timer_stop(&link->heartbeat);
    if (link->lost_at == 0) link->lost_at = now_ms();
    reconnect_later(link);
    if (status == NULL) status = status_new(STATUS_UNAVAILABLE, "the coordinator ended the link");
    link->callbacks.on_lost(link->callbacks.user, status, welcome);
}

static void open_stream(struct link *link)
{
    MUST_OWN(&link->owner);
    static const struct rpc_stream_callbacks callbacks = {
        .on_message = on_message,
        .on_closed = on_stream_closed,
    };
    link->stream =
        rpc_stream_open(link->channel, &worker_link_attach, NULL, 0, false, &callbacks, link);
    send_hello(link);
    rpc_stream_read(link->stream);
}

/* Lifecycle. */

/*
 * The local address from which the coordinator is reached: connecting a datagram socket chooses a
 * route without sending anything. Over a Unix socket all processes are on this host.
 */
static char *find_address(const char *coordinator)
{
    const char *fallback = "127.0.0.1";
    if (strncmp(coordinator, "unix:", 5) == 0) return mem_strdup(fallback);
    AUTO_FREE char *host = mem_strdup(coordinator);
    char *colon = strrchr(host, ':');
    if (colon == NULL) return mem_strdup(fallback);
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
    return mem_strdup(text);
}

status_t link_new(uv_loop_t *loop, struct mailbox *mailbox, const struct worker_options *options,
                  const struct link_self *self, const struct link_callbacks *callbacks,
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
        .self = *self,
        .callbacks = *callbacks,
        .address =
            options->address ? mem_strdup(options->address) : find_address(options->coordinator),
        .runtime = runtime,
        .channel = channel,
        .retry_ms = RETRY_FIRST_MS,
        .lost_at = now_ms(),
        .handles_open = 3,
    };
    uv_timer_init(loop, &link->heartbeat);
    uv_timer_init(loop, &link->reconnect);
    uv_timer_init(loop, &link->retry);
    link->heartbeat.data = link->reconnect.data = link->retry.data = link;
    pthread_mutex_init(&link->lock, NULL);
    condition_init(&link->changed);
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
    link_store_deinit(link);
    outbox_deinit(&link->outbox);
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
    uv_close((uv_handle_t *)&link->retry, on_timer_closed);
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
    MUST_OWN(&link->owner);
    link->closing = true;
    link->closed = closed;
    link->closed_user = user;
    uv_timer_stop(&link->heartbeat);
    uv_timer_stop(&link->reconnect);
    uv_timer_stop(&link->retry);
    if (link->stream == NULL) {
        close_channel(link);
        return;
    }
    /* A cancelled stream may lose the last messages; one that ends regularly does not. */
    rpc_stream_finish_sending(link->stream);
    uv_timer_start(&link->reconnect, on_flush_timeout, FLUSH_MS, 0);
}

bool link_has_reports(const struct link *link)
{
    return link->outbox.count > 0;
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

bool link_wait_attached(struct link *link, const struct gate *gate)
{
    pthread_mutex_lock(&link->lock);
    bool attached = link_wait(link, gate, &link->attached);
    pthread_mutex_unlock(&link->lock);
    return attached;
}

bool link_is_attached(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    bool attached = link->attached;
    pthread_mutex_unlock(&link->lock);
    return attached;
}

bool link_pause(struct link *link, const struct gate *gate, int round)
{
    int64_t pause = RETRY_FIRST_MS;
    for (int i = 0; i < round && pause < RETRY_MAX_MS; i++) pause *= 2;
    if (pause > RETRY_MAX_MS) pause = RETRY_MAX_MS;
    int64_t end = clock_monotonic_ns() + pause * 1000000;
    pthread_mutex_lock(&link->lock);
    while (gate->closed == NULL && condition_wait(&link->changed, &link->lock, end)) continue;
    bool open = gate->closed == NULL;
    pthread_mutex_unlock(&link->lock);
    return open;
}

/* ---- mailbox ---- */

struct task {
    struct task *next;
    void (*function)(void *argument);
    void *argument;
};

struct mailbox {
    uv_async_t wake;
    pthread_mutex_t lock;
    struct task *first, **last;
};

static void deliver(struct mailbox *mailbox)
{
    pthread_mutex_lock(&mailbox->lock);
    struct task *task = mailbox->first;
    mailbox->first = NULL;
    mailbox->last = &mailbox->first;
    pthread_mutex_unlock(&mailbox->lock);
    while (task != NULL) {
        struct task *next = task->next;
        task->function(task->argument);
        free(task);
        task = next;
    }
}

static void on_wake(uv_async_t *wake)
{
    deliver(wake->data);
}

status_t mailbox_new(uv_loop_t *loop, struct mailbox **out)
{
    struct mailbox *mailbox = mem_alloc(sizeof *mailbox);
    int error = uv_async_init(loop, &mailbox->wake, on_wake);
    if (error != 0) {
        free(mailbox);
        return status_new(STATUS_INTERNAL, "cannot make a wake-up handle: %s", uv_strerror(error));
    }
    mailbox->wake.data = mailbox;
    mailbox->last = &mailbox->first;
    pthread_mutex_init(&mailbox->lock, NULL);
    *out = mailbox;
    return NULL;
}

void mailbox_post(struct mailbox *mailbox, void (*function)(void *argument), void *argument)
{
    struct task *task = mem_alloc(sizeof *task);
    *task = (struct task){.function = function, .argument = argument};
    pthread_mutex_lock(&mailbox->lock);
    *mailbox->last = task;
    mailbox->last = &task->next;
    uv_async_send(&mailbox->wake); /* under the lock: the handle cannot be closing meanwhile */
    pthread_mutex_unlock(&mailbox->lock);
}

static void on_closed(uv_handle_t *handle)
{
    struct mailbox *mailbox = handle->data;
    pthread_mutex_destroy(&mailbox->lock);
    free(mailbox);
}

void mailbox_close(struct mailbox *mailbox)
{
    deliver(mailbox);
    uv_close((uv_handle_t *)&mailbox->wake, on_closed);
}
