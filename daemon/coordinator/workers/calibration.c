/* Calibrations; see planner.h. A worker that calibrates is marked, so its loss ends that. */
#include "coordinator/workers/planner.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/workers/kept_profiles.h"
#include "coordinator/workers/supervisor.h"

enum {
    REPORT_MS = 60000,  /* for a report, after the time for measuring */
    STOP_MS = 5000,     /* for the report of a calibration that was stopped */
    RETRY_MS = 3600000, /* after a failure */
};

/* The workers of a host whose devices are of one make. */
struct calibrated_group {
    struct worker *first; /* of the lowest device */
    int count;
    int lowest, highest; /* numbers of their devices; a cpu has 0 */
};

static int device_number(const struct worker *worker)
{
    const char *colon = strchr(worker->device, ':');
    return colon != NULL ? atoi(colon + 1) : 0;
}

static bool is_of_group(const struct worker *worker, const struct worker *other)
{
    return strcmp(worker->host, other->host) == 0 && strcmp(worker->make, other->make) == 0 &&
           worker_shares_host(worker, other) && !other->drained;
}

static struct calibrated_group find_group(const struct worker *worker)
{
    const struct coordinator *c = worker->c;
    struct calibrated_group group = {0};
    for (int i = 0; i < c->worker_count; i++) {
        struct worker *other = c->workers[i];
        if (!is_of_group(worker, other)) continue;
        int number = device_number(other);
        if (group.count == 0 || number < group.lowest) {
            group.lowest = number;
            group.first = other;
        }
        if (group.count == 0 || number > group.highest) group.highest = number;
        group.count++;
    }
    return group;
}

/* Whether nothing has run on the worker's host, and nothing is about to. */
static bool is_host_idle(const struct worker *worker, int64_t now)
{
    const struct coordinator *c = worker->c;
    for (int i = 0; i < c->worker_count; i++) {
        const struct worker *other = c->workers[i];
        if (strcmp(other->host, worker->host) != 0) continue;
        if (other->job != NULL || other->plans > 0 || other->calibrates) return false;
        if (now < other->idle_from + c->options.limits.calibrate_after_ms) return false;
    }
    return !worker->supervised || supervisor_starting(worker->c) == 0;
}

static void start(const struct calibrated_group *group, int64_t now)
{
    struct worker *worker = group->first;
    const int milliseconds = worker->c->options.limits.calibrate_ms;
    /* One process names its devices by the first one and their number. */
    bool consecutive =
        worker_is_kind(worker->device, "cpu") || group->highest - group->lowest + 1 == group->count;
    Fsdpd__V1__CalibrationOrder order = FSDPD__V1__CALIBRATION_ORDER__INIT;
    order.device = worker->device;
    order.workers = consecutive ? (uint32_t)group->count : 1;
    order.seconds = milliseconds / 1000.0;
    worker->calibrates = group->count;
    worker->calibration_stopped = false;
    worker->calibrates_until = now + milliseconds + REPORT_MS;
    log_event(LOG_INFO, "calibration_started", "worker=%s workers=%d seconds=%g", worker->id,
              group->count, order.seconds);
    worker_send(worker, FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_CALIBRATION, &order);
}

static bool is_due(const struct worker *worker, int64_t now)
{
    return worker->make[0] != '\0' && !worker->drained && !worker->shares_device &&
           now >= worker->calibrate_from && is_host_idle(worker, now);
}

void calibration_tick(struct coordinator *c)
{
    int64_t now = coordinator_now();
    for (int i = 0; i < c->worker_count; i++) {
        struct worker *worker = c->workers[i];
        if (worker->calibrates > 0 && now >= worker->calibrates_until) worker->calibrates = 0;
    }
    if (c->options.limits.calibrate_after_ms == 0 || c->draining || c->plans.count > 0 ||
        c->jobs_waiting > 0)
        return;
    for (int i = 0; i < c->worker_count; i++) {
        if (!is_due(c->workers[i], now)) continue;
        struct calibrated_group group = find_group(c->workers[i]);
        if (kept_profiles_find(c, group.first->make, group.count) == NULL) start(&group, now);
    }
}

static void stop(struct worker *worker, int64_t now)
{
    Fsdpd__V1__CalibrationOrder order = FSDPD__V1__CALIBRATION_ORDER__INIT;
    order.stop = true;
    worker->calibration_stopped = true;
    worker->calibrates_until = now + STOP_MS;
    worker_send(worker, FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_CALIBRATION, &order);
}

bool calibration_stop(struct coordinator *c)
{
    int64_t now = coordinator_now();
    bool any = false;
    for (int i = 0; i < c->worker_count; i++) {
        struct worker *worker = c->workers[i];
        if (worker->calibrates == 0 || now >= worker->calibrates_until) continue;
        if (!worker->calibration_stopped) stop(worker, now);
        any = true;
    }
    return any;
}

/* The workers of the host wait again, or for longer after a failure. */
static void put_off(const struct worker *worker, int64_t from)
{
    struct coordinator *c = worker->c;
    int64_t now = coordinator_now();
    for (int i = 0; i < c->worker_count; i++) {
        struct worker *other = c->workers[i];
        if (strcmp(other->host, worker->host) == 0) other->idle_from = now;
        if (is_of_group(worker, other)) other->calibrate_from = from;
    }
}

/* Fails if the worker sent nothing that could be a profile. */
static status_t keep(const struct worker *worker, int workers, const Fsdpd__V1__Calibration *report)
{
    size_t length = strcspn(worker->device, ":");
    if (report->code != STATUS_OK)
        return status_new((enum status_code)report->code, "%s", report->message);
    if (report->profile[0] == '\0' || strlen(report->profile) > KEPT_PROFILE_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "its profile has %zu bytes",
                          strlen(report->profile));
    AUTO_FREE char *kind = mem_strndup(worker->device, length);
    return kept_profiles_put(worker->c, kind, worker->make, workers, report->profile);
}

void calibration_report(struct worker *worker, const Fsdpd__V1__Calibration *report)
{
    int workers = worker->calibrates;
    worker->calibrates = 0;
    worker->calibration_stopped = false;
    queue_changed(worker->c);
    if (workers == 0) return; /* too late */
    status_t status = keep(worker, workers, report);
    if (status == NULL) {
        log_event(LOG_INFO, "calibrated", "worker=%s workers=%d", worker->id, workers);
    } else if (status_code(status) == STATUS_CANCELLED) {
        log_event(LOG_INFO, "calibration_stopped", "worker=%s", worker->id);
        put_off(worker, 0);
        status_free(status);
    } else {
        put_off(worker, coordinator_now() + RETRY_MS);
        log_status(LOG_WARNING, "calibration_failed", status_wrap(status, "%s", worker->id));
    }
}

const char *calibration_profile(struct worker *worker)
{
    if (worker->make[0] == '\0') return "";
    const struct kept_profile *kept =
        kept_profiles_find(worker->c, worker->make, find_group(worker).count);
    return kept != NULL ? kept->text : "";
}
