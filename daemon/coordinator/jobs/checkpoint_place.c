/* Where checkpoints are; see checkpoint_place.h. */
#include "coordinator/jobs/checkpoint_place.h"

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

status_t checkpoint_place_find(const struct job *job, struct worker *const *workers, int count,
                               struct checkpoint_place *place)
{
    const job_message *message = job->message;
    bool resume = message->attempt > 0, must = false;
    if (resume) TRY(store_has_checkpoint(job->c->store, message->id, &must));
    *place = (struct checkpoint_place){.run = checkpoint_dirs_run(message),
                                       .resume = resume,
                                       .must_resume = must};
    bool own = directory_of(message)[0] == '\0' && find_remote(workers, count) == NULL;
    place->folder = own ? coordinator_job_path(job->c, message->id, "checkpoints") : mem_strdup("");
    return NULL;
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
