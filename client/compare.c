/*
 * compare and sweep: jobs side by side, by what they differ in and by what came of it. A sweep's
 * trials differ in what was drawn for them, and the best is first.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "client.h"
#include "exit.h"
#include "lists.h"
#include "print/json.h"
#include "proto/message.h"
#include "report.h"
#include "spec/metric_table.h"

/* A setting, by its key or a parameter's name. */
struct setting {
    char *name, *first; /* the first job's value; NULL: it has none */
    char **values;      /* by job; NULL: as the first's */
};

struct compared_row {
    size_t job;   /* its place in the list */
    double value; /* of the objective, the lower the better; NAN: it has none */
};

struct compared_jobs {
    struct session *session;
    Fsdpd__V1__Job **jobs;     /* owned */
    struct compared_row *rows; /* in the order in which they are printed */
    size_t count, capacity, row_capacity;
    struct setting *settings;
    size_t setting_count, setting_capacity;
    const char *figures[3];      /* names of metric_table; NULL: no more */
    const Fsdpd__V1__Job *sweep; /* NULL: these are any jobs */
};

static void compared_jobs_deinit(struct compared_jobs *all)
{
    for (size_t s = 0; s < all->setting_count; s++) {
        struct setting *setting = &all->settings[s];
        for (size_t i = 0; i < all->count; i++) free(setting->values[i]);
        free(setting->values);
        free(setting->first);
        free(setting->name);
    }
    for (size_t i = 0; i < all->count; i++) message_free(all->jobs[i]);
    free(all->settings);
    free(all->jobs);
    free(all->rows);
}

/* ---- what they are ---- */

static void take(struct compared_jobs *all, Fsdpd__V1__Job *job)
{
    MEM_GROW(all->jobs, all->count, all->capacity);
    MEM_GROW(all->rows, all->count, all->row_capacity);
    all->rows[all->count] = (struct compared_row){.job = all->count, .value = NAN};
    all->jobs[all->count++] = job;
}

static status_t take_array(struct compared_jobs *all, const char *id)
{
    Fsdpd__V1__ListJobsRequest request = FSDPD__V1__LIST_JOBS_REQUEST__INIT;
    ProtobufCMessage *response;
    request.array = (char *)id;
    TRY(lists_read(all->session, &control_list_jobs, &request.base, LIST_FROM_NEWEST, &response));
    Fsdpd__V1__ListJobsResponse *list = (void *)response;
    for (size_t i = 0; i < list->n_jobs; i++) take(all, list->jobs[i]);
    list->n_jobs = 0; /* they are taken */
    protobuf_c_message_free_unpacked(response, NULL);
    return NULL;
}

/* An array stands for its jobs. */
static status_t take_job(struct compared_jobs *all, const char *id)
{
    Fsdpd__V1__Job *job;
    TRY(client_get_job(all->session, id, &job));
    bool array = job->spec != NULL && job->spec->array != NULL;
    if (!array) take(all, job);
    status_t status = array ? take_array(all, id) : NULL;
    if (array) message_free(job);
    return status;
}

/* ---- what they differ in ---- */

static struct setting *find_setting(struct compared_jobs *all, const char *name)
{
    for (size_t s = 0; s < all->setting_count; s++)
        if (strcmp(all->settings[s].name, name) == 0) return &all->settings[s];
    MEM_GROW(all->settings, all->setting_count, all->setting_capacity);
    struct setting *setting = &all->settings[all->setting_count++];
    *setting = (struct setting){.name = mem_strdup(name),
                                .values = mem_alloc_array(all->count, sizeof *setting->values)};
    return setting;
}

static void set_text(char **text, const char *value)
{
    free(*text);
    *text = mem_strdup(value);
}

/* Lines "KEY: VALUE": of this job, or of the first one where this one differs. */
static void add_changes(struct compared_jobs *all, size_t job, bool of_first, char *lines)
{
    for (char *rest = lines, *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *value = strstr(line, ": ");
        if (value == NULL || strncmp(line, "name:", 5) == 0) continue;
        *value = '\0';
        struct setting *setting = find_setting(all, line);
        char **cell = &setting->values[job];
        if (!of_first) set_text(cell, value + 2);
        else set_text(&setting->first, value + 2);
        if (of_first && *cell == NULL) set_text(cell, "-");
    }
}

static void find_differences(struct compared_jobs *all)
{
    for (size_t i = 1; i < all->count; i++) {
        const Fsdpd__V1__JobSpec *first = all->jobs[0]->spec, *other = all->jobs[i]->spec;
        AUTO(buf_deinit) struct buf own = {0}, firsts = {0};
        if (first == NULL || other == NULL) continue;
        spec_print_changes(first, other, &own);
        spec_print_changes(other, first, &firsts);
        buf_add_char(&own, '\n');
        buf_add_char(&firsts, '\n');
        AUTO_FREE char *own_lines = buf_take(&own), *first_lines = buf_take(&firsts);
        add_changes(all, i, false, own_lines);
        add_changes(all, i, true, first_lines);
    }
}

static void find_drawn(struct compared_jobs *all, const Fsdpd__V1__SweepSpec *sweep)
{
    for (size_t p = 0; p < sweep->n_parameters; p++) find_setting(all, sweep->parameters[p]->name);
    for (size_t i = 0; i < all->count; i++) {
        const Fsdpd__V1__JobSpec *spec = all->jobs[i]->spec;
        const Fsdpd__V1__ArrayPlace *place = spec != NULL ? spec->of_array : NULL;
        for (size_t v = 0; place != NULL && v < place->n_values; v++)
            set_text(&find_setting(all, place->values[v]->key)->values[i], place->values[v]->value);
    }
}

static const char *value_of(const struct setting *setting, size_t job)
{
    if (setting->values[job] != NULL) return setting->values[job];
    return setting->first != NULL ? setting->first : "-";
}

/* ---- what came of it ---- */

static bool figure_of(const Fsdpd__V1__Job *job, const char *name, double *value)
{
    for (size_t i = 0; i < metric_count(); i++)
        if (strcmp(metric_table[i].name, name) == 0)
            return job->metrics != NULL && job->metrics->step > 0 &&
                   metric_of_job(&metric_table[i], job->metrics, value);
    return false;
}

static int compare_rows(const void *a, const void *b)
{
    const struct compared_row *first = a, *second = b;
    bool has_first = !isnan(first->value), has_second = !isnan(second->value);
    if (has_first != has_second) return has_first ? -1 : 1;
    if (has_first && first->value != second->value) return first->value < second->value ? -1 : 1;
    return first->job < second->job ? -1 : 1;
}

/* What a trial that failed or was cancelled has measured does not count. */
static void sort_best_first(struct compared_jobs *all, const Fsdpd__V1__SweepSpec *sweep)
{
    for (size_t i = 0; i < all->count; i++) {
        const Fsdpd__V1__Job *job = all->jobs[i];
        double value = NAN;
        bool counts = job->state != FSDPD__V1__JOB_STATE__JOB_STATE_FAILED &&
                      job->state != FSDPD__V1__JOB_STATE__JOB_STATE_CANCELLED;
        if (counts && figure_of(job, sweep->metric, &value))
            all->rows[i].value = strcmp(sweep->direction, "maximize") == 0 ? -value : value;
    }
    if (all->count > 0) qsort(all->rows, all->count, sizeof *all->rows, compare_rows);
}

/* ---- printing ---- */

static void add_row(const struct compared_jobs *all, size_t number, const struct view *view,
                    struct table *table)
{
    const Fsdpd__V1__Job *job = all->jobs[number];
    table_add(table, job->id);
    table_add(table, report_state(job->state));
    table_style(table, report_state_style(job->state, view->colour));
    for (size_t s = 0; s < all->setting_count; s++)
        table_add(table, value_of(&all->settings[s], number));
    table_addf(table, "%llu", (unsigned long long)job->step);
    for (size_t f = 0; f < COUNT_OF(all->figures) && all->figures[f] != NULL; f++) {
        double value;
        if (figure_of(job, all->figures[f], &value)) table_addf(table, "%.6g", value);
        else table_add(table, "-");
    }
    bool well = job->state == FSDPD__V1__JOB_STATE__JOB_STATE_SUCCEEDED ||
                job->state == FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING;
    table_add(table, well ? "-" : report_reason(job->reason));
}

static void print_table(const struct compared_jobs *all, const struct view *view, struct buf *out)
{
    size_t count = 0;
    AUTO_FREE struct table_column *columns =
        mem_alloc_array(all->setting_count + 4 + COUNT_OF(all->figures), sizeof *columns);
    columns[count++] = (struct table_column){.title = "JOB"};
    columns[count++] = (struct table_column){.title = "STATE"};
    for (size_t s = 0; s < all->setting_count; s++)
        columns[count++] = (struct table_column){.title = all->settings[s].name, .right = true};
    columns[count++] = (struct table_column){.title = "STEP", .right = true, .drop = 2};
    for (size_t f = 0; f < COUNT_OF(all->figures) && all->figures[f] != NULL; f++)
        columns[count++] = (struct table_column){.title = all->figures[f],
                                                 .right = true,
                                                 .optional = all->sweep == NULL};
    columns[count++] = (struct table_column){.title = "REASON", .optional = true, .drop = 1};
    AUTO(table_deinit)
    struct table table = {.columns = columns, .column_count = (int)count};
    for (size_t i = 0; i < all->count; i++) add_row(all, all->rows[i].job, view, &table);
    table_print(&table, view->width, 0, out);
}

/* {"id": ..., "state": ..., "step": ..., "parameters": {...}, "metrics": {...}} */
static void add_json(const struct compared_jobs *all, size_t number, struct buf *out)
{
    const Fsdpd__V1__Job *job = all->jobs[number];
    buf_add_text(out, "{\"id\": ");
    json_add_string(out, job->id);
    buf_printf(out, ", \"state\": \"%s\", \"step\": %llu, \"parameters\": {",
               report_state(job->state), (unsigned long long)job->step);
    for (size_t s = 0; s < all->setting_count; s++) {
        buf_add_text(out, s > 0 ? ", " : "");
        json_add_string(out, all->settings[s].name);
        buf_add_text(out, ": ");
        json_add_string(out, value_of(&all->settings[s], number));
    }
    buf_add_text(out, "}, \"metrics\": {");
    for (size_t f = 0; f < COUNT_OF(all->figures) && all->figures[f] != NULL; f++) {
        double value;
        bool has = figure_of(job, all->figures[f], &value);
        buf_printf(out, "%s\"%s\": ", f > 0 ? ", " : "", all->figures[f]);
        json_add_number(out, has ? value : NAN);
    }
    buf_add_text(out, "}}");
}

static void print_json(const struct compared_jobs *all, struct buf *out)
{
    buf_add_char(out, '[');
    for (size_t i = 0; i < all->count; i++) {
        buf_add_text(out, i > 0 ? ",\n  " : "\n  ");
        add_json(all, all->rows[i].job, out);
    }
    buf_add_text(out, all->count > 0 ? "\n]" : "]");
}

static void print(const struct client *client, const struct compared_jobs *all)
{
    AUTO(buf_deinit) struct buf text = {0};
    struct view view = client_view(client);
    bool json = client->options.format == FORMAT_JSON;
    if (json && all->sweep != NULL) {
        buf_add_text(&text, "{\"id\": ");
        json_add_string(&text, all->sweep->id);
        buf_printf(&text, ", \"state\": \"%s\", ", report_state(all->sweep->state));
        buf_add_text(&text, "\"metric\": ");
        json_add_string(&text, all->sweep->spec->array->sweep->metric);
        buf_add_text(&text, ", \"direction\": ");
        json_add_string(&text, all->sweep->spec->array->sweep->direction);
        buf_add_text(&text, ", \"trials\": ");
    } else if (all->sweep != NULL) {
        report_end(all->sweep->id, all->sweep->state, all->sweep->reason, view.colour, &text);
    }
    if (json) print_json(all, &text);
    else print_table(all, &view, &text);
    if (json) buf_add_text(&text, all->sweep != NULL ? "}\n" : "\n");
    output_print(&text);
}

/* ---- the verbs ---- */

static status_t compare(const struct client *client, struct compared_jobs *all)
{
    for (int i = 0; i < client->options.argument_count; i++)
        TRY(take_job(all, client->options.arguments[i]));
    all->figures[0] = "loss";
    all->figures[1] = "val_loss";
    all->figures[2] = "accuracy";
    find_differences(all);
    print(client, all);
    return NULL;
}

static status_t show_sweep(const struct client *client, struct compared_jobs *all)
{
    Fsdpd__V1__Job *job;
    TRY(client_get_job(all->session, client->options.arguments[0], &job));
    const Fsdpd__V1__ArraySpec *array = job->spec != NULL ? job->spec->array : NULL;
    status_t status = NULL;
    if (array == NULL || array->sweep == NULL)
        status = status_new(STATUS_FAILED_PRECONDITION, "%s is not a sweep", job->id);
    if (status == NULL) status = take_array(all, job->id);
    if (status == NULL) {
        all->sweep = job;
        all->figures[0] = array->sweep->metric;
        find_drawn(all, array->sweep);
        sort_best_first(all, array->sweep);
        print(client, all);
    }
    message_free(job);
    return status;
}

static int with_session(struct client *client,
                        status_t (*run)(const struct client *client, struct compared_jobs *all))
{
    struct compared_jobs all = {0};
    int code;
    if (!client_open(client, &all.session, &code)) return code;
    status_t status = run(client, &all);
    compared_jobs_deinit(&all);
    session_free(all.session);
    return status == NULL ? EXIT_DONE : output_error(status);
}

int verb_compare(struct client *client)
{
    return with_session(client, compare);
}

/* A file has a dot or a slash in its name, which no id has. */
int verb_sweep(struct client *client)
{
    const struct verb_options *options = &client->options;
    const char *name = options->arguments[0];
    if (strpbrk(name, "./") != NULL || strcmp(name, "-") == 0) return verb_submit(client);
    if (options->set_count > 0 || options->wait || options->hold || options->id != NULL)
        return output_usage_error(
            status_new(STATUS_INVALID_ARGUMENT,
                       "sweep: these options are for a sweep file; %s is a sweep's id", name));
    return with_session(client, show_sweep);
}
