/* workers, status and version: print the state of the daemon itself. */
#include "base/clock.h"
#include "client.h"
#include "config.h"
#include "exit.h"
#include "job_table.h"
#include "lists.h"
#include "overview.h"
#include "print/json.h"
#include "proto/message.h"
#include "report.h"

static void add_workers(const ProtobufCMessage *response, const struct view *view, struct buf *out)
{
    const Fsdpd__V1__ListWorkersResponse *list = (const void *)response;
    report_workers(list->workers, list->n_workers, view, out);
}

void client_print_workers(const struct client *client, Fsdpd__V1__Worker **workers, size_t count)
{
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        json_add_list(&text, workers, count);
    } else {
        struct view view = client_view(client);
        report_workers(workers, count, &view, &text);
    }
    output_print(&text);
}

int verb_workers(struct client *client)
{
    Fsdpd__V1__ListWorkersRequest request = FSDPD__V1__LIST_WORKERS_REQUEST__INIT;
    return lists_print(client, &control_list_workers, &request.base, LIST_FROM_FIRST, add_workers);
}

/* The maximum numbers of queued jobs, started jobs and workers in the output. */
enum {
    QUEUED_SHOWN = 10,
    STARTED_SHOWN = 100,
    WORKERS_SHOWN = 64,
    STATE_COUNT = FSDPD__V1__JOB_STATE__JOB_STATE_CANCELLED + 1
};

static void add_json(const char *address, const struct overview *overview, struct buf *out)
{
    buf_add_text(out, "{\n  \"address\": ");
    json_add_string(out, address);
    buf_add_text(out, ",\n  \"daemon\": ");
    json_add_message(out, &overview->version->base, 2);
    buf_add_text(out, ",\n  \"workers\": ");
    json_add_messages(out, overview->workers->workers, overview->workers->n_workers, 2);
    buf_add_text(out, ",\n  \"jobs\": {");
    for (int state = 1; state < STATE_COUNT; state++)
        buf_printf(out, "%s\"%s\": %llu", state > 1 ? ", " : "",
                   report_state((Fsdpd__V1__JobState)state),
                   (unsigned long long)overview_count(overview, (Fsdpd__V1__JobState)state));
    buf_add_text(out, "}\n}\n");
}

static void add_jobs(const struct overview *overview, const struct view *view, struct buf *out)
{
    if (overview->job_count > 0) {
        buf_add_char(out, '\n');
        struct job_table table = {.view = *view};
        job_table_print(&table, overview->jobs, overview->job_count, out);
    }
    if (overview->started->left_out > 0)
        buf_printf(out, "and %u more that have been started\n", overview->started->left_out);
    if (overview->queued->left_out > 0)
        buf_printf(out, "and %u more in the queue, submitted earlier\n",
                   overview->queued->left_out);
}

static void add_counts(const struct overview *overview, const struct view *view, struct buf *out)
{
    unsigned long long all = 0;
    for (int state = 1; state < STATE_COUNT; state++)
        all += overview_count(overview, (Fsdpd__V1__JobState)state);
    buf_printf(out, "jobs        %llu", all);
    bool first = true;
    for (int state = 1; state < STATE_COUNT; state++) {
        unsigned long long count = overview_count(overview, (Fsdpd__V1__JobState)state);
        if (count == 0) continue;
        buf_printf(out, "%s%llu %s", first ? ": " : ", ", count,
                   report_state((Fsdpd__V1__JobState)state));
        first = false;
    }
    buf_add_char(out, '\n');
    if (overview->workers->n_workers > 0 && overview->workers->n_workers <= WORKERS_SHOWN) {
        buf_add_char(out, '\n');
        report_workers(overview->workers->workers, overview->workers->n_workers, view, out);
    }
    add_jobs(overview, view, out);
}

static void add_text(const struct client *client, const char *address,
                     const struct overview *overview, struct buf *out)
{
    char age[32];
    size_t busy = overview_busy_workers(overview), drained = 0;
    for (size_t i = 0; i < overview->workers->n_workers; i++) {
        const Fsdpd__V1__Worker *worker = overview->workers->workers[i];
        drained += worker->job[0] == '\0' && worker->drained;
    }
    buf_add_text(out, "daemon      fsdpd ");
    output_clean(out, overview->version->version, false);
    buf_printf(out, " at %s, up for %s\n", address,
               output_age(message_time_ms(overview->version->start_time), clock_wall_ms(), age));
    if (overview->version->refuses[0] != '\0') {
        buf_add_text(out, "trouble     ");
        output_clean(out, overview->version->refuses, false);
        buf_add_char(out, '\n');
    }
    if (overview->version->warning[0] != '\0') {
        buf_add_text(out, "warning     ");
        output_clean(out, overview->version->warning, false);
        buf_add_char(out, '\n');
    }
    size_t all = overview->workers->n_workers;
    buf_printf(out, "workers     %zu: %zu busy, %zu free", all, busy, all - busy - drained);
    if (drained > 0) buf_printf(out, ", %zu drained", drained);
    buf_add_char(out, '\n');
    struct view view = client_view(client);
    add_counts(overview, &view, out);
}

int verb_status(struct client *client)
{
    struct session *session;
    status_t status = session_new(client->options.address, client->options.timeout_ms, &session);
    if (status != NULL) return output_usage_error(status);
    AUTO(overview_deinit) struct overview overview = {0};
    bool fold = client->options.format != FORMAT_JSON; /* programs get all jobs */
    status = overview_read(session, STARTED_SHOWN, QUEUED_SHOWN, fold, &overview);
    struct buf text = {0};
    int code = EXIT_DONE;
    if (status != NULL) code = output_error(status);
    else if (client->options.format == FORMAT_JSON)
        add_json(session_peer(session), &overview, &text);
    else add_text(client, session_peer(session), &overview, &text);
    output_print(&text);
    session_free(session);
    return code;
}

/* Prints the client's version even if the daemon is unreachable; the exit code reports that. */
int verb_version(struct client *client)
{
    Fsdpd__V1__GetVersionRequest request = FSDPD__V1__GET_VERSION_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    int code = EXIT_DONE;
    client_call(client, &control_get_version, &request.base, &response, &code);
    const Fsdpd__V1__GetVersionResponse *daemon = (const void *)response;
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        buf_add_text(&text, "{\n  \"client\": \"" PACKAGE_VERSION "\",\n  \"daemon\": ");
        json_add_message(&text, response, 2);
        buf_add_text(&text, "\n}\n");
    } else {
        buf_add_text(&text, "fsdpctl  " PACKAGE_VERSION "\n");
        if (daemon != NULL) {
            buf_add_text(&text, "fsdpd    ");
            output_clean(&text, daemon->version, false);
            buf_add_text(&text, " (API ");
            output_clean(&text, daemon->api, false);
            buf_add_text(&text, ")\n");
        }
    }
    output_print(&text);
    if (response != NULL) protobuf_c_message_free_unpacked(response, NULL);
    return code;
}
