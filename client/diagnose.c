/* diagnose: what every rank of a job does now, and which of them is to blame. */
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"
#include "client.h"
#include "exit.h"
#include "print/json.h"
#include "report.h"

static status_t set_all(struct verb_options *options, const char *value)
{
    (void)value;
    options->all = true;
    return NULL;
}

static status_t set_no_stacks(struct verb_options *options, const char *value)
{
    (void)value;
    options->no_stacks = true;
    return NULL;
}

const struct verb_option diagnose_options[] = {
    {"all", 0, NULL, "the threads of all ranks, not only of those to blame", set_all},
    {"no-stacks", 0, NULL, "interrupt no thread: no stacks", set_no_stacks},
    {0},
};

static void add_seconds(struct table *table, double seconds)
{
    char text[32];
    table_add(table, seconds > 0 ? text_format_seconds(seconds, text) : "-");
}

static const char *state_of(const Fsdpd__V1__RankDiagnosis *rank)
{
    if (rank->answered) return "answers";
    return rank->process[0] != '\0' ? rank->process : "silent";
}

/* The lane that works for the longest time: what the rank is in. */
static char *describe_lane(const Fsdpd__V1__RankDiagnosis *rank, double *seconds)
{
    const Fsdpd__V1__LaneDiagnosis *longest = NULL;
    for (size_t i = 0; i < rank->n_lanes; i++) {
        const Fsdpd__V1__LaneDiagnosis *lane = rank->lanes[i];
        if (lane->kind[0] == '\0' || lane->awaits[0] != '\0') continue;
        if (longest == NULL || lane->seconds > longest->seconds) longest = lane;
    }
    *seconds = longest != NULL ? longest->seconds : rank->waits ? rank->wait_seconds : 0;
    if (longest == NULL) return mem_strdup(rank->waits ? rank->collective : "");
    const char *subject = longest->op[0] != '\0' ? longest->op : longest->unit;
    return mem_printf("%s %u, %s %s", longest->lane, longest->instruction, longest->kind, subject);
}

static void add_rank(struct table *table, const Fsdpd__V1__RankDiagnosis *rank)
{
    double seconds;
    AUTO_FREE char *lane = describe_lane(rank, &seconds);
    table_addf(table, "%u", rank->rank);
    table_add(table, rank->worker);
    table_add(table, state_of(rank));
    add_seconds(table, rank->silent_seconds);
    table_addf(table, "%llu", (unsigned long long)rank->step);
    if (rank->slowdown > 0) table_addf(table, "%.2f", rank->slowdown);
    else table_add(table, "-");
    table_add(table, rank->program[0] != '\0' ? rank->program : "-");
    table_add(table, rank->place);
    add_seconds(table, rank->place_seconds);
    table_add(table, lane);
    add_seconds(table, seconds);
}

static void add_ranks(const Fsdpd__V1__Diagnosis *diagnosis, const struct view *view,
                      struct buf *out)
{
    static const struct table_column columns[] = {
        {.title = "RANK", .right = true},
        {.title = "WORKER"},
        {.title = "STATE"},
        {.title = "HEARD", .right = true, .drop = 3},
        {.title = "STEP", .right = true},
        {.title = "SLOWDOWN", .right = true, .optional = true, .drop = 2},
        {.title = "PROGRAM", .optional = true, .drop = 4},
        {.title = "DOES"},
        {.title = "FOR", .right = true, .drop = 1},
        {.title = "IN", .optional = true},
        {.title = "FOR", .right = true, .optional = true},
    };
    AUTO(table_deinit) struct table table = {.columns = columns, .column_count = COUNT_OF(columns)};
    for (size_t r = 0; r < diagnosis->n_ranks; r++) add_rank(&table, diagnosis->ranks[r]);
    table_print(&table, view->width, 0, out);
}

static void add_thread(const Fsdpd__V1__RankDiagnosis *rank,
                       const Fsdpd__V1__ThreadDiagnosis *thread, struct buf *out)
{
    buf_printf(out, "\nrank %u, thread %lld ", rank->rank, (long long)thread->id);
    output_clean(out, thread->name, false);
    buf_printf(out, ", %s", thread->state);
    if (thread->call[0] != '\0') buf_printf(out, " in %s()", thread->call);
    if (thread->file[0] != '\0') {
        buf_add_text(out, " of ");
        output_clean(out, thread->file, false);
    }
    buf_add_char(out, '\n');
    for (size_t f = 0; f < thread->n_frames; f++) {
        buf_add_text(out, "    ");
        output_clean(out, thread->frames[f], false);
        buf_add_char(out, '\n');
    }
}

static void add_details(const Fsdpd__V1__RankDiagnosis *rank, bool threads, struct buf *out)
{
    if (strcmp(rank->link, "attached") != 0) {
        buf_printf(out, "\nrank %u ", rank->rank);
        output_clean(out, rank->link, false);
        buf_add_char(out, '\n');
    }
    for (size_t i = 0; i < rank->n_errors; i++) {
        buf_printf(out, "\nrank %u: ", rank->rank);
        output_clean(out, rank->errors[i], false);
        buf_add_char(out, '\n');
    }
    for (size_t i = 0; i < rank->n_connections; i++) {
        const Fsdpd__V1__ConnectionDiagnosis *one = rank->connections[i];
        if (one->retransmissions > 0)
            buf_printf(out,
                       "\nrank %u: %s has not answered %s: %llu bytes unsent, sent again %u "
                       "times\n",
                       rank->rank, one->peer, one->local, (unsigned long long)one->unsent_bytes,
                       one->retransmissions);
    }
    for (size_t t = 0; threads && t < rank->n_threads; t++) add_thread(rank, rank->threads[t], out);
}

static bool is_blamed(const Fsdpd__V1__Diagnosis *diagnosis, uint32_t rank)
{
    for (size_t i = 0; i < diagnosis->n_ranks_to_blame; i++)
        if (diagnosis->ranks_to_blame[i] == rank) return true;
    return false;
}

static void report_diagnosis(const Fsdpd__V1__Diagnosis *diagnosis, bool all,
                             const struct view *view, struct buf *out)
{
    output_clean(out, diagnosis->verdict, false);
    buf_add_text(out, "\n\n");
    add_ranks(diagnosis, view, out);
    for (size_t r = 0; r < diagnosis->n_ranks; r++) {
        const Fsdpd__V1__RankDiagnosis *rank = diagnosis->ranks[r];
        add_details(rank, all || is_blamed(diagnosis, rank->rank), out);
    }
}

int verb_diagnose(struct client *client)
{
    Fsdpd__V1__DiagnoseJobRequest request = FSDPD__V1__DIAGNOSE_JOB_REQUEST__INIT;
    ProtobufCMessage *response;
    int code;
    request.id = (char *)client->options.arguments[0];
    request.without_stacks = client->options.no_stacks;
    if (!client_call(client, &control_diagnose_job, &request.base, &response, &code)) return code;
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        json_add_document(&text, response);
    } else {
        struct view view = client_view(client);
        report_diagnosis((const Fsdpd__V1__Diagnosis *)(const void *)response, client->options.all,
                         &view, &text);
    }
    output_print(&text);
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}
