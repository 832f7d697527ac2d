/* metrics: every recorded step of a job, as a table, as CSV or as JSON. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/text.h"
#include "client.h"
#include "exit.h"
#include "print/json.h"
#include "proto/message.h"
#include "scores.h"

static status_t set_csv(struct verb_options *options, const char *value)
{
    (void)value;
    options->csv = true;
    return NULL;
}

static status_t set_every(struct verb_options *options, const char *value)
{
    return option_number(value, 1, UINT32_MAX, &options->every);
}

const struct verb_option metrics_options[] = {
    {"csv", 0, NULL, "comma-separated values, with a line of names", set_csv},
    {"every", 0, "N", "every Nth recorded step of each attempt", set_every},
    {"attempt", 0, "N", "of one attempt", option_attempt},
    {0},
};

struct metrics_rows {
    struct client *client;
    struct table table;
    uint64_t left_out, count;
    bool headed; /* the header line has been printed */
};

/* The training steps done; 0 for the end of an epoch if the daemon did not send the step. */
static uint64_t row_step(const Fsdpd__V1__JobEvent *event)
{
    if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_METRICS) return event->metrics->step;
    if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_EPOCH) return event->epoch->step;
    return event->validation->step;
}

/* Epochs done, fractional: at the end of an epoch, which the end of the job's steps may cut
 * short. */
static double epochs_done(const Fsdpd__V1__EpochEnd *epoch)
{
    return epoch->step > 0 ? epoch->epochs_done : epoch->epoch;
}

/* ---- CSV ---- */

static const char csv_head[] =
    "attempt,time,kind,step,epoch,loss,learning_rate,gradient_norm,step_seconds,"
    "samples_per_second,tokens_per_second,memory_bytes,memory_peak_bytes,resident_peak_bytes,"
    "communicated_bytes,"
    "compute_seconds,communication_seconds,exposed_communication_seconds,flops_per_second,mfu,"
    "skipped_steps,train_seconds,counted_tokens_per_second,data_wait_share,train_loss,val_loss,"
    "test_loss,accuracy,seconds,f1,perplexity,pearson,mse\n";

/* Adds the shortest text that reads back as the same number. */
static void csv_number(struct buf *out, double value)
{
    char text[32] = ""; /* a mean of nothing */
    if (isinf(value)) snprintf(text, sizeof text, value > 0 ? "inf" : "-inf");
    else if (!isnan(value)) snprintf(text, sizeof text, "%.15g", value);
    if (isfinite(value) && strtod(text, NULL) != value) snprintf(text, sizeof text, "%.17g", value);
    buf_printf(out, ",%s", text);
}

static void csv_known(struct buf *out, bool known, double value)
{
    if (known) csv_number(out, value);
    else buf_add_char(out, ',');
}

static void csv_count(struct buf *out, uint64_t value)
{
    buf_printf(out, ",%llu", (unsigned long long)value);
}

static void csv_step(const Fsdpd__V1__Metrics *m, struct buf *out)
{
    csv_number(out, m->epoch);
    csv_number(out, m->loss);
    csv_number(out, m->learning_rate);
    csv_known(out, m->gradient_norm_known, m->gradient_norm);
    csv_number(out, m->step_seconds);
    csv_number(out, m->samples_per_second);
    csv_known(out, m->tokens_per_second > 0, m->tokens_per_second);
    csv_count(out, m->memory_bytes);
    csv_count(out, m->memory_peak_bytes);
    csv_count(out, m->resident_peak_bytes);
    csv_count(out, m->communicated_bytes);
    csv_number(out, m->compute_seconds);
    csv_number(out, m->communication_seconds);
    csv_number(out, m->exposed_communication_seconds);
    csv_known(out, m->flops_per_second > 0, m->flops_per_second);
    csv_known(out, m->mfu_known, m->mfu);
    csv_count(out, m->skipped_steps);
    csv_number(out, m->train_seconds);
    csv_known(out, m->counted_tokens_per_second > 0, m->counted_tokens_per_second);
    csv_number(out, m->data_wait_share);
    buf_add_text(out, ",,,,,,,,,\n"); /* the columns of epochs and validations */
}

static void csv_row(const Fsdpd__V1__MetricsRow *row, struct buf *out)
{
    const Fsdpd__V1__JobEvent *event = row->event;
    char when[32];
    bool epoch = event->event_case == FSDPD__V1__JOB_EVENT__EVENT_EPOCH;
    bool step = event->event_case == FSDPD__V1__JOB_EVENT__EVENT_METRICS;
    bool known = !epoch || event->epoch->step > 0;
    buf_printf(out, "%u,%s,%s", row->attempt, clock_format_wall(message_time_ms(event->time), when),
               step    ? "step"
               : epoch ? "epoch"
                       : "validation");
    if (known) csv_count(out, row_step(event));
    else buf_add_char(out, ',');
    if (step) {
        csv_step(event->metrics, out);
        return;
    }
    csv_number(out, epoch ? epochs_done(event->epoch) : event->validation->epoch);
    for (int i = 0; i < 19; i++) buf_add_char(out, ',');
    csv_known(out, epoch, epoch ? event->epoch->train_loss : 0);
    csv_known(out, !epoch, !epoch ? event->validation->loss : 0);
    csv_known(out, epoch && event->epoch->evaluated, epoch ? event->epoch->test_loss : 0);
    const Fsdpd__V1__Scores none = FSDPD__V1__SCORES__INIT;
    const Fsdpd__V1__Scores *scores = epoch ? event->epoch->scores : event->validation->scores;
    if (scores == NULL) scores = &none;
    bool evaluated = epoch && event->epoch->evaluated;
    csv_known(out, evaluated || scores->_accuracy_case,
              evaluated ? event->epoch->accuracy : scores->accuracy);
    csv_number(out, epoch ? event->epoch->seconds : event->validation->seconds);
    csv_known(out, scores->_f1_case, scores->f1);
    csv_known(out, scores->_perplexity_case, scores->perplexity);
    csv_known(out, scores->_pearson_case, scores->pearson);
    csv_known(out, scores->_mse_case, scores->mse);
    buf_add_char(out, '\n');
}

/* ---- the table ---- */

static const struct table_column columns[] = {
    {.title = "ATTEMPT", .right = true},    {.title = "STEP", .right = true},
    {.title = "EPOCH", .right = true},      {.title = "LOSS", .right = true},
    {.title = "LR", .right = true},         {.title = "GRAD NORM", .right = true},
    {.title = "STEP TIME", .right = true},  {.title = "EXPOSED", .right = true},
    {.title = "PER SECOND", .right = true}, {.title = "MEMORY", .right = true},
    {.title = "PEAK", .right = true},       {.title = ""},
};
enum { COLUMNS = COUNT_OF(columns) };

static void table_duration(struct table *table, double seconds)
{
    char text[32];
    table_add(table, seconds > 0 ? text_format_duration(seconds, text) : "-");
}

static void table_step(struct table *table, const Fsdpd__V1__Metrics *m)
{
    bool tokens = m->tokens_per_second > 0;
    double rate = tokens ? m->tokens_per_second : m->samples_per_second;
    char text[32];
    table_addf(table, "%.3f", m->epoch);
    table_add(table, scores_loss(m->loss, text));
    table_addf(table, "%.4g", m->learning_rate);
    if (m->gradient_norm_known) table_addf(table, "%.4g", m->gradient_norm);
    else table_add(table, "-");
    table_duration(table, m->step_seconds);
    table_duration(table, m->exposed_communication_seconds);
    if (rate > 0 && rate < 1e15)
        table_addf(table, "%s %s", text_format_count((uint64_t)llround(rate), text),
                   tokens ? "tokens" : "samples");
    else table_add(table, "-");
    table_add_bytes(table, m->memory_bytes);
    table_add_bytes(table, m->memory_peak_bytes);
    table_add(table, "");
}

static void add_validation(struct table *table, const Fsdpd__V1__Validation *validation)
{
    AUTO(buf_deinit) struct buf text = {0};
    buf_add_text(&text, "validation");
    scores_add(validation->scores, &text);
    table_add(table, buf_text(&text));
}

static void add_epoch_end(struct table *table, const Fsdpd__V1__EpochEnd *epoch)
{
    AUTO(buf_deinit) struct buf text = {0};
    char loss[32], accuracy[32];
    buf_add_text(&text, "end of epoch");
    if (epoch->evaluated) {
        buf_printf(&text, ": test loss %s, accuracy %s", scores_loss(epoch->test_loss, loss),
                   scores_share(epoch->accuracy, accuracy));
        scores_add_f1(epoch->scores, &text);
    }
    table_add(table, buf_text(&text));
}

static void table_row(struct metrics_rows *rows, const Fsdpd__V1__MetricsRow *row)
{
    struct table *table = &rows->table;
    const Fsdpd__V1__JobEvent *event = row->event;
    char loss[32];
    table_addf(table, "%u", row->attempt);
    uint64_t step = row_step(event);
    if (step > 0) table_addf(table, "%llu", (unsigned long long)step);
    else table_add(table, "-");
    if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_METRICS) {
        table_step(table, event->metrics);
        return;
    }
    bool epoch = event->event_case == FSDPD__V1__JOB_EVENT__EVENT_EPOCH;
    table_addf(table, "%.3f", epoch ? epochs_done(event->epoch) : event->validation->epoch);
    table_add(table, scores_loss(epoch ? event->epoch->train_loss : event->validation->loss, loss));
    for (int i = 4; i < COLUMNS - 1; i++) table_add(table, "");
    if (epoch) add_epoch_end(table, event->epoch);
    else add_validation(table, event->validation);
}

/* ---- reading ---- */

static void print_head(struct metrics_rows *rows)
{
    if (!rows->client->options.csv || rows->headed) return;
    fputs(csv_head, stdout);
    rows->headed = true;
}

static status_t take_chunk(const ProtobufCMessage *message, void *user)
{
    struct metrics_rows *rows = user;
    const Fsdpd__V1__GetMetricsResponse *chunk = (const void *)message;
    const struct verb_options *options = &rows->client->options;
    struct buf text = {0};
    if (chunk->n_rows > 0) print_head(rows);
    rows->left_out += chunk->left_out;
    rows->count += chunk->n_rows;
    for (size_t i = 0; i < chunk->n_rows; i++) {
        const Fsdpd__V1__MetricsRow *row = chunk->rows[i];
        if (row->event == NULL) continue;
        if (row->event->event_case != FSDPD__V1__JOB_EVENT__EVENT_METRICS &&
            row->event->event_case != FSDPD__V1__JOB_EVENT__EVENT_EPOCH &&
            row->event->event_case != FSDPD__V1__JOB_EVENT__EVENT_VALIDATION)
            continue; /* sent by a newer daemon */
        if (options->csv) {
            csv_row(row, &text);
        } else if (options->format == FORMAT_JSON) {
            json_add_message(&text, &row->base, -1);
            buf_add_char(&text, '\n');
        } else {
            table_row(rows, row);
        }
    }
    output_print(&text);
    return NULL;
}

static void print_table(struct metrics_rows *rows)
{
    const struct terminal *terminal = &rows->client->terminal;
    struct buf text = {0};
    if (rows->table.cell_count == 0)
        output_note("no recorded step of this %s",
                    rows->client->options.attempt > 0 ? "attempt" : "job");
    else table_print(&rows->table, terminal->out ? terminal->width : 0, 0, &text);
    output_print(&text);
}

int verb_metrics(struct client *client)
{
    const struct verb_options *options = &client->options;
    if (options->csv && options->format == FORMAT_JSON)
        return output_usage_error(
            status_new(STATUS_INVALID_ARGUMENT, "metrics: either --csv or -o json"));
    struct session *session;
    status_t status = session_new(options->address, options->timeout_ms, &session);
    if (status != NULL) return output_usage_error(status);
    struct metrics_rows rows = {.client = client,
                                .table = {.columns = columns, .column_count = COLUMNS}};
    Fsdpd__V1__GetMetricsRequest request = FSDPD__V1__GET_METRICS_REQUEST__INIT;
    request.id = (char *)options->arguments[0];
    request.attempt = options->attempt;
    request.every = options->every;
    status = session_stream(session, &control_get_metrics, &request.base, options->timeout_ms,
                            take_chunk, &rows);
    if (status == NULL && rows.count == 0)
        status = client_check_part(session, request.id, options->attempt, -1);
    if (status == NULL) print_head(&rows); /* also for a job without steps */
    if (status == NULL && !options->csv && options->format == FORMAT_TABLE) print_table(&rows);
    if (status == NULL && rows.left_out > 0)
        output_note("fsdpctl: %llu recorded steps are no longer kept (limits.metrics_kept)",
                    (unsigned long long)rows.left_out);
    table_deinit(&rows.table);
    session_free(session);
    return status == NULL ? EXIT_DONE : output_error(status);
}
