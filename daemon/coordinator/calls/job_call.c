/* Calls that wait for something from a job; see job_call.h. */
#include "coordinator/calls/job_call.h"

#include <stdlib.h>

#include "base/mem.h"
#include "coordinator/jobs/elastic.h"
#include "coordinator/workers/planner.h"

static struct job_call *item(struct list_node *node)
{
    return LIST_ITEM(node, struct job_call, node);
}

status_t job_call_check_id(struct coordinator *c, const char *id)
{
    if (jobs_find(c, id) != NULL) return NULL;
    job_message *stored = NULL;
    status_t status = store_get_job(c->store, id, &stored);
    message_free(stored);
    return status;
}

void *job_call_begin(const struct job_call_type *type, struct rpc_call *call, struct coordinator *c,
                     const char *id)
{
    struct job_call *own = mem_alloc(type->size);
    own->type = type;
    own->c = c;
    own->call = call;
    job_call_set_job(own, id);
    if (call != NULL) rpc_call_set_user(call, own);
    list_append(&c->calls, &own->node);
    return own;
}

void job_call_set_job(struct job_call *own, const char *id)
{
    free(own->id);
    own->id = mem_strdup(id);
    own->job = jobs_find(own->c, id);
}

void job_call_expect(struct job_call *own, int ms)
{
    own->deadline = coordinator_now() + ms;
    coordinator_tick_soon(own->c);
}

static void conclude(struct job_call *own)
{
    own->over = true;
    planner_forget(own->c, own);
}

void job_call_finish(struct job_call *own, status_t status)
{
    if (!own->over && own->call != NULL) rpc_call_finish(own->call, status);
    else if (!own->over && own->caller.done != NULL)
        own->caller.done(own->caller.user, status, NULL);
    else status_free(status);
    conclude(own);
}

void job_call_reply(struct job_call *own, const ProtobufCMessage *message)
{
    if (!own->over && own->call != NULL) rpc_call_reply(own->call, message);
    else if (!own->over && own->caller.done != NULL)
        own->caller.done(own->caller.user, NULL, message);
    conclude(own);
}

void job_call_reply_job(struct job_call *own, const job_message *message)
{
    job_message view;
    job_view(message, &view);
    job_call_reply(own, &view.base);
}

status_t job_call_error_of_end(const struct job *job, const char *before)
{
    const job_message *message = job->message;
    if (message->state != FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED)
        return status_new(STATUS_ABORTED, "the attempt of job %s ended (%s) before %s", message->id,
                          job_state_name(message->state), before);
    return status_with(
        status_new(STATUS_UNAVAILABLE, "job %s %sstarts again before %s; ask again when it trains",
                   message->id, elastic_repeats(job) ? "lost a worker and " : "", before),
        (struct status_details){.reason = "JOB_STARTS_AGAIN", .subject = message->id});
}

void job_call_free(struct job_call *own)
{
    conclude(own);
    list_remove(&own->c->calls, &own->node);
    free(own->id);
    free(own);
}

void *job_calls_next(const struct coordinator *c, const struct job_call_type *type,
                     const struct job *job, const void *after)
{
    const struct job_call *last = after;
    struct list_node *node = last != NULL ? last->node.next : c->calls.first;
    for (; node != NULL; node = node->next) {
        struct job_call *own = item(node);
        if (own->type == type && !own->over && (job == NULL || own->job == job)) return own;
    }
    return NULL;
}

int job_calls_count(const struct coordinator *c, const struct job_call_type *type)
{
    int count = 0;
    LIST_EACH(node, &c->calls) count += item(node)->type == type;
    return count;
}

void job_call_writable(struct rpc_call *call, void *service)
{
    (void)service;
    struct job_call *own = rpc_call_user(call);
    if (own != NULL && !own->over && own->type->writable != NULL) own->type->writable(own);
}

void job_call_closed(struct rpc_call *call, bool cancelled, void *service)
{
    (void)cancelled;
    (void)service;
    struct job_call *own = rpc_call_user(call);
    if (own != NULL) job_call_leave(own);
}

void job_call_leave(struct job_call *own)
{
    own->call = NULL;
    own->caller = (struct job_caller){0};
    if (own->type->closed != NULL) own->type->closed(own);
    else job_call_free(own);
}

void job_calls_attempt_over(struct job *job)
{
    LIST_EACH(node, &job->c->calls)
    {
        struct job_call *own = item(node);
        if (own->job != job) continue;
        if (job->over) own->job = NULL;
        if (!own->over && own->type->attempt_over != NULL) own->type->attempt_over(own, job);
    }
}

bool job_calls_are_waiting(const struct coordinator *c)
{
    LIST_EACH(node, &c->calls)
    if (!item(node)->over && item(node)->deadline != 0) return true;
    return false;
}

void job_calls_tick(struct coordinator *c)
{
    int64_t now = coordinator_now();
    LIST_EACH(node, &c->calls)
    {
        struct job_call *own = item(node);
        if (own->over || own->type->tick == NULL) continue;
        own->type->tick(own, own->deadline != 0 && now >= own->deadline);
    }
}

void job_calls_close(struct coordinator *c)
{
    LIST_EACH(node, &c->calls)
    {
        struct job_call *own = item(node);
        status_t status = status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down");
        if (own->type->end != NULL) own->type->end(own, status);
        else job_call_finish(own, status);
    }
}
