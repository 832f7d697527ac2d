/* Supervision of local workers; see supervisor.h. On the loop's thread. */
#include "coordinator/workers/supervisor.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/host.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/workers/adopted.h"
#include "coordinator/workers/workers.h"

enum { BACKOFF_FIRST_MS = 100, BACKOFF_MAX_MS = 30000, STEADY_MS = 10000 };

/* SIGKILL ends a process at once, unless it is blocked in the kernel (a dead NFS server, a
 * driver). */
enum { ABANDON_MS = 2000 };

struct worker_slot;

/* One process; exists until libuv has closed its handle, even after the slot has released it. */
struct child {
    uv_process_t process;
    struct coordinator *c;
    struct worker_slot *slot;
};

struct worker_slot {
    struct coordinator *c;
    char *id;                /* "<host>/cpu:0" */
    struct child *child;     /* NULL while none runs */
    struct adopted *adopted; /* instead of a child: a process of the previous coordinator */
    int64_t attach_by;       /* when the adopted process must have attached */
    bool extra;              /* surplus: there are fewer slots now, so it is not replaced */
    char *killed;            /* why fsdpd killed the process; NULL: it did not */
    int64_t killed_at;
    bool left;            /* SIGKILL did not end it: nothing waits for it any longer */
    int64_t forsaken_pid; /* pid of a `left` process, unwatched while fsdpd ends; or 0 */
    int64_t started_at, start_at;
    int backoff_ms;
    uint32_t starts;
};

struct supervisor {
    struct worker_slot **slots;
    int count, capacity;
    struct oom_watch *oom;
    int closing; /* handles that libuv has not closed yet */
    bool stopping;
    int64_t kill_at;
};

int supervisor_threads(const struct coordinator *c)
{
    int share = c->options.worker_threads;
    if (share <= 0) share = host_processors() / c->options.local_workers;
    return share < 1 ? 1 : share;
}

/* The pid of the slot's process; 0 if there is none. */
static int64_t slot_pid(const struct worker_slot *slot)
{
    if (slot->child != NULL) return slot->child->process.pid;
    return slot->adopted != NULL ? adopted_pid(slot->adopted) : 0;
}

static void slot_kill(struct worker_slot *slot, int number)
{
    if (slot->child != NULL) uv_process_kill(&slot->child->process, number);
    else if (slot->adopted != NULL) adopted_kill(slot->adopted, number);
}

/* Sends SIGKILL. `why` is the reason that is reported; an earlier reason stays. */
static void slot_end(struct worker_slot *slot, const char *why)
{
    if (slot->killed == NULL && slot_pid(slot) != 0) {
        slot->killed = mem_strdup(why);
        slot->killed_at = coordinator_now();
    }
    slot_kill(slot, SIGKILL);
}

/* Records the processes for the next coordinator. */
static void write_records(struct coordinator *c)
{
    struct supervisor *supervisor = c->supervisor;
    AUTO_FREE struct process_record *records =
        mem_alloc_array((size_t)supervisor->count + 1, sizeof *records);
    int count = 0;
    for (int i = 0; i < supervisor->count; i++) {
        struct worker_slot *slot = supervisor->slots[i];
        int64_t pid = slot->forsaken_pid != 0 ? slot->forsaken_pid : slot_pid(slot);
        if (pid != 0)
            records[count++] = (struct process_record){slot->id, pid, process_started(pid)};
    }
    status_t status = records_write(c, records, count);
    if (status != NULL) log_status(LOG_WARNING, "workers_not_recorded", status);
}

static void report_stopped(struct coordinator *c)
{
    struct supervisor *supervisor = c->supervisor;
    if (!supervisor->stopping || supervisor->closing > 0) return;
    for (int i = 0; i < supervisor->count; i++)
        if (slot_pid(supervisor->slots[i]) != 0) return;
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

/* `signal_number` is -1 for an adopted process: only its parent learns how it ended. */
static char *describe_exit(const struct worker_slot *slot, int64_t status, int signal_number)
{
    struct oom_watch *oom = slot->c->supervisor->oom;
    bool known = signal_number >= 0;
    if (slot->killed != NULL && (signal_number == SIGKILL || !known))
        return mem_printf("was killed by fsdpd (SIGKILL): %s", slot->killed);
    enum oom_verdict verdict =
        signal_number == SIGKILL || !known ? oom_watch_claim(oom, coordinator_now()) : OOM_NO;
    if (verdict == OOM_CERTAIN && known)
        return mem_strdup("was killed by the kernel's OOM killer (SIGKILL): the memory of fsdpd's "
                          "cgroup ran out");
    if (verdict != OOM_NO)
        return mem_printf("%s, most likely by the kernel's OOM killer: %s counted an OOM kill",
                          known ? "was killed by signal 9 (SIGKILL)" : "was killed",
                          verdict == OOM_CERTAIN ? "fsdpd's cgroup" : "the system");
    if (!known)
        return mem_strdup("ended; its exit status is unknown, as a previous fsdpd started it");
    const char *name = sigabbrev_np(signal_number);
    if (signal_number == 0) return mem_printf("exited with status %lld", (long long)status);
    if (name == NULL) return mem_printf("was killed by signal %d", signal_number);
    return mem_printf("was killed by signal %d (SIG%s)", signal_number, name);
}

/* Handles the end of the slot's process. */
static void process_ended(struct coordinator *c, struct worker_slot *slot, int64_t pid,
                          const char *how)
{
    if (coordinator_now() - slot->started_at >= STEADY_MS) slot->backoff_ms = BACKOFF_FIRST_MS;
    slot->start_at = coordinator_now() + slot->backoff_ms;
    free(slot->killed);
    slot->killed = NULL;
    slot->left = false;
    AUTO_FREE char *quoted = log_quote(how);
    log_event(c->supervisor->stopping ? LOG_INFO : LOG_WARNING, "worker_exited",
              "worker=%s pid=%lld how=%s", slot->id, (long long)pid, quoted);
    c->supervisor->closing++;
    coordinator_tick_soon(c);
    write_records(c);

    struct worker *worker = workers_find(c, slot->id);
    if (worker != NULL && worker->pid == pid) worker_lose(worker, how, true);
    else c->users->process_exited(c, slot->id, pid, how);
}

static void on_exit_of_child(uv_process_t *process, int64_t status, int signal_number)
{
    struct child *child = (struct child *)process;
    struct worker_slot *slot = child->slot;
    slot->child = NULL;
    AUTO_FREE char *how = describe_exit(slot, status, signal_number);
    process_ended(child->c, slot, process->pid, how);
    uv_close((uv_handle_t *)process, on_child_closed);
}

static void on_adopted_closed(struct coordinator *c)
{
    c->supervisor->closing--;
    report_stopped(c);
}

static void on_exit_of_adopted(void *user)
{
    struct worker_slot *slot = user;
    struct adopted *adopted = slot->adopted;
    slot->adopted = NULL;
    AUTO_FREE char *how = describe_exit(slot, 0, -1);
    process_ended(slot->c, slot, adopted_pid(adopted), how);
    adopted_free(adopted, on_adopted_closed);
}

/* Builds the argument list; the strings must live until uv_spawn has returned. */
static int build_arguments(struct coordinator *c, struct worker_slot *slot, const char *threads,
                           const char *away, const char **arguments)
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
    arguments[count++] = "--away";
    arguments[count++] = away;
    if (options->log_level != NULL) {
        arguments[count++] = "--log-level";
        arguments[count++] = options->log_level;
    }
    for (int i = 0; i < options->data_root_count; i++) {
        arguments[count++] = "--data-root";
        arguments[count++] = options->data_roots[i];
    }
    for (int i = 0; i < options->family_count; i++) {
        arguments[count++] = "--families";
        arguments[count++] = options->families[i];
    }
    arguments[count] = NULL;
    return count;
}

static void start_child(struct coordinator *c, struct worker_slot *slot)
{
    AUTO_FREE char *threads = mem_printf("%d", supervisor_threads(c));
    AUTO_FREE char *away = mem_printf("%g", c->options.worker_away_ms / 1000.0);
    const char *arguments[18 + 2 * COORDINATOR_DATA_ROOTS_MAX + 2 * COORDINATOR_FAMILIES_MAX];
    build_arguments(c, slot, threads, away, arguments);

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
    write_records(c);
}

static struct worker_slot *add_slot(struct coordinator *c, char *id)
{
    struct supervisor *supervisor = c->supervisor;
    struct worker_slot *slot = mem_alloc(sizeof *slot);
    *slot = (struct worker_slot){.c = c, .id = id, .backoff_ms = BACKOFF_FIRST_MS};
    MEM_GROW(supervisor->slots, supervisor->count, supervisor->capacity);
    return supervisor->slots[supervisor->count++] = slot;
}

static struct worker_slot *find_slot(const struct coordinator *c, const char *id)
{
    for (int i = 0; c->supervisor != NULL && i < c->supervisor->count; i++)
        if (strcmp(c->supervisor->slots[i]->id, id) == 0) return c->supervisor->slots[i];
    return NULL;
}

/* The process trains or is about to end: either way, no other one is started beside it. */
static void adopt(void *user, const struct process_record *record)
{
    struct coordinator *c = user;
    struct worker_slot *slot = find_slot(c, record->id);
    bool extra = slot == NULL;
    if (extra) slot = add_slot(c, mem_strdup(record->id));
    if (slot->adopted != NULL) return;
    slot->extra = extra;
    slot->adopted = adopted_new(c, record->pid, on_exit_of_adopted, slot);
    if (slot->adopted == NULL) return;
    slot->started_at = coordinator_now();
    slot->attach_by = coordinator_now() + c->options.limits.reattach_ms;
    slot->starts = 1;
    log_event(LOG_INFO, "worker_adopted", "worker=%s pid=%lld", slot->id, (long long)record->pid);
}

void supervisor_start(struct coordinator *c, const char *list)
{
    struct supervisor *supervisor = mem_alloc(sizeof *supervisor);
    c->supervisor = supervisor;
    supervisor->oom = oom_watch_new(&c->options);
    char host[HOST_NAME_SIZE];
    host_name(host);
    for (int i = 0; i < c->options.local_workers; i++)
        add_slot(c, mem_printf("%s/%s:%d", host, c->options.local_device, i));
    records_each(list, adopt, c);
    for (int i = 0; i < supervisor->count; i++)
        if (slot_pid(supervisor->slots[i]) == 0)
            c->users->process_exited(c, supervisor->slots[i]->id, 0,
                                     "was lost: it ended while fsdpd was down");
    for (int i = 0; i < supervisor->count; i++)
        if (slot_pid(supervisor->slots[i]) == 0 && !supervisor->slots[i]->extra)
            start_child(c, supervisor->slots[i]);
}

bool supervisor_has_slot(const struct coordinator *c, const char *id)
{
    return find_slot(c, id) != NULL;
}

bool supervisor_has_child(const struct coordinator *c, const char *id, int64_t pid)
{
    const struct worker_slot *slot = find_slot(c, id);
    return slot != NULL && pid != 0 && slot_pid(slot) == pid;
}

/* Whether a worker is expected from this slot: none is attached, and a surplus one still lives. */
static bool is_starting(struct coordinator *c, const struct worker_slot *slot)
{
    return workers_find(c, slot->id) == NULL && (!slot->extra || slot->adopted != NULL);
}

int supervisor_starting(struct coordinator *c)
{
    int count = 0;
    for (int i = 0; c->supervisor != NULL && i < c->supervisor->count; i++)
        count += is_starting(c, c->supervisor->slots[i]);
    return count;
}

uint32_t supervisor_restarts(const struct coordinator *c, const char *id)
{
    for (int i = 0; c->supervisor != NULL && i < c->supervisor->count; i++) {
        const struct worker_slot *slot = c->supervisor->slots[i];
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
        const struct worker_slot *slot = c->supervisor->slots[i];
        if (is_starting(c, slot))
            visit(user, slot->id, slot_pid(slot), slot->starts > 0 ? slot->starts - 1 : 0);
    }
}

void supervisor_each_slot(const struct coordinator *c,
                          void (*visit)(void *user, const char *id, uint32_t restarts), void *user)
{
    for (int i = 0; c->supervisor != NULL && i < c->supervisor->count; i++) {
        const struct worker_slot *slot = c->supervisor->slots[i];
        visit(user, slot->id, slot->starts > 0 ? slot->starts - 1 : 0);
    }
}

void supervisor_kill(struct coordinator *c, int64_t pid, const char *why)
{
    for (int i = 0; c->supervisor != NULL && i < c->supervisor->count; i++)
        if (slot_pid(c->supervisor->slots[i]) == pid) slot_end(c->supervisor->slots[i], why);
}

/* Handles an adopted process that does not attach, or one that is surplus and idle. */
static void check_adopted(struct coordinator *c, struct worker_slot *slot, int64_t now)
{
    struct worker *worker = workers_find(c, slot->id);
    if (worker == NULL && slot->attach_by != 0 && now >= slot->attach_by) {
        log_event(LOG_WARNING, "worker_killed", "worker=%s pid=%lld why=did_not_attach", slot->id,
                  (long long)slot_pid(slot));
        slot->attach_by = 0;
        AUTO_FREE char *why = mem_printf("it did not attach again within %g s",
                                         c->options.limits.reattach_ms / 1000.0);
        slot_end(slot, why);
    } else if (worker != NULL) {
        slot->attach_by = 0;
        if (!slot->extra || worker->job != NULL || worker->obsolete) return;
        worker->obsolete = true; /* asked only once */
        worker_drain(worker);
    }
}

/* The job no longer waits for the process; another one takes its place when it has ended. */
static void abandon_process(struct worker_slot *slot)
{
    struct coordinator *c = slot->c;
    int64_t pid = slot_pid(slot);
    slot->left = true;
    AUTO_FREE char *how =
        mem_printf("was left behind: it did not end within %.1f s of SIGKILL (%s)",
                   (double)(coordinator_now() - slot->killed_at) / 1000.0, slot->killed);
    log_event(LOG_ERROR, "worker_left_behind", "worker=%s pid=%lld how=\"%s\"", slot->id,
              (long long)pid, how);
    struct worker *worker = workers_find(c, slot->id);
    if (worker != NULL && worker->pid == pid) worker_lose(worker, how, true);
    else c->users->process_exited(c, slot->id, pid, how);
}

/* Stops watching the process. Its record stays, so that the next fsdpd finds it. */
static void forsake(struct worker_slot *slot)
{
    slot->forsaken_pid = slot_pid(slot);
    slot->c->supervisor->closing++;
    if (slot->child != NULL) uv_close((uv_handle_t *)&slot->child->process, on_child_closed);
    else adopted_free(slot->adopted, on_adopted_closed);
    slot->child = NULL;
    slot->adopted = NULL;
}

static void check_killed(struct coordinator *c, struct worker_slot *slot, int64_t now)
{
    if (slot->killed == NULL || slot_pid(slot) == 0) return;
    bool out_of_time = c->draining && now >= c->end_by;
    if (!slot->left && (out_of_time || now >= slot->killed_at + ABANDON_MS)) abandon_process(slot);
    if (slot->left && c->supervisor->stopping) forsake(slot);
}

void supervisor_tick(struct coordinator *c)
{
    struct supervisor *supervisor = c->supervisor;
    if (supervisor == NULL) return;
    int64_t now = coordinator_now();
    oom_watch_tick(supervisor->oom, now);
    for (int i = 0; i < supervisor->count; i++) check_killed(c, supervisor->slots[i], now);
    if (supervisor->stopping) {
        if (supervisor->kill_at != 0 && now >= supervisor->kill_at) {
            supervisor->kill_at = 0;
            supervisor_kill_all(c);
        }
        return;
    }
    for (int i = 0; i < supervisor->count; i++) {
        struct worker_slot *slot = supervisor->slots[i];
        if (slot->adopted != NULL) check_adopted(c, slot, now);
        if (slot_pid(slot) != 0 || slot->extra) continue;
        if (now >= slot->start_at) start_child(c, slot);
        else if (slot->start_at - now < 1000) coordinator_tick_soon(c);
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
    if (supervisor->kill_at > c->end_by - STOP_LAST_MS)
        supervisor->kill_at = c->end_by - STOP_LAST_MS;
    for (int i = 0; i < supervisor->count; i++) {
        struct worker_slot *slot = supervisor->slots[i];
        if (slot_pid(slot) == 0) continue;
        struct worker *worker = workers_find(c, slot->id);
        if (worker != NULL && worker->pid == slot_pid(slot)) worker_drain(worker);
        else slot_kill(slot, SIGTERM);
    }
    coordinator_tick_soon(c);
    report_stopped(c);
}

void supervisor_kill_all(struct coordinator *c)
{
    for (int i = 0; c->supervisor != NULL && i < c->supervisor->count; i++) {
        slot_end(c->supervisor->slots[i], "fsdpd ends");
    }
}

void supervisor_free(struct coordinator *c)
{
    struct supervisor *supervisor = c->supervisor;
    if (supervisor == NULL) return;
    for (int i = 0; i < supervisor->count; i++) {
        free(supervisor->slots[i]->id);
        free(supervisor->slots[i]->killed);
        free(supervisor->slots[i]);
    }
    free(supervisor->slots);
    oom_watch_free(supervisor->oom);
    free(supervisor);
    c->supervisor = NULL;
}
