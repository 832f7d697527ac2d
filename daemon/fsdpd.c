/*
 * main of fsdpd: reads the command line, picks the role, runs it. The coordinator's roles have one
 * libuv loop, on this thread; the worker role has its own (worker/worker.h).
 */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include <uv.h>

#include "base/log.h"
#include "config.h"
#include "coordinator/coordinator.h"
#include "coordinator/notify.h"
#include "options.h"

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

/* The last word of a role that could not do its work. */
static int fail(status_t status)
{
    int code = exit_code(status_code(status));
    fprintf(stderr, "fsdpd: %s\n", status_message(status));
    status_free(status);
    return code;
}

enum { SIGNAL_COUNT = 3 };

struct process {
    struct coordinator *coordinator; /* NULL once it has closed */
    uv_signal_t signals[SIGNAL_COUNT];
    bool draining;
};

static void on_closed(void *user)
{
    struct process *process = user;
    process->coordinator = NULL;
    for (int i = 0; i < SIGNAL_COUNT; i++) uv_close((uv_handle_t *)&process->signals[i], NULL);
}

/* The first signal drains, the second leaves at once. */
static void on_signal(uv_signal_t *handle, int number)
{
    struct process *process = handle->data;
    log_event(LOG_INFO, "signal", "number=%d", number);
    if (process->coordinator == NULL) return;
    if (process->draining) {
        coordinator_abandon(process->coordinator);
        _exit(128 + number);
    }
    process->draining = true;
    coordinator_drain(process->coordinator, on_closed, process);
}

static int run_coordinator(const struct coordinator_options *options)
{
    static const int numbers[SIGNAL_COUNT] = {SIGTERM, SIGINT, SIGHUP};
    uv_loop_t loop;
    struct process process = {0};
    notify_init();
    uv_loop_init(&loop);
    status_t status = coordinator_new(&loop, options, &process.coordinator);
    if (status == NULL) {
        for (int i = 0; i < SIGNAL_COUNT; i++) {
            uv_signal_init(&loop, &process.signals[i]);
            process.signals[i].data = &process;
            uv_signal_start(&process.signals[i], on_signal, numbers[i]);
        }
        notify_send("READY=1");
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    if (uv_loop_close(&loop) != 0) log_event(LOG_ERROR, "loop_not_empty", "%s", "");
    if (status != NULL) return fail(status);
    log_event(LOG_INFO, "ended", "%s", "");
    return 0;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    struct options options;
    status_t status = options_parse(&options, argc, argv);
    int code = 0;
    if (status != NULL) {
        code = fail(status);
    } else if (options.help) {
        struct buf text = {0};
        options_describe(options.role, &text);
        fputs(buf_text(&text), stdout);
        buf_deinit(&text);
    } else if (options.version) {
        puts(PACKAGE_STRING);
    } else if (options.role == ROLE_PLAN) {
        code = plan_role_main(&options.plan);
    } else {
        log_set_level(options.log_level);
        code = options.role == ROLE_WORKER ? worker_main(&options.worker)
                                           : run_coordinator(&options.coordinator);
    }
    options_deinit(&options);
    return code;
}
