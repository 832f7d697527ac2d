/* The coordinator's life cycle: opening, the tick, draining, closing; see coordinator.h. */
#include "coordinator/coordinator.h"

#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/tree.h"
#include "coordinator/api/api.h"
#include "coordinator/calls/calls.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/core/internal.h"
#include "coordinator/http/routes.h"
#include "coordinator/jobs/attempt_run.h"
#include "coordinator/jobs/owners.h"
#include "coordinator/jobs/retry.h"
#include "coordinator/monitor/monitor.h"
#include "coordinator/monitor/notices.h"
#include "coordinator/notify.h"
#include "coordinator/retention/retention.h"
#include "coordinator/scheduler/admission.h"
#include "coordinator/scheduler/preempting.h"
#include "coordinator/scheduler/queue.h"
#include "coordinator/turn.h"
#include "coordinator/workers/adopted.h"
#include "coordinator/workers/cuts.h"
#include "coordinator/workers/drains.h"
#include "coordinator/workers/kept_profiles.h"
#include "coordinator/workers/planner.h"
#include "coordinator/workers/rendezvous.h"
#include "coordinator/workers/supervisor.h"
#include "proto/descriptors.h"

/* File descriptors: the most that are counted, the range reserved for the coordinator's own work,
 * the most connections that may wait before they send their first bytes, and the fewest reserved
 * ones. */
enum {
    FILES_MAX = 1 << 20,
    OWN_FILES_MIN = 96,
    OWN_FILES_MAX = 1024,
    WAITING_MAX = 256,
    RESERVED_MIN = 8,
};

/* The end of a drain: the time after the jobs' checkpoints and the ranks' grace period, and the
 * part of it for closing. */
enum { DRAIN_REST_MS = 5000, CLOSE_MS = 1500 };

enum { TICK_FAST_MS = 100, TICK_SLOW_MS = 1000, CLOSE_GRACE_MS = 500, RPC_STUCK_MS = 5000 };

struct coordinator_limits coordinator_limits_default(void)
{
    return (struct coordinator_limits){
        .heartbeat_ms = 1000,
        .silence_ms = 10000,
        .plan_wait_ms = 10000,
        .plan_ms = 60000,
        .peer_timeout_ms = 600000,
        .reattach_ms = 60000,
        .exit_wait_ms = 1000,
        .settle_ms = 3000,
        .cancel_ms = 10000,
        .save_ms = 60000,
        .kill_ms = 10000,
        .stop_ms = 5000,
        .retry_ms = 1000,
        .retry_max_ms = 60000,
        .preempt_ms = 600000,
        .notice_ms = 30000,
        .notice_retry_ms = 5000,
        .pull_start_ms = 120000,
        .pull_idle_ms = 60000,
        .calibrate_after_ms = 120000,
        .calibrate_ms = 30000,
        .metrics_kept = 10000,
        .log_bytes = 8 << 20,
        .watch_lag = 1000,
        .jobs_active = 1000,
        .jobs_per_user = 1000,
        .scrub_rate = 20,
        .user_priority = 100,
        .spec_bytes = 4 << 20,
        .pulls_per_job = 16,
        .samples_waiting = 64,
        .sample_share = 50,
        .watchers = 1024,
        .connections_per_user = 256,
        .connections_per_address = 1024,
        .calls_per_user = 1024,
        .users = 1024,
    };
}

int64_t coordinator_now(void)
{
    return clock_monotonic_ns() / 1000000;
}

const char *coordinator_address(const struct coordinator *c)
{
    return c->address;
}

char *coordinator_job_directory(const struct coordinator *c, const char *job)
{
    return mem_printf("%s/jobs/%s", c->options.state_dir, job);
}

char *coordinator_job_path(const struct coordinator *c, const char *job, const char *name)
{
    return mem_printf("%s/jobs/%s/%s", c->options.state_dir, job, name);
}

char *coordinator_state_dict_path(const struct coordinator *c, const char *job)
{
    return coordinator_job_path(c, job, "state_dict.safetensors");
}

char *coordinator_state_sums_path(const struct coordinator *c, const char *job)
{
    return coordinator_job_path(c, job, "state_dict.safetensors.sums");
}

/* ---- the tick ---- */

static void step_drain(struct coordinator *c);

/*
 * The tick that does the coordinator's work also feeds the watchdog, and only while gRPC responds,
 * too: a probe passes through its queue, the poller and the loop.
 */
static void feed_watchdog(struct coordinator *c, int64_t now)
{
    int period = notify_watchdog_ms();
    bool due =
        now - c->watchdog_fed_at >= (period < 2 * TICK_SLOW_MS ? period / 4 : TICK_SLOW_MS / 2);
    if (c->runtime == NULL || c->closing || !due) return;
    if (rpc_runtime_is_alive(c->runtime)) {
        if (c->rpc_stuck) log_event(LOG_INFO, "rpc_moves_again", "%s", "");
        c->rpc_stuck = false;
        c->rpc_responded_at = c->watchdog_fed_at = now;
        if (period > 0) notify_send("WATCHDOG=1");
    } else if (!c->rpc_stuck && now - c->rpc_responded_at > RPC_STUCK_MS) {
        c->rpc_stuck = true;
        log_event(LOG_ERROR, "rpc_stuck", "seconds=%d", RPC_STUCK_MS / 1000);
    }
}

static void notify_systemd(struct coordinator *c, int64_t now)
{
    int queued = 0, running = 0;
    for (int i = 0; i < c->job_count; i++) {
        queued += c->jobs[i]->message->state == FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED;
        running += c->jobs[i]->attempt != NULL;
    }
    char *status =
        mem_printf("%s%d worker%s, %d job%s running, %d queued", c->draining ? "stopping: " : "",
                   c->worker_count, c->worker_count == 1 ? "" : "s", running,
                   running == 1 ? "" : "s", queued);
    if (c->sent_status == NULL || strcmp(status, c->sent_status) != 0) {
        notify_send("STATUS=%s", status);
        free(c->sent_status);
        c->sent_status = status;
    } else {
        free(status);
    }
    /* Jobs end at a step boundary, which may be far: request more time while the drain is in
     * progress. */
    if (c->draining && now - c->extended_at >= TICK_SLOW_MS) {
        c->extended_at = now;
        notify_send("EXTEND_TIMEOUT_USEC=%d", 10 * 1000000);
    }
}

/* Whether any deadline would pass long before the slow tick. */
static bool is_waiting(const struct coordinator *c)
{
    if (c->draining || c->plans.count > 0 || job_calls_are_waiting(c) || notices_are_waiting(c))
        return true;
    for (int i = 0; i < c->job_count; i++) {
        const struct job *job = c->jobs[i];
        if ((job->attempt != NULL && !attempt_is_active(job)) || retry_is_waiting(job)) return true;
    }
    for (int i = 0; i < c->worker_count; i++)
        if (c->workers[i]->stop_at != 0) return true;
    return c->store_count > 0; /* an attempt: its ranks may wait for each other */
}

static int slow_tick_ms(void)
{
    int period = notify_watchdog_ms() / 4;
    if (period == 0 || period > TICK_SLOW_MS) return TICK_SLOW_MS;
    return period > TICK_FAST_MS ? period : TICK_FAST_MS;
}

/* Detects a state directory that was removed, unmounted or replaced: writes to it would be lost. */
static void check_store(struct coordinator *c)
{
    if (c->store == NULL) return; /* abandoned */
    status_t status = store_check_files(c->store);
    bool gone = status != NULL;
    if (gone == c->store_gone || c->draining) {
        status_free(status);
        return;
    }
    c->store_gone = gone;
    rpc_server_set_serving(c->server, NULL, !gone);
    if (gone) log_status(LOG_ERROR, "store_gone", status);
    else log_event(LOG_INFO, "store_is_back", "state_dir=%s", c->options.state_dir);
}

static void tick_attempts(struct coordinator *c, int64_t now)
{
    int left = c->attempt_count;
    for (int i = 0; i < c->job_count && left > 0 && !c->closing; i++) {
        if (c->jobs[i]->attempt == NULL) continue;
        left--;
        attempt_tick(c->jobs[i], now);
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct coordinator *c = timer->data;
    int64_t now = coordinator_now();
    bool late = now - c->last_tick > 3 * TICK_SLOW_MS; /* we were suspended, not the workers */
    c->last_tick = now;
    c->ticking = false;
    reserve_tick(c);
    check_store(c);
    certificate_tick(c);
    scrubber_tick(c);
    notices_tick(c);
    const bool all = queue_check(c); /* catches any change that was missed */
    if (all) {                       /* of all jobs: less often if there are many */
        jobs_save_again(c);
        retry_tick(c);
        deadlines_tick(c);
    }
    tick_attempts(c, now);
    if (!late) workers_tick(c);
    if (!late && !c->closing) rpc_server_end_silent(c->server);
    planner_tick(c);
    calibration_tick(c);
    cuts_tick(c);
    rendezvous_tick(c);
    job_calls_tick(c);
    supervisor_tick(c);
    fair_share_tick(c);
    forget_tick(c, now);
    sweeps_tick(c, now);
    feed_watchdog(c, now);
    if (all) notify_systemd(c, now);
    if (c->draining) step_drain(c);
    if (!all || is_waiting(c)) coordinator_tick_soon(c);
    else if (c->tick_open && !c->ticking)
        uv_timer_start(&c->tick, on_tick, (uint64_t)slow_tick_ms(), 0);
}

void coordinator_tick_soon(struct coordinator *c)
{
    if (!c->tick_open || c->ticking) return;
    c->ticking = true;
    uv_timer_start(&c->tick, on_tick, TICK_FAST_MS, 0);
}

/* ---- opening ---- */

static const char *keep_text(struct coordinator *c, const char *text)
{
    if (text == NULL) return NULL;
    MEM_GROW(c->texts, c->text_count, c->text_capacity);
    return c->texts[c->text_count++] = mem_strdup(text);
}

static void copy_options(struct coordinator *c, const struct coordinator_options *options)
{
    c->options = *options;
    for (int i = 0; i < options->listen_count; i++)
        c->options.listen[i] = keep_text(c, options->listen[i]);
    for (int i = 0; i < options->data_root_count; i++)
        c->options.data_roots[i] = keep_text(c, options->data_roots[i]);
    c->options.profile = keep_text(c, options->profile);
    c->options.profile_kind = keep_text(c, options->profile_kind);
    for (int i = 0; i < options->family_count; i++)
        c->options.families[i] = keep_text(c, options->families[i]);
    c->options.local_device =
        keep_text(c, options->local_device != NULL ? options->local_device : "cpu");
    c->options.program = keep_text(c, options->program);
    c->options.log_level = keep_text(c, options->log_level);
    c->options.cgroup_events = keep_text(c, options->cgroup_events);
    c->options.vmstat = keep_text(c, options->vmstat);
    c->options.metrics_listen = keep_text(c, options->metrics_listen);
    c->options.http_listen = keep_text(c, options->http_listen);
    c->options.operator_group = keep_text(c, options->operator_group);
    c->options.tls.ca = keep_text(c, options->tls.ca);
    c->options.tls.certificate = keep_text(c, options->tls.certificate);
    c->options.tls.key = keep_text(c, options->tls.key);
}

/* Creates the directory, takes its lock, removes the files that a crash left unfinished, and
 * returns the directory's absolute path. */
static status_t open_directory(struct coordinator *c, const char *path, mode_t mode,
                               const char *lock_name, const char **absolute, int *lock)
{
    TRY(file_make_directory(path, mode));
    AUTO_FREE char *real = realpath(path, NULL);
    if (real == NULL) return status_new(STATUS_NOT_FOUND, "cannot resolve %s", path);
    *absolute = keep_text(c, real);
    AUTO_FREE char *name = file_path_join(*absolute, lock_name);
    TRY(file_lock(name, lock));
    return unfinished_sweep(*absolute);
}

/* When root starts fsdpd by hand, gives the socket to group fsdpd, as the systemd unit does. */
static void share_socket(const char *path)
{
    if (geteuid() != 0) return;
    const struct group *group = getgrnam("fsdpd");
    if (group != NULL && chown(path, (uid_t)-1, group->gr_gid) != 0)
        log_event(LOG_WARNING, "socket_group_failed", "path=%s group=fsdpd", path);
}

static status_t find_operators(const struct coordinator_options *options,
                               struct rpc_operators *operators)
{
    enum { GROUP_MAX = 1 << 20 };
    *operators = (struct rpc_operators){0};
    if (options->operator_group == NULL) return NULL;
    AUTO_FREE char *text = mem_alloc(GROUP_MAX);
    struct group storage, *group = NULL;
    int error = getgrnam_r(options->operator_group, &storage, text, GROUP_MAX, &group);
    if (group == NULL && error == 0 && !options->operator_group_is_default)
        return status_new(STATUS_NOT_FOUND, "operator_group: there is no group %s",
                          options->operator_group);
    operators->known = group != NULL;
    if (group != NULL) operators->group = group->gr_gid;
    return NULL;
}

void coordinator_files_deinit(struct coordinator_files *files)
{
    rpc_pems_deinit(&files->pems);
    notice_targets_deinit(&files->notify);
}

status_t coordinator_files_read(const struct coordinator_options *options,
                                struct coordinator_files *files)
{
    TRY(find_operators(options, &files->operators));
    TRY(notice_targets_read(options, &files->notify));
    return rpc_tls_is_given(&options->tls) ? rpc_pems_read(&options->tls, true, &files->pems)
                                           : NULL;
}

/* How `all` descriptors are divided: a quarter is for the process's own work (the store, files of
 * jobs, gRPC's own). Of the rest, a quarter is for connections that have not sent anything yet, and
 * a quarter for workers on this host. */
static struct rpc_limits share_files(int all)
{
    int own = all / 4 < OWN_FILES_MAX ? all / 4 : OWN_FILES_MAX;
    if (own < OWN_FILES_MIN) own = OWN_FILES_MIN;
    int left = all > own ? all - own : 0;
    int waiting = left / 4 < WAITING_MAX ? left / 4 : WAITING_MAX;
    int reserved = left / 4;
    return (struct rpc_limits){.connections = left - waiting - reserved,
                               .connections_waiting = waiting,
                               .connections_reserved = reserved};
}

int coordinator_files_needed(int local_workers)
{
    int least = local_workers > RESERVED_MIN ? local_workers : RESERVED_MIN, all = OWN_FILES_MIN;
    while (share_files(all).connections_reserved < least) all++;
    return all;
}

/* Passes the operators and the clients' limits to the RPC server. */
static void apply_access(struct coordinator *c, const struct coordinator_options *options,
                         const struct rpc_operators *operators)
{
    struct rlimit files = {.rlim_cur = 1024};
    getrlimit(RLIMIT_NOFILE, &files);
    struct rpc_limits limits =
        share_files(files.rlim_cur > FILES_MAX ? FILES_MAX : (int)files.rlim_cur);
    limits.connections_per_user = options->limits.connections_per_user;
    limits.connections_per_address = options->limits.connections_per_address;
    limits.calls_per_user = options->limits.calls_per_user;
    limits.users = options->limits.users;
    rpc_server_set_operators(c->server, operators);
    rpc_server_set_limits(c->server, &limits);
}

/* Listens on the sockets that systemd has bound. Local workers use the first Unix socket. */
static status_t listen_activated(struct coordinator *c)
{
    for (int i = 0; i < c->options.socket_count; i++) {
        int fd = c->options.sockets[i];
        union {
            struct sockaddr any;
            struct sockaddr_un local;
        } address = {0};
        socklen_t size = sizeof address;
        if (getsockname(fd, &address.any, &size) != 0)
            return status_new(STATUS_INVALID_ARGUMENT, "LISTEN_FDS: descriptor %d is not a socket",
                              fd);
        bool local = address.any.sa_family == AF_UNIX;
        if (!local && !c->options.insecure_tcp)
            return status_new(STATUS_PERMISSION_DENIED,
                              "LISTEN_FDS: descriptor %d is a TCP socket, which cannot be served "
                              "with TLS (name the address in listen instead); pass --insecure-tcp "
                              "to serve it without encryption and authentication",
                              fd);
        TRY(status_wrap(rpc_server_listen_fd(c->server, fd), "LISTEN_FDS"));
        c->options.sockets[i] = -1; /* now owned by the server */
        if (local && c->address == NULL && address.local.sun_path[0] == '/')
            c->address = mem_printf("unix:%s", address.local.sun_path);
    }
    return NULL;
}

static status_t listen_local(struct coordinator *c)
{
    AUTO_FREE char *path = mem_printf("%s/fsdpd.sock", c->options.runtime_dir);
    size_t limit = sizeof((struct sockaddr_un *)0)->sun_path - 1;
    status_t status = NULL;
    if (strlen(path) > limit)
        status = status_new(STATUS_INVALID_ARGUMENT,
                            "the socket's path %s has %zu bytes, the system allows %zu: choose a "
                            "shorter --runtime-dir",
                            path, strlen(path), limit);
    c->address = mem_printf("unix:%s", path);
    if (status == NULL) status = rpc_server_listen(c->server, c->address, 0660, NULL);
    if (status == NULL) share_socket(path);
    return status;
}

static status_t listen_everywhere(struct coordinator *c)
{
    TRY(listen_activated(c));
    if (c->address == NULL) TRY(listen_local(c));
    status_t status = NULL;
    for (int i = 0; status == NULL && i < c->options.listen_count; i++) {
        AUTO_FREE char *normal = NULL;
        status = rpc_address_parse(c->options.listen[i], &normal);
        bool local = status == NULL && strncmp(normal, "unix:", 5) == 0;
        bool tls = rpc_tls_is_given(&c->options.tls);
        if (status == NULL && !local && !tls && !c->options.insecure_tcp)
            status = status_new(STATUS_PERMISSION_DENIED,
                                "--listen %s: TCP needs TLS (tls.ca, tls.certificate, tls.key; "
                                "fsdpd cert makes them); without TLS, anyone who can connect can "
                                "run jobs; pass --insecure-tcp to allow that",
                                c->options.listen[i]);
        if (status == NULL && !local && tls)
            status = rpc_server_listen_tls(c->server, normal, NULL);
        else if (status == NULL) status = rpc_server_listen(c->server, normal, 0660, NULL);
    }
    return status;
}

/* *workers: see records_read. */
static status_t open_all(struct coordinator *c, char **workers)
{
    TRY(open_directory(c, c->options.runtime_dir, 0755, "fsdpd.lock", &c->options.runtime_dir,
                       &c->runtime_lock));
    TRY(open_directory(c, c->options.state_dir, 0750, "store.lock", &c->options.state_dir,
                       &c->state_lock));
    if (c->options.local_workers > 0) TRY(records_read(c, workers));
    AUTO_FREE char *path = file_path_join(c->options.state_dir, "store.db");
    TRY(store_open(path, &c->store));
    reserve_open(c);
    TRY(drains_load(c));
    TRY(jobs_recover(c));
    TRY(preempting_recover(c));
    uploads_recover(c);
    forget_recover(c);
    sweeps_recover(c);
    scrubber_open(c);
    TRY(rpc_runtime_new(c->loop, &c->runtime));
    api_report_families(c);
    struct rpc_service services[API_SERVICES];
    api_services(c, services);
    TRY(rpc_server_new(c->runtime, services, API_SERVICES, proto_descriptors,
                       proto_descriptors_size, &c->server));
    AUTO(coordinator_files_deinit) struct coordinator_files files = {0};
    TRY(coordinator_files_read(&c->options, &files));
    apply_access(c, &c->options, &files.operators);
    notices_set(c, &files.notify);
    c->options.notify_count = 0; /* the copies count */
    bool tls = rpc_tls_is_given(&c->options.tls);
    TRY(routes_listen(c, tls ? &files.pems : NULL));
    if (tls) {
        certificate_set(c, files.pems.end);
        rpc_server_set_tls(c->server, &files.pems);
    }
    TRY(listen_everywhere(c));
    return rpc_server_start(c->server);
}

static void unlock(int *lock)
{
    if (*lock >= 0) close(*lock);
    *lock = -1;
}

static void free_all(struct coordinator *c)
{
    jobs_free_all(c);
    owners_free(c);
    drains_free(c);
    cuts_free(c);
    sweeps_free(c);
    scrubber_close(c);
    notices_free(c);
    rendezvous_close(c);
    supervisor_free(c);
    devices_free(c);
    kept_profiles_free(c);
    store_close(c->store);
    unlock(&c->runtime_lock);
    unlock(&c->state_lock);
    for (int i = 0; i < c->text_count; i++) free(c->texts[i]);
    free(c->texts);
    free(c->workers);
    free(c->address);
    free(c->sent_status);
    free(c);
}

static void finish_if_closed(struct coordinator *c);

status_t coordinator_new(uv_loop_t *loop, const struct coordinator_options *options,
                         struct coordinator **out)
{
    struct coordinator *c = mem_alloc(sizeof *c);
    c->loop = loop;
    c->clients = &turn_clients;
    c->users = &turn_users;
    c->runtime_lock = c->state_lock = -1;
    c->started_ms = clock_wall_ms();
    uint64_t start = 0;
    if (getrandom(&start, sizeof start, 0) != sizeof start) start = (uint64_t)clock_monotonic_ns();
    start >>= 16; /* leaves room to count, and fits languages whose integers are floats */
    c->last_number = start;
    c->last_tick = coordinator_now();
    copy_options(c, options);
    AUTO_FREE char *workers = NULL;
    status_t status = open_all(c, &workers);
    if (status != NULL) {
        /* The coordinator is freed once the loop has closed its handles. */
        coordinator_drain(c, NULL, NULL);
        return status;
    }
    uv_timer_init(loop, &c->tick);
    c->tick.data = c;
    turn_begin(c);
    c->tick_open = true;
    if (c->options.local_workers > 0) supervisor_start(c, workers);
    queue_changed(c);
    turn_end(c);
    coordinator_tick_soon(c);
    log_event(LOG_INFO, "serving", "address=%s state_dir=%s workers=%d jobs=%d", c->address,
              c->options.state_dir, c->options.local_workers, c->job_count);
    *out = c;
    return NULL;
}

/* Reloads the certificate, which applies to new connections. */
static status_t reload_tls(struct coordinator *c, const struct coordinator_options *options,
                           struct rpc_pems *pems)
{
    bool before = rpc_tls_is_given(&c->options.tls), now = rpc_tls_is_given(&options->tls);
    if (before != now)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "tls: enabling or disabling TLS needs a restart");
    if (!now) return NULL;
    AUTO_FREE char *quoted = log_quote(options->tls.certificate);
    log_event(LOG_INFO, "certificate_read", "file=%s expires=%lld", quoted, (long long)pems->end);
    certificate_set(c, pems->end);
    http_renew(c, pems);
    rpc_server_set_tls(c->server, pems);
    return NULL;
}

status_t coordinator_reload(struct coordinator *c, const struct coordinator_options *options,
                            struct coordinator_files *files)
{
    TRY(reload_tls(c, options, &files->pems)); /* all that may fail comes first */
    apply_access(c, options, &files->operators);
    notices_set(c, &files->notify);
    const char *level = options->log_level, *old = c->options.log_level;
    c->options.limits = options->limits;
    c->options.shrink_elastic = options->shrink_elastic;
    c->options.preempt = options->preempt;
    queue_changed(c);
    forget_tick_soon(c);
    bool same = level == NULL ? old == NULL : old != NULL && strcmp(level, old) == 0;
    if (!same) c->options.log_level = keep_text(c, level);
    coordinator_tick_soon(c);
    return NULL;
}

/* ---- closing ---- */

static void on_tick_closed(uv_handle_t *handle)
{
    struct coordinator *c = handle->data;
    c->tick_gone = true;
    finish_if_closed(c);
}

static void on_turn_closed(uv_handle_t *handle)
{
    struct coordinator *c = handle->data;
    uv_close((uv_handle_t *)&c->tick, on_tick_closed);
}

static void on_runtime_closed(void *user)
{
    struct coordinator *c = user;
    c->runtime_gone = true;
    finish_if_closed(c);
}

static void on_server_closed(void *user)
{
    struct coordinator *c = user;
    c->server_gone = true;
    finish_if_closed(c);
}

/* Called whenever a part is gone; the last one frees the coordinator. */
static void finish_if_closed(struct coordinator *c)
{
    if (!c->closing || !c->server_gone || !c->supervisor_gone || c->disk_requests > 0) return;
    if (!http_is_gone(c)) return;
    if (!c->runtime_gone) {
        if (c->runtime_closing) return;
        c->runtime_closing = true;
        if (c->runtime == NULL) c->runtime_gone = true;
        else rpc_runtime_close(c->runtime, on_runtime_closed, c);
        if (!c->runtime_gone) return;
    }
    if (c->tick_open) {
        c->tick_open = false;
        uv_close((uv_handle_t *)&c->turn_end, on_turn_closed);
        return;
    }
    if (!c->tick_gone) return;
    void (*closed)(void *user) = c->closed;
    void *user = c->closed_user;
    free_all(c);
    if (closed != NULL) closed(user);
}

static void close_server(struct coordinator *c)
{
    if (c->closing) return;
    fair_share_save(c);
    if (c->store != NULL) jobs_sync(c);
    turn_end(c); /* ended jobs are reported before the calls that wait for them are closed */
    c->closing = true;
    http_close(c);
    notices_close(c);
    job_calls_close(c);
    planner_close(c);
    rendezvous_close(c);
    for (int i = c->worker_count - 1; i >= 0; i--)
        worker_lose(c->workers[i], "was released: the coordinator is shutting down", true);
    if (!c->tick_open) c->tick_gone = true; /* it never started */
    if (c->server == NULL) on_server_closed(c);
    else rpc_server_close(c->server, CLOSE_GRACE_MS, on_server_closed, c);
}

void coordinator_supervisor_gone(struct coordinator *c)
{
    c->supervisor_gone = true;
    close_server(c);
}

void coordinator_part_gone(struct coordinator *c)
{
    if (c->closing) finish_if_closed(c);
}

void coordinator_disk_done(struct coordinator *c)
{
    c->disk_requests--;
    if (c->closing) finish_if_closed(c);
}

/* Jobs on local workers continue when fsdpd is back. */
static void interrupt_jobs(struct coordinator *c, const char *how)
{
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        if (!attempt_is_local(job)) continue;
        retry_attempt_interrupted(job, "SHUTDOWN", "%s at step %llu", how,
                                  (unsigned long long)job->message->step);
    }
}

int64_t coordinator_drain_ms(const struct coordinator *c)
{
    return (int64_t)c->options.limits.save_ms + c->options.limits.kill_ms + DRAIN_REST_MS;
}

/* Ends jobs first, then workers, then the server: each needs the following ones to end in order. */
static void step_drain(struct coordinator *c)
{
    if (coordinator_now() >= c->end_by - STOP_LAST_MS)
        interrupt_jobs(c, "fsdpd stopped without waiting for the attempt's end");
    for (int i = 0; i < c->job_count; i++)
        if (attempt_is_local(c->jobs[i])) return;
    supervisor_stop(c);
}

void coordinator_drain(struct coordinator *c, void (*closed)(void *user), void *user)
{
    if (c->draining) return;
    c->draining = true;
    c->end_by = coordinator_now() + coordinator_drain_ms(c) - CLOSE_MS;
    c->closed = closed;
    c->closed_user = user;
    if (c->tick_open) {
        log_event(LOG_INFO, "draining", "jobs=%d workers=%d", c->job_count, c->worker_count);
        notify_send("STOPPING=1\nSTATUS=stopping");
        rpc_server_set_serving(c->server, NULL, false);
    }
    for (int i = 0; i < c->job_count; i++)
        if (attempt_is_local(c->jobs[i])) attempt_shut_down(c->jobs[i], "fsdpd is shutting down");
    coordinator_tick_soon(c);
    step_drain(c);
}

void coordinator_abandon(struct coordinator *c)
{
    supervisor_kill_all(c);
    interrupt_jobs(c, "fsdpd was stopped at once");
    store_close(c->store);
    c->store = NULL;
}
