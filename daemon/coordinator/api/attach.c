/*
 * The handler of Attach: the hello first, then plans, reports and heartbeats. The call's user
 * pointer is the worker; it is NULL before the hello and after the worker is lost.
 */
#include "coordinator/api/handlers.h"

#include <string.h>

#include "base/log.h"
#include "coordinator/calls/access.h"
#include "coordinator/jobs/attempt_run.h"
#include "coordinator/jobs/diagnoses.h"
#include "coordinator/workers/cuts.h"
#include "coordinator/workers/planner.h"

void attach_start(struct rpc_call *call, const ProtobufCMessage *request, void *service)
{
    (void)request;
    struct coordinator *c = service;
    if (c->closing) {
        rpc_call_finish(call, status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down"));
        return;
    }
    rpc_call_expect(call, c->options.limits.silence_ms);
    rpc_call_read(call);
}

/* A certificate belongs to a host: the ids of its workers begin with its name, so they cannot
 * impersonate other workers. */
static status_t check_id(const struct rpc_peer *peer, const char *id)
{
    if (peer->kind != RPC_PEER_TLS || access_is_workers_id(peer, id)) return NULL;
    return status_new(STATUS_PERMISSION_DENIED,
                      "worker %.80s: its certificate is fsdpd://worker/%s, so its id must begin "
                      "with %s/; set worker.id, or issue a certificate for this name",
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
    if (status == NULL)
        status =
            workers_add(c, call, message->hello, reattach_is_wanted(c, message->hello), &worker);
    if (status != NULL) {
        log_status(LOG_WARNING, "worker_refused", status_copy(status));
        rpc_call_finish(call, status);
        return;
    }
    rpc_call_set_user(call, worker);
    rpc_call_expect(call, 0);                /* workers_tick watches it from now on */
    reattach_worker(worker, message->hello); /* first: the worker need not repeat what we have */
    Fsdpd__V1__Welcome welcome = FSDPD__V1__WELCOME__INIT;
    welcome.heartbeat_ms = (uint32_t)c->options.limits.heartbeat_ms;
    welcome.silence_ms = (uint32_t)c->options.limits.silence_ms;
    worker_send(worker, FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_WELCOME, &welcome);
    rpc_call_read(call);
    planner_worker_attached(c);
}

/* Records progress between two metrics; the answer also shows that the coordinator is alive. */
static void heartbeat(struct worker *worker, const Fsdpd__V1__Heartbeat *heartbeat)
{
    attempt_answer_heartbeat(worker);
    struct job *job = worker->job != NULL ? jobs_find(worker->c, worker->job) : NULL;
    struct rank *rank = job != NULL ? attempt_find_rank(job, worker->attempt, worker->id) : NULL;
    if (rank == NULL) return;
    stalls_heartbeat(job, rank, heartbeat);
    stragglers_heartbeat(job);
    if (rank == job->attempt->ranks && heartbeat->step > job->message->step)
        job->message->step = heartbeat->step;
}

void attach_message(struct rpc_call *call, const ProtobufCMessage *first, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__WorkerMessage *message = (const void *)first;
    struct worker *worker = rpc_call_user(call);
    if (worker == NULL) {
        hello(c, call, message);
        return;
    }
    if (message == NULL) {
        worker_lose(worker, "was lost: it closed its link", worker->leaves);
        return;
    }
    worker->heard_at = coordinator_now();
    rpc_call_read(call);
    switch (message->message_case) {
    case FSDPD__V1__WORKER_MESSAGE__MESSAGE_PLAN: planner_result(worker, message->plan); break;
    case FSDPD__V1__WORKER_MESSAGE__MESSAGE_EVENT: attempt_event(worker, message->event); break;
    case FSDPD__V1__WORKER_MESSAGE__MESSAGE_HEARTBEAT: heartbeat(worker, message->heartbeat); break;
    case FSDPD__V1__WORKER_MESSAGE__MESSAGE_LEAVE: worker_leaves(worker); break;
    case FSDPD__V1__WORKER_MESSAGE__MESSAGE_DIAGNOSIS:
        diagnoses_answer(worker, message->diagnosis);
        break;
    case FSDPD__V1__WORKER_MESSAGE__MESSAGE_CALIBRATION:
        calibration_report(worker, message->calibration);
        break;
    case FSDPD__V1__WORKER_MESSAGE__MESSAGE_PROBE: cuts_report(worker, message->probe); break;
    default: break; /* a second hello, or a later version's message */
    }
}

void attach_closed(struct rpc_call *call, bool cancelled, void *service)
{
    (void)service;
    (void)cancelled;
    struct worker *worker = rpc_call_user(call);
    if (worker == NULL) return;
    worker->link = NULL;
    worker_lose(worker, "was lost: its connection closed", worker->leaves);
}
