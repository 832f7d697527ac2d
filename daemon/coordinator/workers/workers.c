/* Attached workers; see workers.h. A worker lives as long as its link; the link's handler
 * (attach.c) holds a pointer to it, which worker_lose clears through the call's user pointer. */
#include "coordinator/workers/workers.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "config.h"
#include "coordinator/workers/drains.h"
#include "coordinator/workers/supervisor.h"

struct worker *workers_find(struct coordinator *c, const char *id)
{
    for (int i = 0; i < c->worker_count; i++)
        if (strcmp(c->workers[i]->id, id) == 0) return c->workers[i];
    return NULL;
}

bool worker_is_kind(const char *device, const char *kind)
{
    size_t length = strcspn(device, ":");
    return strlen(kind) == length && strncmp(device, kind, length) == 0;
}

bool worker_shares_host(const struct worker *worker, const struct worker *other)
{
    size_t length = strcspn(worker->device, ":");
    return length == strcspn(other->device, ":") &&
           strncmp(worker->device, other->device, length) == 0 &&
           strcmp(worker->host, other->host) == 0;
}

bool worker_shares_memory(const struct worker *worker, const struct worker *other)
{
    if (!worker_shares_host(worker, other)) return false;
    return worker_is_kind(worker->device, "cpu") || strcmp(worker->device, other->device) == 0;
}

static int count_sharers(const struct worker *worker,
                         bool (*share)(const struct worker *worker, const struct worker *other))
{
    const struct coordinator *c = worker->c;
    int count = 0;
    for (int i = 0; i < c->worker_count; i++)
        count +=
            share(worker, c->workers[i]) && (!c->workers[i]->drained || c->workers[i] == worker);
    return count;
}

int worker_sharers(const struct worker *worker)
{
    return count_sharers(worker, worker_shares_memory);
}

int worker_host_workers(const struct worker *worker)
{
    return count_sharers(worker, worker_shares_host);
}

bool workers_must_share(const struct coordinator *c, const char *kind, int count)
{
    int owners = 0, sharers = 0;
    for (int i = 0; i < c->worker_count; i++) {
        const struct worker *worker = c->workers[i];
        if (worker->drained || !worker_is_kind(worker->device, kind)) continue;
        owners += !worker->shares_device;
        sharers += worker->shares_device;
    }
    return sharers > 0 && owners < count;
}

/* Two workers on one device would compete for its memory, and NCCL rejects them. */
static status_t check_device(const struct coordinator *c, const struct worker *worker)
{
    for (int i = 0; i < c->worker_count; i++) {
        const struct worker *other = c->workers[i];
        if (worker_is_kind(worker->device, "cpu") || !worker_shares_memory(worker, other)) continue;
        if (worker->shares_device && other->shares_device) continue;
        return status_new(STATUS_ALREADY_EXISTS,
                          "worker %s requests %s of host %s, which worker %s uses: to share a "
                          "device, start both workers with --share-device",
                          worker->id, worker->device, worker->host, other->id);
    }
    return NULL;
}

static void worker_free(struct worker *worker)
{
    free(worker->job);
    message_free(worker->kept);
    free(worker->id);
    free(worker->device);
    free(worker->version);
    free(worker->address);
    free(worker->host);
    free(worker->make);
    free(worker);
}

/* Non-empty, short, printable and without spaces: it appears in logs and messages. */
static status_t check_text(const char *what, const char *text)
{
    size_t length = strlen(text);
    bool plain = length > 0 && length <= 128;
    for (const char *s = text; *s; s++)
        if (*s <= ' ' || *s >= 0x7f) plain = false;
    if (plain) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "Hello.%s must be 1 to 128 printable characters without spaces", what);
}

/* One printable line. */
static bool is_make(const char *text)
{
    for (const char *s = text; *s; s++)
        if (*s < ' ' || *s >= 0x7f) return false;
    return strlen(text) <= 1024;
}

status_t workers_add(struct coordinator *c, struct rpc_call *link, const Fsdpd__V1__Hello *hello,
                     bool wanted, struct worker **out)
{
    TRY(check_text("id", hello->id));
    TRY(check_text("device", hello->device));
    TRY(check_text("version", hello->version));
    if (hello->address[0] != '\0') TRY(check_text("address", hello->address));
    if (hello->host[0] != '\0') TRY(check_text("host", hello->host));
    bool same = strcmp(hello->version, PACKAGE_VERSION) == 0;
    if (!same && !(hello->protocol == FSDPD__V1__HELLO__PROTOCOL__PROTOCOL_CURRENT && wanted))
        return status_new(STATUS_FAILED_PRECONDITION,
                          "worker %s is fsdpd %s, the coordinator is %s: they must be the same",
                          hello->id, hello->version, PACKAGE_VERSION);
    struct worker *old = workers_find(c, hello->id);
    if (old != NULL && old->pid == hello->pid) {
        worker_lose(old, "was lost: it opened another link", false);
        old = NULL;
    }
    if (old != NULL)
        return status_new(STATUS_ALREADY_EXISTS, "a worker %s is attached already", hello->id);
    if (c->worker_count >= 4096)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "%d workers are attached, which is the limit",
                          c->worker_count);

    struct worker *worker = mem_alloc(sizeof *worker);
    *worker = (struct worker){.c = c,
                              .link = link,
                              .id = mem_strdup(hello->id),
                              .device = mem_strdup(hello->device),
                              .version = mem_strdup(hello->version),
                              .address = mem_strdup(hello->address),
                              .host = hello->host[0] != '\0'
                                          ? mem_strdup(hello->host)
                                          : mem_strndup(hello->id, strcspn(hello->id, "/")),
                              .make = mem_strdup(is_make(hello->make) ? hello->make : ""),
                              .shares_device =
                                  hello->shares_device && !worker_is_kind(hello->device, "cpu"),
                              .memory_bytes = hello->memory_bytes,
                              .pid = hello->pid,
                              .attached_ms = clock_wall_ms(),
                              .heard_at = coordinator_now(),
                              .idle_from = coordinator_now(),
                              .rank = -1};
    status_t status = check_device(c, worker);
    if (status != NULL) {
        worker_free(worker);
        return status;
    }
    worker->drained = drains_find(c, worker->id, worker->host) != NULL;
    worker->obsolete = !same;
    worker->supervised = supervisor_has_child(c, hello->id, hello->pid);
    MEM_GROW(c->workers, c->worker_count, c->worker_capacity);
    c->workers[c->worker_count++] = worker;
    queue_changed(c);
    log_event(LOG_INFO, "worker_attached", "worker=%s device=%s pid=%lld supervised=%d", worker->id,
              worker->device, (long long)worker->pid, worker->supervised);
    *out = worker;
    return NULL;
}

void worker_assign(struct worker *worker, const char *job, uint32_t attempt, int rank)
{
    free(worker->job);
    worker->job = mem_strdup(job);
    worker->attempt = attempt;
    worker->rank = rank;
    worker->stop_at = 0;
    message_free(worker->kept); /* it reports what it keeps when the attempt ends */
    worker->kept = NULL;
}

void worker_set_idle(struct worker *worker)
{
    free(worker->job);
    worker->job = NULL;
    worker->attempt = 0;
    worker->rank = -1;
    worker->stop_at = 0;
    worker->idle_from = coordinator_now();
    queue_changed(worker->c);
    if (worker->obsolete) worker_drain(worker);
}

void workers_apply_drains(struct coordinator *c)
{
    for (int i = 0; i < c->worker_count; i++) {
        struct worker *worker = c->workers[i];
        worker->drained = worker->leaves || drains_find(c, worker->id, worker->host) != NULL;
    }
    queue_changed(c);
}

void worker_leaves(struct worker *worker)
{
    worker->leaves = worker->drained = true;
    queue_changed(worker->c);
}

void worker_drain(struct worker *worker)
{
    Fsdpd__V1__Drain drain = FSDPD__V1__DRAIN__INIT;
    worker_send(worker, FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_DRAIN, &drain);
}

void worker_send(struct worker *worker, Fsdpd__V1__CoordinatorMessage__MessageCase kind,
                 const void *body)
{
    Fsdpd__V1__CoordinatorMessage message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    message.message_case = kind;
    message.ack = (Fsdpd__V1__Ack *)body; /* the place of every kind's body */
    rpc_call_send(worker->link, &message.base);
}

void worker_release(struct worker *worker, const char *job, uint32_t attempt)
{
    Fsdpd__V1__Release release = FSDPD__V1__RELEASE__INIT;
    release.job = (char *)job;
    release.attempt = attempt;
    worker_send(worker, FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_RELEASE, &release);
}

void worker_stop_by(struct worker *worker, int milliseconds)
{
    if (worker->stop_at != 0) return;
    worker->stop_from = coordinator_now();
    worker->stop_at = worker->stop_from + milliseconds;
    coordinator_tick_soon(worker->c);
}

void worker_lose(struct worker *worker, const char *how, bool certain)
{
    struct coordinator *c = worker->c;
    for (int i = 0; i < c->worker_count; i++)
        if (c->workers[i] == worker) LIST_REMOVE(c->workers, c->worker_count, i);
    queue_changed(c);
    AUTO_FREE char *quoted = log_quote(how);
    log_event(c->draining ? LOG_INFO : LOG_WARNING, "worker_lost", "worker=%s pid=%lld how=%s",
              worker->id, (long long)worker->pid, quoted);

    if (worker->link != NULL) {
        rpc_call_set_user(worker->link, NULL);
        rpc_call_finish(worker->link,
                        status_new(STATUS_UNAVAILABLE, "worker %s %s", worker->id, how));
    }
    c->users->lost(worker, how, certain);
    worker_free(worker);
}

static void enforce(struct worker *worker, int64_t now)
{
    struct coordinator *c = worker->c;
    int silence = c->options.limits.silence_ms;
    bool stuck = worker->stop_at != 0 && now >= worker->stop_at;
    bool silent = now - worker->heard_at > silence;
    if (!stuck && !silent) return;
    if (stuck) worker->overdue = true;
    AUTO_FREE char *why =
        silent ? mem_printf("it was silent for %.1f s", (double)(now - worker->heard_at) / 1000.0)
               : mem_printf("it did not stop within %.1f s of the order to",
                            (double)(now - worker->stop_from) / 1000.0);
    if (worker->supervised && !worker->killed) {
        /* The supervisor reports its exit and starts another one. */
        log_event(LOG_WARNING, "worker_killed", "worker=%s pid=%lld why=\"%s\"", worker->id,
                  (long long)worker->pid, why);
        worker->killed = true;
        supervisor_kill(c, worker->pid, why);
    }
    if (!worker->supervised || !stuck) {
        AUTO_FREE char *how =
            mem_printf("was lost: %s%s", why, worker->supervised ? ", so fsdpd killed it" : "");
        worker_lose(worker, how, stuck);
    }
}

void workers_tick(struct coordinator *c)
{
    int64_t now = coordinator_now();
    for (int i = c->worker_count - 1; i >= 0; i--) enforce(c->workers[i], now); /* may lose it */
}
