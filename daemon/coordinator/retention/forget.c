/* Forgetting jobs; see retention.h. On the loop's thread, except for the removal of files. */
#include "coordinator/retention/retention.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/tree.h"
#include "coordinator/calls/access.h"
#include "coordinator/jobs/checkpoint_place.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/jobs/owners.h"
#include "coordinator/scheduler/arrays.h"
#include "spec/spec.h"

enum {
    PASS_MS = 60000,
    SOON_MS = 1000,
    PASS_JOBS = 50, /* at a time, so that the loop stays responsive */
    JUMP_MS = 3600000,
};
static const int64_t DAY_MS = 86400000;

static char *forgotten_directory(const struct coordinator *c)
{
    return file_path_join(c->options.state_dir, "forgotten");
}

/* ---- files ---- */

struct removal {
    uv_work_t work;
    struct coordinator *c;
    char *path;            /* NULL: none */
    char *directory, *run; /* the job's files in a directory that its settings name; NULL: none */
    status_t status;
};

static void removal_free(struct removal *removal)
{
    free(removal->path);
    free(removal->directory);
    free(removal->run);
    free(removal);
}

/* Runs on a libuv thread: a checkpoint may be large. The options stay valid until the coordinator
 * is freed, which waits for this work. */
static void do_remove(uv_work_t *work)
{
    struct removal *removal = work->data;
    if (removal->path != NULL) removal->status = tree_remove(removal->path);
    if (removal->directory != NULL)
        removal->status =
            status_first(removal->status, checkpoint_dirs_remove(&removal->c->options,
                                                                 removal->directory, removal->run));
}

static void on_removed(uv_work_t *work, int status)
{
    (void)status;
    struct removal *removal = work->data;
    struct coordinator *c = removal->c;
    log_status(LOG_WARNING, "forget_failed", removal->status); /* retried at the next start */
    removal_free(removal);
    coordinator_disk_done(c);
}

static struct removal *removal_new(struct coordinator *c, char *path)
{
    struct removal *removal = mem_alloc(sizeof *removal);
    *removal = (struct removal){.c = c, .path = path};
    removal->work.data = removal;
    return removal;
}

/* Starts the removal; takes ownership of it. */
static void begin(struct removal *removal)
{
    removal->c->disk_requests++;
    if (uv_queue_work(removal->c->loop, &removal->work, do_remove, on_removed) == 0) return;
    removal->c->disk_requests--;
    removal_free(removal);
}

/* Moves the job's directory aside; *aside stays NULL if it has none. */
static status_t move_aside(struct coordinator *c, const char *id, char **aside)
{
    AUTO_FREE char *forgotten = forgotten_directory(c);
    AUTO_FREE char *from = coordinator_job_directory(c, id);
    char *to = mem_printf("%s/%s.%lld", forgotten, id, (long long)clock_monotonic_ns());
    status_t status = file_make_directory(forgotten, 0750);
    bool moved = status == NULL && rename(from, to) == 0;
    if (status == NULL && !moved && errno != ENOENT)
        status =
            status_new(STATUS_UNAVAILABLE, "cannot move %s to %s: %s", from, to, strerror(errno));
    if (moved) *aside = to;
    else free(to);
    return status;
}

static void put_back(struct coordinator *c, const char *id, const char *aside)
{
    AUTO_FREE char *to = coordinator_job_directory(c, id);
    if (rename(aside, to) != 0)
        log_event(LOG_ERROR, "forget_failed", "path=%s error=%s", aside, strerrorname_np(errno));
}

static bool has_job(struct coordinator *c, const char *id)
{
    job_message *stored = NULL;
    status_t status = store_get_job(c->store, id, &stored);
    bool gone = status_code(status) == STATUS_NOT_FOUND;
    status_free(status);
    message_free(stored);
    return !gone; /* also if the store cannot tell: then nothing is removed */
}

void forget_recover(struct coordinator *c)
{
    AUTO_FREE char *path = forgotten_directory(c);
    DIR *directory = opendir(path);
    if (directory == NULL && errno != ENOENT)
        log_event(LOG_ERROR, "forget_failed", "path=%s error=%s", path, strerrorname_np(errno));
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        const char *dot = strrchr(entry->d_name, '.');
        if (dot == NULL || dot == entry->d_name) continue; /* not one of ours, or "." or ".." */
        AUTO_FREE char *id = mem_strndup(entry->d_name, (size_t)(dot - entry->d_name));
        char *aside = file_path_join(path, entry->d_name);
        if (!job_id_is_valid(id)) free(aside);
        else if (!has_job(c, id)) begin(removal_new(c, aside));
        else {
            put_back(c, id, aside);
            free(aside);
        }
    }
    if (directory != NULL) closedir(directory);
}

/* ---- jobs ---- */

static status_t forget(struct coordinator *c, const job_message *job, const char *by)
{
    const char *id = job->id;
    char *aside = NULL;
    owners_note_kept(c, job, -1);
    status_t status = move_aside(c, id, &aside);
    if (status == NULL) status = store_forget_job(c->store, id);
    if (status != NULL) {
        if (aside != NULL) put_back(c, id, aside);
        owners_note_kept(c, job, 1);
        free(aside);
        return status;
    }
    const Fsdpd__V1__CheckpointSpec *spec = job->spec != NULL ? job->spec->checkpoint : NULL;
    struct removal *removal = removal_new(c, aside);
    if (spec != NULL && spec->directory[0] != '\0') {
        removal->directory = mem_strdup(spec->directory);
        removal->run = checkpoint_dirs_run(job);
    }
    if (aside != NULL || removal->directory != NULL) begin(removal);
    else removal_free(removal);
    log_event(LOG_INFO, "job_forgotten", "job=%s by=%s", id, by);
    return NULL;
}

/* Jobs of an array are kept until it is over, as it counts them; its record goes last. */
static status_t check_array(struct coordinator *c, const job_message *job)
{
    const Fsdpd__V1__ArrayPlace *place = job->spec != NULL ? job->spec->of_array : NULL;
    if (place != NULL && jobs_find(c, place->array) != NULL)
        return status_with(
            status_new(STATUS_FAILED_PRECONDITION,
                       "job %s is of array %s, which is not over: cancel it, or wait", job->id,
                       place->array),
            (struct status_details){.reason = "JOB_IS_NOT_OVER", .subject = job->id});
    const Fsdpd__V1__ArraySpec *array = job->spec != NULL ? job->spec->array : NULL;
    uint32_t *indices = NULL;
    size_t count = 0;
    bool left = false;
    if (array == NULL) return NULL;
    TRY(spec_array_indices(array->indices, &indices, &count));
    for (size_t i = 0; i < count && !left; i++) {
        AUTO_FREE char *id = arrays_job_id(job->id, indices[i]);
        left = has_job(c, id);
    }
    free(indices);
    return left ? access_refuse_array(job, "forget") : NULL;
}

/* Jobs that begin with its weights, or evaluate them, have theirs from there at each attempt. */
static status_t check_needed(struct coordinator *c, const char *id)
{
    const char *by = checkpoint_place_needed(c, id);
    if (by == NULL) return NULL;
    return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                  "job %s has the weights that job %s begins with, which is not "
                                  "over: cancel it, or wait",
                                  id, by),
                       (struct status_details){.reason = "JOB_IS_NEEDED", .subject = id});
}

void forget_start(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__ForgetJobRequest *request = (const void *)message;
    job_message *stored = NULL;
    status_t status = store_get_job(c->store, request->id, &stored);
    if (status_code(status) == STATUS_DATA_LOSS) { /* the owner is unknown: only an operator may */
        status_free(status);
        status = NULL;
        stored = mem_alloc(sizeof *stored);
        fsdpd__v1__job__init(stored);
        message_set_text(&stored->id, request->id);
    }
    if (status == NULL) status = access_check(rpc_call_peer(call), stored, "forget");
    const struct job *job = jobs_find(c, request->id);
    if (status == NULL && job != NULL)
        status = status_with(status_new(STATUS_FAILED_PRECONDITION,
                                        "job %s is %s: only a job that is over can be forgotten",
                                        request->id, job_state_name(job->message->state)),
                             (struct status_details){.reason = "JOB_IS_NOT_OVER",
                                                     .subject = request->id});
    if (status == NULL) status = check_array(c, stored);
    if (status == NULL) status = check_needed(c, request->id);
    if (status == NULL) status = forget(c, stored, access_user(call));
    message_free(stored);
    Fsdpd__V1__ForgetJobResponse response = FSDPD__V1__FORGET_JOB_RESPONSE__INIT;
    if (status != NULL) rpc_call_finish(call, status);
    else rpc_call_reply(call, &response.base);
}

/* ---- retention ---- */

struct ids {
    struct coordinator *c;
    char *items[PASS_JOBS];
    int count;
};

static bool take_id(void *user, const char *id)
{
    struct ids *ids = user;
    if (checkpoint_place_needed(ids->c, id) != NULL) return true; /* as the jobs of an array: */
    if (arrays_keep(ids->c, id)) return true; /* takes no other's place among those removed now */
    for (int i = 0; i < ids->count; i++)
        if (strcmp(ids->items[i], id) == 0) return true; /* both too old and beyond the limit */
    ids->items[ids->count++] = mem_strdup(id);
    return ids->count < PASS_JOBS;
}

/*
 * Whether the wall clock is reliable, as the age of jobs is measured by it. After a jump against
 * the monotonic clock it is unknown which of the two times was correct, and for a day no job is
 * removed for its age.
 */
static bool clock_is_steady(struct coordinator *c, int64_t now, int64_t wall_now)
{
    int64_t offset = wall_now - now, jump = offset - c->clock_offset;
    bool known = c->clock_offset != 0;
    c->clock_offset = offset;
    if (known && (jump > JUMP_MS || jump < -JUMP_MS)) {
        log_event(LOG_WARNING, "clock_jumped", "seconds=%lld retention_by_age=\"waits for a day\"",
                  (long long)(jump / 1000));
        c->clock_unsteady_until = now + DAY_MS;
    }
    return now >= c->clock_unsteady_until;
}

void forget_tick_soon(struct coordinator *c)
{
    int64_t soon = coordinator_now() + SOON_MS;
    if (c->next_forget > soon) c->next_forget = soon;
}

void forget_tick(struct coordinator *c, int64_t now)
{
    const struct coordinator_limits *limits = &c->options.limits;
    if (c->draining || now < c->next_forget) return;
    c->next_forget = now + PASS_MS;
    int64_t wall_now = clock_wall_ms();
    bool steady = clock_is_steady(c, now, wall_now);
    struct ids ids = {.c = c};
    struct store_finished_query query = {.visit = take_id, .user = &ids};
    query.before_ms =
        limits->retention_days > 0 && steady ? wall_now - limits->retention_days * DAY_MS : 0;
    query.keep = limits->retention_jobs;
    status_t status = NULL;
    if (query.before_ms > 0 || query.keep > 0) status = store_each_finished(c->store, &query);
    for (int i = 0; i < ids.count; i++) {
        /* Skips a job that the store does not have as over, or that has just ended. */
        job_message *job = NULL;
        if (status == NULL && jobs_find(c, ids.items[i]) == NULL)
            status = store_get_job(c->store, ids.items[i], &job);
        if (status_code(status) == STATUS_DATA_LOSS) { /* left to an operator; not an obstacle */
            status_free(status);
            status = NULL;
        }
        if (status == NULL && job != NULL) status = forget(c, job, "retention");
        message_free(job);
        free(ids.items[i]);
    }
    if (status == NULL && ids.count == PASS_JOBS) c->next_forget = 0; /* there may be more */
    log_status(LOG_ERROR, "forget_failed", status);
}
