/* Jobs, plans and units as text; see report.h. */
#include "report.h"

#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "output.h"
#include "print/scores.h"
#include "proto/message.h"
#include "spec/metric_table.h"
#include "spec/spec.h"

const char *report_state(Fsdpd__V1__JobState state)
{
    const char *word = spec_word(&fsdpd__v1__job_state__descriptor, (int)state);
    return word ? word : "UNKNOWN";
}

bool report_is_over(Fsdpd__V1__JobState state)
{
    return state == FSDPD__V1__JOB_STATE__JOB_STATE_SUCCEEDED ||
           state == FSDPD__V1__JOB_STATE__JOB_STATE_FAILED ||
           state == FSDPD__V1__JOB_STATE__JOB_STATE_CANCELLED;
}

const char *report_state_style(Fsdpd__V1__JobState state, bool colour)
{
    if (!colour) return NULL;
    switch (state) {
    case FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED: return STYLE_YELLOW;
    case FSDPD__V1__JOB_STATE__JOB_STATE_STARTING: return STYLE_CYAN;
    case FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING: return STYLE_BOLD_GREEN;
    case FSDPD__V1__JOB_STATE__JOB_STATE_PAUSED: return STYLE_BLUE;
    case FSDPD__V1__JOB_STATE__JOB_STATE_SUCCEEDED: return STYLE_GREEN;
    case FSDPD__V1__JOB_STATE__JOB_STATE_FAILED: return STYLE_BOLD_RED;
    case FSDPD__V1__JOB_STATE__JOB_STATE_CANCELLED: return STYLE_MAGENTA;
    default: return NULL;
    }
}

static void add_state(struct buf *out, Fsdpd__V1__JobState state, bool colour)
{
    const char *style = report_state_style(state, colour);
    buf_printf(out, "%s%s%s", style ? style : "", report_state(state), style ? STYLE_END : "");
}

static void label(struct buf *out, const char *name)
{
    buf_printf(out, "%-12s", name);
}

static void line_text(struct buf *out, const char *name, const char *text)
{
    if (text == NULL || text[0] == '\0') return;
    label(out, name);
    output_clean(out, text, false);
    buf_add_char(out, '\n');
}

static void line_time(struct buf *out, const char *name, int64_t time_ms)
{
    char text[32];
    if (time_ms > 0) line_text(out, name, clock_format_wall(time_ms, text));
}

enum { OPS_SHOWN = 4 }; /* the rest is in the metrics and in traces */

/* Targets that count, if not all do, and waiting for data, if there is any to speak of. */
static void report_data(const Fsdpd__V1__Metrics *metrics, struct buf *out)
{
    char text[32];
    double counted = metrics->counted_tokens_per_second, waits = metrics->data_wait_share;
    bool masks = counted > 0 && counted < 0.999 * metrics->tokens_per_second;
    if (!masks && waits < 0.01) return;
    label(out, "data");
    if (masks)
        buf_printf(out, "%s counted tokens/s (%.1f%%)",
                   text_format_count((uint64_t)(counted + 0.5), text),
                   100 * counted / metrics->tokens_per_second);
    if (waits >= 0.01)
        buf_printf(out, "%s%.0f%% of the time waiting for data", masks ? ", " : "", 100 * waits);
    buf_add_char(out, '\n');
}

/* A figure that has a line of its own. */
static void report_figure(const struct metric *metric, const Fsdpd__V1__Metrics *metrics,
                          struct buf *out)
{
    char text[32];
    double value;
    if (metric->line == NULL || !metric_of_job(metric, metrics, &value) || !(value > 0)) return;
    const char *unit = metric->unit != NULL ? metric->unit : "";
    label(out, metric->line);
    if (strcmp(unit, "s") == 0) buf_add_text(out, text_format_duration(value, text));
    else if (strcmp(unit, "bytes") == 0)
        buf_add_text(out, text_format_bytes((uint64_t)value, text));
    else buf_printf(out, "%.4g%s", value, unit[0] != '\0' ? " per second" : "");
    buf_printf(out, "%s\n", metric->after != NULL ? metric->after : "");
}

static void report_validation(const Fsdpd__V1__Validation *validation, struct buf *out)
{
    char text[32];
    label(out, "validation");
    output_clean(out, validation->set, false);
    buf_printf(out, "%sloss %s", validation->set[0] != '\0' ? ": " : "",
               scores_loss(validation->loss, text));
    scores_add(validation->scores, out);
    buf_printf(out, " after step %llu\n", (unsigned long long)validation->step);
}

static void report_metrics(const Fsdpd__V1__Metrics *metrics, bool over, struct buf *out)
{
    char text[32], share[32];
    if (metrics->step == 0 && metrics->_test_loss_case == 0) return;
    label(out, "loss");
    buf_printf(out, "%s at a learning rate of %g\n", scores_loss(metrics->loss, text),
               metrics->learning_rate);
    if (metrics->_gradient_norm_case != 0) {
        label(out, "gradient");
        buf_printf(out, "norm %.4g", metrics->gradient_norm);
        if (metrics->skipped_steps > 0)
            buf_printf(out, ", %llu steps without an update",
                       (unsigned long long)metrics->skipped_steps);
        buf_add_char(out, '\n');
    }
    if (metrics->_test_loss_case != 0) {
        label(out, "test");
        buf_printf(out, "loss %s, accuracy %s", scores_loss(metrics->test_loss, text),
                   scores_share(metrics->accuracy, share));
        scores_add_f1(metrics->test_scores, out);
        buf_add_char(out, '\n');
    }
    if (metrics->_val_loss_case != 0) {
        const Fsdpd__V1__Validation own = {.set = (char *)"",
                                           .loss = metrics->val_loss,
                                           .scores = metrics->val_scores,
                                           .step = metrics->val_step};
        report_validation(&own, out);
    }
    for (size_t i = 0; i < metrics->n_held_out; i++) report_validation(metrics->held_out[i], out);
    label(out, "speed");
    bool tokens = metrics->tokens_per_second > 0;
    double rate = tokens ? metrics->tokens_per_second : metrics->samples_per_second;
    buf_printf(out, "%s %s/s, %.3g s per step, ", text_format_count((uint64_t)(rate + 0.5), text),
               tokens ? "tokens" : "samples", metrics->step_seconds);
    buf_printf(out, "%s of training\n", text_format_seconds(metrics->train_seconds, text));
    report_data(metrics, out);
    if (metrics->flops_per_second > 0) {
        label(out, "arithmetic");
        buf_printf(out, "%.3g GFLOP/s", metrics->flops_per_second * 1e-9);
        if (metrics->_mfu_case != 0)
            buf_printf(out, ", MFU %.*f%%", metrics->mfu < 0.1 ? 1 : 0, 100 * metrics->mfu);
        buf_add_char(out, '\n');
    }
    if (metrics->n_op_times > 0) {
        label(out, "ops");
        for (size_t i = 0; i < metrics->n_op_times && i < OPS_SHOWN; i++) {
            output_clean(out, metrics->op_times[i]->op, false);
            buf_printf(out, " %s, ", text_format_duration(metrics->op_times[i]->seconds, text));
        }
        buf_printf(out, "in step %llu\n", (unsigned long long)metrics->op_times_step);
    }
    if (metrics->communicated_bytes > 0 && metrics->communication_seconds > 0) {
        label(out, "network");
        buf_printf(out, "%s sent per rank and step, ",
                   text_format_bytes(metrics->communicated_bytes, text));
        buf_printf(out, "%s, ", text_format_duration(metrics->communication_seconds, text));
        buf_printf(out, "%s of it exposed\n",
                   text_format_duration(metrics->exposed_communication_seconds, text));
    }
    for (size_t i = 0; i < metric_count(); i++) report_figure(&metric_table[i], metrics, out);
    label(out, "memory");
    if (!over && metrics->memory_bytes > 0)
        buf_printf(out, "%s now, ", text_format_bytes(metrics->memory_bytes, text));
    buf_printf(out, "%s measured peak per rank",
               text_format_bytes(metrics->memory_peak_bytes, text));
    if (metrics->resident_peak_bytes > 0)
        buf_printf(out, ", %s of the whole process",
                   text_format_bytes(metrics->resident_peak_bytes, text));
    buf_add_char(out, '\n');
}

static void report_progress(const Fsdpd__V1__Job *job, struct buf *out)
{
    char text[32];
    label(out, "step");
    if (job->steps == 0) {
        buf_printf(out, "%llu\n", (unsigned long long)job->step);
        return;
    }
    buf_printf(out, "%llu of %llu (%.0f%%)", (unsigned long long)job->step,
               (unsigned long long)job->steps, 100.0 * (double)job->step / (double)job->steps);
    if (!report_is_over(job->state) && job->metrics && job->metrics->seconds_left > 0)
        buf_printf(out, ", %s left", text_format_seconds(job->metrics->seconds_left, text));
    buf_add_char(out, '\n');
}

static void report_workers_of(const Fsdpd__V1__Job *job, struct buf *out)
{
    for (size_t i = 0; i < job->n_workers; i++) {
        label(out, i == 0 ? "workers" : "");
        buf_printf(out, "rank %zu: ", i);
        output_clean(out, job->workers[i], false);
        buf_add_char(out, '\n');
    }
}

/* The job's place in the queue, its slow ranks and its deadlines; prints nothing for most jobs. */
static void report_queue(const Fsdpd__V1__Job *job, struct buf *out)
{
    if (job->priority != 0) {
        label(out, "priority");
        buf_printf(out, "%d\n", job->priority);
    }
    line_text(out, "held by", job->held_by);
    for (size_t i = 0; i < job->n_waits_for; i++)
        line_text(out, i == 0 ? "waits for" : "", job->waits_for[i]);
    for (size_t i = 0; job->spec != NULL && i < job->spec->n_labels; i++) {
        label(out, i == 0 ? "labels" : "");
        output_clean(out, job->spec->labels[i]->key, false);
        buf_add_char(out, '=');
        output_clean(out, job->spec->labels[i]->value, false);
        buf_add_char(out, '\n');
    }
    for (size_t i = 0; i < job->n_slow_ranks; i++) {
        const Fsdpd__V1__SlowRank *slow = job->slow_ranks[i];
        label(out, i == 0 ? "slow" : "");
        buf_printf(out, "rank %u (", slow->rank);
        output_clean(out, slow->worker, false);
        buf_printf(out, "): %.2f times the median rank's time, %.3g s of its own per step\n",
                   slow->slowdown, slow->own_step_seconds);
    }
    if (!report_is_over(job->state)) {
        line_time(out, "start at",
                  message_time_ms(job->start_time) == 0 ? message_time_ms(job->start_at) : 0);
        line_time(out, "start by",
                  message_time_ms(job->start_time) == 0 ? message_time_ms(job->start_by) : 0);
        line_time(out, "finish by", message_time_ms(job->finish_by));
    }
}

/* Who chose what since, and the settings that differ. */
static void report_chosen(const Fsdpd__V1__Job *job, struct buf *out)
{
    static const char *const choosers[] = {
        [FSDPD__V1__CHOOSER__CHOOSER_PLANNER] = ", by the planner",
        [FSDPD__V1__CHOOSER__CHOOSER_TUNE] = ", last by fsdp.tune",
        [FSDPD__V1__CHOOSER__CHOOSER_USER] = ", last by a user",
    };
    const Fsdpd__V1__Chosen *chosen = job->chosen;
    AUTO(buf_deinit) struct buf changes = {0};
    struct spec_settings with;
    char time[32];
    buf_add_text(out, "\nchosen instead");
    if (chosen->by > 0 && chosen->by < COUNT_OF(choosers)) buf_add_text(out, choosers[chosen->by]);
    if (chosen->profile[0] != '\0') buf_add_text(out, ", for ");
    output_clean(out, chosen->profile, false);
    if (chosen->step_seconds > 0)
        buf_printf(out, ", %s a step expected", text_format_duration(chosen->step_seconds, time));
    buf_add_text(out, ":\n\n");
    spec_print_changes(job->spec, spec_settings(job->spec, chosen, &with), &changes);
    output_clean(out, buf_text(&changes), true);
}

void report_job(const Fsdpd__V1__Job *job, const struct view *view, struct buf *out)
{
    char age[32];
    line_text(out, "job", job->id);
    line_text(out, "user", job->owner);
    label(out, "state");
    add_state(out, job->state, view->colour);
    buf_printf(out, " for %s\n", output_age(message_time_ms(job->state_time), view->now_ms, age));
    if (job->reason != NULL) {
        line_text(out, "reason", report_reason(job->reason));
        if (job->reason->message[0]) line_text(out, "reason code", job->reason->code);
    }
    label(out, "attempt");
    buf_printf(out, "%u\n", job->attempt);
    report_progress(job, out);
    if (job->metrics != NULL) report_metrics(job->metrics, report_is_over(job->state), out);
    report_queue(job, out);
    line_time(out, "submitted", message_time_ms(job->submit_time));
    line_time(out, "started", message_time_ms(job->start_time));
    line_time(out, "finished", message_time_ms(job->finish_time));
    report_workers_of(job, out);
    line_text(out, "state_dict",
              job->has_state_dict ? "yes: fsdpctl pull writes it to a file" : "no");
    if (job->n_units > 0) {
        buf_add_char(out, '\n');
        report_units(job->units, job->n_units, view->width, out);
    }
    if (job->plan != NULL) {
        buf_add_char(out, '\n');
        report_memory(job->plan, out);
    }
    if (job->spec != NULL) {
        AUTO(buf_deinit) struct buf yaml = {0};
        spec_to_yaml(job->spec, &yaml);
        buf_add_text(out, "\nasked for:\n\n");
        output_clean(out, buf_text(&yaml), true);
        if (job->chosen != NULL) report_chosen(job, out);
    }
}

static void add_worker_state(struct table *table, Fsdpd__V1__WorkerState state, bool colour)
{
    static const char *const styles[] = {
        [FSDPD__V1__WORKER_STATE__WORKER_STATE_BUSY] = STYLE_BOLD_GREEN,
        [FSDPD__V1__WORKER_STATE__WORKER_STATE_STARTING] = STYLE_CYAN,
        [FSDPD__V1__WORKER_STATE__WORKER_STATE_DRAINING] = STYLE_YELLOW,
        [FSDPD__V1__WORKER_STATE__WORKER_STATE_DRAINED] = STYLE_MAGENTA,
    };
    const char *word = spec_word(&fsdpd__v1__worker_state__descriptor, (int)state);
    table_add(table, word != NULL ? word : "-");
    if (word != NULL && colour) table_style(table, styles[state]);
}

static void add_unreachable(struct table *table, const Fsdpd__V1__Worker *worker)
{
    AUTO(buf_deinit) struct buf names = {0};
    for (size_t i = 0; i < worker->n_unreachable; i++)
        buf_printf(&names, "%s%s", i > 0 ? ", " : "", worker->unreachable[i]);
    table_add(table, worker->n_unreachable > 0 ? buf_text(&names) : "-");
}

void report_workers(Fsdpd__V1__Worker *const *workers, size_t count, const struct view *view,
                    struct buf *out)
{
    static const struct table_column columns[] = {
        {.title = "WORKER"},
        {.title = "STATE"},
        {.title = "JOB"},
        {.title = "RANK", .right = true},
        {.title = "MEMORY", .right = true},
        {.title = "ATTACHED", .right = true, .drop = 3},
        {.title = "PID", .right = true, .drop = 4},
        {.title = "RESTARTS", .right = true, .drop = 5},
        {.title = "VERSION", .drop = 6},
        {.title = "HOST", .drop = 7},
        {.title = "DEVICE"},
        {.title = "CANNOT REACH"},
    };
    bool cut = false;
    for (size_t i = 0; i < count; i++) cut = cut || workers[i]->n_unreachable > 0;
    AUTO(table_deinit) struct table table = {.columns = columns,
                                             .column_count = COUNT_OF(columns) - !cut};
    for (size_t i = 0; i < count; i++) {
        const Fsdpd__V1__Worker *worker = workers[i];
        char age[32];
        table_add(&table, worker->id);
        add_worker_state(&table, worker->state, view->colour);
        table_add(&table, worker->job[0] ? worker->job : "-");
        if (worker->rank >= 0 && worker->job[0]) table_addf(&table, "%d", worker->rank);
        else table_add(&table, "-");
        table_add_bytes(&table, worker->memory_bytes);
        table_add(&table, output_age(message_time_ms(worker->attach_time), view->now_ms, age));
        table_addf(&table, "%lld", (long long)worker->pid);
        table_addf(&table, "%u", worker->restarts);
        table_add(&table, worker->version);
        table_add(&table, worker->host[0] ? worker->host : "-");
        if (worker->shares_device) table_addf(&table, "%s, shared", worker->device);
        else table_add(&table, worker->device);
        if (cut) add_unreachable(&table, worker);
    }
    table_print(&table, view->width, 0, out);
}

const char *report_reason(const Fsdpd__V1__Reason *reason)
{
    if (reason == NULL) return "";
    return reason->message[0] ? reason->message : reason->code;
}

void report_end(const char *id, Fsdpd__V1__JobState state, const Fsdpd__V1__Reason *reason,
                bool colour, struct buf *out)
{
    output_clean(out, id, false);
    buf_add_char(out, ' ');
    add_state(out, state, colour);
    const char *why = report_reason(reason);
    if (why[0] != '\0') {
        buf_add_text(out, ": ");
        output_clean(out, why, false);
    }
    buf_add_char(out, '\n');
}

void report_checkpoint(const Fsdpd__V1__Checkpoint *checkpoint, struct buf *out)
{
    char text[32];
    buf_printf(out, "checkpoint of step %llu: %s in ", (unsigned long long)checkpoint->step,
               text_format_bytes(checkpoint->bytes, text));
    output_clean(out, checkpoint->path, false);
    buf_add_char(out, '\n');
}
