/* Where checkpoints are; see checkpoint_place.h. */
#include "coordinator/jobs/checkpoint_place.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/jobs/attempt.h"
#include "coordinator/jobs/checkpoint_dirs.h"

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
    if (spec->every_steps == 0 && spec->every_epochs == 0) return NULL;
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

void checkpoint_place_deinit(struct checkpoint_place *place)
{
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
