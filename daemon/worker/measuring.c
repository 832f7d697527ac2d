/* Measuring a profile; see probe.h. */
#include "worker/probe.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/status.h"
#include "planning/profile.h"
#include "process/child.h"

/* How long the process may take beyond the seconds of measuring. */
enum { GRACE_MS = 30000 };

struct measuring {
    uv_timer_t timer; /* ends a process that does not end */
    struct child_process *child;
    bool stopped, late;
    measuring_done *done;
    void *user;
};

static void report(measuring_done *done, void *user, status_t status, const struct buf *profile)
{
    Fsdpd__V1__Calibration *message = mem_alloc(sizeof *message);
    fsdpd__v1__calibration__init(message);
    message->code = (uint32_t)status_code(status);
    if (status != NULL) message->message = mem_strdup(status_message(status));
    else message->profile = mem_strdup(buf_text(profile));
    status_free(status);
    done(user, message);
}

static void on_timer_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static status_t check_profile(const struct buf *text)
{
    AUTO(profile_deinit) struct profile profile = {0};
    TRY(profile_parse(buf_text(text), text->length, "the calibrating process's profile", &profile));
    return NULL;
}

static void on_child_done(void *user, status_t status, const struct buf *output)
{
    struct measuring *measuring = user;
    if (measuring->stopped) {
        status_free(status);
        status = status_new(STATUS_CANCELLED, "the calibration was stopped");
    } else if (measuring->late) {
        status_free(status);
        status = status_new(STATUS_DEADLINE_EXCEEDED, "the calibration did not end in time");
    } else if (status == NULL) {
        status = check_profile(output);
    }
    measuring_done *done = measuring->done;
    void *done_user = measuring->user;
    uv_close((uv_handle_t *)&measuring->timer, on_timer_closed);
    report(done, done_user, status, output);
}

static void on_late(uv_timer_t *timer)
{
    struct measuring *measuring = timer->data;
    measuring->late = true;
    child_kill(measuring->child);
}

struct measuring *measuring_start(uv_loop_t *loop, const struct worker_options *options,
                                  const Fsdpd__V1__CalibrationOrder *order, measuring_done *done,
                                  void *user)
{
    struct measuring *measuring = mem_alloc(sizeof *measuring);
    *measuring = (struct measuring){.done = done, .user = user};
    AUTO_FREE char *workers = mem_printf("%u", order->workers),
                   *seconds = mem_printf("%.0f", fmax(order->seconds, 1));
    AUTO_FREE char *threads = mem_printf("%d", options->threads > 0 ? options->threads : 1);
    const char *program = options->program != NULL ? options->program : "/proc/self/exe";
    AUTO_FREE char *self = mem_printf("%d", (int)getpid());
    const char *const arguments[] = {program,     "calibrate",   "--for-worker", self,
                                     "--device",  order->device, "--workers",    workers,
                                     "--threads", threads,       "--seconds",    seconds,
                                     NULL};
    const struct child_options child = {.what = "the calibrating process",
                                        .program = program,
                                        .arguments = arguments,
                                        .output_max = PROFILE_FILE_MAX};
    uv_timer_init(loop, &measuring->timer);
    measuring->timer.data = measuring;
    uv_timer_start(&measuring->timer, on_late, (uint64_t)(order->seconds * 1000) + GRACE_MS, 0);
    status_t status =
        child_start(loop, &child, on_child_done, measuring, NULL, NULL, &measuring->child);
    if (status == NULL) return measuring;
    uv_close((uv_handle_t *)&measuring->timer, on_timer_closed);
    report(done, user, status, NULL);
    return NULL;
}

void measuring_stop(struct measuring *measuring)
{
    measuring->stopped = true;
    child_kill(measuring->child);
}
