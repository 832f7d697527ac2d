/* The scripted daemon; see test_client_daemon.h. */
#include "test_client_daemon.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "digest/digest.h"
#include "fsdpd/v1/methods.h"
#include "proto/descriptors.h"
#include "proto/message.h"
#include "rpc/server.h"
#include "spec/metric_table.h"
#include "spec/spec.h"
#include "tests/testing.h"

struct script script;
static char address[128];

static struct server {
    pthread_t thread;
    uv_loop_t loop;
    uv_async_t stop;
    uv_timer_t pause, interrupt, quiet;
    struct rpc_call *quiet_call;
    struct rpc_runtime *runtime;
    struct rpc_server *server;
    bool closed, runtime_closed, stopping;
    pthread_barrier_t ready;
} server;

/* ---- the daemon ---- */

static bool refused(struct rpc_call *call)
{
    if (script.refuse == STATUS_OK) return false;
    rpc_call_finish(call, status_new(script.refuse, "refused \x1b[31mas the script says"));
    return true;
}

static Fsdpd__V1__Plan plan = FSDPD__V1__PLAN__INIT;
static Fsdpd__V1__Reason reason = FSDPD__V1__REASON__INIT;

/* The text of families/gpt2.yaml, kept. */
static char *gpt2_family(void)
{
    static struct buf text;
    const char *root = getenv("srcdir");
    char *path = file_path_join(root != NULL ? root : ".", "families/gpt2.yaml");
    status_t status = text.length == 0 ? file_read(path, 1 << 20, &text) : NULL;
    ck_assert_msg(status == NULL, "%s", status_message(status));
    free(path);
    return (char *)buf_text(&text);
}

static void reply_job(struct rpc_call *call, const char *id, Fsdpd__V1__JobState state)
{
    Fsdpd__V1__Job job = FSDPD__V1__JOB__INIT;
    job.id = (char *)id;
    job.state = state;
    job.reason = &reason;
    job.steps = 40;
    job.plan = &plan;
    Fsdpd__V1__JobSpec spec = FSDPD__V1__JOB_SPEC__INIT;
    Fsdpd__V1__ModelSpec model = FSDPD__V1__MODEL_SPEC__INIT;
    if (script.hf_config != NULL) {
        model.hf = (char *)"gpt2";
        model.hf_config = (char *)script.hf_config;
        model.hf_family = gpt2_family();
        spec.model = &model;
        job.spec = &spec;
    }
    rpc_call_reply(call, &job.base);
}

static void on_submit(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user;
    const Fsdpd__V1__SubmitJobRequest *request =
        (const Fsdpd__V1__SubmitJobRequest *)(const void *)message;
    snprintf(script.id, sizeof script.id, "%s", request->id);
    Fsdpd__V1__JobSpec *spec = NULL;
    status_t status = spec_read_sent(request->job_file, &spec);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    snprintf(script.data_dir, sizeof script.data_dir, "%s", spec->data->dir);
    script.epochs = spec->train->epochs;
    spec_free(spec);
    if (!refused(call))
        reply_job(call, request->id[0] ? request->id : "mnist-1",
                  FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED);
}

static void on_get(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user;
    const Fsdpd__V1__GetJobRequest *request =
        (const Fsdpd__V1__GetJobRequest *)(const void *)message;
    if (refused(call)) return;
    if (strcmp(request->id, "mnist-1") != 0)
        rpc_call_finish(call, status_new(STATUS_NOT_FOUND, "there is no job '%s'", request->id));
    else reply_job(call, request->id, FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING);
}

static void on_cancel(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user;
    const Fsdpd__V1__CancelJobRequest *request =
        (const Fsdpd__V1__CancelJobRequest *)(const void *)message;
    if (refused(call)) return;
    if (strcmp(request->id, "gone") == 0)
        rpc_call_finish(call, status_new(STATUS_NOT_FOUND, "there is no such job"));
    else reply_job(call, request->id, FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING);
}

static void on_forget(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user, (void)message;
    Fsdpd__V1__ForgetJobResponse response = FSDPD__V1__FORGET_JOB_RESPONSE__INIT;
    if (!refused(call)) rpc_call_reply(call, &response.base);
}

static void on_plan(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user, (void)message;
    if (!refused(call)) rpc_call_reply(call, &plan.base);
}

static void on_list(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user;
    const Fsdpd__V1__ListJobsRequest *request =
        (const Fsdpd__V1__ListJobsRequest *)(const void *)message;
    if (refused(call)) return;
    snprintf(script.label, sizeof script.label, "%s",
             request->n_labels > 0 ? request->labels[0]->value : "");
    script.states = request->n_states;
    script.limit = request->page_size;
    Fsdpd__V1__Job job = FSDPD__V1__JOB__INIT;
    Fsdpd__V1__Job *jobs[] = {&job};
    Fsdpd__V1__ListJobsResponse list = FSDPD__V1__LIST_JOBS_RESPONSE__INIT;
    job.id = (char *)"mnist-1";
    job.state = FSDPD__V1__JOB_STATE__JOB_STATE_SUCCEEDED;
    Fsdpd__V1__StateCount count = FSDPD__V1__STATE_COUNT__INIT;
    Fsdpd__V1__StateCount waiting = FSDPD__V1__STATE_COUNT__INIT;
    Fsdpd__V1__StateCount *counts[] = {&count, &waiting};
    count.state = job.state;
    count.jobs = 1;
    waiting.state = FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED;
    waiting.jobs = script.queued;
    if (script.queued > 0 && request->n_states == 1) {
        job.id = (char *)"mnist-9";
        job.state = waiting.state;
        list.left_out = script.queued - 1;
    }
    if (script.more_jobs && request->page_token[0] == '\0') {
        job.id = (char *)"mnist-2";
        list.left_out = 1;
        list.next_page_token = (char *)"2";
    }
    list.jobs = jobs;
    list.n_jobs = script.no_jobs ? 0 : 1;
    list.counts = counts;
    list.n_counts = script.queued > 0 ? 2 : 1;
    rpc_call_reply(call, &list.base);
}

/* The three workers on a page each, the token being the number of the page; or all, as drained. */
static void on_workers(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    static const char *const ids[] = {"host/cpu:0", "host/cpu:2", "host/cpu:10"};
    static const char *const tokens[] = {"1", "2", ""};
    const Fsdpd__V1__ListWorkersRequest *request = (const void *)message;
    (void)user;
    if (refused(call)) return;
    Fsdpd__V1__Worker worker = FSDPD__V1__WORKER__INIT, *workers[] = {&worker};
    Fsdpd__V1__ListWorkersResponse list = FSDPD__V1__LIST_WORKERS_RESPONSE__INIT;
    int page = atoi(request->page_token);
    worker.id = (char *)ids[page];
    list.workers = workers;
    list.n_workers = 1;
    if (script.more_workers) list.next_page_token = (char *)tokens[page];
    rpc_call_reply(call, &list.base);
}

static void on_drain(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user, (void)message;
    if (refused(call)) return;
    Fsdpd__V1__Worker second = FSDPD__V1__WORKER__INIT, tenth = FSDPD__V1__WORKER__INIT;
    Fsdpd__V1__Worker *workers[] = {&second, &tenth};
    Fsdpd__V1__DrainWorkersResponse list = FSDPD__V1__DRAIN_WORKERS_RESPONSE__INIT;
    second.id = (char *)"host/cpu:2";
    tenth.id = (char *)"host/cpu:10";
    list.workers = workers;
    list.n_workers = 2;
    rpc_call_reply(call, &list.base);
}

static void on_version(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user, (void)message;
    if (refused(call)) return;
    Fsdpd__V1__GetVersionResponse version = FSDPD__V1__GET_VERSION_RESPONSE__INIT;
    version.version = (char *)"9.8.7";
    version.api = (char *)"v1";
    rpc_call_reply(call, &version.base);
}

static void on_checkpoint(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user, (void)message;
    if (refused(call)) return;
    Fsdpd__V1__Checkpoint checkpoint = FSDPD__V1__CHECKPOINT__INIT;
    checkpoint.step = 20;
    checkpoint.bytes = 1500;
    checkpoint.path = (char *)"/data/step-20\x1b[0m";
    rpc_call_reply(call, &checkpoint.base);
}

/* A step of one rank: in the lane compute a product, for three times as long as another one. */
static void send_trace(struct rpc_call *call)
{
    static const char *const lanes[] = {"compute", "comm", "compute"};
    static const char *const kinds[] = {"compute", "all_gather", "compute"};
    static const char *const ops[] = {"linear", "", "gelu"};
    uint64_t begins[] = {0, 0, 3000}, durations[] = {3000, 2000, 1000};
    Fsdpd__V1__TraceInstruction instructions[COUNT_OF(lanes)], *list[COUNT_OF(lanes)];
    for (size_t i = 0; i < COUNT_OF(lanes); i++) {
        fsdpd__v1__trace_instruction__init(list[i] = &instructions[i]);
        list[i]->lane = (char *)lanes[i];
        list[i]->kind = (char *)kinds[i];
        list[i]->op = (char *)ops[i];
    }
    Fsdpd__V1__TraceProgram program = FSDPD__V1__TRACE_PROGRAM__INIT, *programs[] = {&program};
    program.name = (char *)"train";
    program.instructions = list;
    program.n_instructions = COUNT_OF(lanes);
    Fsdpd__V1__TraceStep step = FSDPD__V1__TRACE_STEP__INIT, *steps[] = {&step};
    step.step = 7;
    step.begin_ns = 1000;
    step.end_ns = 5000;
    step.begins = begins;
    step.durations = durations;
    step.n_begins = step.n_durations = COUNT_OF(lanes);
    Fsdpd__V1__TraceChunk chunk = FSDPD__V1__TRACE_CHUNK__INIT;
    char *workers[] = {(char *)"host/cpu:0"};
    chunk.last = true;
    chunk.workers = workers;
    chunk.programs = programs;
    chunk.steps = steps;
    chunk.n_workers = chunk.n_programs = chunk.n_steps = 1;
    rpc_call_send(call, &chunk.base);
}

static void on_trace(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user;
    script.traced = ((const Fsdpd__V1__TraceJobRequest *)(const void *)message)->steps;
    if (script.trains) send_trace(call);
    rpc_call_finish(call, script.trains
                              ? NULL
                              : status_new(STATUS_FAILED_PRECONDITION, "it does not train"));
}

/* QUEUED, RUNNING, metrics, metrics, epoch, the end; sequence numbers from 1. */
static void send_event(struct rpc_call *call, uint64_t sequence)
{
    Fsdpd__V1__JobEvent event = FSDPD__V1__JOB_EVENT__INIT;
    Fsdpd__V1__StateChange change = FSDPD__V1__STATE_CHANGE__INIT;
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    Fsdpd__V1__EpochEnd epoch = FSDPD__V1__EPOCH_END__INIT;
    event.sequence = sequence;
    Google__Protobuf__Timestamp time;
    event.time = message_time(&time, 1000000 + (int64_t)sequence * 10000);
    event.steps = 40;
    if (sequence == 3 || sequence == 4) {
        event.event_case = FSDPD__V1__JOB_EVENT__EVENT_METRICS;
        event.metrics = &metrics;
        metrics.step = sequence * 10 - 20;
        metrics.loss = 1.0 / (double)sequence;
        metrics.samples_per_second = 5000;
        metrics.seconds_left = 30;
    } else if (sequence == 5) {
        event.event_case = FSDPD__V1__JOB_EVENT__EVENT_EPOCH;
        event.epoch = &epoch;
        epoch.epoch = 1;
        epoch.train_loss = 0.2341;
        metric_set(&epoch.base, "test_loss", 0.0573);
        metric_set(&epoch.base, "accuracy", 0.9812);
        metric_set(&epoch.base, "correct", 9812);
        metric_set(&epoch.base, "test_samples", 10000);
    } else {
        event.event_case = FSDPD__V1__JOB_EVENT__EVENT_STATE;
        event.state = &change;
        change.reason = &reason;
        change.attempt = 1;
        change.state = sequence == 1   ? FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED
                       : sequence == 2 ? FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING
                                       : script.end;
    }
    rpc_call_send(call, &event.base);
}

static void serve(void);

static void on_pause_over(uv_timer_t *timer)
{
    (void)timer;
    if (!server.stopping) serve();
}

/* The daemon restarts: its socket disappears for half a second. */
static void on_gone(void *user)
{
    (void)user;
    server.server = NULL;
    uv_timer_start(&server.pause, on_pause_over, 500, 0);
}

static void on_interrupt(uv_timer_t *timer)
{
    (void)timer;
    kill(getpid(), SIGINT);
}

static void on_watch(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user;
    const Fsdpd__V1__WatchJobRequest *request =
        (const Fsdpd__V1__WatchJobRequest *)(const void *)message;
    script.asked_after = request->after_sequence;
    bool first = script.watches++ == 0;
    for (uint64_t sequence = request->after_sequence + 1; sequence <= EVENTS; sequence++) {
        if (script.interrupt_watch && sequence == 3) {
            uv_timer_start(&server.interrupt, on_interrupt, 300, 0);
            return; /* the call stays open until the client ends it */
        }
        if (first && script.break_watch_after > 0 &&
            sequence > (uint64_t)script.break_watch_after) {
            if (script.restart) rpc_server_close(server.server, 0, on_gone, NULL);
            else rpc_call_finish(call, status_new(STATUS_UNAVAILABLE, "the stream broke"));
            return;
        }
        send_event(call, sequence);
    }
    rpc_call_finish(call, NULL);
}

/* Fills CHUNK bytes of a file of CHUNKS of them: a header of 200, and ones. */
static void fill_tensors(uint8_t *bytes, int number)
{
    static const float one = 1;
    for (int i = 0; i < CHUNK; i += (int)sizeof one) memcpy(bytes + i, &one, sizeof one);
    if (number > 0) return;
    char header[201];
    snprintf(header, sizeof header, "%-192s",
             "{\"a\":{\"dtype\":\"F32\",\"shape\":[1200],\"data_offsets\":[0,4800]}}");
    memset(bytes, 0, 8);
    bytes[0] = 192;
    memcpy(bytes + 8, header, 192);
}

static void send_chunk(struct rpc_call *call, int number)
{
    Fsdpd__V1__PullStateDictResponse chunk = FSDPD__V1__PULL_STATE_DICT_RESPONSE__INIT;
    uint8_t bytes[CHUNK];
    if (script.tensors) fill_tensors(bytes, number);
    else memset(bytes, 'a' + number, sizeof bytes);
    chunk.data.data = bytes;
    chunk.data.len = sizeof bytes;
    if (number == 0 && script.pull != PULL_NO_TOTAL) {
        chunk.total_size = CHUNKS * CHUNK;
        chunk.step = 938;
    }
    rpc_call_send(call, &chunk.base);
}

static void on_pull(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user, (void)message;
    if (refused(call)) return;
    int count = script.pull == PULL_WHOLE ? CHUNKS : script.pull == PULL_MORE ? CHUNKS + 1 : 1;
    for (int i = 0; i < count; i++) send_chunk(call, i);
    if (script.pull == PULL_STALL) return;
    if (script.pull == PULL_INTERRUPT) kill(getpid(), SIGTERM);
    else if (script.pull == PULL_BREAK)
        rpc_call_finish(call, status_new(STATUS_UNAVAILABLE, "the worker is gone"));
    else rpc_call_finish(call, NULL);
}

static void send_line(struct rpc_call *call, uint64_t position)
{
    Fsdpd__V1__GetLogsResponse chunk = FSDPD__V1__GET_LOGS_RESPONSE__INIT;
    Fsdpd__V1__LogLine line = FSDPD__V1__LOG_LINE__INIT;
    Fsdpd__V1__LogLine *lines[] = {&line};
    char text[32];
    snprintf(text, sizeof text, "line number=%d", (int)position);
    line.position = position;
    line.attempt = 1;
    line.level = FSDPD__V1__LOG_LEVEL__LOG_LEVEL_INFO;
    line.text = text;
    chunk.lines = lines;
    chunk.n_lines = 1;
    rpc_call_send(call, &chunk.base);
}

/* Cut off, as by a proxy. */
static void on_quiet_over(uv_timer_t *timer)
{
    (void)timer;
    rpc_call_finish(server.quiet_call, status_new(STATUS_INTERNAL, "the stream was reset"));
}

static void on_logs(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user;
    const Fsdpd__V1__GetLogsRequest *request =
        (const Fsdpd__V1__GetLogsRequest *)(const void *)message;
    if (refused(call)) return;
    int stream = ++script.logs;
    if (script.break_logs && stream == 2) {
        server.quiet_call = call;
        uv_timer_start(&server.quiet, on_quiet_over, 1300, 0);
        return;
    }
    send_line(call, request->after_position + 1);
    rpc_call_finish(call, script.break_logs && stream == 1
                              ? status_new(STATUS_UNAVAILABLE, "the stream broke")
                              : NULL);
}

/* A step, the end of an epoch, and one that the end of the job cut short. */
static void on_metrics(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user, (void)message;
    if (refused(call)) return;
    Fsdpd__V1__GetMetricsResponse chunk = FSDPD__V1__GET_METRICS_RESPONSE__INIT;
    Fsdpd__V1__MetricsRow rows[3], *list[3];
    Fsdpd__V1__JobEvent events[3];
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    Fsdpd__V1__EpochEnd epochs[2];
    metrics.step = 460;
    for (int i = 0; i < 3; i++) {
        fsdpd__v1__metrics_row__init(&rows[i]);
        fsdpd__v1__job_event__init(&events[i]);
        events[i].sequence = (uint64_t)i + 1;
        events[i].event_case = FSDPD__V1__JOB_EVENT__EVENT_METRICS;
        events[i].metrics = &metrics;
        rows[i].attempt = 1;
        rows[i].event = &events[i];
        list[i] = &rows[i];
    }
    for (int i = 0; i < 2; i++) {
        fsdpd__v1__epoch_end__init(&epochs[i]);
        epochs[i].epoch = (uint32_t)i + 1;
        events[i + 1].event_case = FSDPD__V1__JOB_EVENT__EVENT_EPOCH;
        events[i + 1].epoch = &epochs[i];
    }
    epochs[0].step = 471;
    epochs[0].epochs_done = 1;
    epochs[1].step = 589;
    epochs[1].epochs_done = 1.25;
    chunk.rows = list;
    chunk.n_rows = 3;
    rpc_call_send(call, &chunk.base);
    rpc_call_finish(call, NULL);
}

/* A file in pieces of four bytes. */
static void on_model_file(struct rpc_call *call, const ProtobufCMessage *message, void *user)
{
    (void)user;
    const Fsdpd__V1__GetModelFileRequest *request = (const void *)message;
    Fsdpd__V1__GetModelFileResponse response = FSDPD__V1__GET_MODEL_FILE_RESPONSE__INIT;
    Fsdpd__V1__ModelFile file = FSDPD__V1__MODEL_FILE__INIT, *files[] = {&file};
    struct digest sum;
    char digits[DIGEST_DIGITS + 1];
    if (script.beside != NULL && request->name[0] == '\0') {
        digest_of(script.beside, strlen(script.beside), &sum);
        file.name = (char *)(script.beside_name != NULL ? script.beside_name : "tokenizer.json");
        file.size_bytes = strlen(script.beside);
        file.sha256 = digest_format(&sum, digits);
        response.files = files;
        response.n_files = 1;
    } else if (script.beside != NULL) {
        size_t left = strlen(script.beside) - request->offset;
        response.data.len = left < 4 ? left : 4;
        response.data.data = (uint8_t *)script.beside + request->offset;
        if (script.beside_changes) response.data.data = (uint8_t *)"....";
    }
    rpc_call_reply(call, &response.base);
}

static const struct rpc_handler handlers[] = {
    {.method = &control_submit_job, .on_start = on_submit},
    {.method = &control_get_job, .on_start = on_get},
    {.method = &control_cancel_job, .on_start = on_cancel},
    {.method = &control_forget_job, .on_start = on_forget},
    {.method = &control_plan_job, .on_start = on_plan},
    {.method = &control_list_jobs, .on_start = on_list},
    {.method = &control_list_workers, .on_start = on_workers},
    {.method = &control_drain_workers, .on_start = on_drain},
    {.method = &control_get_version, .on_start = on_version},
    {.method = &control_create_checkpoint, .on_start = on_checkpoint},
    {.method = &control_trace_job, .on_start = on_trace},
    {.method = &control_watch_job, .on_start = on_watch},
    {.method = &control_pull_state_dict, .on_start = on_pull},
    {.method = &control_get_model_file, .on_start = on_model_file},
    {.method = &control_get_logs, .on_start = on_logs},
    {.method = &control_get_metrics, .on_start = on_metrics},
};
static const struct rpc_service service = {"fsdpd.v1.Control", handlers, COUNT_OF(handlers), NULL,
                                           RPC_USER,           0};

static void require_ok(status_t status)
{
    if (status == NULL) return;
    fprintf(stderr, "%s\n", status_message(status));
    abort();
}

static void serve(void)
{
    require_ok(rpc_server_new(server.runtime, &service, 1, proto_descriptors,
                              proto_descriptors_size, &server.server));
    require_ok(rpc_server_listen(server.server, address, 0, NULL));
    require_ok(rpc_server_start(server.server));
}

static void set_flag(void *user)
{
    *(bool *)user = true;
}

static void on_stop(uv_async_t *handle)
{
    (void)handle;
    server.stopping = true;
}

static void *server_main(void *user)
{
    (void)user;
    uv_loop_init(&server.loop);
    uv_async_init(&server.loop, &server.stop, on_stop);
    uv_timer_init(&server.loop, &server.pause);
    uv_timer_init(&server.loop, &server.interrupt);
    uv_timer_init(&server.loop, &server.quiet);
    require_ok(rpc_runtime_new(&server.loop, &server.runtime));
    serve();
    pthread_barrier_wait(&server.ready);
    while (!server.stopping) uv_run(&server.loop, UV_RUN_ONCE);
    if (server.server) {
        rpc_server_close(server.server, 0, set_flag, &server.closed);
        while (!server.closed) uv_run(&server.loop, UV_RUN_ONCE);
    }
    rpc_runtime_close(server.runtime, set_flag, &server.runtime_closed);
    while (!server.runtime_closed) uv_run(&server.loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&server.stop, NULL);
    uv_close((uv_handle_t *)&server.pause, NULL);
    uv_close((uv_handle_t *)&server.interrupt, NULL);
    uv_close((uv_handle_t *)&server.quiet, NULL);
    uv_run(&server.loop, UV_RUN_DEFAULT);
    uv_loop_close(&server.loop);
    return NULL;
}

void daemon_start(const char *at)
{
    snprintf(address, sizeof address, "%s", at);
    plan.module_tree = (char *)"Net(\n  (fc1): Linear()\n)\n";
    plan.strategy = FSDPD__V1__STRATEGY__STRATEGY_FULL_SHARD;
    plan.world = 2;
    reason.code = (char *)"WHY";
    reason.message = (char *)"because the script says so";
    pthread_barrier_init(&server.ready, NULL, 2);
    pthread_create(&server.thread, NULL, server_main, NULL);
    pthread_barrier_wait(&server.ready);
}

void daemon_stop(void)
{
    uv_async_send(&server.stop);
    pthread_join(server.thread, NULL);
}
