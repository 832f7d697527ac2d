/* Totals of a job; see jobs.h. */
#include "coordinator/jobs/jobs.h"

#include <math.h>
#include <string.h>

#include "spec/spec.h"

static void add_collective(struct job_totals *totals, const char *kind, double bytes)
{
    int i = 0;
    while (i < totals->op_count && strcmp(totals->ops[i].kind, kind) != 0) i++;
    if (i == JOB_TOTALS_OPS || strlen(kind) >= sizeof totals->ops[i].kind) return;
    if (i == totals->op_count) strcpy(totals->ops[totals->op_count++].kind, kind);
    totals->ops[i].bytes += bytes;
}

void job_totals_add(struct job_totals *totals, const job_message *job,
                    const Fsdpd__V1__Metrics *report)
{
    if (report->step <= totals->step) return;
    double steps = (double)(report->step - totals->step);
    totals->step = report->step;
    struct spec_settings with;
    uint32_t workers = spec_settings(job->spec, job->chosen, &with)->workers;
    for (size_t i = 0; job->plan != NULL && i < job->plan->n_collectives; i++)
        add_collective(totals, job->plan->collectives[i]->kind,
                       steps * (double)job->plan->collectives[i]->bytes * workers);
    if (!(report->step_seconds > 0) || !isfinite(report->step_seconds)) return;
    totals->steps += (uint64_t)steps;
    totals->seconds += steps * report->step_seconds;
    if (report->samples_per_second > 0 && isfinite(report->samples_per_second))
        totals->samples += round(steps * report->step_seconds * report->samples_per_second);
    if (report->exposed_communication_seconds > 0)
        totals->exposed_seconds += steps * report->exposed_communication_seconds;
}
