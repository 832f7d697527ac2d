/* Jobs, plans and units as text; see report.h. */
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "output.h"
#include "progress.h"
#include "spec/spec.h"

const char *report_state(Fsdpd__V1__JobState state)
{
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&fsdpd__v1__job_state__descriptor, (int)state);
    return value ? value->name : "UNKNOWN";
}

bool report_is_over(Fsdpd__V1__JobState state)
{
    return state == FSDPD__V1__JOB_STATE__SUCCEEDED || state == FSDPD__V1__JOB_STATE__FAILED ||
           state == FSDPD__V1__JOB_STATE__CANCELLED;
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

static void report_metrics(const Fsdpd__V1__Metrics *metrics, bool over, struct buf *out)
{
    char text[32];
    if (metrics->step == 0 && !metrics->evaluated) return;
    label(out, "loss");
    buf_printf(out, "%.4f at a learning rate of %g\n", metrics->loss, metrics->learning_rate);
    if (metrics->gradient_norm_known) {
        label(out, "gradient");
        buf_printf(out, "norm %.4g", metrics->gradient_norm);
        if (metrics->skipped_steps > 0)
            buf_printf(out, ", %llu steps skipped that were not finite",
                       (unsigned long long)metrics->skipped_steps);
        buf_add_char(out, '\n');
    }
    if (metrics->evaluated) {
        label(out, "test");
        buf_printf(out, "loss %.4f, accuracy %.2f%%\n", metrics->test_loss,
                   100 * metrics->accuracy);
    }
    if (metrics->validated) {
        label(out, "validation");
        buf_printf(out, "loss %.4f after step %llu\n", metrics->val_loss,
                   (unsigned long long)metrics->val_step);
    }
    label(out, "speed");
    bool tokens = metrics->tokens_per_second > 0;
    double rate = tokens ? metrics->tokens_per_second : metrics->samples_per_second;
    buf_printf(out, "%s %s/s, %.3g s per step, ", text_format_count((uint64_t)(rate + 0.5), text),
               tokens ? "tokens" : "samples", metrics->step_seconds);
    buf_printf(out, "%s of training\n", text_format_seconds(metrics->train_seconds, text));
    if (metrics->flops_per_second > 0) {
        label(out, "arithmetic");
        buf_printf(out, "%.3g GFLOP/s", metrics->flops_per_second * 1e-9);
        if (metrics->mfu_known)
            buf_printf(out, ", MFU %.*f%%", metrics->mfu < 0.1 ? 1 : 0, 100 * metrics->mfu);
        buf_add_char(out, '\n');
    }
    if (metrics->n_op_times > 0) {
        label(out, "ops");
        for (size_t i = 0; i < metrics->n_op_times && i < OPS_SHOWN; i++)
            buf_printf(out, "%s %s, ", metrics->op_times[i]->op,
                       text_format_duration(metrics->op_times[i]->seconds, text));
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
    label(out, "memory");
    if (!over && metrics->memory_bytes > 0)
        buf_printf(out, "%s now, ", text_format_bytes(metrics->memory_bytes, text));
    buf_printf(out, "%s measured peak per rank\n",
               text_format_bytes(metrics->memory_peak_bytes, text));
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

/* What there is to say of its place in the queue; nothing for most jobs. */
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
    if (!report_is_over(job->state)) {
        line_time(out, "start by", job->started_ms == 0 ? job->start_by_ms : 0);
        line_time(out, "finish by", job->finish_by_ms);
    }
}

void report_job(const Fsdpd__V1__Job *job, int64_t now_ms, int width, struct buf *out)
{
    char age[32];
    line_text(out, "job", job->id);
    line_text(out, "user", job->owner);
    label(out, "state");
    buf_printf(out, "%s for %s\n", report_state(job->state),
               output_age(job->state_ms, now_ms, age));
    if (job->reason != NULL) {
        line_text(out, "reason",
                  job->reason->message[0] ? job->reason->message : job->reason->code);
        if (job->reason->message[0]) line_text(out, "reason code", job->reason->code);
    }
    label(out, "attempt");
    buf_printf(out, "%u\n", job->attempt);
    report_progress(job, out);
    if (job->metrics != NULL) report_metrics(job->metrics, report_is_over(job->state), out);
    report_queue(job, out);
    line_time(out, "submitted", job->submitted_ms);
    line_time(out, "started", job->started_ms);
    line_time(out, "finished", job->finished_ms);
    report_workers_of(job, out);
    line_text(out, "state_dict",
              job->has_state_dict ? "yes: fsdpctl pull writes it to a file" : "no");
    if (job->n_units > 0) {
        buf_add_char(out, '\n');
        report_units(job->units, job->n_units, width, out);
    }
    if (job->plan != NULL) {
        buf_add_char(out, '\n');
        report_memory(job->plan, out);
    }
    if (job->spec != NULL) {
        struct buf yaml = {0};
        spec_to_yaml(job->spec, &yaml);
        buf_add_char(out, '\n');
        output_clean(out, buf_text(&yaml), true);
        buf_deinit(&yaml);
    }
}

/* Columns that would say nothing are left out. */
struct job_columns {
    bool owner, priority;
};

static void add_job_row(struct table *table, const Fsdpd__V1__Job *job, struct job_columns columns,
                        int64_t now_ms)
{
    char age[32];
    const Fsdpd__V1__Metrics *metrics = job->metrics;
    table_add(table, job->id);
    if (columns.owner) table_add(table, job->owner[0] ? job->owner : "-");
    if (columns.priority) table_addf(table, "%d", job->priority);
    table_add(table, report_state(job->state));
    if (job->steps > 0)
        table_addf(table, "%llu/%llu", (unsigned long long)job->step,
                   (unsigned long long)job->steps);
    else table_add(table, "-");
    if (metrics != NULL && metrics->step > 0) table_addf(table, "%.4f", metrics->loss);
    else table_add(table, "-");
    if (metrics != NULL && metrics->evaluated) table_addf(table, "%.2f%%", 100 * metrics->accuracy);
    else table_add(table, "-");
    table_addf(table, "%u", job->spec ? job->spec->workers : (unsigned)job->n_workers);
    table_add(table, output_age(job->submitted_ms, now_ms, age));
    table_add(table, job->reason == NULL       ? ""
                     : job->reason->message[0] ? job->reason->message
                                               : job->reason->code);
}

void report_jobs(Fsdpd__V1__Job *const *jobs, size_t count, int64_t now_ms, int width,
                 struct buf *out)
{
    struct job_columns shown = {.owner = count == 0};
    for (size_t i = 0; i < count; i++) {
        shown.owner = shown.owner || jobs[i]->owner[0] != '\0';
        shown.priority = shown.priority || jobs[i]->priority != 0;
    }
    static const struct table_column rest[] = {{"STATE", false},  {"STEP", true},
                                               {"LOSS", true},    {"ACCURACY", true},
                                               {"WORKERS", true}, {"AGE", true},
                                               {"REASON", false}};
    struct table_column columns[10] = {{"JOB", false}};
    int column_count = 1;
    if (shown.owner) columns[column_count++] = (struct table_column){"USER", false};
    if (shown.priority) columns[column_count++] = (struct table_column){"PRIORITY", true};
    memcpy(&columns[column_count], rest, sizeof rest);
    column_count += (int)(sizeof rest / sizeof rest[0]);
    struct table table = {.columns = columns, .column_count = column_count};
    for (size_t i = 0; i < count; i++) add_job_row(&table, jobs[i], shown, now_ms);
    table_print(&table, width, 0, out);
    table_deinit(&table);
}

/* cpu:2 comes before cpu:10. */
static int compare_workers(const void *a, const void *b)
{
    const Fsdpd__V1__Worker *const *first = a, *const *second = b;
    return strverscmp((*first)->id, (*second)->id);
}

void report_sort_workers(Fsdpd__V1__ListWorkersResponse *list)
{
    if (list->n_workers > 1)
        qsort(list->workers, list->n_workers, sizeof(Fsdpd__V1__Worker *), compare_workers);
}

void report_workers(Fsdpd__V1__Worker *const *workers, size_t count, int64_t now_ms, int width,
                    struct buf *out)
{
    static const struct table_column columns[] = {
        {"WORKER", false}, {"STATE", false},   {"JOB", false},  {"RANK", true},
        {"MEMORY", true},  {"ATTACHED", true}, {"PID", true},   {"RESTARTS", true},
        {"DEVICE", false}, {"VERSION", false}, {"HOST", false},
    };
    struct table table = {.columns = columns, .column_count = 11};
    for (size_t i = 0; i < count; i++) {
        const Fsdpd__V1__Worker *worker = workers[i];
        char age[32];
        table_add(&table, worker->id);
        table_add(&table, worker->state);
        table_add(&table, worker->job[0] ? worker->job : "-");
        if (worker->rank >= 0 && worker->job[0]) table_addf(&table, "%d", worker->rank);
        else table_add(&table, "-");
        table_add_bytes(&table, worker->memory_bytes);
        table_add(&table, output_age(worker->attached_ms, now_ms, age));
        table_addf(&table, "%lld", (long long)worker->pid);
        table_addf(&table, "%u", worker->restarts);
        if (worker->shares_device) table_addf(&table, "%s, shared", worker->device);
        else table_add(&table, worker->device);
        table_add(&table, worker->version);
        table_add(&table, worker->host[0] ? worker->host : "-");
    }
    table_print(&table, width, 0, out);
    table_deinit(&table);
}

void report_end(const char *id, Fsdpd__V1__JobState state, const Fsdpd__V1__Reason *reason,
                struct buf *out)
{
    output_clean(out, id, false);
    buf_printf(out, " %s", report_state(state));
    const char *why = reason == NULL ? "" : reason->message[0] ? reason->message : reason->code;
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
