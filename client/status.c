/* workers, status and version: the daemon itself. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "client.h"
#include "config.h"
#include "exit.h"
#include "print/json.h"
#include "report.h"

static int table_width(const struct client *client)
{
    return client->terminal.out ? client->terminal.width : 0;
}

int verb_workers(struct client *client)
{
    Fsdpd__V1__ListWorkersRequest request = FSDPD__V1__LIST_WORKERS_REQUEST__INIT;
    ProtobufCMessage *response;
    int code;
    if (!client_call(client, &control_list_workers, &request.base, &response, &code)) return code;
    const Fsdpd__V1__ListWorkersResponse *list =
        (const Fsdpd__V1__ListWorkersResponse *)(const void *)response;
    struct buf text = {0};
    if (client->options.format == FORMAT_JSON) {
        json_add_messages(&text, (const ProtobufCMessage *const *)(const void *)list->workers,
                          list->n_workers, 0);
        buf_add_char(&text, '\n');
    } else {
        report_workers(list->workers, list->n_workers, clock_wall_ms(), table_width(client), &text);
    }
    output_print(&text);
    protobuf_c_message_free_unpacked(response, NULL);
    return EXIT_DONE;
}

/* So many are shown of the jobs that wait, and of those that run; more workers are not shown. */
enum { QUEUED_SHOWN = 10, RUNNING_SHOWN = 100, WORKERS_SHOWN = 64, STATE_COUNT = FSDPD__V1__JOB_STATE__CANCELLED + 1 };

/* What `status` asks for; NULL until it is known. */
struct overview {
    Fsdpd__V1__Version *version;
    Fsdpd__V1__ListWorkersResponse *workers;
    Fsdpd__V1__ListJobsResponse *running, *queued;
};

static status_t ask_jobs(struct session *session, const Fsdpd__V1__JobState *states, size_t count,
                         uint32_t limit, Fsdpd__V1__ListJobsResponse **jobs)
{
    Fsdpd__V1__ListJobsRequest request = FSDPD__V1__LIST_JOBS_REQUEST__INIT;
    request.n_states = count;
    request.states = (Fsdpd__V1__JobState *)states;
    request.limit = limit;
    ProtobufCMessage *response;
    TRY(session_call(session, &control_list_jobs, &request.base, false, &response));
    *jobs = (Fsdpd__V1__ListJobsResponse *)(void *)response;
    return NULL;
}

static status_t ask(struct session *session, struct overview *overview)
{
    static const Fsdpd__V1__JobState running[] = {FSDPD__V1__JOB_STATE__STARTING,
                                                  FSDPD__V1__JOB_STATE__RUNNING,
                                                  FSDPD__V1__JOB_STATE__PAUSED};
    static const Fsdpd__V1__JobState queued[] = {FSDPD__V1__JOB_STATE__QUEUED};
    Fsdpd__V1__GetVersionRequest version = FSDPD__V1__GET_VERSION_REQUEST__INIT;
    Fsdpd__V1__ListWorkersRequest workers = FSDPD__V1__LIST_WORKERS_REQUEST__INIT;
    ProtobufCMessage *response;
    TRY(session_call(session, &control_get_version, &version.base, false, &response));
    overview->version = (Fsdpd__V1__Version *)(void *)response;
    TRY(session_call(session, &control_list_workers, &workers.base, false, &response));
    overview->workers = (Fsdpd__V1__ListWorkersResponse *)(void *)response;
    TRY(ask_jobs(session, running, 3, RUNNING_SHOWN, &overview->running));
    return ask_jobs(session, queued, 1, QUEUED_SHOWN, &overview->queued);
}

static uint64_t count_of(const struct overview *overview, int state)
{
    for (size_t i = 0; i < overview->queued->n_counts; i++)
        if ((int)overview->queued->counts[i]->state == state)
            return overview->queued->counts[i]->jobs;
    return 0;
}

static void overview_json(const char *address, const struct overview *overview, struct buf *out)
{
    buf_add_text(out, "{\n  \"address\": ");
    json_add_string(out, address);
    buf_add_text(out, ",\n  \"daemon\": ");
    json_add_message(out, &overview->version->base, 2);
    buf_add_text(out, ",\n  \"workers\": ");
    json_add_messages(out,
                      (const ProtobufCMessage *const *)(const void *)overview->workers->workers,
                      overview->workers->n_workers, 2);
    buf_add_text(out, ",\n  \"jobs\": {");
    for (int state = 1; state < STATE_COUNT; state++)
        buf_printf(out, "%s\"%s\": %llu", state > 1 ? ", " : "",
                   report_state((Fsdpd__V1__JobState)state),
                   (unsigned long long)count_of(overview, state));
    buf_add_text(out, "}\n}\n");
}

/* Those that run first, then the newest of those that wait. */
static void overview_table(const struct overview *overview, int width, struct buf *out)
{
    const Fsdpd__V1__ListJobsResponse *parts[] = {overview->running, overview->queued};
    size_t count = 0;
    Fsdpd__V1__Job **jobs =
        mem_alloc_array(parts[0]->n_jobs + parts[1]->n_jobs + 1, sizeof *jobs);
    for (int part = 0; part < 2; part++)
        for (size_t i = 0; i < parts[part]->n_jobs; i++) jobs[count++] = parts[part]->jobs[i];
    if (count > 0) {
        buf_add_char(out, '\n');
        report_jobs(jobs, count, clock_wall_ms(), width, out);
    }
    free(jobs);
    if (parts[0]->left_out > 0) buf_printf(out, "and %u more that run\n", parts[0]->left_out);
    if (parts[1]->left_out > 0)
        buf_printf(out, "and %u more in the queue, submitted before\n", parts[1]->left_out);
}

static void overview_jobs(const struct overview *overview, int width, struct buf *out)
{
    unsigned long long all = 0;
    for (int state = 1; state < STATE_COUNT; state++) all += count_of(overview, state);
    buf_printf(out, "jobs        %llu", all);
    bool first = true;
    for (int state = 1; state < STATE_COUNT; state++) {
        unsigned long long count = count_of(overview, state);
        if (count == 0) continue;
        buf_printf(out, "%s%llu %s", first ? ": " : ", ", count,
                   report_state((Fsdpd__V1__JobState)state));
        first = false;
    }
    buf_add_char(out, '\n');
    if (overview->workers->n_workers > 0 && overview->workers->n_workers <= WORKERS_SHOWN) {
        buf_add_char(out, '\n');
        report_workers(overview->workers->workers, overview->workers->n_workers, clock_wall_ms(),
                       width, out);
    }
    overview_table(overview, width, out);
}

static void overview_text(const struct client *client, const char *address,
                          const struct overview *overview, struct buf *out)
{
    char age[32];
    size_t busy = 0, drained = 0;
    for (size_t i = 0; i < overview->workers->n_workers; i++) {
        const Fsdpd__V1__Worker *worker = overview->workers->workers[i];
        if (worker->job[0] != '\0') busy++;
        else drained += worker->drained;
    }
    buf_add_text(out, "daemon      fsdpd ");
    output_clean(out, overview->version->version, false);
    buf_printf(out, " at %s, up for %s\n", address,
               output_age(overview->version->started_ms, clock_wall_ms(), age));
    size_t all = overview->workers->n_workers;
    buf_printf(out, "workers     %zu: %zu busy, %zu free", all, busy, all - busy - drained);
    if (drained > 0) buf_printf(out, ", %zu drained", drained);
    buf_add_char(out, '\n');
    overview_jobs(overview, table_width(client), out);
}

int verb_status(struct client *client)
{
    struct session *session;
    status_t status = session_new(client->options.address, client->options.timeout_ms, &session);
    if (status != NULL) return output_usage_error(status);
    struct overview overview = {0};
    status = ask(session, &overview);
    struct buf text = {0};
    int code = EXIT_DONE;
    if (status != NULL) code = output_error(status);
    else if (client->options.format == FORMAT_JSON)
        overview_json(session_peer(session), &overview, &text);
    else overview_text(client, session_peer(session), &overview, &text);
    output_print(&text);
    if (overview.version) fsdpd__v1__version__free_unpacked(overview.version, NULL);
    if (overview.workers) fsdpd__v1__list_workers_response__free_unpacked(overview.workers, NULL);
    if (overview.running) fsdpd__v1__list_jobs_response__free_unpacked(overview.running, NULL);
    if (overview.queued) fsdpd__v1__list_jobs_response__free_unpacked(overview.queued, NULL);
    session_free(session);
    return code;
}

/* The own version is told even if the daemon cannot be reached; the exit code says so. */
int verb_version(struct client *client)
{
    Fsdpd__V1__GetVersionRequest request = FSDPD__V1__GET_VERSION_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    int code = EXIT_DONE;
    client_call(client, &control_get_version, &request.base, &response, &code);
    const Fsdpd__V1__Version *daemon = (const Fsdpd__V1__Version *)(const void *)response;
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
