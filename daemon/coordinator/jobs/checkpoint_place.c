/* Where checkpoints are; see checkpoint_place.h. */
#include "coordinator/jobs/checkpoint_place.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/jobs/attempt.h"
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

/* ---- weights of other jobs ---- */

static status_t take_newest(void *user, const Fsdpd__V1__Checkpoint *checkpoint)
{
    *(uint64_t *)user = checkpoint->step; /* in their order */
    return NULL;
}

struct wanted_step {
    uint64_t step;
    bool found;
};

static status_t look_for_step(void *user, const Fsdpd__V1__Checkpoint *checkpoint)
{
    struct wanted_step *wanted = user;
    wanted->found = wanted->found || checkpoint->step == wanted->step;
    return NULL;
}

status_t checkpoint_place_choose(struct coordinator *c, const job_message *of, const char *which,
                                 uint64_t *step)
{
    struct wanted_step wanted = {.step = strtoull(which, NULL, 10)};
    *step = 0;
    if (strcmp(which, "best") == 0) return checkpoint_place_best(c, of->id, step);
    if (which[0] == '\0' && of->has_state_dict) return NULL;
    if (wanted.step > 0) {
        TRY(store_each_checkpoint(c->store, of->id, look_for_step, &wanted));
        *step = wanted.step;
        if (wanted.found) return NULL;
        return status_new(STATUS_FAILED_PRECONDITION,
                          "job %s has no checkpoint of step %s; fsdpctl checkpoints %s lists them",
                          of->id, which, of->id);
    }
    TRY(store_each_checkpoint(c->store, of->id, take_newest, step));
    if (*step > 0) return NULL;
    return status_new(STATUS_FAILED_PRECONDITION,
                      "job %s is %s, and has neither final weights nor a checkpoint", of->id,
                      job_state_name(of->state));
}

bool checkpoint_place_names(const job_message *message, const char *id)
{
    const Fsdpd__V1__ModelSpec *model = message->spec->model;
    struct spec_from found[SPEC_FROM_MAX];
    int count = spec_find_from(model, found);
    bool names = strcmp(model->job, id) == 0;
    for (int i = 0; i < count; i++) names = names || strcmp(found[i].from->job, id) == 0;
    return names;
}

const char *checkpoint_place_needed(struct coordinator *c, const char *id)
{
    for (int i = 0; i < c->job_count; i++) {
        const job_message *message = c->jobs[i]->message;
        if (checkpoint_place_names(message, id) && !job_state_is_over(message->state))
            return message->id;
    }
    return NULL;
}

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
        return status_new(STATUS_NOT_FOUND, "the final weights of %s are gone", id);
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
        status = status_new(STATUS_NOT_FOUND, "the checkpoint of step %llu of %s is gone",
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

/* The final weights (step 0), or those of a checkpoint; `chosen`: as checkpoint_place_choose has
 * it, NULL: it is `step`. A worker that may not see the files, or reads no checkpoint of another
 * model, pulls them. */
static status_t find_weights(struct coordinator *c, const char *id, const char *chosen,
                             uint64_t step, bool pulled, Fsdpd__V1__Source **made)
{
    Fsdpd__V1__Source *source = *made = MESSAGE_NEW(source, fsdpd__v1__source__init);
    const struct job *live = jobs_find(c, id);
    job_message *stored = NULL;
    if (live == NULL) TRY(store_get_job(c->store, id, &stored));
    const job_message *of = live != NULL ? live->message : stored;
    status_t status = chosen != NULL ? checkpoint_place_choose(c, of, chosen, &step) : NULL;
    if (status == NULL)
        status = step == 0 ? find_final(c, source, id) : find_checkpoint(c, source, of, step);
    if (status == NULL && pulled) source->job = mem_strdup(id);
    message_free(stored);
    return status;
}

/* Checkpoints have the layout of the job that took them; a job that trains reads whole tensors. */
static status_t find_from(const struct job *job, const struct spec_from *found, bool remote,
                          struct checkpoint_place *place)
{
    const Fsdpd__V1__JobWeights *from = found->from;
    const char *chosen = from->_step_case == 0 ? from->checkpoint : NULL;
    bool final = from->_step_case != 0 && from->step == 0;
    return status_wrap(find_weights(job->c, from->job, chosen, from->step, remote || !final,
                                    found->adapter ? &place->adapter_source : &place->source),
                       "%s.job", found->key);
}

status_t checkpoint_place_find_source(const struct job *job, struct worker *const *workers,
                                      int count, struct checkpoint_place *place)
{
    const Fsdpd__V1__ModelSpec *model = job->message->spec->model;
    bool remote = find_remote(workers, count) != NULL;
    struct spec_from found[SPEC_FROM_MAX];
    /* A base of another type than f32 is in no checkpoint of the job itself. */
    bool saved = place->must_resume && model->base_dtype <= FSDPD__V1__BASE_DTYPE__BASE_DTYPE_F32;
    int froms = saved ? 0 : spec_find_from(model, found);
    for (int i = 0; i < froms; i++)
        if (!place->must_resume || !found[i].adapter) TRY(find_from(job, &found[i], remote, place));
    if (model->job[0] == '\0') return NULL;
    TRY(status_wrap(find_weights(job->c, model->job, NULL, model->checkpoint, false,
                                 &place->source),
                    "model.job"));
    if (remote && place->source->directory[0] == '\0') place->source->job = mem_strdup(model->job);
    return NULL;
}

void checkpoint_place_deinit(struct checkpoint_place *place)
{
    message_free(place->source);
    message_free(place->adapter_source);
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
