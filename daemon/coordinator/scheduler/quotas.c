/* Quotas; see quotas.h. On the loop's thread. */
#include "coordinator/scheduler/quotas.h"

#include <limits.h>
#include <string.h>

#include "coordinator/jobs/attempt.h"
#include "coordinator/scheduler/admission.h"

void quotas_count(struct coordinator *c)
{
    int quota = c->options.limits.quota_workers;
    for (int i = 0; i < c->owner_count; i++) c->owners[i]->left = quota > 0 ? quota : INT_MAX;
    for (int i = 0; i < c->job_count && quota > 0; i++) {
        const struct job *job = c->jobs[i];
        if (job->attempt == NULL) continue;
        int world = job->attempt->world, next = job->elastic.next;
        job->owner->left -= next > world ? next : world;
    }
}

status_t quotas_check_count(const struct coordinator *c, const char *field, uint32_t workers)
{
    int quota = c->options.limits.quota_workers;
    if (quota == 0 || workers <= (uint32_t)quota) return NULL;
    return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                  "%s: expected at most %d, the daemon's queue.quota.workers, "
                                  "found %u",
                                  field, quota, workers),
                       (struct status_details){.field = field});
}

status_t quotas_check_workers(const struct coordinator *c, const job_spec *spec)
{
    bool elastic = spec->elastic != NULL && spec->elastic->max_workers > 0;
    if (elastic) return quotas_check_count(c, "elastic.min_workers", spec->elastic->min_workers);
    return quotas_check_count(c, "workers", spec->workers);
}

status_t quotas_check_kept(struct coordinator *c, const struct quotas_job *job)
{
    double quota = (double)c->options.limits.quota_kept_bytes;
    if (quota == 0) return NULL;
    owners_count_kept(c);
    const struct job_owner *owner = owners_get(c, job->owner);
    double need = room_needed(job->spec, job->plan, job->steps);
    double others = job->others;
    bool is_over = job->id[0] != '\0' && jobs_find(c, job->id) == NULL;
    double kept = owner->kept_bytes - (is_over ? owners_kept_by(c, job->id) : 0);
    for (int i = 0; i < c->job_count; i++) {
        const job_message *other = c->jobs[i]->message;
        if (c->jobs[i]->owner != owner || strcmp(other->id, job->id) == 0) continue;
        if (c->jobs[i]->array != NULL) continue; /* its jobs count, once they are made */
        others += room_needed(other->spec, other->plan, other->steps);
    }
    if (kept + others + need <= quota) return NULL;
    return status_with(
        status_new(STATUS_RESOURCE_EXHAUSTED,
                   "the job would keep %.0f bytes at most: the jobs of %s that are over keep %.0f, "
                   "those that are not will keep %.0f at most, and the daemon's "
                   "queue.quota.kept_bytes is %.0f",
                   need, owner->name[0] != '\0' ? owner->name : "this user", kept, others, quota),
        (struct status_details){.reason = "QUOTA", .subject = owner->name});
}
