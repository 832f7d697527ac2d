/* list: the jobs that match the filters, oldest first. */
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "client.h"
#include "exit.h"
#include "job_table.h"
#include "lists.h"
#include "print/json.h"
#include "proto/message.h"
#include "report.h"
#include "spec/queue.h"

enum {
    STATES_MAX = 16,
    LIMIT_MAX = 1000000,
    TABLE_ROWS = 500, /* enough for a person to read; programs get all */
};

/* Adds the states that a word names: "running", "RUNNING", or the groups "active" and "over". */
static status_t add_states(const char *word, Fsdpd__V1__JobState *states, size_t *count)
{
    const ProtobufCEnumDescriptor *all = &fsdpd__v1__job_state__descriptor;
    bool active = strcasecmp(word, "active") == 0, over = strcasecmp(word, "over") == 0;
    const char *names[STATES_MAX];
    size_t name_count = 0, before = *count;
    for (unsigned i = 0; i < all->n_values && name_count < STATES_MAX; i++) {
        Fsdpd__V1__JobState state = (Fsdpd__V1__JobState)all->values[i].value;
        if (state == FSDPD__V1__JOB_STATE__JOB_STATE_UNSPECIFIED) continue;
        const char *name = names[name_count++] = report_state(state);
        bool meant = strcasecmp(word, name) == 0 || (active && !report_is_over(state)) ||
                     (over && report_is_over(state));
        if (meant && *count < STATES_MAX) states[(*count)++] = state;
    }
    if (*count > before) return NULL;
    AUTO(buf_deinit) struct buf expected = {0};
    for (size_t i = 0; i < name_count; i++) buf_printf(&expected, "%s, ", names[i]);
    return status_new(STATUS_INVALID_ARGUMENT, "expected %sactive or over, found '%s'",
                      buf_text(&expected), word);
}

static status_t read_states(const char *text, Fsdpd__V1__JobState *states, size_t *count)
{
    *count = 0;
    for (const char *at = text; at != NULL;) {
        size_t length = strcspn(at, ",");
        AUTO_FREE char *word = mem_strndup(at, length);
        TRY(add_states(word, states, count));
        at = at[length] == ',' ? at + length + 1 : NULL;
    }
    return NULL;
}

static status_t set_state(struct verb_options *options, const char *value)
{
    Fsdpd__V1__JobState states[STATES_MAX];
    size_t count;
    TRY(read_states(value, states, &count));
    options->states = value;
    return NULL;
}

/* An empty filter, for example from an unset variable of a script, would match every job. */
static status_t check_given(const char *what, const char *value)
{
    if (value[0] != '\0') return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "expected %s, found ''", what);
}

static status_t set_name(struct verb_options *options, const char *value)
{
    TRY(check_given("a pattern", value));
    options->name = value;
    return NULL;
}

static status_t set_user(struct verb_options *options, const char *value)
{
    TRY(check_given("a user", value));
    options->user = value;
    return NULL;
}

status_t option_filter_label(struct verb_options *options, const char *value)
{
    const char *equals = strchr(value, '=');
    if (equals == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "expected KEY=VALUE, found '%s'", value);
    if (options->label_count == SPEC_LABELS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "expected at most %d of them", SPEC_LABELS_MAX);
    AUTO_FREE char *key = mem_strndup(value, (size_t)(equals - value));
    TRY(spec_check_label_key(key));
    MEM_GROW(options->labels, options->label_count, options->label_capacity);
    options->labels[options->label_count++] = value;
    return NULL;
}

static status_t set_array(struct verb_options *options, const char *value)
{
    TRY(spec_check_job_id(value));
    options->array = value;
    return NULL;
}

static status_t set_limit(struct verb_options *options, const char *value)
{
    TRY(option_number(value, 0, LIMIT_MAX, &options->limit));
    options->limit_given = true;
    return NULL;
}

const struct verb_option list_options[] = {
    {"state", 0, "STATES", "in one of these: queued,running, or active, or over", set_state},
    {"name", 0, "PATTERN", "whose name or id matches: mnist, 'mnist-*'", set_name},
    {"user", 0, "USER", "that this user submitted", set_user},
    {"label", 0, "KEY=VALUE", "with this label; VALUE may be a pattern; may be repeated",
     option_filter_label},
    {"array", 0, "ID", "of this array, one by one", set_array},
    {"limit", 'n', "N", "the newest N; 0: all (a table: 500, json: all)", set_limit},
    {0},
};

static void fill_labels(const struct verb_options *options, Fsdpd__V1__ListJobsRequest *request)
{
    request->labels = mem_alloc_array((size_t)options->label_count + 1, sizeof *request->labels);
    for (int i = 0; i < options->label_count; i++) {
        const char *equals = strchr(options->labels[i], '=');
        Fsdpd__V1__ListJobsRequest__LabelsEntry *label =
            MESSAGE_NEW(label, fsdpd__v1__list_jobs_request__labels_entry__init);
        label->key = mem_strndup(options->labels[i], (size_t)(equals - options->labels[i]));
        label->value = mem_strdup(equals + 1);
        request->labels[request->n_labels++] = label;
    }
}

bool client_list_jobs(struct client *client, bool all, ProtobufCMessage **response, int *code)
{
    const struct verb_options *options = &client->options;
    Fsdpd__V1__ListJobsRequest *request = MESSAGE_NEW(request, fsdpd__v1__list_jobs_request__init);
    request->states = mem_alloc_array(STATES_MAX, sizeof *request->states);
    /* valid: checked when the options were parsed */
    status_free(read_states(options->states, request->states, &request->n_states));
    if (options->name != NULL) request->name = mem_strdup(options->name);
    if (options->array != NULL) request->array = mem_strdup(options->array);
    request->fold = options->fold;
    if (options->user != NULL) request->owner = mem_strdup(options->user);
    request->page_size = !all && !options->limit_given ? TABLE_ROWS : options->limit;
    fill_labels(options, request);
    bool well =
        lists_call(client, &control_list_jobs, &request->base, LIST_FROM_NEWEST, response, code);
    fsdpd__v1__list_jobs_request__free_unpacked(request, NULL);
    return well;
}

int verb_list(struct client *client)
{
    ProtobufCMessage *response;
    int code;
    bool all = client->options.format == FORMAT_JSON;
    client->options.fold = !all; /* programs get all jobs */
    if (!client_list_jobs(client, all, &response, &code)) return code;
    const Fsdpd__V1__ListJobsResponse *list = (const void *)response;
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        json_add_list(&text, list->jobs, list->n_jobs);
    } else {
        struct job_table table = {.view = client_view(client)};
        job_table_print(&table, list->jobs, list->n_jobs, &text);
    }
    output_print(&text);
    if (list->left_out > 0)
        output_note("%u older job%s not shown%s", list->left_out,
                    list->left_out == 1 ? " is" : "s are",
                    client->options.limit_given ? "" : "; see --limit and --state");
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}
