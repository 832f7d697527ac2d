/* Supervision of local workers; see supervisor.h. On the loop's thread. */
#include "coordinator/supervisor.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/attempt.h"
#include "coordinator/queue.h"

enum { BACKOFF_FIRST_MS = 100, BACKOFF_MAX_MS = 30000, STEADY_MS = 10000 };

struct slot;

/* One process; outlives its slot's interest in it until libuv has closed the handle. */
struct child {
    uv_process_t process;
    struct coordinator *c;
    struct slot *slot;
};

struct slot {
    char *id;            /* "<host>/cpu:0" */
    struct child *child; /* NULL while none runs */
    int64_t started_at, start_at;
    int backoff_ms;
    uint32_t starts;
};

struct supervisor {
    struct slot *slots;
    int count;
    int closing; /* handles that libuv has not closed yet */
    bool stopping;
    int64_t kill_at;
};

static int processor_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

static void report_stopped(struct coordinator *c)
{
    struct supervisor *supervisor = c->supervisor;
    if (!supervisor->stopping || supervisor->closing > 0) return;
    for (int i = 0; i < supervisor->count; i++)
        if (supervisor->slots[i].child != NULL) return;
    if (!c->supervisor_gone) coordinator_supervisor_gone(c);
}

static void on_child_closed(uv_handle_t *handle)
{
    struct child *child = (struct child *)handle;
    struct coordinator *c = child->c;
    free(child);
    c->supervisor->closing--;
    report_stopped(c);
}

static char *describe_exit(int64_t status, int signal_number)
{
    const char *name = sigabbrev_np(signal_number);
    if (signal_number == 0) return mem_printf("exited with status %lld", (long long)status);
    if (name == NULL) return mem_printf("was killed by signal %d", signal_number);
    return mem_printf("was killed by signal %d (SIG%s)", signal_number, name);
}

static void on_exit_of_child(uv_process_t *process, int64_t status, int signal_number)
{
    struct child *child = (struct child *)process;
    struct coordinator *c = child->c;
    struct slot *slot = child->slot;
    int64_t pid = process->pid;
    slot->child = NULL;
    if (coordinator_now() - slot->started_at >= STEADY_MS) slot->backoff_ms = BACKOFF_FIRST_MS;
    slot->start_at = coordinator_now() + slot->backoff_ms;
    char *how = describe_exit(status, signal_number);
    char *quoted = log_quote(how);
    log_event(c->supervisor->stopping ? LOG_INFO : LOG_WARNING, "worker_exited",
              "worker=%s pid=%lld how=%s", slot->id, (long long)pid, quoted);
    free(quoted);
    c->supervisor->closing++;
    uv_close((uv_handle_t *)process, on_child_closed);
    coordinator_hurry(c);

    struct worker *worker = workers_find(c, slot->id);
    if (worker != NULL && worker->pid == pid) worker_lose(worker, how, true);
    else attempt_process_exited(c, pid, how);
    free(how);
    queue_place(c);
}

/* Flags in pairs, then singles; the strings live until uv_spawn has returned. */
static int build_arguments(struct coordinator *c, struct slot *slot, const char *threads,
                           const char **arguments)
{
    const struct coordinator_options *options = &c->options;
    int count = 0;
    arguments[count++] = options->program;
    arguments[count++] = "worker";
    arguments[count++] = "--supervised";
    arguments[count++] = "--device";
    arguments[count++] = options->local_device;
    arguments[count++] = "--coordinator";
    arguments[count++] = c->address;
    arguments[count++] = "--id";
    arguments[count++] = slot->id;
    arguments[count++] = "--threads";
    arguments[count++] = threads;
    if (options->log_level != NULL) {
        arguments[count++] = "--log-level";
        arguments[count++] = options->log_level;
    }
    for (int i = 0; i < options->data_root_count; i++) {
        arguments[count++] = "--data-root";
        arguments[count++] = options->data_roots[i];
    }
    arguments[count] = NULL;
    return count;
}

static void start_child(struct coordinator *c, struct slot *slot)
{
    int share = c->options.worker_threads;
    if (share <= 0) share = processor_count() / c->options.local_workers;
    if (share < 1) share = 1;
    char *threads = mem_printf("%d", share);
    const char *arguments[16 + 2 * COORDINATOR_DATA_ROOTS_MAX];
    build_arguments(c, slot, threads, arguments);

    struct child *child = mem_alloc(sizeof *child);
    child->c = c;
    child->slot = slot;
    uv_stdio_container_t stdio[3] = {
        {.flags = UV_IGNORE},
        {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO},
        {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO},
    };
    uv_process_options_t options = {
        .file = c->options.program,
        .args = (char **)arguments,
        .stdio = stdio,
        .stdio_count = 3,
        .flags = UV_PROCESS_DETACHED,
        .exit_cb = on_exit_of_child,
    };
    int error = uv_spawn(c->loop, &child->process, &options);
    free(threads);
    slot->started_at = coordinator_now();
    slot->backoff_ms =
        slot->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : slot->backoff_ms * 2;
    if (error != 0) {
        log_event(LOG_ERROR, "worker_start_failed", "worker=%s program=%s error=%s", slot->id,
                  c->options.program, uv_err_name(error));
        slot->start_at = coordinator_now() + slot->backoff_ms;
        c->supervisor->closing++;
        uv_close((uv_handle_t *)&child->process, on_child_closed);
        return;
    }
    slot->child = child;
    slot->starts++;
    log_event(LOG_INFO, "worker_started", "worker=%s pid=%d starts=%u", slot->id,
              (int)child->process.pid, slot->starts);
}

void supervisor_start(struct coordinator *c)
{
    struct supervisor *supervisor = mem_alloc(sizeof *supervisor);
    c->supervisor = supervisor;
    supervisor->count = c->options.local_workers;
    supervisor->slots = mem_alloc_array((size_t)supervisor->count, sizeof *supervisor->slots);
    char host[65] = "";
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') strcpy(host, "localhost");
    for (char *s = host; *s; s++)
        if (*s <= ' ' || *s >= 0x7f || *s == '/') *s = '-';
    for (int i = 0; i < supervisor->count; i++) {
        struct slot *slot = &supervisor->slots[i];
        slot->id = mem_printf("%s/%s:%d", host, c->options.local_device, i);
        slot->backoff_ms = BACKOFF_FIRST_MS;
        start_child(c, slot);
    }
}

bool supervisor_has_child(const struct coordinator *c, const char *id, int64_t pid)
{
    for (int i = 0; c->supervisor != NULL && i < c->supervisor->count; i++) {
        const struct slot *slot = &c->supervisor->slots[i];
        if (slot->child != NULL && slot->child->process.pid == pid && strcmp(slot->id, id) == 0)
            return true;
    }
    return false;
}

int supervisor_starting(const struct coordinator *c)
{
    int count = 0;
    for (int i = 0; c->supervisor != NULL && i < c->supervisor->count; i++)
        count += workers_find((struct coordinator *)c, c->supervisor->slots[i].id) == NULL;
    return count;
}

uint32_t supervisor_restarts(const struct coordinator *c, const char *id)
{
    for (int i = 0; c->supervisor != NULL && i < c->supervisor->count; i++) {
        const struct slot *slot = &c->supervisor->slots[i];
        if (strcmp(slot->id, id) == 0) return slot->starts > 0 ? slot->starts - 1 : 0;
    }
    return 0;
}

void supervisor_each_starting(struct coordinator *c,
                              void (*visit)(void *user, const char *id, int64_t pid,
                                            uint32_t restarts),
                              void *user)
{
    for (int i = 0; c->supervisor != NULL && i < c->supervisor->count; i++) {
        const struct slot *slot = &c->supervisor->slots[i];
        if (workers_find(c, slot->id) != NULL) continue;
        visit(user, slot->id, slot->child != NULL ? slot->child->process.pid : 0,
              slot->starts > 0 ? slot->starts - 1 : 0);
    }
}

void supervisor_each_slot(const struct coordinator *c,
                          void (*visit)(void *user, const char *id, uint32_t restarts), void *user)
{
    for (int i = 0; c->supervisor != NULL && i < c->supervisor->count; i++) {
        const struct slot *slot = &c->supervisor->slots[i];
        visit(user, slot->id, slot->starts > 0 ? slot->starts - 1 : 0);
    }
}

void supervisor_kill(struct coordinator *c, int64_t pid)
{
    for (int i = 0; c->supervisor != NULL && i < c->supervisor->count; i++) {
        struct slot *slot = &c->supervisor->slots[i];
        if (slot->child != NULL && slot->child->process.pid == pid)
            uv_process_kill(&slot->child->process, SIGKILL);
    }
}

void supervisor_tick(struct coordinator *c)
{
    struct supervisor *supervisor = c->supervisor;
    if (supervisor == NULL) return;
    int64_t now = coordinator_now();
    if (supervisor->stopping) {
        if (supervisor->kill_at != 0 && now >= supervisor->kill_at) {
            supervisor->kill_at = 0;
            supervisor_kill_all(c);
        }
        return;
    }
    for (int i = 0; i < supervisor->count; i++) {
        struct slot *slot = &supervisor->slots[i];
        if (slot->child != NULL) continue;
        if (now >= slot->start_at) start_child(c, slot);
        else if (slot->start_at - now < 1000) coordinator_hurry(c);
    }
}

void supervisor_stop(struct coordinator *c)
{
    struct supervisor *supervisor = c->supervisor;
    if (supervisor == NULL) {
        if (!c->supervisor_gone) coordinator_supervisor_gone(c);
        return;
    }
    if (supervisor->stopping) return;
    supervisor->stopping = true;
    supervisor->kill_at = coordinator_now() + c->options.limits.stop_ms;
    for (int i = 0; i < supervisor->count; i++) {
        struct slot *slot = &supervisor->slots[i];
        if (slot->child == NULL) continue;
        struct worker *worker = workers_find(c, slot->id);
        if (worker == NULL || worker->pid != slot->child->process.pid) {
            uv_process_kill(&slot->child->process, SIGTERM);
            continue;
        }
        Fsdpd__V1__Drain drain = FSDPD__V1__DRAIN__INIT;
        Fsdpd__V1__CoordinatorMessage message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
        message.message_case = FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_DRAIN;
        message.drain = &drain;
        worker_send(worker, &message);
    }
    coordinator_hurry(c);
    report_stopped(c);
}

void supervisor_kill_all(struct coordinator *c)
{
    for (int i = 0; c->supervisor != NULL && i < c->supervisor->count; i++) {
        struct slot *slot = &c->supervisor->slots[i];
        if (slot->child != NULL) uv_process_kill(&slot->child->process, SIGKILL);
    }
}

void supervisor_free(struct coordinator *c)
{
    struct supervisor *supervisor = c->supervisor;
    if (supervisor == NULL) return;
    for (int i = 0; i < supervisor->count; i++) free(supervisor->slots[i].id);
    free(supervisor->slots);
    free(supervisor);
    c->supervisor = NULL;
}
