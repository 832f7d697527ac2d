/* Evaluations of running jobs; see evaluations.h. A call waits for its turn without an order: until
 * nothing else of the job is evaluated, and such calls have not used more than their share. */
#include "coordinator/calls/evaluations.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/calls/access.h"
#include "coordinator/calls/calls.h"
#include "coordinator/calls/job_call.h"
#include "coordinator/jobs/attempt_run.h"
#include "proto/message.h"
#include "spec/spec.h"

enum { DRAWN_AHEAD = 16 }; /* messages with tokens that are handed to gRPC ahead of the reader */

struct evaluation_call {
    struct job_call base;
    uint64_t number; /* of the order; 0: it waits for its turn */
    uint32_t attempt;
    char *user;                           /* who asked for it */
    int64_t began_ms;                     /* when it was asked for; with a number, ordered */
    Fsdpd__V1__SampleJobRequest *sample;  /* NULL: an evaluation */
    Fsdpd__V1__HeldOutSet *set;           /* of an evaluation; NULL: the job's own data */
    Fsdpd__V1__SampleJobResponse *behind; /* what the reader has no room for yet, or NULL */
};

static void take_turns(struct job *job);

/* Its ranks are no longer busy with it. */
static void give_back(const struct evaluation_call *evaluation, int64_t busy_ms)
{
    struct job *job = evaluation->base.job;
    if (!evaluation->base.over && evaluation->number != 0 && job != NULL)
        share_add_sample(job, busy_ms);
}

static void on_attempt_over(struct job_call *own, struct job *job)
{
    job_call_finish(own, job_call_error_of_end(job, "it was evaluated"));
}

/* No client waits for the result any more. */
static void stop_ranks(const struct evaluation_call *evaluation)
{
    struct job *job = evaluation->base.job;
    if (!evaluation->base.over && evaluation->number != 0 && job != NULL &&
        attempt_is_active(job) && job->message->attempt == evaluation->attempt)
        attempt_order_evaluation(job, evaluation->number, NULL, true);
}

/* The client has left. */
static void on_closed(struct job_call *own)
{
    struct evaluation_call *evaluation = (struct evaluation_call *)own;
    struct job *job = own->job;
    stop_ranks(evaluation);
    give_back(evaluation, coordinator_now() - evaluation->began_ms);
    message_free(evaluation->sample);
    message_free(evaluation->set);
    message_free(evaluation->behind);
    free(evaluation->user);
    job_call_free(own);
    if (job != NULL) take_turns(job);
}

static void on_tick(struct job_call *own, bool late)
{
    if (!late) return;
    own->deadline = 0;
    if (own->job != NULL) take_turns(own->job);
}

static void send_behind(struct evaluation_call *evaluation)
{
    if (evaluation->behind == NULL) return;
    rpc_call_send(evaluation->base.call, &evaluation->behind->base);
    message_free(evaluation->behind);
    evaluation->behind = NULL;
}

static void on_writable(struct job_call *own)
{
    if (rpc_call_queued(own->call) < DRAWN_AHEAD) send_behind((struct evaluation_call *)own);
}

static const struct job_call_type evaluation_calls = {.size = sizeof(struct evaluation_call),
                                                      .writable = on_writable,
                                                      .tick = on_tick,
                                                      .attempt_over = on_attempt_over,
                                                      .closed = on_closed};

static status_t refuse(const char *reason, const char *id, status_t status)
{
    return status_with(status, (struct status_details){.reason = reason, .subject = id});
}

static const char between_steps[] = "can be evaluated between two steps; fsdpctl eval queues a job "
                                    "for its weights (model.job)";

/* The call of the job that has an order, or the first that waits for one. */
static struct evaluation_call *find_call(const struct job *job, bool ordered)
{
    struct evaluation_call *call = NULL;
    while ((call = job_calls_next(job->c, &evaluation_calls, job, call)) != NULL)
        if ((call->number != 0) == ordered) return call;
    return NULL;
}

/* `wanted`: what to do with a job that runs, and without one. */
static status_t check_running(const struct job *job, const char *wanted)
{
    const job_message *message = job->message;
    const char *id = message->id;
    if (message->state != FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING)
        return refuse("JOB_IS_NOT_RUNNING", id,
                      status_new(STATUS_FAILED_PRECONDITION, "job %s is %s: only a running job %s",
                                 id, job_state_name(message->state), wanted));
    if (!attempt_is_active(job))
        return refuse("JOB_IS_ENDING", id,
                      status_new(STATUS_FAILED_PRECONDITION, "the attempt of job %s is ending",
                                 id));
    for (int r = 0; r < job->attempt->world; r++)
        if (job->attempt->ranks[r].worker == NULL)
            return refuse("JOB_WAITS_FOR_RANK", id,
                          status_new(STATUS_UNAVAILABLE, "job %s waits for rank %d (%s)", id, r,
                                     job->attempt->ranks[r].worker_id));
    return saving_refuse(job);
}

/* An evaluation may take long: it does not wait for another one, only for samples. */
static status_t check_alone(const struct job *job)
{
    const char *id = job->message->id;
    const struct evaluation_call *call = NULL;
    do {
        call = job_calls_next(job->c, &evaluation_calls, job, call);
    } while (call != NULL && call->sample != NULL);
    if (call == NULL) return NULL;
    return refuse("JOB_IS_BEING_EVALUATED", id,
                  status_new(STATUS_FAILED_PRECONDITION, "job %s is being evaluated already", id));
}

static status_t check_queue(const struct job *job)
{
    int waiting = 0, most = job->c->options.limits.samples_waiting;
    struct evaluation_call *call = NULL;
    while ((call = job_calls_next(job->c, &evaluation_calls, job, call)) != NULL)
        waiting += call->number == 0;
    if (waiting < most || (waiting == 0 && find_call(job, true) == NULL)) return NULL;
    return refuse("SAMPLES_WAIT", job->message->id,
                  status_new(STATUS_RESOURCE_EXHAUSTED,
                             "job %s: %d samples wait for their turn already, and at most %d may "
                             "(limits.samples_waiting)",
                             job->message->id, waiting, most));
}

/* A job that is over: what to do instead. */
static status_t find_job(struct coordinator *c, const struct rpc_call *call, const char *id,
                         struct job **job)
{
    status_t status = access_find(c, call, id, "evaluate", job);
    if (status_code(status) != STATUS_FAILED_PRECONDITION) return status;
    status_free(status);
    return refuse(
        "JOB_IS_NOT_RUNNING", id,
        status_new(STATUS_FAILED_PRECONDITION, "job %s is over: only a running job %s", id,
                   between_steps));
}

/* Fills in what the ranks evaluate; *own: the job's own data. */
static status_t find_set(const job_spec *spec, const Fsdpd__V1__EvaluateJobRequest *request,
                         Fsdpd__V1__HeldOutSet *set, bool *own)
{
    bool named = request->set[0] != '\0', path = request->path[0] != '\0';
    bool limited = request->_batches_case != 0;
    if (named && path)
        return status_new(STATUS_INVALID_ARGUMENT, "path: expected none beside a set");
    *own = !named && !path;
    if (*own && limited)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "batches: expected a path or a set beside it, as the job's own data "
                          "always have train.evaluate_batches");
    if (limited && spec_has_images(spec->data))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "batches: expected none, as images are evaluated to the last");
    set->path = request->path;
    set->batches = spec->train->evaluate_batches;
    for (size_t i = 0; i < spec->data->n_validation; i++)
        if (named && strcmp(spec->data->validation[i]->name, request->set) == 0)
            *set = *spec->data->validation[i];
    if (named && set->path[0] == '\0')
        return status_new(STATUS_INVALID_ARGUMENT, "set: data.validation has no set '%s'",
                          request->set);
    if (limited) set->batches = request->batches;
    return path ? status_wrap(spec_check_path(set->path), "path") : NULL;
}

static struct evaluation_call *begin(struct rpc_call *call, const struct rpc_peer *peer,
                                     const struct job *job)
{
    struct evaluation_call *evaluation =
        job_call_begin(&evaluation_calls, call, job->c, job->message->id);
    evaluation->attempt = job->message->attempt;
    evaluation->user = mem_strdup(peer->name);
    evaluation->began_ms = coordinator_now();
    return evaluation;
}

static uint64_t number_order(struct evaluation_call *evaluation, const char *event)
{
    evaluation->number = ++evaluation->base.c->last_number;
    log_event(LOG_INFO, event, "job=%s by=%s", evaluation->base.id, evaluation->user);
    return evaluation->number;
}

static void order_sample(struct evaluation_call *evaluation)
{
    double waited = (double)(coordinator_now() - evaluation->began_ms) / 1e3;
    const struct sample_order order = {.number = number_order(evaluation, "sample_ordered"),
                                       .sample = evaluation->sample->sample,
                                       .stream = evaluation->sample->stream,
                                       .waited_seconds = waited};
    evaluation->began_ms = coordinator_now();
    attempt_order_sample(evaluation->base.job, &order);
}

static void order_evaluation(struct evaluation_call *evaluation)
{
    uint64_t number = number_order(evaluation, "evaluation_ordered");
    evaluation->began_ms = coordinator_now();
    attempt_order_evaluation(evaluation->base.job, number, evaluation->set, false);
}

/* Orders the call whose turn it is. */
static void take_turns(struct job *job)
{
    if (!attempt_is_active(job) || find_call(job, true) != NULL) return;
    struct evaluation_call *next = find_call(job, false);
    int64_t left = share_sample_left_ms(job);
    if (next == NULL) return;
    if (left > 0) job_call_expect(&next->base, (int)left);
    else if (next->sample == NULL) order_evaluation(next);
    else order_sample(next);
}

void evaluations_start(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct coordinator *c = service;
    const Fsdpd__V1__EvaluateJobRequest *request = (const void *)message;
    Fsdpd__V1__HeldOutSet set = FSDPD__V1__HELD_OUT_SET__INIT;
    struct job *job = NULL;
    bool own = false;
    status_t status = find_job(c, call, request->id, &job);
    if (status == NULL) status = check_running(job, between_steps);
    if (status == NULL) status = check_alone(job);
    if (status == NULL) status = find_set(job->message->spec, request, &set, &own);
    if (status == NULL) status = check_queue(job);
    if (status != NULL) {
        rpc_call_finish(call, status);
        return;
    }
    struct evaluation_call *made = begin(call, rpc_call_peer(call), job);
    if (!own) made->set = message_copy(&set);
    take_turns(job);
}

/* What the ranks cannot check: there is a prompt, and it has the job's kind of tokens. */
static status_t check_sample(const job_spec *spec, const Fsdpd__V1__SampleJobRequest *request)
{
    if (request->sample == NULL || request->sample->n_prompts == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "sample.prompts: expected at least one");
    if (!request->bytes || spec->data->format == FSDPD__V1__DATA_FORMAT__DATA_FORMAT_TEXT)
        return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "the job's tokens are not the bytes of a text (data.format: text): a prompt "
                      "is given as token ids");
}

/* Begins it for a client of gRPC, or (`call` NULL) a caller; *made: its call. */
static status_t start_sample(struct coordinator *c, const struct rpc_peer *peer,
                             struct rpc_call *call, const Fsdpd__V1__SampleJobRequest *request,
                             struct evaluation_call **made)
{
    struct job *job = NULL;
    TRY(access_find_for(c, peer, request->id, "sample", &job));
    TRY(check_running(job, "can be sampled"));
    TRY(check_sample(job->message->spec, request));
    TRY(check_queue(job));
    *made = begin(call, peer, job);
    (*made)->sample = message_copy(request);
    return NULL;
}

void evaluations_sample(struct rpc_call *call, const ProtobufCMessage *message, void *service)
{
    struct evaluation_call *made = NULL;
    status_t status =
        start_sample(service, rpc_call_peer(call), call, (const void *)message, &made);
    if (status != NULL) rpc_call_finish(call, status);
    else take_turns(made->base.job);
}

status_t evaluations_sample_for(struct coordinator *c, const struct rpc_peer *peer,
                                const Fsdpd__V1__SampleJobRequest *request,
                                const struct job_caller *caller, struct job_call **call)
{
    struct evaluation_call *made = NULL;
    TRY(start_sample(c, peer, NULL, request, &made));
    made->base.caller = *caller;
    *call = &made->base;
    take_turns(made->base.job);
    return NULL;
}

static void append_tokens(Fsdpd__V1__Tokens *to, const Fsdpd__V1__Tokens *more)
{
    size_t size = sizeof *to->tokens, count = to->n_tokens + more->n_tokens;
    uint32_t *both = mem_alloc_array(count + 1, size);
    if (to->n_tokens > 0) memcpy(both, to->tokens, to->n_tokens * size);
    if (more->n_tokens > 0) memcpy(both + to->n_tokens, more->tokens, more->n_tokens * size);
    free(to->tokens);
    to->tokens = both;
    to->n_tokens = count;
}

/* A reader that is slow gets the tokens of several reports in one message. */
static void pass_on(struct evaluation_call *evaluation, const Fsdpd__V1__EvaluateReport *report)
{
    Fsdpd__V1__SampleJobResponse *behind = evaluation->behind;
    if (behind == NULL) {
        Fsdpd__V1__SampleJobResponse response = FSDPD__V1__SAMPLE_JOB_RESPONSE__INIT;
        response.n_drawn = report->n_drawn;
        response.drawn = report->drawn;
        if (rpc_call_queued(evaluation->base.call) < DRAWN_AHEAD)
            rpc_call_send(evaluation->base.call, &response.base);
        else evaluation->behind = message_copy(&response);
        return;
    }
    for (size_t i = 0; i < behind->n_drawn && i < report->n_drawn; i++)
        append_tokens(behind->drawn[i], report->drawn[i]);
}

static void reply_sampled(struct evaluation_call *evaluation, Fsdpd__V1__Sampled *sampled)
{
    Fsdpd__V1__SampleJobResponse response = FSDPD__V1__SAMPLE_JOB_RESPONSE__INIT;
    response.sampled = sampled;
    send_behind(evaluation);
    job_call_reply(&evaluation->base, &response.base);
}

void evaluations_rank_away(struct job *job, int rank)
{
    struct evaluation_call *evaluation = NULL;
    while ((evaluation = job_calls_next(job->c, &evaluation_calls, job, evaluation)) != NULL) {
        stop_ranks(evaluation);
        job_call_finish(&evaluation->base,
                        refuse("JOB_WAITS_FOR_RANK", job->message->id,
                               status_new(STATUS_UNAVAILABLE,
                                          "the link to rank %d of job %s broke before it was "
                                          "evaluated",
                                          rank, job->message->id)));
    }
}

void evaluations_report(struct job *job, const Fsdpd__V1__EvaluateReport *report)
{
    struct evaluation_call *evaluation = find_call(job, true);
    if (evaluation == NULL || evaluation->number != report->number ||
        evaluation->attempt != job->message->attempt)
        return; /* its client is gone */
    if (report->n_drawn > 0) {
        pass_on(evaluation, report);
        return;
    }
    double busy = report->sampled != NULL      ? report->sampled->seconds
                  : report->validation != NULL ? report->validation->seconds
                                               : 0;
    give_back(evaluation, (int64_t)(busy * 1e3));
    bool known = report->code >= STATUS_CANCELLED && report->code <= STATUS_UNAUTHENTICATED;
    if (report->code == STATUS_OK && report->validation != NULL)
        job_call_reply(&evaluation->base, &report->validation->base);
    else if (report->code == STATUS_OK && report->sampled != NULL)
        reply_sampled(evaluation, report->sampled);
    else
        job_call_finish(&evaluation->base,
                        status_new(known ? (enum status_code)report->code : STATUS_UNKNOWN,
                                   "job %s: %s", job->message->id, report->message));
    take_turns(job);
}
