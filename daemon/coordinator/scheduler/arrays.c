/* Arrays; see arrays.h. On the loop's thread. */
#include "coordinator/scheduler/arrays.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/attempt_run.h"
#include "coordinator/jobs/job_record.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/scheduler/admission.h"
#include "coordinator/scheduler/dependencies.h"
#include "coordinator/scheduler/quotas.h"
#include "coordinator/workers/planner.h"
#include "proto/message.h"
#include "spec/spec.h"

enum { PAUSE_MS = 20 };

static const char cancelling[] = "CANCELLING", cancelled_by[] = "cancelled by ";

char *arrays_job_id(const char *array, uint32_t index)
{
    return mem_printf("%s-%u", array, index);
}

struct job *arrays_of(const struct job *job)
{
    const Fsdpd__V1__ArrayPlace *place = job->message->spec->of_array;
    return place != NULL ? jobs_find(job->c, place->array) : NULL;
}

bool arrays_is_cancelled(const struct job *job)
{
    return job->array != NULL && strcmp(job->message->reason->code, cancelling) == 0;
}

static uint32_t count_over(const struct job_array *array)
{
    return array->over[0] + array->over[1] + array->over[2];
}

static void count(struct job_array *array, int state)
{
    array->over[state - JOB_SUCCEEDED]++;
}

void arrays_begin(struct job *job)
{
    const Fsdpd__V1__ArraySpec *spec = job->message->spec->array;
    if (spec == NULL) return;
    job->array = mem_alloc(sizeof *job->array);
    *job->array = (struct job_array){0};
    /* Valid: checked when it was submitted. */
    log_status(LOG_ERROR, "array_damaged",
               spec_array_indices(spec->indices, &job->array->indices, &job->array->count));
}

/* A job that is not the array's, or that was removed although it was damaged, is a failure. */
static status_t recover_one(struct job *job, const char *id)
{
    job_message *stored = NULL;
    if (jobs_find(job->c, id) != NULL &&
        spec_is_of_array(jobs_find(job->c, id)->message->spec, job->message->id))
        return NULL;
    status_t status = store_get_job(job->c->store, id, &stored);
    bool own = stored != NULL && spec_is_of_array(stored->spec, job->message->id);
    bool lost = status_code(status) == STATUS_NOT_FOUND || status_code(status) == STATUS_DATA_LOSS;
    if (status == NULL || lost) count(job->array, own ? (int)stored->state : JOB_FAILED);
    message_free(stored);
    if (!lost) return status;
    status_free(status);
    return NULL;
}

status_t arrays_recover(struct job *job)
{
    arrays_begin(job);
    for (size_t i = 0; job->array != NULL && i < job->message->step && i < job->array->count; i++) {
        AUTO_FREE char *id = arrays_job_id(job->message->id, job->array->indices[i]);
        TRY(recover_one(job, id));
    }
    return NULL;
}

/* ---- making jobs ---- */

/* The next jobs of an array, to be inserted in one transaction. */
struct array_batch {
    struct job *array;
    job_message *jobs[ARRAYS_AT_ONCE];
    job_event events[ARRAYS_AT_ONCE];
    Fsdpd__V1__StateChange changes[ARRAYS_AT_ONCE];
    Google__Protobuf__Timestamp now;
    int count;
    double bytes;   /* that the jobs will keep at most */
    uint32_t taken; /* indices that get no job: its id is another job's */
};

/* Whether a plan of the one is a plan of the other: they differ only in settings that no plan
 * depends on. */
static bool is_planned_alike(const job_spec *spec, const job_spec *planned)
{
    job_spec one = *spec, other = *planned;
    Fsdpd__V1__TrainSpec train = *spec->train;
    Fsdpd__V1__OptimizerSpec optimizer = *spec->optimizer;
    one.train = &train;
    one.optimizer = &optimizer;
    train.seed = planned->train->seed;
    optimizer.lr = planned->optimizer->lr;
    one.name = planned->name;
    one.n_labels = planned->n_labels;
    one.labels = planned->labels;
    one.priority = planned->priority;
    one.n_after = planned->n_after;
    one.after = planned->after;
    one.n_after_any = planned->n_after_any;
    one.after_any = planned->after_any;
    one.deadline = planned->deadline;
    one.of_array = NULL;
    other.array = NULL;
    return message_equal(&one, &other);
}

/* What the submission left open, as in the array's plan. */
static void complete(job_spec *spec, const job_spec *planned)
{
    if (spec->device[0] == '\0') message_set_text(&spec->device, planned->device);
    planner_complete(spec->model, planned->model);
}

static void place(job_spec *spec, const job_message *array, uint32_t index)
{
    Fsdpd__V1__ArrayPlace *of = spec->of_array; /* a sweep's trial has one, with its values */
    if (of == NULL) of = MESSAGE_NEW(of, fsdpd__v1__array_place__init);
    message_set_text(&of->array, array->id);
    of->index = index;
    of->at_once = array->spec->array->at_once;
    spec->of_array = of;
}

/* The index fails, which the array's history says. */
static void take_away(struct array_batch *batch, uint32_t index, const char *id)
{
    struct job *array = batch->array;
    batch->taken++;
    job_note_change(array, false, "INDEX_TAKEN", "index %u has no job: job %s already exists",
                    index, id);
}

static status_t is_taken(struct coordinator *c, const char *id, bool *taken)
{
    job_message *stored = NULL;
    *taken = true;
    if (jobs_find(c, id) != NULL) return NULL;
    status_t status = store_get_job(c->store, id, &stored);
    message_free(stored);
    *taken = status_code(status) != STATUS_NOT_FOUND;
    if (status_code(status) != STATUS_NOT_FOUND && status_code(status) != STATUS_DATA_LOSS)
        return status;
    status_free(status);
    return NULL;
}

static status_t add_to_batch(void *user, uint32_t index, Fsdpd__V1__JobSpec *spec)
{
    struct array_batch *batch = user;
    const job_message *array = batch->array->message;
    struct coordinator *c = batch->array->c;
    AUTO_FREE char *id = arrays_job_id(array->id, index);
    bool taken = false;
    TRY(is_taken(c, id, &taken));
    if (taken) {
        take_away(batch, index, id);
        return NULL;
    }
    complete(spec, array->spec);
    bool planned = array->plan != NULL && is_planned_alike(spec, array->spec);
    place(spec, array, index);
    const struct job_submission submission = {.owner = array->owner,
                                              .spec = spec,
                                              .plan = planned ? array->plan : NULL,
                                              .steps = planned ? array->steps : 0};
    TRY(room_check(c, spec, submission.plan, submission.steps));
    TRY(quotas_check_kept(c, &(struct quotas_job){.id = "",
                                                  .owner = array->owner,
                                                  .spec = spec,
                                                  .plan = submission.plan,
                                                  .steps = submission.steps,
                                                  .others = batch->bytes}));
    batch->bytes += room_needed(spec, submission.plan, submission.steps);
    job_message *message = jobs_make(&submission, id);
    if (array->priority != array->spec->priority) message->priority = array->priority;
    int i = batch->count++;
    batch->jobs[i] = message;
    job_state_event(message, array->owner, &batch->events[i], &batch->changes[i]);
    batch->events[i].time = &batch->now;
    return NULL;
}

/* They are in the store. */
static void adopt(struct array_batch *batch)
{
    struct coordinator *c = batch->array->c;
    for (int i = 0; i < batch->count; i++) {
        struct job *job = jobs_adopt(c, batch->jobs[i]);
        job->sequence = 1;
        deadlines_begin(job);
        log_event(LOG_INFO, "job_queued", "job=%s owner=%s array=%s", job->message->id,
                  job->message->owner, batch->array->message->id);
        job_log_note(c, job->message->id, 0, "INFO", "job_state state=QUEUED reason=QUEUED");
        log_status(LOG_ERROR, "dependency_damaged", dependencies_adopt(job));
    }
    batch->array->array->over[JOB_FAILED - JOB_SUCCEEDED] += batch->taken;
}

static status_t insert(struct array_batch *batch)
{
    job_message *array = batch->array->message;
    struct store_new_job jobs[ARRAYS_AT_ONCE];
    for (int i = 0; i < batch->count; i++)
        jobs[i] = (struct store_new_job){batch->jobs[i], &batch->events[i]};
    uint64_t before = array->step;
    array->step += (uint64_t)batch->count + batch->taken;
    const struct store_change change = {.job = array, .durable = true, .report = -1};
    status_t status = store_insert_jobs(batch->array->c->store, jobs, batch->count, &change);
    if (status != NULL) array->step = before;
    return status;
}

/* Makes the next jobs, as far as the limits and the disk have room for them. */
static status_t expand(struct job *job)
{
    int room = jobs_room(job->c, job->message->owner);
    job->array->has_no_room = room <= 0;
    if (room <= 0) return NULL;
    struct array_batch *batch = mem_alloc(sizeof *batch);
    *batch = (struct array_batch){.array = job};
    message_time(&batch->now, clock_wall_ms());
    const struct spec_array_part part = {.first = job->message->step,
                                         .count = (size_t)(room < ARRAYS_AT_ONCE ? room
                                                                                 : ARRAYS_AT_ONCE)};
    status_t status = spec_array_each(job->message->spec->array->file, &part, add_to_batch, batch);
    if (status_code(status) == STATUS_RESOURCE_EXHAUSTED) { /* those before it are made */
        job->array->has_no_room = true;
        log_status(LOG_WARNING, "array_waits", status);
        status = NULL;
    }
    if (status == NULL) status = insert(batch);
    if (status == NULL) adopt(batch);
    for (int i = 0; status != NULL && i < batch->count; i++) message_free(batch->jobs[i]);
    free(batch);
    return status;
}

/* ---- ends ---- */

/* The loop serves others before the next jobs are made or cancelled. */
static void pause_for_others(struct job *array)
{
    array->array->again_at = coordinator_now() + PAUSE_MS;
    queue_continue(array->c);
}

static void cancel_some(struct job *array)
{
    struct coordinator *c = array->c;
    const char *by = array->message->reason->message;
    AUTO_FREE char *user = mem_strdup(
        strncmp(by, cancelled_by, strlen(cancelled_by)) == 0 ? by + strlen(cancelled_by) : "");
    int left = ARRAYS_AT_ONCE;
    c->actor = user;
    for (int i = 0; i < c->job_count && left > 0; i++) {
        struct job *job = c->jobs[i];
        bool ends = job_state_is_over((int)job->message->state) ||
                    (job->attempt != NULL && job->attempt->stop.cancelled);
        if (ends || !spec_is_of_array(job->message->spec, array->message->id)) continue;
        job_cancel(job, user);
        left--;
    }
    c->actor = NULL;
    if (left == 0) pause_for_others(array);
}

static void finish(struct job *job)
{
    const struct job_array *array = job->array;
    unsigned all = (unsigned)array->count, failed = array->over[1], cancelled = array->over[2];
    if (count_over(array) < job->message->step) return;
    if (arrays_is_cancelled(job) || job->message->step == all) job->message->steps = all;
    if (arrays_is_cancelled(job)) {
        AUTO_FREE char *why = mem_strdup(job->message->reason->message);
        job_set_state(job, JOB_CANCELLED, "CANCELLED", "%s: %u of %u jobs had succeeded", why,
                      array->over[0], all);
    } else if (job->message->step < array->count) {
        return;
    } else if (failed > 0) {
        job_set_state(job, JOB_FAILED, "JOBS_FAILED", "%u of %u jobs failed", failed, all);
    } else if (cancelled > 0) {
        job_set_state(job, JOB_CANCELLED, "JOBS_CANCELLED", "%u of %u jobs were cancelled",
                      cancelled, all);
    } else {
        job_set_state(job, JOB_SUCCEEDED, "DONE", "all %u jobs succeeded", all);
    }
}

static void advance(struct job *job)
{
    bool pauses = coordinator_now() < job->array->again_at;
    bool makes = !pauses && !arrays_is_cancelled(job) && job->message->step < job->array->count;
    if (pauses) queue_continue(job->c);
    else if (arrays_is_cancelled(job)) cancel_some(job);
    status_t status = makes ? expand(job) : NULL;
    /* A spec that does not read any more: fsdpd has changed since. */
    if (status_code(status) == STATUS_INVALID_ARGUMENT) {
        job_set_reason(job, cancelling, "%s", status_message(status));
        queue_continue(job->c);
    } else if (makes && status == NULL && !job->array->has_no_room) {
        pause_for_others(job);
    }
    log_status(LOG_ERROR, "array_failed",
               status_wrap(status, "making jobs of array %s", job->message->id));
    finish(job);
}

void arrays_place(struct coordinator *c)
{
    if (c->draining || !c->queue_changed) return;
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        if (job->array != NULL && !job->unsaved && !job_state_is_over((int)job->message->state))
            advance(job);
    }
}

static struct job_array *array_of(struct coordinator *c, const job_message *message)
{
    const Fsdpd__V1__ArrayPlace *of = message->spec->of_array;
    struct job *array = of != NULL ? jobs_find(c, of->array) : NULL;
    if (array == NULL || array->array == NULL) return NULL;
    queue_changed(c);
    return array->array;
}

void arrays_job_over(struct coordinator *c, const job_message *message)
{
    struct job_array *array = array_of(c, message);
    if (array != NULL) count(array, (int)message->state);
}

void arrays_job_revived(struct coordinator *c, const job_message *message)
{
    struct job_array *array = array_of(c, message);
    if (array != NULL) array->over[message->state - JOB_SUCCEEDED]--;
}

void arrays_cancel(struct job *array, const char *by)
{
    if (arrays_is_cancelled(array)) return;
    job_set_reason(array, cancelling, "%s%s", cancelled_by, by);
    queue_changed(array->c);
}

/* ---- for replies ---- */

static void count_jobs(const struct job *array, Fsdpd__V1__ArrayJobs *jobs)
{
    struct coordinator *c = array->c;
    jobs->jobs = (uint32_t)array->array->count;
    jobs->made = (uint32_t)array->message->step;
    jobs->succeeded = array->array->over[0];
    jobs->failed = array->array->over[1];
    jobs->cancelled = array->array->over[2];
    /* They follow their array, mostly, and those that are over are not here. */
    int own = 0, left = (int)(jobs->made - count_over(array->array));
    while (own < c->job_count && c->jobs[own] != array) own++;
    for (int i = 0; i < c->job_count && left > 0; i++) {
        const job_message *job = c->jobs[(own + i) % c->job_count]->message;
        if (!spec_is_of_array(job->spec, array->message->id) || job_state_is_over((int)job->state))
            continue;
        left--;
        jobs->queued += job->state == FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED;
        jobs->paused += job->state == FSDPD__V1__JOB_STATE__JOB_STATE_PAUSED;
        jobs->running += job->state == FSDPD__V1__JOB_STATE__JOB_STATE_STARTING ||
                         job->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING;
    }
}

static void describe(const struct job *array, const Fsdpd__V1__ArrayJobs *jobs, struct buf *out)
{
    const struct {
        const char *what;
        uint32_t number;
    } parts[] = {{"queued", jobs->queued},
                 {"running", jobs->running},
                 {"paused", jobs->paused},
                 {"succeeded", jobs->succeeded},
                 {"failed", jobs->failed},
                 {"cancelled", jobs->cancelled},
                 {"not made yet", jobs->jobs - jobs->made}};
    const char *held = array->message->held_by;
    if (held[0] != '\0') buf_printf(out, "held by %s; ", held);
    buf_printf(out, "%u job%s", jobs->jobs, jobs->jobs == 1 ? "" : "s");
    const char *before = ": ";
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (parts[i].number == 0) continue;
        buf_printf(out, "%s%u %s", before, parts[i].number, parts[i].what);
        before = ", ";
    }
    if (array->array->has_no_room && jobs->made < jobs->jobs)
        buf_add_text(out, " (the limits of jobs, or the disk, have no room for them now)");
}

void arrays_explain(struct job *array)
{
    job_message *message = array->message;
    message_free(message->array_jobs);
    message->array_jobs = MESSAGE_NEW(message->array_jobs, fsdpd__v1__array_jobs__init);
    count_jobs(array, message->array_jobs);
    if (arrays_is_cancelled(array) || job_state_is_over((int)message->state)) return;
    AUTO(buf_deinit) struct buf text = {0};
    describe(array, message->array_jobs, &text);
    job_set_reason_text(message, message->held_by[0] != '\0' ? "HELD" : "ARRAY", buf_text(&text));
}

bool arrays_keep(struct coordinator *c, const char *id)
{
    const char *dash = strrchr(id, '-');
    if (dash == NULL || c->job_count == 0) return false;
    AUTO_FREE char *array = mem_strndup(id, (size_t)(dash - id));
    const struct job *job = jobs_find(c, array);
    return job != NULL && job->array != NULL;
}
