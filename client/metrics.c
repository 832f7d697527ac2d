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
#include "print/scores.h"
#include "proto/message.h"
#include "spec/metric_table.h"

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

/* ---- CSV ---- */

/* Adds the shortest text that reads back as the same number. */
static void csv_number(struct buf *out, double value)
{
    char text[32] = ""; /* a mean of nothing */
    if (isinf(value)) snprintf(text, sizeof text, value > 0 ? "inf" : "-inf");
    else if (!isnan(value)) snprintf(text, sizeof text, "%.15g", value);
    if (isfinite(value) && strtod(text, NULL) != value) snprintf(text, sizeof text, "%.17g", value);
    buf_printf(out, ",%s", text);
}

static void csv_row(const Fsdpd__V1__MetricsRow *row, struct buf *out)
{
    static const char *const kinds[METRIC_EVENTS] = {"step", "epoch", "validation"};
    const Fsdpd__V1__JobEvent *event = row->event;
    char when[32];
    buf_printf(out, "%u,%s,%s,%llu", row->attempt,
               clock_format_wall(message_time_ms(event->time), when), kinds[metric_kind(event)],
               (unsigned long long)metric_step(event));
    for (size_t i = 0; i < metric_count(); i++) {
        double value;
        if (metric_of_event(&metric_table[i], event, &value)) csv_number(out, value);
        else buf_add_char(out, ',');
    }
    bool validation = metric_kind(event) == METRIC_VALIDATION;
    buf_printf(out, ",%s\n", validation ? event->validation->set : "");
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
    if (m->_gradient_norm_case != 0) table_addf(table, "%.4g", m->gradient_norm);
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
    if (validation->set[0] != '\0') buf_add_text(&text, " of ");
    output_clean(&text, validation->set, false);
    scores_add(validation->scores, &text);
    table_add(table, buf_text(&text));
}

static void add_epoch_end(struct table *table, const Fsdpd__V1__EpochEnd *epoch)
{
    AUTO(buf_deinit) struct buf text = {0};
    char loss[32], accuracy[32];
    buf_add_text(&text, "end of epoch");
    if (epoch->_test_loss_case != 0) {
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
    table_addf(table, "%llu", (unsigned long long)metric_step(event));
    if (event->event_case == FSDPD__V1__JOB_EVENT__EVENT_METRICS) {
        table_step(table, event->metrics);
        return;
    }
    bool epoch = event->event_case == FSDPD__V1__JOB_EVENT__EVENT_EPOCH;
    table_addf(table, "%.3f", epoch ? event->epoch->epochs_done : event->validation->epoch);
    table_add(table, scores_loss(epoch ? event->epoch->train_loss : event->validation->loss, loss));
    for (int i = 4; i < COLUMNS - 1; i++) table_add(table, "");
    if (epoch) add_epoch_end(table, event->epoch);
    else add_validation(table, event->validation);
}

/* ---- reading ---- */

static void print_head(struct metrics_rows *rows)
{
    if (!rows->client->options.csv || rows->headed) return;
    fputs("attempt,time,kind,step", stdout);
    for (size_t i = 0; i < metric_count(); i++) printf(",%s", metric_table[i].name);
    puts(",set");
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
        if (row->event == NULL || metric_kind(row->event) == METRIC_EVENTS) continue;
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
