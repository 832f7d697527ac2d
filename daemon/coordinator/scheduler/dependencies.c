/* Dependencies between jobs; see dependencies.h. */
#include "coordinator/scheduler/dependencies.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

static bool lists(char *const *ids, size_t count, const char *id)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(ids[i], id) == 0) return true;
    return false;
}

static bool must_succeed(const job_message *message, const char *id)
{
    return lists(message->spec->after, message->spec->n_after, id);
}

static void add_wait(job_message *message, const char *id)
{
    if (lists(message->waits_for, message->n_waits_for, id)) return;
    message->waits_for =
        mem_resize_array(message->waits_for, message->n_waits_for + 1, sizeof *message->waits_for);
    message->waits_for[message->n_waits_for++] = mem_strdup(id);
}

static bool drop_wait(job_message *message, const char *id)
{
    for (size_t i = 0; i < message->n_waits_for; i++) {
        if (strcmp(message->waits_for[i], id) != 0) continue;
        free(message->waits_for[i]);
        message->n_waits_for--;
        for (; i < message->n_waits_for; i++) message->waits_for[i] = message->waits_for[i + 1];
        return true;
    }
    return false;
}

/* The state of a job, in memory or in the store; 0 if there is none. */
static status_t find_state(struct coordinator *c, const char *id, int *state)
{
    const struct job *job = jobs_find(c, id);
    *state = 0;
    if (job != NULL) {
        *state = (int)job->message->state;
        /* It is over only once the store has recorded it. */
        if (job_state_is_over(*state)) *state = JOB_RUNNING;
        return NULL;
    }
    job_message *stored = NULL;
    status_t status = store_get_job(c->store, id, &stored);
    if (status_code(status) == STATUS_NOT_FOUND) {
        status_free(status);
        return NULL;
    }
    if (status == NULL) *state = (int)stored->state;
    message_free(stored);
    return status;
}

static status_t find_one(struct coordinator *c, job_message *message, const char *key,
                         const char *id)
{
    int state;
    TRY(find_state(c, id, &state));
    if (state == 0 || strcmp(id, message->id) == 0)
        return status_with(status_new(STATUS_NOT_FOUND, "%s: there is no job %s", key, id),
                           (struct status_details){.reason = "JOB_NOT_FOUND",
                                                   .subject = id,
                                                   .field = key});
    if (!job_state_is_over(state)) {
        add_wait(message, id);
        return NULL;
    }
    if (state == JOB_SUCCEEDED || !must_succeed(message, id)) return NULL;
    return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                  "%s: job %s is %s, so this one would never start; after_any "
                                  "waits for the end in any state",
                                  key, id, job_state_name(state)),
                       (struct status_details){.reason = "DEPENDENCY_HAS_FAILED",
                                               .subject = id,
                                               .field = key});
}

status_t dependencies_find(struct coordinator *c, job_message *message)
{
    const job_spec *spec = message->spec;
    if (spec->array != NULL) return NULL; /* each of its jobs waits */
    for (size_t i = 0; i < spec->n_after; i++) TRY(find_one(c, message, "after", spec->after[i]));
    for (size_t i = 0; i < spec->n_after_any; i++)
        TRY(find_one(c, message, "after_any", spec->after_any[i]));
    return NULL;
}

status_t dependencies_check(struct coordinator *c, const char *id, const job_spec *spec)
{
    job_message message = FSDPD__V1__JOB__INIT;
    message.id = (char *)id;
    message.spec = (job_spec *)spec;
    status_t status = dependencies_find(c, &message);
    for (size_t i = 0; i < message.n_waits_for; i++) free(message.waits_for[i]);
    free(message.waits_for);
    return status;
}

static void give_up(struct job *job, const char *id, int state)
{
    job_set_state(job, JOB_CANCELLED, "DEPENDENCY_FAILED", "job %s, which it depends on, is %s", id,
                  job_state_name(state));
}

/* A job that the store no longer has is no obstacle: it was forgotten, which happens only when no
 * job waits for it. */
static status_t recover_one(struct coordinator *c, struct job *job, char *const *ids, size_t count,
                            bool *gone)
{
    for (size_t i = 0; i < count && !*gone; i++) {
        int state;
        status_t status = find_state(c, ids[i], &state);
        if (status_code(status) == STATUS_DATA_LOSS) { /* its end is unknown */
            log_status(LOG_ERROR, "dependency_damaged", status);
            state = JOB_RUNNING;
            status = NULL;
        }
        TRY(status);
        if (state == 0) continue;
        if (!job_state_is_over(state)) {
            add_wait(job->message, ids[i]);
        } else if (state != JOB_SUCCEEDED && must_succeed(job->message, ids[i])) {
            give_up(job, ids[i], state);
            *gone = true;
        }
    }
    return NULL;
}

status_t dependencies_adopt(struct job *job)
{
    const job_spec *spec = job->message->spec;
    bool gone = false;
    if (job->message->state != FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED ||
        job->message->attempt > 0 || spec->array != NULL)
        return NULL;
    TRY(recover_one(job->c, job, spec->after, spec->n_after, &gone));
    return gone ? NULL : recover_one(job->c, job, spec->after_any, spec->n_after_any, &gone);
}

status_t dependencies_recover(struct coordinator *c)
{
    for (int i = 0; i < c->job_count; i++) TRY(dependencies_adopt(c->jobs[i]));
    return NULL;
}

void dependencies_job_over(struct coordinator *c, const job_message *over)
{
    int state = (int)over->state;
    for (int i = 0; i < c->job_count; i++) {
        struct job *job = c->jobs[i];
        if (job->message->n_waits_for == 0 || !drop_wait(job->message, over->id)) continue;
        if (job_state_is_over((int)job->message->state)) continue;
        queue_changed(c);
        if (state != JOB_SUCCEEDED && must_succeed(job->message, over->id))
            give_up(job, over->id, state);
    }
}
