/* Traces; see calls.h. */
#include "coordinator/calls/calls.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/calls/access.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/jobs/attempt_run.h"
#include "coordinator/jobs/diagnoses.h"

struct trace_call {
    struct job_call base;
    uint64_t number;
    uint32_t attempt;
    bool *ended; /* by rank: it has sent all its chunks */
    int world, left;
    uint64_t sent_step;
    bool share; /* uses the other users' share; see calls.h */
    int64_t began;
    uint32_t steps;
};

/* The ranks trace all steps, even if the client is gone. */
static void give_share_back(struct trace_call *trace, struct job *job)
{
    bool share = trace->share && job != NULL;
    trace->share = false;
    if (!share) return;
    int64_t took = coordinator_now() - trace->began;
    int64_t usual = (int64_t)(trace->steps * stalls_usual_ms(job));
    share_give_back(job, took > usual ? took : usual);
}

static void end(struct job_call *own, status_t status)
{
    struct trace_call *trace = (struct trace_call *)own;
    if (!own->over) give_share_back(trace, own->job);
    job_call_finish(own, status);
}

/* Sends the client the job's progress. */
static void on_tick(struct job_call *own, bool late)
{
    (void)late;
    struct trace_call *trace = (struct trace_call *)own;
    if (own->job == NULL || own->job->message->step <= trace->sent_step) return;
    Fsdpd__V1__TraceChunk chunk = FSDPD__V1__TRACE_CHUNK__INIT;
    chunk.step = trace->sent_step = own->job->message->step;
    if (rpc_call_queued(own->call) == 0) rpc_call_send(own->call, &chunk.base);
}

/* A trace that is not complete fails. */
static void on_attempt_over(struct job_call *own, struct job *job)
{
    give_share_back((struct trace_call *)own, job);
    end(own, job_call_error_of_end(job, "it was traced"));
}

static void on_closed(struct job_call *own)
{
    struct trace_call *trace = (struct trace_call *)own;
    give_share_back(trace, own->job);
    free(trace->ended);
    job_call_free(own);
}

static const struct job_call_type trace_calls = {.size = sizeof(struct trace_call),
                                                 .tick = on_tick,
                                                 .attempt_over = on_attempt_over,
                                                 .end = end,
                                                 .closed = on_closed};

/* Refuses a trace that is too large: the plan bounds what the ranks will send. */
static status_t check_size(const struct job *job, uint32_t steps)
{
    const struct attempt *attempt = job->attempt;
    const Fsdpd__V1__Plan *plan = job->message->plan;
    if (plan == NULL || plan->n_programs == 0 || plan->programs[0]->instructions == 0) return NULL;
    uint64_t each = (uint64_t)plan->programs[0]->instructions * (uint64_t)attempt->world;
    if (each * steps <= TRACE_INSTRUCTIONS_MAX) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "steps: %u steps of %u instructions on %d ranks are more than a trace "
                      "holds; at most %llu",
                      steps, plan->programs[0]->instructions, attempt->world,
                      (unsigned long long)(TRACE_INSTRUCTIONS_MAX / each));
}

static status_t check(struct coordinator *c, const struct rpc_call *call,
                      const Fsdpd__V1__TraceJobRequest *request)
{
    if (request->steps < 1 || request->steps > TRACE_STEPS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "steps: expected 1 to %d, found %u",
                          TRACE_STEPS_MAX, request->steps);
    const struct job *job = jobs_find(c, request->id);
    int state = job != NULL ? (int)job->message->state : 0;
    if (job == NULL) {
        job_message *message = NULL;
        TRY(store_get_job(c->store, request->id, &message));
        state = message->state;
        message_free(message);
    }
    if (state != JOB_RUNNING)
        return status_with(status_new(STATUS_FAILED_PRECONDITION,
                                      "job %s is %s; only a running job can be traced", request->id,
                                      job_state_name(state)),
                           (struct status_details){.reason = "JOB_IS_NOT_RUNNING",
                                                   .subject = request->id});
    if (!attempt_is_active(job))
        return status_with(status_new(STATUS_FAILED_PRECONDITION, "the attempt of job %s is ending",
                                      request->id),
                           (struct status_details){.reason = "JOB_IS_ENDING",
                                                   .subject = request->id});
    TRY(saving_refuse(job));
    if (job_calls_next(c, &trace_calls, job, NULL) != NULL)
        return status_with(status_new(STATUS_FAILED_PRECONDITION, "job %s is being traced already",
                                      request->id),
                           (struct status_details){.reason = "JOB_IS_BEING_TRACED",
                                                   .subject = request->id});
    if (share_is_others(call, job->message)) TRY(share_check(job));
    return check_size(job, request->steps);
}

static void send_workers(const struct trace_call *trace, const struct job *job)
{
    const struct attempt *attempt = job->attempt;
    AUTO_FREE char **workers = mem_alloc_array((size_t)attempt->world, sizeof *workers);
    for (int r = 0; r < attempt->world; r++) workers[r] = attempt->ranks[r].worker_id;
    Fsdpd__V1__TraceChunk chunk = FSDPD__V1__TRACE_CHUNK__INIT;
    chunk.n_workers = (size_t)attempt->world;
    chunk.workers = workers;
    chunk.step = job->message->step;
    rpc_call_send(trace->base.call, &chunk.base);
}

void traces_start(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__TraceJobRequest *request = (const void *)message;
    status_t status = check(c, call, request);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct trace_call *trace = job_call_begin(&trace_calls, call, c, request->id);
    struct job *job = trace->base.job;
    trace->began = coordinator_now();
    trace->steps = request->steps;
    trace->share = share_is_others(call, job->message);
    if (trace->share) share_take(job);
    trace->number = ++c->last_number;
    trace->attempt = job->message->attempt;
    trace->world = trace->left = job->attempt->world;
    trace->ended = mem_alloc_array((size_t)job->attempt->world, sizeof *trace->ended);
    log_event(LOG_INFO, "trace_ordered", "job=%s steps=%u by=%s", request->id, request->steps,
              access_user(call));
    send_workers(trace, job);
    attempt_order_trace(job, trace->number, request->steps);
}

void traces_report(struct job *job, int rank, const Fsdpd__V1__TraceReport *report)
{
    struct trace_call *trace = job_calls_next(job->c, &trace_calls, job, NULL);
    if (trace == NULL || trace->number != report->trace ||
        trace->attempt != job->message->attempt || trace->ended[rank])
        return; /* its client is gone */
    if (report->code != STATUS_OK) {
        bool known = report->code >= STATUS_CANCELLED && report->code <= STATUS_UNAUTHENTICATED;
        end(&trace->base,
            status_new(known ? (enum status_code)report->code : STATUS_UNKNOWN,
                       "rank %d of job %s: %s", rank, job->message->id, report->message));
        return;
    }
    if (report->chunk == NULL) return;
    report->chunk->rank = (uint32_t)rank;
    rpc_call_send(trace->base.call, &report->chunk->base);
    if (!report->chunk->last) return;
    trace->ended[rank] = true;
    if (--trace->left == 0) end(&trace->base, NULL);
}

void traces_rank_away(struct job *job, int rank)
{
    struct trace_call *trace = job_calls_next(job->c, &trace_calls, job, NULL);
    if (trace != NULL && !trace->ended[rank])
        end(&trace->base, status_new(STATUS_UNAVAILABLE, "the link to rank %d of job %s broke",
                                     rank, job->message->id));
}
