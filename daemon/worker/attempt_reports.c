/* The reports of an attempt to the coordinator, and its log; see attempt_internal.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/host.h"
#include "base/log.h"
#include "base/mem.h"
#include "proto/message.h"
#include "spec/metric_list.h"
#include "spec/metric_table.h"
#include "worker/attempt_internal.h"
#include "worker/logs.h"

static void post_event(const struct worker_attempt *attempt, Fsdpd__V1__AttemptEvent *event)
{
    link_post_event(attempt->link, attempt->assignment->job, attempt->assignment->attempt, event);
}

static Fsdpd__V1__AttemptEvent *attempt_event_new(Fsdpd__V1__AttemptEvent__EventCase kind)
{
    Fsdpd__V1__AttemptEvent *event = MESSAGE_NEW(event, fsdpd__v1__attempt_event__init);
    event->event_case = kind;
    return event;
}

void attempt_note_resumed(void *user, uint64_t step, const char *name, const char *note)
{
    struct worker_attempt *attempt = user;
    attempt->resumed_step = step;
    attempt->resumed_name = name != NULL ? mem_strdup(name) : NULL;
    attempt->resumed_note = note != NULL ? mem_strdup(note) : NULL;
    AUTO_FREE char *quoted = note != NULL ? log_quote(note) : NULL;
    log_event(note != NULL ? LOG_WARNING : LOG_INFO, "resumed", "step=%llu checkpoint=%s%s%s",
              (unsigned long long)step, name != NULL ? name : "none", note != NULL ? " note=" : "",
              note != NULL ? quoted : "");
}

void attempt_log_note(void *user, const char *note)
{
    AUTO_FREE char *quoted = log_quote(note);
    (void)user;
    log_event(LOG_INFO, "steps_not_recorded", "note=%s", quoted);
}

/* A report that cannot be decoded is from another version: it is missing only in the curve. */
void attempt_note_reports(void *user, const void *bytes, size_t size)
{
    struct worker_attempt *attempt = user;
    attempt->unrecorded = fsdpd__v1__unrecorded_reports__unpack(NULL, size, bytes);
    if (attempt->unrecorded == NULL)
        log_event(LOG_WARNING, "unrecorded_metrics_lost", "bytes=%zu", size);
    else log_event(LOG_INFO, "unrecorded_metrics", "count=%zu", attempt->unrecorded->n_metrics);
}

void attempt_log_device_notes(struct worker_attempt *attempt)
{
    const char *note;
    for (; (note = device_note(attempt->device, attempt->device_notes)) != NULL;
         attempt->device_notes++)
        log_event(LOG_INFO, "device_note", "device=%s note=\"%s\"", device_name(attempt->device),
                  note);
}

void attempt_pack_kept(void *user, uint64_t step, struct buf *out)
{
    const struct worker_attempt *attempt = user;
    spare_pack_metrics(attempt->spare, step, out);
}

void attempt_report_started(void *user, uint64_t plan_hash, uint64_t steps)
{
    struct worker_attempt *attempt = user;
    pthread_mutex_lock(&attempt->lock);
    attempt->plan_hash = plan_hash;
    attempt->steps = steps;
    pthread_mutex_unlock(&attempt->lock);
    Fsdpd__V1__AttemptEvent *event = attempt_event_new(FSDPD__V1__ATTEMPT_EVENT__EVENT_STARTED);
    event->started = MESSAGE_NEW(event->started, fsdpd__v1__started__init);
    event->started->plan_hash = plan_hash;
    event->started->steps = steps;
    attempt_log_device_notes(attempt); /* of the memory, too, by now */
    log_event(LOG_INFO, "training_started", "steps=%llu", (unsigned long long)steps);
    event->started->resumed_step = attempt->resumed_step;
    if (attempt->resumed_name != NULL)
        event->started->resumed_name = mem_strdup(attempt->resumed_name);
    if (attempt->resumed_note != NULL)
        event->started->resumed_note = mem_strdup(attempt->resumed_note);
    event->started->unrecorded = attempt->unrecorded;
    attempt->unrecorded = NULL;
    post_event(attempt, event);
}

/* Once: the coordinator keeps the last ones. */
static void add_op_times(struct op_times *times, Fsdpd__V1__Metrics *message)
{
    if (times->step == 0) return;
    metric_set(&message->base, "op_times_step", (double)times->step);
    message->op_times = mem_alloc_array((size_t)times->count, sizeof *message->op_times);
    for (int i = 0; i < times->count; i++) {
        Fsdpd__V1__OpTime *time = MESSAGE_NEW(time, fsdpd__v1__op_time__init);
        time->op = mem_strdup(times->times[i].kind);
        time->seconds = times->times[i].seconds;
        message->op_times[message->n_op_times++] = time;
    }
    times->step = 0;
}

static Fsdpd__V1__Metrics *metrics_new(const struct worker_attempt *attempt,
                                       const struct train_metrics *measured)
{
    Fsdpd__V1__Metrics *message = MESSAGE_NEW(message, fsdpd__v1__metrics__init);
    struct train_metrics figures = *measured;
    figures.mfu =
        attempt->peak_flops > 0 ? measured->flops_per_second / attempt->peak_flops : (double)NAN;
    figures.resident_peak_bytes = resident_peak_bytes();
    message->step = measured->step;
#define SET_FIGURE(type, name, ...) metric_set(&message->base, #name, (double)figures.name);
    METRICS_OF_STEPS(SET_FIGURE)
#undef SET_FIGURE
    if (measured->validated) {
        metric_set_mean(&message->base, "val_loss", measured->validation_loss);
        metric_set(&message->base, "val_step", (double)measured->validation_step);
    }
    return message;
}

void attempt_report_metrics(void *user, const struct train_metrics *metrics)
{
    struct worker_attempt *attempt = user;
    bool first = attempt->assignment->rank == 0;
    if (!first && attempt->spare == NULL) return;
    Fsdpd__V1__Metrics *message = metrics_new(attempt, metrics);
    if (attempt->spare != NULL) spare_add_metrics(attempt->spare, message);
    if (!first) {
        fsdpd__v1__metrics__free_unpacked(message, NULL);
        return;
    }
    logs_progress(metrics);
    add_op_times(&attempt->op_times, message);
    Fsdpd__V1__AttemptEvent *event = attempt_event_new(FSDPD__V1__ATTEMPT_EVENT__EVENT_METRICS);
    event->metrics = message;
    post_event(attempt, event);
}

static Fsdpd__V1__Scores *scores_new(const struct train_scores *scores)
{
    Fsdpd__V1__Scores *message = MESSAGE_NEW(message, fsdpd__v1__scores__init);
    const struct {
        const char *name;
        double value;
    } all[] = {{"accuracy", scores->accuracy},
               {"f1", scores->f1},
               {"perplexity", scores->perplexity},
               {"pearson", scores->pearson},
               {"mse", scores->mse}};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        if (isfinite(all[i].value)) metric_set(&message->base, all[i].name, all[i].value);
    return message;
}

void attempt_report_epoch(void *user, const struct train_epoch *epoch)
{
    struct worker_attempt *attempt = user;
    if (attempt->assignment->rank != 0) return;
    logs_epoch(epoch);
    Fsdpd__V1__AttemptEvent *event = attempt_event_new(FSDPD__V1__ATTEMPT_EVENT__EVENT_EPOCH);
    Fsdpd__V1__EpochEnd *message = event->epoch = MESSAGE_NEW(message, fsdpd__v1__epoch_end__init);
    message->epoch = epoch->epoch;
    message->train_loss = epoch->train_loss;
    message->seconds = epoch->seconds;
    message->step = epoch->step;
    message->epochs_done = epoch->epochs_done;
    if (epoch->evaluated) {
        metric_set_mean(&message->base, "test_loss", epoch->test_loss);
        metric_set_mean(&message->base, "accuracy", epoch->accuracy);
        metric_set(&message->base, "correct", (double)epoch->correct);
        metric_set(&message->base, "test_samples", (double)epoch->test_samples);
        message->scores = scores_new(&epoch->scores);
    }
    post_event(attempt, event);
}

static Fsdpd__V1__Validation *validation_new(const struct train_validation *validation)
{
    Fsdpd__V1__Validation *message = MESSAGE_NEW(message, fsdpd__v1__validation__init);
    message->set = mem_strdup(validation->set);
    message->step = validation->step;
    message->epoch = validation->epoch;
    message->loss = validation->loss;
    message->tokens = validation->tokens;
    message->seconds = validation->seconds;
    message->scores = scores_new(&validation->scores);
    return message;
}

void attempt_report_validation(void *user, const struct train_validation *validation)
{
    struct worker_attempt *attempt = user;
    if (attempt->assignment->rank != 0) return;
    log_event(LOG_INFO, "validated", "step=%llu%s%s loss=%.6g seconds=%.3f",
              (unsigned long long)validation->step, validation->set[0] != '\0' ? " set=" : "",
              validation->set, validation->loss, validation->seconds);
    Fsdpd__V1__AttemptEvent *event = attempt_event_new(FSDPD__V1__ATTEMPT_EVENT__EVENT_VALIDATION);
    event->validation = validation_new(validation);
    post_event(attempt, event);
}

static Fsdpd__V1__Tokens *tokens_new(const int32_t *tokens, size_t count)
{
    Fsdpd__V1__Tokens *message = MESSAGE_NEW(message, fsdpd__v1__tokens__init);
    message->n_tokens = count;
    message->tokens = mem_alloc_array(count + 1, sizeof *message->tokens);
    for (size_t i = 0; i < count; i++) message->tokens[i] = (uint32_t)tokens[i];
    return message;
}

static Fsdpd__V1__Scored *scored_new(const struct train_scored *scored, int alternatives)
{
    Fsdpd__V1__Scored *message = MESSAGE_NEW(message, fsdpd__v1__scored__init);
    size_t top = scored->count * (size_t)alternatives;
    message->n_logprobs = scored->count;
    message->n_top_tokens = message->n_top_logprobs = top;
    message->logprobs = mem_dup(scored->logprobs, scored->count * sizeof(float));
    message->top_tokens = mem_alloc_array(top + 1, sizeof *message->top_tokens);
    message->top_logprobs = mem_dup(scored->top_logprobs, top * sizeof(float));
    for (size_t i = 0; i < top; i++) message->top_tokens[i] = (uint32_t)scored->top_tokens[i];
    return message;
}

static Fsdpd__V1__Sampled *sampled_new(const struct train_sampled *sampled,
                                       const struct train_sample *wanted)
{
    int count = wanted->count;
    Fsdpd__V1__Sampled *message = MESSAGE_NEW(message, fsdpd__v1__sampled__init);
    message->step = sampled->step;
    message->seconds = sampled->seconds;
    message->memory_bytes = sampled->bytes.all;
    message->held_bytes = sampled->bytes.held;
    message->sequences = mem_alloc_array((size_t)count, sizeof *message->sequences);
    message->n_sequences = (size_t)count;
    for (int s = 0; s < count; s++)
        message->sequences[s] = tokens_new(sampled->tokens[s], sampled->counts[s]);
    message->scored = mem_alloc_array((size_t)count, sizeof *message->scored);
    message->n_scored = wanted->scored ? (size_t)count : 0;
    for (size_t s = 0; s < message->n_scored; s++)
        message->scored[s] = scored_new(&sampled->scored[s], wanted->alternatives);
    return message;
}

void attempt_report_drawn(void *user, const int32_t *tokens, int count)
{
    struct worker_attempt *attempt = user;
    Fsdpd__V1__AttemptEvent *event = attempt_event_new(FSDPD__V1__ATTEMPT_EVENT__EVENT_EVALUATION);
    Fsdpd__V1__EvaluateReport *message = event->evaluation =
        MESSAGE_NEW(message, fsdpd__v1__evaluate_report__init);
    message->number = attempt->evaluating;
    message->n_drawn = (size_t)count;
    message->drawn = mem_alloc_array((size_t)count, sizeof *message->drawn);
    for (int s = 0; s < count; s++) message->drawn[s] = tokens_new(tokens + s, tokens[s] >= 0);
    link_post_event(attempt->link, attempt->assignment->job, attempt->assignment->attempt, event);
}

void attempt_report_own_samples(void *user, const struct train_sample *wanted,
                                const struct train_sampled *sampled, const status_t refused)
{
    struct worker_attempt *attempt = user;
    if (attempt->assignment->rank != 0) return;
    if (refused != NULL) {
        log_status(LOG_WARNING, "not_sampled", status_copy(refused));
        return;
    }
    log_event(LOG_INFO, "sampled", "step=%llu seconds=%.3f", (unsigned long long)sampled->step,
              sampled->seconds);
    Fsdpd__V1__AttemptEvent *event = attempt_event_new(FSDPD__V1__ATTEMPT_EVENT__EVENT_SAMPLED);
    event->sampled = sampled_new(sampled, wanted);
    post_event(attempt, event);
}

/* Takes ownership of the result, which is NULL if the order was refused. */
static void report_evaluation(struct worker_attempt *attempt, uint64_t number, const status_t refused,
                              Fsdpd__V1__Validation *validation, Fsdpd__V1__Sampled *sampled)
{
    Fsdpd__V1__AttemptEvent *event = attempt_event_new(FSDPD__V1__ATTEMPT_EVENT__EVENT_EVALUATION);
    Fsdpd__V1__EvaluateReport *message = event->evaluation =
        MESSAGE_NEW(message, fsdpd__v1__evaluate_report__init);
    message->number = number;
    message->code = (uint32_t)status_code(refused);
    if (refused != NULL) message->message = mem_strdup(status_message(refused));
    message->validation = validation;
    message->sampled = sampled;
    link_post_event(attempt->link, attempt->assignment->job, attempt->assignment->attempt, event);
}

void attempt_report_evaluation(struct worker_attempt *attempt, uint64_t number,
                               const struct train_validation *result, const status_t refused)
{
    report_evaluation(attempt, number, refused, refused == NULL ? validation_new(result) : NULL,
                      NULL);
}

void attempt_report_sample(struct worker_attempt *attempt, uint64_t number,
                           const struct train_sampled *sampled, const struct train_sample *wanted,
                           const status_t refused)
{
    report_evaluation(attempt, number, refused, NULL,
                      refused == NULL ? sampled_new(sampled, wanted) : NULL);
}

/* Takes ownership of `status`. */
void attempt_report_finished(struct worker_attempt *attempt, status_t status)
{
    Fsdpd__V1__AttemptEvent *event = attempt_event_new(FSDPD__V1__ATTEMPT_EVENT__EVENT_FINISHED);
    Fsdpd__V1__Finished *message = event->finished =
        MESSAGE_NEW(message, fsdpd__v1__finished__init);
    bool paused = attempt->paused && status_code(status) == STATUS_CANCELLED;
    message->code = (uint32_t)status_code(status);
    const char *early = status == NULL ? attempt->early_end : NULL;
    message->reason = mem_strdup(early != NULL    ? "EARLY_STOP"
                                 : status == NULL ? "DONE"
                                 : paused         ? "PAUSED"
                                                  : status_code_name(status_code(status)));
    message->message = mem_strdup(early != NULL    ? early
                                  : status == NULL ? "trained to the end"
                                                   : status_message(status));
    message->lacks = status_lacks(status);
    const struct status_details about = status_about(status);
    if (about.reason != NULL && strcmp(about.reason, STATUS_PEER_UNREACHED) == 0)
        message->unreached = (uint32_t)atoi(about.subject) + 1;
    message->step = attempt->step;
    message->memory_planned_bytes = attempt->memory_planned;
    message->memory_peak_bytes = attempt->memory_peak;
    message->resident_peak_bytes = resident_peak_bytes();
    if (attempt->spare != NULL) message->kept = spare_describe(attempt->spare);
    AUTO_FREE char *quoted = log_quote(message->message);
    log_event(status == NULL || paused ? LOG_INFO : LOG_WARNING, "attempt_ended",
              "code=%s message=%s step=%llu memory_peak=%llu memory_planned=%llu", message->reason,
              quoted, (unsigned long long)message->step,
              (unsigned long long)message->memory_peak_bytes,
              (unsigned long long)message->memory_planned_bytes);
    status_free(status);
    post_event(attempt, event);
}

/* Rank 0 reports the outcome. */
void attempt_report_wrap(struct worker_attempt *attempt, uint64_t number, uint64_t step,
                         const struct train_wrap_change *change)
{
    Fsdpd__V1__AttemptEvent *event = attempt_event_new(FSDPD__V1__ATTEMPT_EVENT__EVENT_WRAP);
    Fsdpd__V1__WrapReport *report = event->wrap = MESSAGE_NEW(report, fsdpd__v1__wrap_report__init);
    report->change = number;
    report->step = step;
    if (change->refused != NULL) {
        report->code = (uint32_t)status_code(change->refused);
        report->message = mem_strdup(status_message(change->refused));
    } else {
        report->peak_bytes = change->peak_bytes;
        report->seconds = change->seconds;
        report->plan_hash = train_session_plan(attempt->session)->hash;
    }
    post_event(attempt, event);
}

static Fsdpd__V1__TuneTrial *trial_new(const struct train_trial *trial, bool kept)
{
    Fsdpd__V1__TuneTrial *message = MESSAGE_NEW(message, fsdpd__v1__tune_trial__init);
    message->measured_seconds = trial->seconds;
    message->kept = kept;
    if (trial->refused != NULL) message->refused = mem_strdup(status_message(trial->refused));
    return message;
}

void attempt_report_tuned(void *user, uint64_t step, const struct train_tuned *tuned)
{
    struct worker_attempt *attempt = user;
    if (attempt->assignment->rank != 0) return;
    Fsdpd__V1__AttemptEvent *event = attempt_event_new(FSDPD__V1__ATTEMPT_EVENT__EVENT_WRAP);
    Fsdpd__V1__WrapReport *report = event->wrap = MESSAGE_NEW(report, fsdpd__v1__wrap_report__init);
    report->step = step;
    report->peak_bytes = tuned->peak_bytes;
    report->seconds = tuned->change_seconds;
    report->plan_hash = train_session_plan(attempt->session)->hash;
    if (tuned->stopped != NULL) report->stopped = mem_strdup(tuned->stopped);
    report->trials = mem_alloc_array((size_t)tuned->count, sizeof *report->trials);
    for (int i = 0; i < tuned->count; i++)
        report->trials[report->n_trials++] = trial_new(&tuned->trials[i], i == tuned->kept);
    post_event(attempt, event);
}
