/* Where checkpoints are; see checkpoint_place.h. */
#include "coordinator/jobs/checkpoint_place.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/checkpoint_dirs.h"
#include "proto/message.h"
#include "spec/spec.h"

static const char *directory_of(const job_message *message)
{
    const Fsdpd__V1__CheckpointSpec *spec = message->spec->checkpoint;
    return spec != NULL ? spec->directory : "";
}

/* Whether it sees this host's files: it is a child, or it attached through a socket of this
 * host. */
static bool is_local(const struct worker *worker)
{
    return worker->supervised ||
           (worker->link != NULL && rpc_call_peer(worker->link)->kind == RPC_PEER_UNIX);
}

static const struct worker *find_remote(struct worker *const *workers, int count)
{
    for (int i = 0; i < count; i++)
        if (!is_local(workers[i])) return workers[i];
    return NULL;
}

status_t checkpoint_place_check(const struct job *job, struct worker *const *workers, int count)
{
    const Fsdpd__V1__CheckpointSpec *spec = job->message->spec->checkpoint;
    if (spec == NULL || spec->directory[0] != '\0') return NULL;
    if (!spec_takes_checkpoints(spec)) return NULL;
    const struct worker *remote = find_remote(workers, count);
    if (remote == NULL) return NULL;
    return status_new(STATUS_FAILED_PRECONDITION,
                      "checkpoint.directory: is missing; worker %s is on another host: expected a "
                      "directory below the data roots that all of them share",
                      remote->id);
}

static status_t add_listed(void *user, const Fsdpd__V1__Checkpoint *checkpoint)
{
    struct checkpoint_place *place = user;
    const char *slash = strrchr(checkpoint->path, '/');
    MEM_GROW(place->listed, place->listed_count, place->listed_capacity);
    place->listed[place->listed_count++] = mem_strdup(slash != NULL ? slash + 1 : checkpoint->path);
    return NULL;
}

status_t checkpoint_place_find(const struct job *job, struct worker *const *workers, int count,
                               struct checkpoint_place *place)
{
    const job_message *message = job->message;
    *place = (struct checkpoint_place){.resume = message->attempt > 0};
    status_t status = NULL;
    if (place->resume)
        status = store_each_checkpoint(job->c->store, message->id, add_listed, place);
    if (status != NULL) {
        checkpoint_place_deinit(place);
        return status;
    }
    place->must_resume = place->listed_count > 0;
    place->run = checkpoint_dirs_run(message);
    bool own = directory_of(message)[0] == '\0' && find_remote(workers, count) == NULL;
    place->folder = own ? coordinator_job_path(job->c, message->id, "checkpoints") : mem_strdup("");
    return NULL;
}

/* ---- checkpoint.best ---- */

static status_t take_best(void *user, const Fsdpd__V1__Checkpoint *checkpoint)
{
    if (checkpoint->_best_case != 0) *(uint64_t *)user = checkpoint->step;
    return NULL;
}

status_t checkpoint_place_best(struct coordinator *c, const char *id, uint64_t *step)
{
    *step = 0;
    TRY(store_each_checkpoint(c->store, id, take_best, step));
    if (*step > 0) return NULL;
    return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                  "job %s has no best checkpoint: expected checkpoint.best among "
                                  "its settings, and an evaluation",
                                  id),
                       (struct status_details){.reason = "CHECKPOINT_NOT_FOUND", .subject = id});
}

/* ---- model.job ---- */

struct source_search {
    uint64_t step;
    char *name;
};

/* A later one of the same step takes the earlier one's place. */
static status_t take_step(void *user, const Fsdpd__V1__Checkpoint *checkpoint)
{
    struct source_search *find = user;
    const char *slash = strrchr(checkpoint->path, '/');
    if (checkpoint->step != find->step) return NULL;
    free(find->name);
    find->name = mem_strdup(slash != NULL ? slash + 1 : checkpoint->path);
    return NULL;
}

static status_t find_final(struct coordinator *c, Fsdpd__V1__Source *source, const char *id)
{
    struct store_weights weights;
    status_t status = store_get_state_dict(c->store, id, &weights);
    if (status_code(status) == STATUS_NOT_FOUND) {
        status_free(status);
        return status_new(STATUS_NOT_FOUND, "model.job: the final weights of %s are gone", id);
    }
    TRY(status);
    source->step = weights.step;
    source->file = coordinator_state_dict_path(c, id);
    return NULL;
}

static status_t find_checkpoint(struct coordinator *c, Fsdpd__V1__Source *source,
                                const job_message *of, uint64_t step)
{
    struct source_search find = {.step = step};
    status_t status = store_each_checkpoint(c->store, of->id, take_step, &find);
    if (status == NULL && find.name == NULL)
        status = status_new(STATUS_NOT_FOUND,
                            "model.checkpoint: the checkpoint of step %llu of %s "
                            "is gone",
                            (unsigned long long)step, of->id);
    if (status != NULL) {
        free(find.name);
        return status;
    }
    source->step = step;
    source->name = find.name;
    source->run = checkpoint_dirs_run(of);
    source->directory = mem_strdup(directory_of(of));
    if (source->directory[0] == '\0')
        source->folder = coordinator_job_path(c, of->id, "checkpoints");
    return NULL;
}

static status_t find_source(struct coordinator *c, const Fsdpd__V1__ModelSpec *model,
                            Fsdpd__V1__Source *source)
{
    const struct job *live = jobs_find(c, model->job);
    job_message *stored = NULL;
    if (live == NULL) TRY(status_wrap(store_get_job(c->store, model->job, &stored), "model.job"));
    const job_message *of = live != NULL ? live->message : stored;
    status_t status = model->checkpoint == 0 ? find_final(c, source, model->job)
                                             : find_checkpoint(c, source, of, model->checkpoint);
    message_free(stored);
    return status;
}

status_t checkpoint_place_find_source(const struct job *job, struct worker *const *workers,
                                      int count, struct checkpoint_place *place)
{
    const Fsdpd__V1__ModelSpec *model = job->message->spec->model;
    if (model->job[0] == '\0') return NULL;
    place->source = MESSAGE_NEW(place->source, fsdpd__v1__source__init);
    TRY(find_source(job->c, model, place->source));
    const struct worker *remote = find_remote(workers, count);
    if (remote == NULL || place->source->directory[0] != '\0') return NULL;
    return status_new(STATUS_FAILED_PRECONDITION,
                      "model.job: the weights of %s are on fsdpd's host, but worker %s is on "
                      "another one; pull them below a data root and name them in model.weights",
                      model->job, remote->id);
}

void checkpoint_place_deinit(struct checkpoint_place *place)
{
    message_free(place->source);
    for (size_t i = 0; i < place->listed_count; i++) free(place->listed[i]);
    free(place->listed);
    free(place->folder);
    free(place->run);
}

bool checkpoint_place_exists(const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    bool shared = directory_of(job->message)[0] != '\0';
    for (int r = 0; r < attempt->world; r++) {
        const struct worker *worker = attempt->ranks[r].worker;
        if (worker == NULL || (!shared && !is_local(worker))) return false;
    }
    return true;
}
