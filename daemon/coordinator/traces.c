/* Traces; see traces.h. A trace belongs to its client's call and is freed when that is over. */
#include "coordinator/traces.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/access.h"
#include "coordinator/attempt.h"

struct trace_call {
    struct rpc_call *call;
    uint64_t number;
    char *job;
    uint32_t attempt;
    bool *ended; /* by rank: it has sent everything */
    int world, left;
    uint64_t step_told;
    bool over; /* the call was answered */
};

static void end(struct trace_call *trace, status_t status)
{
    if (trace->over) {
        status_free(status);
        return;
    }
    trace->over = true;
    rpc_call_finish(trace->call, status);
}

static struct trace_call *find_trace(const struct coordinator *c, const char *job)
{
    for (int i = 0; i < c->trace_count; i++)
        if (!c->traces[i]->over && strcmp(c->traces[i]->job, job) == 0) return c->traces[i];
    return NULL;
}

/* What is known of the plan bounds what the ranks will send. */
static status_t check_size(const struct job *job, uint32_t steps)
{
    const Fsdpd__V1__Plan *plan = job->message->plan;
    if (plan == NULL || plan->n_programs == 0 || plan->programs[0]->instructions == 0) return NULL;
    uint64_t each = (uint64_t)plan->programs[0]->instructions * (uint64_t)job->world;
    if (each * steps <= TRACE_INSTRUCTIONS_MAX) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "steps: %u steps of %u instructions on %d ranks are more than a trace "
                      "holds; at most %llu",
                      steps, plan->programs[0]->instructions, job->world,
                      (unsigned long long)(TRACE_INSTRUCTIONS_MAX / each));
}

static status_t check(struct coordinator *c, const Fsdpd__V1__TraceJobRequest *request)
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
        return status_new(STATUS_FAILED_PRECONDITION,
                          "job %s is %s; only a running job can be traced", request->id,
                          job_state_name(state));
    if (job->ending || job->cancel_ordered)
        return status_new(STATUS_FAILED_PRECONDITION, "job %s is ending", request->id);
    if (find_trace(c, request->id) != NULL)
        return status_new(STATUS_FAILED_PRECONDITION, "job %s is being traced already",
                          request->id);
    return check_size(job, request->steps);
}

static void send_workers(const struct trace_call *trace, const struct job *job)
{
    char **workers = mem_alloc_array((size_t)job->world, sizeof *workers);
    for (int r = 0; r < job->world; r++) workers[r] = job->ranks[r].worker_id;
    Fsdpd__V1__TraceChunk chunk = FSDPD__V1__TRACE_CHUNK__INIT;
    chunk.n_workers = (size_t)job->world;
    chunk.workers = workers;
    chunk.step = job->message->step;
    rpc_call_send(trace->call, &chunk.base);
    free(workers);
}

void traces_start(struct rpc_call *call, const Fsdpd__V1__TraceJobRequest *request,
                  struct coordinator *c)
{
    status_t status = check(c, request);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct job *job = jobs_find(c, request->id);
    struct trace_call *trace = mem_alloc(sizeof *trace);
    trace->call = call;
    trace->number = ++c->last_trace;
    trace->job = mem_strdup(request->id);
    trace->attempt = job->message->attempt;
    trace->world = trace->left = job->world;
    trace->ended = mem_alloc_array((size_t)job->world, sizeof *trace->ended);
    rpc_call_set_user(call, trace);
    MEM_GROW(c->traces, c->trace_count, c->trace_capacity);
    c->traces[c->trace_count++] = trace;
    log_event(LOG_INFO, "trace_ordered", "job=%s steps=%u by=%s", trace->job, request->steps,
              access_user(call));
    send_workers(trace, job);
    attempt_order_trace(job, trace->number, request->steps);
}

void traces_closed(struct coordinator *c, struct rpc_call *call)
{
    struct trace_call *trace = rpc_call_user(call);
    if (trace == NULL) return;
    for (int i = 0; i < c->trace_count; i++)
        if (c->traces[i] == trace) LIST_REMOVE(c->traces, c->trace_count, i);
    free(trace->ended);
    free(trace->job);
    free(trace);
}

void traces_report(struct job *job, int rank, const Fsdpd__V1__TraceReport *report)
{
    struct trace_call *trace = find_trace(job->c, job->message->id);
    if (trace == NULL || trace->number != report->trace ||
        trace->attempt != job->message->attempt || trace->ended[rank])
        return; /* nobody waits for it any more */
    if (report->code != STATUS_OK) {
        bool known = report->code >= STATUS_CANCELLED && report->code <= STATUS_UNAUTHENTICATED;
        end(trace, status_new(known ? (enum status_code)report->code : STATUS_UNKNOWN,
                              "rank %d of job %s: %s", rank, trace->job, report->message));
        return;
    }
    if (report->chunk == NULL) return;
    report->chunk->rank = (uint32_t)rank;
    rpc_call_send(trace->call, &report->chunk->base);
    if (!report->chunk->last) return;
    trace->ended[rank] = true;
    if (--trace->left == 0) end(trace, NULL);
}

void traces_job_over(struct job *job)
{
    struct trace_call *trace = find_trace(job->c, job->message->id);
    if (trace != NULL)
        end(trace, status_new(STATUS_ABORTED, "job %s ended (%s) before it was traced", trace->job,
                              job_state_name(job->message->state)));
}

void traces_rank_away(struct job *job, int rank)
{
    struct trace_call *trace = find_trace(job->c, job->message->id);
    if (trace != NULL && !trace->ended[rank])
        end(trace, status_new(STATUS_UNAVAILABLE, "the link to rank %d of job %s broke", rank,
                              trace->job));
}

void traces_tick(struct coordinator *c)
{
    for (int i = 0; i < c->trace_count; i++) {
        struct trace_call *trace = c->traces[i];
        const struct job *job = trace->over ? NULL : jobs_find(c, trace->job);
        if (job == NULL || job->message->step <= trace->step_told) continue;
        Fsdpd__V1__TraceChunk chunk = FSDPD__V1__TRACE_CHUNK__INIT;
        chunk.step = trace->step_told = job->message->step;
        if (rpc_call_queued(trace->call) == 0) rpc_call_send(trace->call, &chunk.base);
    }
}

void traces_close(struct coordinator *c)
{
    for (int i = c->trace_count - 1; i >= 0; i--)
        end(c->traces[i], status_new(STATUS_UNAVAILABLE, "fsdpd is shutting down"));
}
