/* Workers that tests control, and their uploads; see test_coordinator_world.h. */
#include "test_coordinator_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "config.h"
#include "spec/metric_table.h"

/* ---- workers ---- */

static void fake_send(struct fake *fake, const Fsdpd__V1__WorkerMessage *message)
{
    if (fake->stream != NULL) rpc_stream_send(fake->stream, &message->base);
}

static void answer_plan(struct fake *fake, const Fsdpd__V1__PlanOrder *order)
{
    fake->plans++;
    fake->plan_request = order->request;
    fake->plan_staged = order->staged;
    fake->plan_sharers = order->sharers;
    fake->plan_host_workers = order->host_workers;
    free(fake->plan_profile);
    fake->plan_profile = mem_strdup(order->profile);
    if (fake->leaves_plans) rpc_stream_cancel(fake->stream);
    if (fake->silent_plans || fake->leaves_plans) return;
    Fsdpd__V1__Unit unit = FSDPD__V1__UNIT__INIT, *units[] = {&unit};
    unit.name = (char *)"(root)";
    Fsdpd__V1__Plan plan = FSDPD__V1__PLAN__INIT;
    plan.world = order->spec->workers;
    plan.parameters = 1 << 20;
    plan.hash = 42;
    plan.device = (char *)"cpu";
    plan.device_memory_bytes = FAKE_MEMORY;
    plan.n_units = 1;
    plan.units = units;
    plan.module_tree = (char *)"FullyShardedDataParallel()";
    if (order->dump) plan.dump = (char *)"all of it";
    Fsdpd__V1__PlanResult result = FSDPD__V1__PLAN_RESULT__INIT;
    result.request = order->request;
    result.steps = 100;
    result.code = fake->plan_code;
    Fsdpd__V1__GetModelFileResponse file = FSDPD__V1__GET_MODEL_FILE_RESPONSE__INIT;
    AUTO_FREE char *text = order->file == NULL
                               ? NULL
                               : mem_printf("%s/%s+%llu", order->spec->model->hf, order->file->name,
                                            (unsigned long long)order->file->offset);
    if (text != NULL) file.data = (ProtobufCBinaryData){strlen(text), (uint8_t *)text};
    if (fake->plan_code != STATUS_OK) result.message = (char *)"fc1: 9216 expected, found 9000";
    else if (text != NULL) result.file = &file;
    else result.plan = &plan;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_PLAN;
    message.plan = &result;
    fake_send(fake, &message);
}

static void take_order(struct fake *fake, const Fsdpd__V1__Order *order)
{
    fake->order_sequence = order->sequence;
    if (order->order_case == FSDPD__V1__ORDER__ORDER_PULL) {
        fake->pull = order->pull->pull;
        fake->pulls++;
    } else if (order->order_case == FSDPD__V1__ORDER__ORDER_TRACE) {
        fake->trace = order->trace->trace;
        fake->trace_steps = order->trace->steps;
    } else if (order->order_case == FSDPD__V1__ORDER__ORDER_EVALUATE && order->evaluate->stop) {
        fake->evaluation_stopped = order->evaluate->number;
        fake->evaluation_stops++;
    } else if (order->order_case == FSDPD__V1__ORDER__ORDER_EVALUATE) {
        fake->evaluation = order->evaluate->number;
        fake->evaluation_waited = order->evaluate->waited_seconds;
        fake->evaluations++;
    } else if (order->order_case == FSDPD__V1__ORDER__ORDER_WRAP) {
        fake->wrap = order->wrap->change;
        fake->wraps++;
    } else if (order->order_case == FSDPD__V1__ORDER__ORDER_CHECKPOINT) {
        fake->checkpoint = order->checkpoint->number;
        fake->pauses += order->checkpoint->pause;
        fake->checkpoints++;
    } else if (order->cancel->at_once) {
        fake->cancels_at_once++;
    } else {
        fake->cancels++;
    }
}

static void take_calibration(struct fake *fake, const Fsdpd__V1__CalibrationOrder *order)
{
    if (order->stop) {
        fake->calibration_stops++;
        return;
    }
    fake->calibrations++;
    fake->calibration_workers = order->workers;
    snprintf(fake->calibration_device, sizeof fake->calibration_device, "%s", order->device);
}

static void on_fake_message(struct rpc_stream *stream, const ProtobufCMessage *base, void *user)
{
    struct fake *fake = user;
    const Fsdpd__V1__CoordinatorMessage *message = (const void *)base;
    switch (message->message_case) {
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_WELCOME: fake->welcome = true; break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_PLAN: answer_plan(fake, message->plan); break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_PLAN_CANCELLATION: fake->cancelled_plans++; break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ASSIGNMENT:
        message_free(fake->assignment);
        fake->assignment = message_copy(message->assignment);
        fake->report = fake->acknowledged = 0;
        fake->assignments++;
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ORDER: take_order(fake, message->order); break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_CALIBRATION:
        take_calibration(fake, message->calibration);
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_PROBE:
        fake->probe = message->probe->number;
        fake->probe_port = message->probe->port;
        fake->probes++;
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_DRAIN: fake->drained = true; break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_DIAGNOSIS:
        fake->diagnosis = message->diagnosis->number;
        fake->stacks = message->diagnosis->stacks;
        fake->diagnoses++;
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ACK:
        if (message->ack->job[0] == '\0') fake->heartbeats_answered++;
        else fake->acknowledged = message->ack->report;
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_RELEASE: fake->releases++; break;
    default: ck_abort_msg("a message of an unknown kind");
    }
    rpc_stream_read(stream);
}

static void on_fake_closed(struct rpc_stream *stream, status_t status, void *user)
{
    struct fake *fake = user;
    if (fake->stream != stream) { /* it has another one by now */
        status_free(status);
        return;
    }
    fake->closed = true;
    fake->stream = NULL;
    fake->status = status;
}

static void say_hello(struct fake *fake, int64_t pid, Fsdpd__V1__HeldAttempt *held)
{
    static const struct rpc_stream_callbacks callbacks = {.on_message = on_fake_message,
                                                          .on_closed = on_fake_closed};
    struct world *world = fake->world;
    fake->closed = fake->welcome = false;
    fake->stream =
        rpc_stream_open(world->channel, &worker_link_attach, NULL, 0, false, &callbacks, fake);
    Fsdpd__V1__Hello hello = FSDPD__V1__HELLO__INIT;
    hello.id = (char *)fake->id;
    hello.device = (char *)(fake->device != NULL ? fake->device : "cpu");
    hello.shares_device = fake->shares_device;
    hello.version = (char *)(fake->version != NULL ? fake->version : PACKAGE_VERSION);
    hello.protocol = FSDPD__V1__HELLO__PROTOCOL__PROTOCOL_CURRENT;
    hello.attempts = &held;
    hello.n_attempts = held != NULL;
    hello.memory_bytes = 1 << 30;
    hello.pid = pid;
    if (world->make != NULL) hello.make = (char *)world->make;
    hello.address = (char *)"127.0.0.1";
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_HELLO;
    message.hello = &hello;
    fake_send(fake, &message);
    rpc_stream_read(fake->stream);
    WAIT(world, fake->welcome || fake->closed);
}

void fake_attach(struct world *world, struct fake *fake, const char *id, int64_t pid)
{
    fake_attach_device(world, fake, id, pid, NULL, false);
}

void fake_attach_device(struct world *world, struct fake *fake, const char *id, int64_t pid,
                        const char *device, bool shares_device)
{
    *fake = (struct fake){.world = world,
                          .id = id,
                          .device = device,
                          .shares_device = shares_device,
                          .plan_code = world->plan_code};
    say_hello(fake, pid, NULL);
}

void fake_attach_again(struct fake *fake, int64_t pid, bool running, uint64_t orders,
                       Fsdpd__V1__Order **tail, size_t tail_count)
{
    Fsdpd__V1__HeldAttempt held = FSDPD__V1__HELD_ATTEMPT__INIT;
    held.job = fake->assignment->job;
    held.attempt = fake->assignment->attempt;
    held.rank = fake->assignment->rank;
    held.world = fake->assignment->world;
    held.running = running;
    held.plan_hash = fake->sets_up ? 0 : 42;
    held.orders = orders;
    held.tail = tail;
    held.n_tail = tail_count;
    status_free(fake->status);
    fake->status = NULL;
    say_hello(fake, pid, &held);
}

void fake_detach(struct fake *fake)
{
    if (fake->stream != NULL) rpc_stream_cancel(fake->stream);
    WAIT(fake->world, fake->closed);
}

void fake_deinit(struct fake *fake)
{
    if (fake->world->channel != NULL) fake_detach(fake);
    message_free(fake->assignment);
    status_free(fake->status);
    free(fake->plan_profile);
}

void fake_heartbeat(struct fake *fake, uint64_t step)
{
    fake_heartbeat_at(fake, step, 0, false);
}

static void send_heartbeat(struct fake *fake, Fsdpd__V1__Heartbeat *heartbeat)
{
    heartbeat->own_us = fake->own_us;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_HEARTBEAT;
    message.heartbeat = heartbeat;
    fake_send(fake, &message);
}

void fake_heartbeat_at(struct fake *fake, uint64_t step, uint64_t collectives, bool waits)
{
    Fsdpd__V1__Heartbeat heartbeat = FSDPD__V1__HEARTBEAT__INIT;
    heartbeat.step = step;
    heartbeat.collectives = collectives;
    heartbeat.waits = waits;
    send_heartbeat(fake, &heartbeat);
}

void fake_leave(struct fake *fake)
{
    Fsdpd__V1__Leave leave = FSDPD__V1__LEAVE__INIT;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_LEAVE;
    message.leave = &leave;
    fake_send(fake, &message);
}

void fake_heartbeat_evaluating(struct fake *fake, uint64_t step, uint64_t batch)
{
    Fsdpd__V1__Heartbeat heartbeat = FSDPD__V1__HEARTBEAT__INIT;
    heartbeat.step = step;
    heartbeat.evaluates = true;
    heartbeat.evaluated_batch = batch;
    send_heartbeat(fake, &heartbeat);
}

static void send_event(struct fake *fake, Fsdpd__V1__AttemptEvent *event)
{
    ck_assert_ptr_nonnull(fake->assignment);
    event->job = fake->assignment->job;
    event->attempt = fake->assignment->attempt;
    event->report = ++fake->report;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_EVENT;
    message.event = event;
    fake_send(fake, &message);
}

void fake_started(struct fake *fake, uint64_t hash)
{
    fake_resumed(fake, hash, 0);
}

void fake_resumed(struct fake *fake, uint64_t hash, uint64_t step)
{
    Fsdpd__V1__Started started = FSDPD__V1__STARTED__INIT;
    started.plan_hash = hash;
    started.steps = FAKE_STEPS;
    started.resumed_step = step;
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_STARTED;
    event.started = &started;
    send_event(fake, &event);
}

void fake_resumed_unrecorded(struct fake *fake, uint64_t hash, uint64_t step)
{
    Fsdpd__V1__UnrecordedReports reports = FSDPD__V1__UNRECORDED_REPORTS__INIT;
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    Fsdpd__V1__UnrecordedMetrics entry = FSDPD__V1__UNRECORDED_METRICS__INIT, *entries = &entry;
    Fsdpd__V1__Started started = FSDPD__V1__STARTED__INIT;
    metrics.step = step;
    entry.metrics = &metrics;
    reports.metrics = &entries;
    reports.n_metrics = 1;
    started.plan_hash = hash;
    started.steps = FAKE_STEPS;
    started.resumed_step = step;
    started.unrecorded = &reports;
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_STARTED;
    event.started = &started;
    send_event(fake, &event);
}

static void send_metrics(struct fake *fake, Fsdpd__V1__Metrics *metrics, uint64_t thinned)
{
    metrics->learning_rate = metrics->seconds_left = metrics->step_seconds = 0.1;
    metrics->samples_per_second = metrics->train_seconds = metrics->epoch = 1;
    metrics->communicated_bytes = UINT64_MAX; /* as large as it gets */
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_METRICS;
    event.metrics = metrics;
    event.thinned = thinned;
    send_event(fake, &event);
}

static Fsdpd__V1__Metrics metrics_of(uint64_t step, double loss)
{
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    metrics.step = step;
    metrics.loss = loss;
    metrics.memory_peak_bytes = 4096;
    return metrics;
}

void fake_metrics(struct fake *fake, uint64_t step, double loss)
{
    Fsdpd__V1__Metrics metrics = metrics_of(step, loss);
    send_metrics(fake, &metrics, 0);
}

void fake_thinned(struct fake *fake, uint64_t step, uint64_t thinned)
{
    Fsdpd__V1__Metrics metrics = metrics_of(step, 0.5);
    send_metrics(fake, &metrics, thinned);
}

void fake_op_times(struct fake *fake, uint64_t step)
{
    Fsdpd__V1__Metrics metrics = metrics_of(step, 0.5);
    Fsdpd__V1__OpTime time = FSDPD__V1__OP_TIME__INIT, *times[] = {&time};
    time.op = (char *)"linear";
    time.seconds = 0.25;
    metrics.op_times = times;
    metrics.n_op_times = 1;
    metric_set(&metrics.base, "op_times_step", (double)step);
    send_metrics(fake, &metrics, 0);
}

void fake_epoch(struct fake *fake, uint32_t number)
{
    fake_epoch_at(fake, number, 0);
}

void fake_epoch_at(struct fake *fake, uint32_t number, uint64_t step)
{
    Fsdpd__V1__EpochEnd epoch = FSDPD__V1__EPOCH_END__INIT;
    epoch.epoch = number;
    epoch.train_loss = 0.2;
    metric_set(&epoch.base, "test_loss", 0.1);
    metric_set(&epoch.base, "accuracy", 0.98);
    epoch.step = step;
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_EPOCH;
    event.epoch = &epoch;
    send_event(fake, &event);
}

void fake_validation(struct fake *fake, uint64_t step, double loss)
{
    fake_held_out(fake, "", step, loss);
}

void fake_held_out(struct fake *fake, const char *set, uint64_t step, double loss)
{
    Fsdpd__V1__Validation validation = FSDPD__V1__VALIDATION__INIT;
    validation.set = (char *)set;
    validation.step = step;
    validation.loss = loss;
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_VALIDATION;
    event.validation = &validation;
    send_event(fake, &event);
}

void fake_checkpoint(struct fake *fake, uint64_t number, uint64_t step, enum status_code code,
                     const char *text, const uint64_t *removed)
{
    Fsdpd__V1__Checkpoint checkpoint = FSDPD__V1__CHECKPOINT__INIT;
    checkpoint.step = step;
    char path[64] = "";
    if (code == STATUS_OK)
        snprintf(path, sizeof path, "/somewhere/step-%012llu", (unsigned long long)step);
    checkpoint.path = path;
    checkpoint.bytes = 1000;
    Google__Protobuf__Timestamp time;
    checkpoint.time = message_time(&time, 1700000000000 + (int64_t)step * 1000);
    checkpoint.world = 2;
    Fsdpd__V1__CheckpointReport report = FSDPD__V1__CHECKPOINT_REPORT__INIT;
    report.number = number;
    report.code = code;
    report.message = (char *)text;
    report.checkpoint = &checkpoint;
    report.n_removed_steps = removed != NULL;
    report.removed_steps = (uint64_t *)removed;
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_CHECKPOINT;
    event.checkpoint = &report;
    send_event(fake, &event);
}

void fake_finished(struct fake *fake, enum status_code code, const char *text)
{
    fake_ended(fake, code, status_code_name(code), text);
}

void fake_ended(struct fake *fake, enum status_code code, const char *reason, const char *text)
{
    Fsdpd__V1__Finished finished = FSDPD__V1__FINISHED__INIT;
    finished.code = code;
    finished.reason = (char *)reason;
    finished.message = (char *)text;
    finished.memory_peak_bytes = 4096;
    finished.unreached = fake->unreached;
    finished.step = code != STATUS_OK ? 0 : fake->finished_at > 0 ? fake->finished_at : FAKE_STEPS;
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_FINISHED;
    event.finished = &finished;
    send_event(fake, &event);
}

void fake_pull_failed(struct fake *fake, uint64_t pull, const char *text)
{
    Fsdpd__V1__PullFailed failed = FSDPD__V1__PULL_FAILED__INIT;
    failed.pull = pull;
    failed.code = STATUS_RESOURCE_EXHAUSTED;
    failed.message = (char *)text;
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_PULL_FAILED;
    event.pull_failed = &failed;
    send_event(fake, &event);
}

void fake_wrap(struct fake *fake, uint64_t step, enum status_code code, const char *text)
{
    Fsdpd__V1__WrapReport report = FSDPD__V1__WRAP_REPORT__INIT;
    report.change = fake->wrap;
    report.step = step;
    report.code = code;
    report.message = (char *)text;
    report.peak_bytes = 4096;
    report.plan_hash = 42;
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_WRAP;
    event.wrap = &report;
    send_event(fake, &event);
}

void fake_trace(struct fake *fake, uint64_t trace, Fsdpd__V1__TraceChunk *chunk,
                enum status_code code, const char *text)
{
    Fsdpd__V1__TraceReport report = FSDPD__V1__TRACE_REPORT__INIT;
    report.trace = trace;
    report.chunk = chunk;
    report.code = code;
    report.message = (char *)text;
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_TRACE;
    event.trace = &report;
    send_event(fake, &event);
}

static void send_evaluation(struct fake *fake, Fsdpd__V1__EvaluateReport *report)
{
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    report->number = fake->evaluation;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_EVALUATION;
    event.evaluation = report;
    send_event(fake, &event);
}

void fake_drawn(struct fake *fake, uint32_t token)
{
    Fsdpd__V1__EvaluateReport report = FSDPD__V1__EVALUATE_REPORT__INIT;
    Fsdpd__V1__Tokens tokens = FSDPD__V1__TOKENS__INIT, *drawn[] = {&tokens};
    tokens.n_tokens = 1;
    tokens.tokens = &token;
    report.n_drawn = 1;
    report.drawn = drawn;
    send_evaluation(fake, &report);
}

void fake_sampled(struct fake *fake, Fsdpd__V1__Sampled *sampled, enum status_code code,
                  const char *text)
{
    Fsdpd__V1__EvaluateReport report = FSDPD__V1__EVALUATE_REPORT__INIT;
    report.code = code;
    report.message = (char *)text;
    report.sampled = sampled;
    send_evaluation(fake, &report);
}

void fake_evaluated(struct fake *fake, Fsdpd__V1__Validation *validation)
{
    Fsdpd__V1__EvaluateReport report = FSDPD__V1__EVALUATE_REPORT__INIT;
    report.validation = validation;
    send_evaluation(fake, &report);
}

/* ---- uploads ---- */

static void on_upload_message(struct rpc_stream *stream, const ProtobufCMessage *message,
                              void *user)
{
    (void)stream, (void)message;
    ((struct upload_call *)user)->answered = true;
}

static void on_upload_closed(struct rpc_stream *stream, status_t status, void *user)
{
    (void)stream;
    struct upload_call *upload = user;
    upload->closed = true;
    upload->stream = NULL;
    upload->status = status;
}

void upload_open(struct fake *fake, struct upload_call *upload, uint64_t pull, uint64_t total,
                 uint64_t step)
{
    static const struct rpc_stream_callbacks callbacks = {.on_message = on_upload_message,
                                                          .on_closed = on_upload_closed};
    *upload = (struct upload_call){0};
    upload->stream = rpc_stream_open(fake->world->channel, &worker_link_upload_state, NULL, 0,
                                     false, &callbacks, upload);
    Fsdpd__V1__UploadStateRequest request = FSDPD__V1__UPLOAD_STATE_REQUEST__INIT;
    request.job = fake->assignment->job;
    request.attempt = fake->assignment->attempt;
    request.pull = pull;
    request.total_size = total;
    request.step = step;
    rpc_stream_send(upload->stream, &request.base);
    rpc_stream_read(upload->stream);
}

void upload_send(struct upload_call *upload, const void *bytes, size_t size)
{
    Fsdpd__V1__UploadStateRequest request = FSDPD__V1__UPLOAD_STATE_REQUEST__INIT;
    request.data.data = (uint8_t *)bytes;
    request.data.len = size;
    if (upload->stream != NULL) rpc_stream_send(upload->stream, &request.base);
}

void upload_close(struct upload_call *upload)
{
    if (upload->stream != NULL) rpc_stream_finish_sending(upload->stream);
}

void upload_deinit(struct upload_call *upload)
{
    status_free(upload->status);
}

void fake_diagnosis(struct fake *fake, uint64_t collectives, bool waits)
{
    Fsdpd__V1__RankDiagnosis rank = FSDPD__V1__RANK_DIAGNOSIS__INIT;
    rank.answered = true;
    rank.collectives = collectives;
    rank.waits = waits;
    rank.wait_seconds = waits ? 100 : 0;
    rank.collective = (char *)"all_gather number 7";
    rank.place = (char *)"trains";
    Fsdpd__V1__DiagnosisReport report = FSDPD__V1__DIAGNOSIS_REPORT__INIT;
    report.number = fake->diagnosis;
    report.job = fake->assignment->job;
    report.rank = &rank;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_DIAGNOSIS;
    message.diagnosis = &report;
    fake_send(fake, &message);
}

void fake_probed(struct fake *fake, enum status_code code, uint32_t port)
{
    Fsdpd__V1__ProbeReport report = FSDPD__V1__PROBE_REPORT__INIT;
    report.number = fake->probe;
    report.code = code;
    report.port = port;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_PROBE;
    message.probe = &report;
    fake_send(fake, &message);
}

void fake_calibrated(struct fake *fake, enum status_code code, const char *profile)
{
    Fsdpd__V1__Calibration report = FSDPD__V1__CALIBRATION__INIT;
    report.code = code;
    if (code == STATUS_OK) report.profile = (char *)profile;
    else report.message = (char *)profile;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_CALIBRATION;
    message.calibration = &report;
    fake_send(fake, &message);
}
