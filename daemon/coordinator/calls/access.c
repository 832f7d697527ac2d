/* Ownership of jobs; see access.h. */
#include "coordinator/calls/access.h"

#include <string.h>

#include "coordinator/jobs/attempt.h"
#include "spec/queue.h"

const char *access_user(const struct rpc_call *call)
{
    return rpc_call_peer(call)->name;
}

bool access_is_operator(const struct rpc_call *call)
{
    return (rpc_call_peer(call)->roles & RPC_OPERATOR) != 0;
}

status_t access_check(const struct rpc_peer *peer, const job_message *job, const char *doing)
{
    if ((peer->roles & RPC_OPERATOR) != 0) return NULL;
    if (job->owner[0] != '\0' && strcmp(job->owner, peer->name) == 0) return NULL;
    if (job->owner[0] == '\0')
        return status_new(
            STATUS_PERMISSION_DENIED,
            "job %s predates job owners: only an operator may %s it, and %s is not one", job->id,
            doing, peer->name);
    return status_new(
        STATUS_PERMISSION_DENIED,
        "job %s belongs to %s: only its owner or an operator may %s it, and you are %s", job->id,
        job->owner, doing, peer->name);
}

status_t access_refuse_array(const job_message *message, const char *doing)
{
    if (message->spec == NULL || message->spec->array == NULL) return NULL;
    return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                  "%s is an array: %s its jobs, as %s-INDEX", message->id, doing,
                                  message->id),
                       (struct status_details){.reason = "JOB_IS_AN_ARRAY",
                                               .subject = message->id});
}

status_t access_find(struct coordinator *c, const struct rpc_call *call, const char *id,
                     const char *doing, struct job **out)
{
    return access_find_for(c, rpc_call_peer(call), id, doing, out);
}

static status_t find_any(struct coordinator *c, const struct rpc_peer *peer, const char *id,
                         const char *doing, struct job **out)
{
    struct job *job = jobs_find(c, id);
    job_message *stored = NULL;
    if (job == NULL) TRY(store_get_job(c->store, id, &stored));
    const job_message *message = job != NULL ? job->message : stored;
    status_t status = access_check(peer, message, doing);
    if (status == NULL && job_state_is_over(message->state))
        status =
            status_with(status_new(STATUS_FAILED_PRECONDITION, "job %s is over already: it is %s",
                                   id, job_state_name(message->state)),
                        (struct status_details){.reason = "JOB_IS_OVER", .subject = id});
    message_free(stored);
    if (status == NULL) *out = job;
    return status;
}

status_t access_find_any(struct coordinator *c, const struct rpc_call *call, const char *id,
                         const char *doing, struct job **out)
{
    return find_any(c, rpc_call_peer(call), id, doing, out);
}

status_t access_find_for(struct coordinator *c, const struct rpc_peer *peer, const char *id,
                         const char *doing, struct job **out)
{
    TRY(find_any(c, peer, id, doing, out));
    return access_refuse_array((*out)->message, doing);
}

bool access_is_workers_id(const struct rpc_peer *peer, const char *id)
{
    size_t length = strlen(peer->name);
    return strncmp(id, peer->name, length) == 0 && id[length] == '/';
}

status_t access_check_rank(struct coordinator *c, const struct rpc_call *call, const char *id)
{
    const struct rpc_peer *peer = rpc_call_peer(call);
    const struct job *job = jobs_find(c, id);
    if (peer->kind != RPC_PEER_TLS || job == NULL || job->attempt == NULL) return NULL;
    for (int r = 0; r < job->attempt->world; r++)
        if (access_is_workers_id(peer, job->attempt->ranks[r].worker_id)) return NULL;
    return status_new(STATUS_PERMISSION_DENIED, "job %s does not run on fsdpd://worker/%s", id,
                      peer->name);
}

status_t access_check_priority(const struct coordinator *c, const struct rpc_call *call,
                               int priority)
{
    if (priority < -SPEC_PRIORITY_MAX || priority > SPEC_PRIORITY_MAX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "priority: expected an integer from %d to %d, found %d",
                          -SPEC_PRIORITY_MAX, SPEC_PRIORITY_MAX, priority);
    int most = c->options.limits.user_priority;
    if (priority <= most || access_is_operator(call)) return NULL;
    return status_new(STATUS_PERMISSION_DENIED,
                      "priority: users may give at most %d, found %d; operators may give more",
                      most, priority);
}
