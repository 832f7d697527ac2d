/* The table of jobs; see job_table.h. */
#include "job_table.h"

#include <string.h>

#include "base/array.h"
#include "base/text.h"
#include "output.h"
#include "print/scores.h"
#include "progress.h"
#include "proto/message.h"
#include "spec/spec.h"

enum { BAR_WIDTH = 22, USER = 1 };

/* A column that is short of room is dropped before one with a smaller number. */
static const struct table_column all_columns[] = {
    {.title = "JOB"},
    {.title = "USER", .optional = true, .drop = 7},
    {.title = "PRIORITY", .right = true, .optional = true, .drop = 5},
    {.title = "STATE"},
    {.title = "PROGRESS", .optional = true, .drop = 10},
    {.title = "STEP", .right = true},
    {.title = "LOSS", .right = true},
    {.title = "VAL", .right = true, .optional = true, .drop = 1},
    {.title = "ACCURACY", .right = true, .optional = true, .drop = 4},
    {.title = "RATE", .right = true, .optional = true, .drop = 6},
    {.title = "LEFT", .right = true, .optional = true, .drop = 3},
    {.title = "WORKERS", .right = true, .drop = 9},
    {.title = "AGE", .right = true, .drop = 8},
    {.title = "REASON"},
};

/* "812/s", "64.0k/s": samples, or tokens of a job that has tokens. */
static void add_rate(struct table *table, const Fsdpd__V1__Metrics *metrics)
{
    static const char *const units[] = {"", "k", "M", "G", "T"};
    double rate =
        metrics->tokens_per_second > 0 ? metrics->tokens_per_second : metrics->samples_per_second;
    size_t unit = 0;
    for (; rate >= 999.5 && unit + 1 < COUNT_OF(units); unit++) rate /= 1000;
    int digits = unit == 0 || rate >= 99.95 ? 0 : rate >= 9.995 ? 1 : 2;
    if (rate > 0 && rate < 1000) table_addf(table, "%.*f%s/s", digits, rate, units[unit]);
    else table_add(table, "-");
}

/* A job that does not run has neither a rate nor an end. */
static void add_speed(struct table *table, const Fsdpd__V1__Job *job)
{
    char text[32];
    bool runs = job->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING && job->metrics != NULL;
    if (runs) add_rate(table, job->metrics);
    else table_add(table, "-");
    table_add(table, runs && job->metrics->seconds_left > 0
                         ? text_format_seconds(job->metrics->seconds_left, text)
                         : "-");
}

static void add_figures(struct table *table, const Fsdpd__V1__Metrics *metrics)
{
    char text[32];
    bool any = metrics != NULL;
    table_add(table, any && metrics->step > 0 ? scores_loss(metrics->loss, text) : "-");
    table_add(table,
              any && metrics->_val_loss_case != 0 ? scores_loss(metrics->val_loss, text) : "-");
    table_add(table,
              any && metrics->_test_loss_case != 0 ? scores_share(metrics->accuracy, text) : "-");
}

/* The step of the latest metrics may be ahead of the job's record. */
static uint64_t step_of(const Fsdpd__V1__Job *job)
{
    uint64_t measured = job->metrics != NULL ? job->metrics->step : 0;
    return measured > job->step ? measured : job->step;
}

static void add_step(struct table *table, const struct job_table *options,
                     const Fsdpd__V1__Job *job)
{
    AUTO(buf_deinit) struct buf bar = {0};
    if (options->bars && job->steps > 0)
        curve_bar((double)step_of(job) / (double)job->steps, BAR_WIDTH, options->unicode, false,
                  &bar);
    table_add(table, buf_text(&bar));
    if (job->steps > 0)
        table_addf(table, "%llu/%llu", (unsigned long long)step_of(job),
                   (unsigned long long)job->steps);
    else table_add(table, "-");
}

static void add_row(struct table *table, const struct job_table *options, const Fsdpd__V1__Job *job)
{
    char age[32];
    table_add(table, job->id);
    table_add(table, options->bars || !job->owner[0] ? "-" : job->owner);
    if (job->priority != 0) table_addf(table, "%d", job->priority);
    else table_add(table, "-");
    /* A job with a damaged record has no state; its reason says that it is damaged. */
    bool damaged = job->state == FSDPD__V1__JOB_STATE__JOB_STATE_UNSPECIFIED && job->reason != NULL;
    table_add(table, damaged ? job->reason->code : report_state(job->state));
    table_style(table, report_state_style(job->state, options->view.colour));
    add_step(table, options, job);
    add_figures(table, job->metrics);
    add_speed(table, job);
    struct spec_settings with;
    table_addf(table, "%u",
               job->spec ? spec_settings(job->spec, job->chosen, &with)->workers
                         : (unsigned)job->n_workers);
    table_add(table, output_age(message_time_ms(job->submit_time), options->view.now_ms, age));
    table_add(table, report_reason(job->reason));
}

void job_table_print(const struct job_table *options, Fsdpd__V1__Job *const *jobs, size_t count,
                     struct buf *out)
{
    struct table_column columns[COUNT_OF(all_columns)];
    memcpy(columns, all_columns, sizeof columns);
    /* Nearly every job has a user: the columns before the first job are the same as with it. */
    if (count == 0) columns[USER].optional = false;
    AUTO(table_deinit)
    struct table table = {.columns = columns,
                          .column_count = COUNT_OF(columns),
                          .whole = !options->bars};
    for (size_t i = 0; i < count; i++) add_row(&table, options, jobs[i]);
    table_print(&table, options->view.width, 0, out);
}
