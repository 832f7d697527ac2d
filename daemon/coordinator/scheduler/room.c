/*
 * Room on the disks; see admission.h. Sizes are estimates in floating point, which cannot overflow. A
 * job's logs, metrics and events get a fixed allowance: their maximum (log_bytes) is much more than
 * nearly all jobs write.
 */
#include "coordinator/scheduler/admission.h"

#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/core/internal.h"
#include "coordinator/jobs/jobs.h"
#include "spec/spec.h"

enum {
    ALLOWANCE = 1 << 20,  /* for logs, metrics and events */
    HEADER = 64 << 10,    /* of a weights file: names and shapes */
    STORE_LEAST = 1 << 20 /* free bytes required to accept a job */
};

/* The bytes that a job writes. */
struct need {
    double state_dict, checkpoints, all;
    double checkpoint_count;
};

/* Values that the optimizer keeps per parameter, with their average, in f32. */
static int count_slots(const job_spec *spec)
{
    return spec_optimizer_slots(spec->optimizer) +
           (spec->train->ema != NULL && spec->train->ema->decay > 0);
}

/* Each may be better than all before. */
static double count_evaluations(const job_spec *spec, uint64_t steps)
{
    uint64_t every = spec->train->evaluate_interval;
    for (size_t i = 0; i < spec->data->n_validation; i++)
        if (strcmp(spec->data->validation[i]->name, spec->checkpoint->best->set) == 0)
            every = spec->data->validation[i]->every_steps;
    if (spec_has_images(spec->data)) return (double)spec->train->epochs + 1;
    return every > 0 ? (double)(steps / every) + 1 : 1;
}

/* Checkpoints that are taken: the last step's may be one of the others. */
static double count_taken(const job_spec *spec, uint64_t steps)
{
    const Fsdpd__V1__CheckpointSpec *checkpoint = spec->checkpoint;
    double taken = 0;
    bool last = false;
    if (checkpoint->every_steps > 0) {
        taken += (double)(steps / checkpoint->every_steps);
        last = steps > 0 && steps % checkpoint->every_steps == 0;
    }
    if (checkpoint->every_epochs > 0) {
        taken += (double)(spec->train->epochs / checkpoint->every_epochs);
        last = last || (spec->train->max_steps == 0 && spec->train->epochs > 0 &&
                        spec->train->epochs % checkpoint->every_epochs == 0);
    }
    if (spec_keeps_best(checkpoint)) taken += count_evaluations(spec, steps);
    return last ? taken : taken + 1;
}

/* Checkpoints that exist at a time: one more than are kept, and the best one, or all, but no more
 * than are taken. */
static double count_checkpoints(const job_spec *spec, uint64_t steps)
{
    const Fsdpd__V1__CheckpointSpec *checkpoint = spec->checkpoint;
    if (checkpoint == NULL || checkpoint->directory[0] != '\0') return 0;
    if (!spec_takes_checkpoints(checkpoint)) return 0;
    double taken = count_taken(spec, steps);
    double kept = (double)checkpoint->keep + 1 + spec_keeps_best(checkpoint);
    return checkpoint->keep == 0 || (steps > 0 && taken < kept) ? taken : kept;
}

static struct need need_of(const job_spec *spec, const Fsdpd__V1__Plan *plan, uint64_t steps)
{
    double weights = plan != NULL ? (double)plan->parameters * (double)sizeof(float) : 0;
    double optimizer = weights * count_slots(spec);
    if (plan != NULL && plan->_optimizer_bytes_case != 0) optimizer = (double)plan->optimizer_bytes;
    const Fsdpd__V1__FsdpSpec *fsdp = spec->fsdp; /* whose units may compute in f32 */
    bool rounded = spec->precision != NULL &&
                   spec->precision->master_dtype == FSDPD__V1__DTYPE__DTYPE_BF16 &&
                   (fsdp->wrap == NULL || fsdp->wrap->n_units == 0);
    struct need need = {.state_dict = spec->save_model ? weights + HEADER : 0};
    need.checkpoint_count = count_checkpoints(spec, steps);
    need.checkpoints =
        need.checkpoint_count * ((rounded ? weights / 2 : weights) + optimizer + HEADER);
    need.all = need.state_dict + need.checkpoints + ALLOWANCE;
    return need;
}

double room_needed(const job_spec *spec, const Fsdpd__V1__Plan *plan, uint64_t steps)
{
    return need_of(spec, plan, steps).all;
}

static status_t add_bytes(void *user, const Fsdpd__V1__Checkpoint *checkpoint)
{
    *(double *)user += (double)checkpoint->bytes;
    return NULL;
}

/* Bytes that a job accepted earlier has yet to write. */
static double still_to_come(const struct job *job)
{
    const job_message *message = job->message;
    if (job->array != NULL) return 0; /* its jobs count, once they are made */
    struct need need = need_of(message->spec, message->plan, message->steps);
    double written = 0;
    if (need.checkpoints > 0 && message->attempt > 0)
        log_status(LOG_WARNING, "store_failed",
                   store_each_checkpoint(job->c->store, message->id, add_bytes, &written));
    if (written > need.checkpoints) written = need.checkpoints;
    return need.all - written - (job_has_result(job) ? need.state_dict : 0);
}

status_t room_check(struct coordinator *c, const job_spec *spec, const Fsdpd__V1__Plan *plan,
                    uint64_t steps)
{
    TRY(room_refusal(c));
    AUTO_FREE char *path = mem_printf("%s/jobs", c->options.state_dir);
    struct stat info;
    const char *where = stat(path, &info) == 0 ? path : c->options.state_dir; /* no job yet */
    struct need need = need_of(spec, plan, steps);
    double before = 0, free_bytes = disk_free(where);
    for (int i = 0; i < c->job_count; i++) before += still_to_come(c->jobs[i]);
    if (need.all + before > free_bytes)
        return status_new(
            STATUS_RESOURCE_EXHAUSTED,
            "%s has no room for the job: it will write %.0f bytes (final state_dict %.0f, "
            "%.0f checkpoints %.0f, logs and metrics %d), jobs accepted before it %.0f more, and "
            "%.0f bytes are free",
            where, need.all, need.state_dict, need.checkpoint_count, need.checkpoints, ALLOWANCE,
            before, free_bytes);
    return NULL;
}

status_t room_refusal(const struct coordinator *c)
{
    TRY(store_check_files(c->store)); /* the free space of a removed directory is meaningless */
    const char *directory = c->options.state_dir;
    if (c->reserve_bytes < RESERVE_BYTES)
        return status_new(
            STATUS_RESOURCE_EXHAUSTED,
            "no new jobs are accepted: the disk of %s is full (%.0f bytes are free, and "
            "%lld of the %d bytes of the store's reserve are left)",
            directory, disk_free(directory), (long long)c->reserve_bytes, RESERVE_BYTES);
    double free_bytes = disk_free(directory);
    if (free_bytes >= STORE_LEAST) return NULL;
    return status_new(STATUS_RESOURCE_EXHAUSTED,
                      "no new jobs are accepted: the disk of %s is full (%.0f bytes are free, at "
                      "least %d are needed)",
                      directory, free_bytes, STORE_LEAST);
}
