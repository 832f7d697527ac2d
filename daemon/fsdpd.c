/*
 * main of fsdpd: parses the options, selects the role and runs it, and reloads the options at
 * SIGHUP (reload.h). The coordinator's roles use one libuv loop, on this thread; the worker role
 * has its own loop (worker/settings.h).
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/switches.h"
#include "config.h"
#include "coordinator/coordinator.h"
#include "coordinator/notify.h"
#include "options.h"
#include "planning/profile.h"
#include "print/table.h"
#include "reload.h"
#include "roles.h"

static int exit_code(enum status_code code)
{
    switch (code) {
    case STATUS_OK: return 0;
    case STATUS_INVALID_ARGUMENT: return 2;
    case STATUS_PERMISSION_DENIED: return 4;
    case STATUS_NOT_FOUND: return 5;
    case STATUS_FAILED_PRECONDITION: return 6;
    default: return 1;
    }
}

/* Reports why a role failed, one line per error. */
static int fail(status_t status)
{
    int code = exit_code(status_code(status));
    AUTO(buf_deinit) struct buf text = {0};
    output_clean(&text, status_message(status), true);
    for (const char *line = buf_text(&text); *line != '\0';) {
        size_t length = strcspn(line, "\n");
        fprintf(stderr, "fsdpd: %.*s\n", (int)length, line);
        line += length + (line[length] == '\n');
    }
    status_free(status);
    return code;
}

enum { SIGNAL_COUNT = 3 };

/* The state of the coordinator's roles while they run. */
struct process {
    struct reload reload;
    struct coordinator *coordinator; /* NULL once it has closed */
    uv_signal_t signals[SIGNAL_COUNT];
    bool had_terminal; /* the process ends with it */
    bool draining;
    int64_t drain_ms; /* the process ends after this time at the latest */
};

static void on_closed(void *user)
{
    struct process *process = user;
    process->coordinator = NULL;
    reload_close(&process->reload);
    for (int i = 0; i < SIGNAL_COUNT; i++) uv_close((uv_handle_t *)&process->signals[i], NULL);
}

static bool has_terminal(void)
{
    int fd = open("/dev/tty", O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return false;
    close(fd);
    return true;
}

/* Exits even if something still blocks, for instance a disk of the loop's own; the next start
 * recovers, because the store survives an exit at any time. */
static void *end_at_last(void *argument)
{
    clock_sleep_ms(*(int64_t *)argument);
    log_event(LOG_ERROR, "stuck_while_stopping", "seconds=%g",
              (double)*(int64_t *)argument / 1000.0);
    _exit(1);
}

static void bound_the_end(struct process *process)
{
    pthread_t thread;
    process->drain_ms = coordinator_drain_ms(process->coordinator);
    int error = pthread_create(&thread, NULL, end_at_last, &process->drain_ms);
    if (error == 0) pthread_detach(thread);
    else log_event(LOG_WARNING, "end_not_bounded", "error=\"%s\"", strerror(error));
}

/* SIGHUP reloads the options, unless it reports the loss of the terminal. Of all other signals, the
 * first drains and the second exits at once. */
static void on_signal(uv_signal_t *handle, int number)
{
    struct process *process = handle->data;
    log_event(LOG_INFO, "signal", "number=%d", number);
    if (process->coordinator == NULL) return;
    if (number == SIGHUP && (!process->had_terminal || has_terminal())) {
        if (!process->draining) reload_begin(&process->reload);
        return;
    }
    if (process->draining) {
        coordinator_abandon(process->coordinator);
        _exit(128 + number);
    }
    process->draining = process->reload.ending = true;
    bound_the_end(process);
    coordinator_drain(process->coordinator, on_closed, process);
}

/* Every worker, watcher and puller holds a connection, and a rank one to each other. Raising the
 * soft limit of 1024 descriptors is safe, because fsdpd does not use select(). */
static status_t allow_files(const struct options *options)
{
    const int workers = options->coordinator.local_workers;
    const bool is_worker = options->role == ROLE_WORKER;
    const int needed = is_worker ? WORKER_FILES_NEEDED : coordinator_files_needed(workers);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return NULL;
    const struct rlimit most = {files.rlim_max, files.rlim_max};
    if (files.rlim_cur < most.rlim_cur && setrlimit(RLIMIT_NOFILE, &most) == 0) files = most;
    if (files.rlim_cur >= (rlim_t)needed) return NULL;
    AUTO_FREE char *who = is_worker ? mem_strdup("a worker")
                                    : mem_printf("a coordinator with %d local worker%s", workers,
                                                 workers == 1 ? "" : "s");
    return status_new(STATUS_FAILED_PRECONDITION,
                      "the limit on open files is %llu, and %s needs %d: raise it (ulimit -Hn %d, "
                      "LimitNOFILE= in a systemd unit)",
                      (unsigned long long)files.rlim_cur, who, needed, needed);
}

static int run_coordinator(const struct options *options, int argc, char **argv)
{
    static const int numbers[SIGNAL_COUNT] = {SIGTERM, SIGINT, SIGHUP};
    uv_loop_t loop;
    static struct process process; /* static: a thread reads it after the loop has ended */
    process = (struct process){0};
    struct sigaction hangup;
    /* Under nohup the process outlives its terminal. */
    process.had_terminal =
        sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN && has_terminal();
    notify_init();
    struct coordinator_options coordinator = options->coordinator;
    int first = 0, count = notify_take_sockets(&first);
    for (int i = 0; i < count && i < COORDINATOR_ADDRESSES_MAX; i++)
        coordinator.sockets[coordinator.socket_count++] = first + i;
    int error = uv_loop_init(&loop);
    if (error != 0) return fail(status_from_errno(-error, "cannot open an event loop"));
    status_t status = coordinator_new(&loop, &coordinator, &process.coordinator);
    if (status == NULL) {
        reload_open(&process.reload, &loop, process.coordinator, options, argc, argv);
        for (int i = 0; i < SIGNAL_COUNT; i++) {
            uv_signal_init(&loop, &process.signals[i]);
            process.signals[i].data = &process;
            uv_signal_start(&process.signals[i], on_signal, numbers[i]);
        }
        notify_send("READY=1");
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    options_deinit(&process.reload.loaded);
    if (uv_loop_close(&loop) != 0) log_event(LOG_ERROR, "loop_not_empty", "%s", "");
    if (status != NULL) return fail(status);
    log_event(LOG_INFO, "ended", "%s", "");
    return 0;
}

/* Makes files in the state directory accessible only to fsdpd's user and group, whatever umask
 * fsdpd inherited: files created with 0640 or more get 0640, directories 0750. */
static void set_umask(void)
{
    umask(0027);
}

/* Checks the profile for which jobs are planned while no worker is attached, and finds out what
 * kind of devices it describes. */
static status_t check_profile(struct options *options)
{
    AUTO(profile_deinit) struct profile profile = {0};
    if (options->coordinator.profile == NULL) return NULL;
    TRY(status_wrap(profile_find(options->coordinator.profile, &profile), "profile"));
    options->coordinator.profile_kind = profile.here ? "cpu" : "cuda";
    return NULL;
}

/* ---- roles ---- */

static int plan(const struct options *options)
{
    return options->plan.order ? plan_order_main(&options->plan) : plan_role_main(&options->plan);
}

static status_t cert(const struct options *options)
{
    return cert_role_run(&options->cert);
}

static status_t calibrate(const struct options *options)
{
    return calibrate_role_run(&options->calibrate, options->worker.device, options->worker.threads);
}

static status_t token(const struct options *options)
{
    return token_role_run(&options->token, options->worker.coordinator, &options->worker.security,
                          options->json);
}

/* Those that do one thing and end: with an exit status of their own, or one. */
static const struct {
    int (*main)(const struct options *options);
    status_t (*run)(const struct options *options);
    bool writes_store;
} roles[] = {
    [ROLE_PLAN] = {.main = plan},
    [ROLE_CONFIG] = {.main = config_role_main},
    [ROLE_BACKUP] = {.run = backup_role_run, .writes_store = true},
    [ROLE_RESTORE] = {.run = restore_role_run, .writes_store = true},
    [ROLE_SCRUB] = {.run = scrub_role_run},
    [ROLE_CERT] = {.run = cert},
    [ROLE_DEVICES] = {.main = devices_role_main},
    [ROLE_CALIBRATE] = {.run = calibrate},
    [ROLE_TOKEN] = {.run = token},
};

/* The coordinator, or a worker. */
static int serve(struct options *options, int argc, char **argv)
{
    status_t status = allow_files(options);
    if (status == NULL) {
        set_umask();
        status = options_prepare(options);
    }
    if (status != NULL) return fail(status);
    log_use_journal(NULL);
    log_set_level(options->log_level);
    switches_log();
    return options->role == ROLE_WORKER ? worker_main(&options->worker)
                                        : run_coordinator(options, argc, argv);
}

static int run_role(struct options *options, int argc, char **argv)
{
    enum role role = options->role;
    if (roles[role].main != NULL) return roles[role].main(options);
    if (roles[role].run == NULL) return serve(options, argc, argv);
    if (roles[role].writes_store) set_umask();
    status_t status = roles[role].run(options);
    return status != NULL ? fail(status) : 0;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file at `ulimit -f`: EFBIG */
    struct options options;
    status_t status = options_parse(&options, argc, argv);
    bool printed = status == NULL && (options.help || options.version);
    if (status == NULL && !printed && options.role != ROLE_PLAN) status = check_profile(&options);
    int code = 0;
    if (status != NULL) {
        code = fail(status);
    } else if (options.help) {
        AUTO(buf_deinit) struct buf text = {0};
        options_describe(options.role, &text);
        fputs(buf_text(&text), stdout);
    } else if (options.version) {
        puts(PACKAGE_STRING);
    } else {
        code = run_role(&options, argc, argv);
    }
    options_deinit(&options);
    return code;
}
