/* How jobs enter the coordinator; see admission.h. */
#include "coordinator/scheduler/admission.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/attempt_run.h"
#include "coordinator/jobs/job_record.h"
#include "coordinator/jobs/jobs.h"
#include "coordinator/jobs/owners.h"
#include "coordinator/jobs/parts.h"
#include "coordinator/jobs/retry.h"
#include "coordinator/scheduler/arrays.h"
#include "coordinator/scheduler/dependencies.h"
#include "coordinator/workers/planner.h"
#include "proto/message.h"

job_message *jobs_make(const struct job_submission *submission, const char *id)
{
    const job_spec *spec = submission->spec;
    job_message *message = MESSAGE_NEW(message, fsdpd__v1__job__init);
    message_set_text(&message->id, id);
    message_set_text(&message->name, spec->name);
    message_set_text(&message->owner, submission->owner);
    if (submission->hold) message_set_text(&message->held_by, submission->owner);
    message->priority = spec->priority;
    message->spec = message_copy(spec);
    if (submission->plan != NULL) message->plan = message_copy(submission->plan);
    const Fsdpd__V1__Chosen *chosen =
        submission->plan != NULL ? planner_chosen(spec, submission->plan) : NULL;
    if (chosen != NULL) message->chosen = message_copy(chosen);
    message->state = (Fsdpd__V1__JobState)JOB_QUEUED;
    message->steps = submission->steps;
    message_set_time(&message->submit_time, clock_wall_ms());
    message_set_time(&message->state_time, message_time_ms(message->submit_time));
    deadlines_resolve(message);
    AUTO_FREE char *held = submission->hold ? mem_printf("held by %s", submission->owner) : NULL;
    job_set_reason_text(message, held != NULL ? "HELD" : "QUEUED",
                        held != NULL ? held : "waiting for its turn");
    return message;
}

struct job *jobs_adopt(struct coordinator *c, job_message *message)
{
    struct job *job = job_add(c, message);
    job->owner = owners_get(c, message->owner);
    return job;
}

static void count_active(const struct coordinator *c, const char *owner, bool arrays, int *all,
                         int *owners)
{
    *all = *owners = 0;
    for (int i = 0; i < c->job_count; i++) {
        const struct job *job = c->jobs[i];
        if (job->over || (job->array != NULL && !arrays)) continue;
        (*all)++;
        *owners += strcmp(job->message->owner, owner) == 0;
    }
}

int jobs_room(const struct coordinator *c, const char *owner)
{
    int all, owners;
    count_active(c, owner, false, &all, &owners);
    int room = c->options.limits.jobs_active - all, own = c->options.limits.jobs_per_user - owners;
    return room < own ? room : own;
}

static status_t check_count(const struct coordinator *c, const char *owner)
{
    int all, owners;
    count_active(c, owner, true, &all, &owners);
    if (all >= c->options.limits.jobs_active)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "%d jobs are queued or running already, which is the limit", all);
    if (owners >= c->options.limits.jobs_per_user)
        return status_new(
            STATUS_RESOURCE_EXHAUSTED,
            "%d jobs of %s are queued or running already, which is the limit per user", owners,
            owner[0] != '\0' ? owner : "this user");
    return NULL;
}

/* A state_dict of an earlier end is kept until that of the next one replaces it. */
static status_t find_outdated(struct coordinator *c, const job_message *message, bool *outdated)
{
    struct store_weights kept;
    *outdated = false;
    if (!message->has_state_dict) return NULL;
    TRY(store_get_state_dict(c->store, message->id, &kept));
    *outdated = message->spec->save_model && kept.step < message->steps;
    return NULL;
}

status_t jobs_revive(struct coordinator *c, job_message *message, struct job **out)
{
    uint64_t sequence = 0, metrics_events = 0;
    status_t status = check_count(c, message->owner);
    owners_note_kept(c, message, -1);
    if (status == NULL)
        status = store_count_events(c->store, message->id, &sequence, &metrics_events);
    bool outdated = false;
    if (status == NULL) status = find_outdated(c, message, &outdated);
    if (status == NULL && message->has_state_dict && !outdated)
        status = store_drop_state_dict(c->store, message->id);
    if (status != NULL) {
        owners_note_kept(c, message, 1);
        message_free(message);
        return status;
    }
    message->has_state_dict = outdated;
    arrays_job_revived(c, message);
    message->state = (Fsdpd__V1__JobState)JOB_PAUSED;
    message_set_time(&message->finish_time, 0);
    struct job *job = jobs_adopt(c, message);
    job->sequence = sequence;
    job->metrics_events = metrics_events;
    job->outdated = outdated;
    job->retried = true; /* the store must record that it has all its retries again */
    deadlines_begin(job);
    *out = job;
    return NULL;
}

status_t jobs_create(struct coordinator *c, const struct job_submission *submission,
                     struct job **out)
{
    const job_spec *spec = submission->spec;
    TRY(check_count(c, submission->owner));
    AUTO_FREE char *made = NULL;
    if (submission->id[0] == '\0') TRY(store_next_id(c->store, spec->name, &made));
    job_message *message = jobs_make(submission, made != NULL ? made : submission->id);

    job_event event;
    Fsdpd__V1__StateChange change;
    Google__Protobuf__Timestamp now;
    job_state_event(message, submission->owner, &event, &change);
    event.time = message_time(&now, clock_wall_ms());
    status_t status = dependencies_find(c, message);
    if (status == NULL) status = store_insert_job(c->store, message, &event);
    if (status != NULL) {
        message_free(message);
        return status;
    }
    struct job *job = jobs_adopt(c, message);
    job->sequence = 1;
    arrays_begin(job);
    deadlines_begin(job);
    queue_changed(c);
    log_event(LOG_INFO, "job_queued", "job=%s owner=%s workers=%u device=%s priority=%d",
              message->id, message->owner, spec->workers, spec->device, message->priority);
    job_log_note(c, message->id, 0, "INFO", "job_state state=QUEUED reason=QUEUED");
    *out = job;
    return NULL;
}

static status_t recover_one(void *user, const job_message *message)
{
    struct coordinator *c = user;
    jobs_adopt(c, message_copy(message));
    return NULL;
}

static status_t note_checkpoint(void *user, const Fsdpd__V1__Checkpoint *checkpoint)
{
    struct job *job = user;
    int64_t taken_ms = message_time_ms(checkpoint->time);
    if (taken_ms > job->totals.checkpoint_ms) job->totals.checkpoint_ms = taken_ms;
    return NULL;
}

status_t jobs_recover(struct coordinator *c)
{
    struct store_job_query query = {.active_only = true, .visit = recover_one, .user = c};
    TRY(store_each_job(c->store, &query));
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        TRY(store_count_events(c->store, job->message->id, &job->sequence, &job->metrics_events));
        deadlines_resolve(job->message);
        deadlines_begin(job);
        TRY(retry_recover(job));
        TRY(find_outdated(c, job->message, &job->outdated));
        parts_recover(job);
        if (job->message->attempt > 0) /* what cannot be read is reported when it is needed */
            status_free(store_each_checkpoint(c->store, job->message->id, note_checkpoint, job));
        if (!job_is_in_attempt(job->message->state)) continue;
        AUTO_FREE char *path = coordinator_state_dict_path(c, job->message->id);
        AUTO_FREE char *half = mem_printf("%s.tmp", path); /* an interrupted upload */
        AUTO_FREE char *half_sums = mem_printf("%s.sums", half);
        unlink(half);
        unlink(half_sums);
        TRY(reattach_job(job));
        if (job->attempt != NULL) continue;
        retry_attempt_failed(job, true, "COORDINATOR_RESTARTED",
                             "fsdpd ended while the job was %s, and its workers with it",
                             job_state_name(job->message->state));
    }
    for (int i = 0; i < c->job_count; i++) TRY(arrays_recover(c->jobs[i]));
    return dependencies_recover(c);
}
