/*
 * The handler of Attach: hello first, then plans, reports and heartbeats. The call's user pointer
 * is the worker; NULL before the hello and after the worker was lost.
 */
#include "coordinator/attach.h"

#include <string.h>

#include "base/log.h"
#include "coordinator/access.h"
#include "coordinator/attempt.h"
#include "coordinator/planner.h"
#include "coordinator/queue.h"
#include "coordinator/reattach.h"

void attach_start(struct coordinator *c, struct rpc_call *call)
{
    if (c->closing) {
        rpc_call_finish(call, status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down"));
        return;
    }
    rpc_call_read(call);
}

/* A certificate is a host's: its workers bear its name, and cannot take another's place. */
static status_t check_id(const struct rpc_peer *peer, const char *id)
{
    if (peer->kind != RPC_PEER_TLS || access_is_workers_id(peer, id)) return NULL;
    return status_new(STATUS_PERMISSION_DENIED,
                      "worker %.80s: its certificate is fsdpd://worker/%s, so that its id must "
                      "begin with %s/",
                      id, peer->name, peer->name);
}

static void hello(struct coordinator *c, struct rpc_call *call,
                  const Fsdpd__V1__WorkerMessage *message)
{
    if (message == NULL || message->message_case != FSDPD__V1__WORKER_MESSAGE__MESSAGE_HELLO) {
        rpc_call_finish(call, status_new(STATUS_INVALID_ARGUMENT,
                                         "a worker's first message must be Hello"));
        return;
    }
    struct worker *worker = NULL;
    status_t status = check_id(rpc_call_peer(call), message->hello->id);
    if (status == NULL) status = workers_add(c, call, message->hello, &worker);
    if (status != NULL) {
        log_status(LOG_WARNING, "worker_refused", status_copy(status));
        rpc_call_finish(call, status);
        return;
    }
    rpc_call_set_user(call, worker);
    reattach_worker(worker, message->hello); /* first: it need not repeat what we have */
    Fsdpd__V1__Welcome welcome = FSDPD__V1__WELCOME__INIT;
    welcome.heartbeat_ms = (uint32_t)c->options.limits.heartbeat_ms;
    welcome.silence_ms = (uint32_t)c->options.limits.silence_ms;
    Fsdpd__V1__CoordinatorMessage answer = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    answer.message_case = FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_WELCOME;
    answer.welcome = &welcome;
    rpc_call_send(call, &answer.base);
    rpc_call_read(call);
    planner_worker_attached(c);
    queue_place(c);
}

/* Progress between two metrics; the answer says that we live, too. */
static void heartbeat(struct worker *worker, uint64_t step)
{
    attempt_answer_heartbeat(worker);
    struct job *job =
        worker->job != NULL && worker->rank == 0 ? jobs_find(worker->c, worker->job) : NULL;
    if (job != NULL && job->message->attempt == worker->attempt && step > job->message->step)
        job->message->step = step;
}

void attach_message(struct coordinator *c, struct rpc_call *call,
                    const Fsdpd__V1__WorkerMessage *message)
{
    struct worker *worker = rpc_call_user(call);
    if (worker == NULL) {
        hello(c, call, message);
        return;
    }
    if (message == NULL) {
        worker_lose(worker, "was lost: it closed its link", false);
        queue_place(c);
        return;
    }
    worker->heard_at = coordinator_now();
    rpc_call_read(call);
    switch (message->message_case) {
    case FSDPD__V1__WORKER_MESSAGE__MESSAGE_PLAN: planner_result(worker, message->plan); break;
    case FSDPD__V1__WORKER_MESSAGE__MESSAGE_EVENT:
        attempt_event(worker, message->event);
        if (worker->job == NULL) queue_place(c); /* it has finished, and may have other work */
        break;
    case FSDPD__V1__WORKER_MESSAGE__MESSAGE_HEARTBEAT:
        heartbeat(worker, message->heartbeat->step);
        break;
    default: break; /* a second hello, or a later version's message */
    }
}

void attach_closed(struct coordinator *c, struct rpc_call *call, bool cancelled)
{
    (void)cancelled;
    struct worker *worker = rpc_call_user(call);
    if (worker == NULL) return;
    worker->link = NULL;
    worker_lose(worker, "was lost: its connection closed", false);
    queue_place(c);
}
