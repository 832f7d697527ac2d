/* The world of the coordinator's tests; see test_coordinator_world.h. */
#include "test_coordinator_world.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "config.h"

#define METHOD(name, service, path_, kind_, request_, response_)                                   \
    const struct rpc_method name = {.path = "/fsdpd.v1." service "/" path_,                        \
                                    .kind = kind_,                                                 \
                                    .request = &fsdpd__v1__##request_##__descriptor,               \
                                    .response = &fsdpd__v1__##response_##__descriptor}
METHOD(test_submit, "Control", "SubmitJob", RPC_UNARY, submit_job_request, job);
METHOD(test_get, "Control", "GetJob", RPC_UNARY, get_job_request, job);
METHOD(test_list, "Control", "ListJobs", RPC_UNARY, list_jobs_request, list_jobs_response);
METHOD(test_cancel, "Control", "CancelJob", RPC_UNARY, cancel_job_request, job);
METHOD(test_watch, "Control", "WatchJob", RPC_SERVER_STREAM, watch_job_request, job_event);
METHOD(test_plan, "Control", "PlanJob", RPC_UNARY, plan_job_request, plan);
METHOD(test_pull, "Control", "PullStateDict", RPC_SERVER_STREAM, pull_state_dict_request,
       state_dict_chunk);
METHOD(test_trace, "Control", "TraceJob", RPC_SERVER_STREAM, trace_job_request, trace_chunk);
METHOD(test_set_wrap, "Control", "SetWrapPolicy", RPC_UNARY, set_wrap_policy_request, job);
METHOD(test_checkpoint, "Control", "CreateCheckpoint", RPC_UNARY, create_checkpoint_request,
       checkpoint);
METHOD(test_checkpoints, "Control", "ListCheckpoints", RPC_UNARY, list_checkpoints_request,
       list_checkpoints_response);
METHOD(test_pause, "Control", "PauseJob", RPC_UNARY, pause_job_request, job);
METHOD(test_resume, "Control", "ResumeJob", RPC_UNARY, resume_job_request, job);
METHOD(test_history, "Control", "GetHistory", RPC_UNARY, get_history_request, history);
METHOD(test_hold, "Control", "HoldJob", RPC_UNARY, hold_job_request, job);
METHOD(test_release, "Control", "ReleaseJob", RPC_UNARY, release_job_request, job);
METHOD(test_priority, "Control", "SetPriority", RPC_UNARY, set_priority_request, job);
METHOD(test_forget, "Control", "ForgetJob", RPC_UNARY, forget_job_request, forget_job_response);
METHOD(test_drain, "Control", "DrainWorkers", RPC_UNARY, drain_workers_request,
       list_workers_response);
METHOD(test_undrain, "Control", "UndrainWorkers", RPC_UNARY, undrain_workers_request,
       list_workers_response);
METHOD(test_workers, "Control", "ListWorkers", RPC_UNARY, list_workers_request,
       list_workers_response);
METHOD(test_version, "Control", "GetVersion", RPC_UNARY, get_version_request, version);
METHOD(test_attach, "WorkerLink", "Attach", RPC_BIDIRECTIONAL, worker_message, coordinator_message);
METHOD(test_store_set, "WorkerLink", "StoreSet", RPC_UNARY, store_set_request, store_set_response);
METHOD(test_store_get, "WorkerLink", "StoreGet", RPC_UNARY, store_get_request, store_get_response);
METHOD(test_upload, "WorkerLink", "UploadState", RPC_CLIENT_STREAM, upload_state_request,
       upload_state_response);

void expect_ok(status_t status)
{
    ck_assert_msg(status == NULL, "%s: %s", status_code_name(status_code(status)),
                  status_message(status));
}

void expect_status(status_t status, enum status_code code, const char *words)
{
    ck_assert_msg(status_code(status) == code, "%s expected, found %s: %s", status_code_name(code),
                  status_code_name(status_code(status)), status_message(status));
    ck_assert_msg(strstr(status_message(status), words) != NULL, "\"%s\" lacks \"%s\"",
                  status_message(status), words);
    status_free(status);
}

/* ---- the world ---- */

static void on_waker(uv_timer_t *timer)
{
    (void)timer;
}

void world_init(struct world *world)
{
    *world = (struct world){0};
    log_set_level(LOG_ERROR);
    strcpy(world->directory, "/tmp/fsdpd-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(world->directory));
    uv_loop_init(&world->loop);
    uv_timer_init(&world->loop, &world->waker);
    uv_timer_start(&world->waker, on_waker, 5, 5);
    world->options = (struct coordinator_options){
        .runtime_dir = world_path(world, "run"),
        .state_dir = world_path(world, "state"),
        .local_device = "cpu",
        .limits = coordinator_limits_default(),
    };
    struct coordinator_limits *limits = &world->options.limits;
    limits->plan_wait_ms = 300;
    limits->plan_ms = 20000;
    limits->exit_wait_ms = 500;
    limits->reattach_ms = 400;
    limits->settle_ms = 600;
    limits->cancel_ms = 300;
    limits->kill_ms = 500;
    limits->stop_ms = 500;
    limits->retry_ms = 200;
    limits->retry_max_ms = 400;
    expect_ok(rpc_runtime_new(&world->loop, &world->runtime));
}

void world_start(struct world *world)
{
    expect_ok(coordinator_new(&world->loop, &world->options, &world->coordinator));
    expect_ok(rpc_channel_new(world->runtime, coordinator_address(world->coordinator), NULL,
                              &world->channel));
}

static void on_flag(void *user)
{
    *(bool *)user = true;
}

void world_stop(struct world *world)
{
    bool closed = false, channel_closed = false;
    coordinator_drain(world->coordinator, on_flag, &closed);
    WAIT(world, closed);
    world->coordinator = NULL;
    rpc_channel_close(world->channel, on_flag, &channel_closed);
    WAIT(world, channel_closed);
    world->channel = NULL;
}

void world_deinit(struct world *world)
{
    bool closed = false;
    if (world->coordinator != NULL) world_stop(world);
    rpc_runtime_close(world->runtime, on_flag, &closed);
    WAIT(world, closed);
    uv_close((uv_handle_t *)&world->waker, NULL);
    uv_run(&world->loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&world->loop), 0); /* nothing was left behind */
    char *command = mem_printf("rm -r %s", world->directory);
    ck_assert_int_eq(system(command), 0);
    free(command);
    free((char *)world->options.runtime_dir);
    free((char *)world->options.state_dir);
}

char *world_path(const struct world *world, const char *name)
{
    return file_path_join(world->directory, name);
}

void world_run(struct world *world, int milliseconds)
{
    int64_t until = (int64_t)(uv_hrtime() / 1000000) + milliseconds;
    while ((int64_t)(uv_hrtime() / 1000000) < until) uv_run(&world->loop, UV_RUN_ONCE);
}

/* ---- the client ---- */

struct answer {
    bool done;
    status_t status;
    void *response;
};

static void on_answer(status_t status, const ProtobufCMessage *response, void *user)
{
    struct answer *answer = user;
    answer->done = true;
    answer->status = status;
    if (status == NULL) answer->response = message_copy(response);
}

status_t world_call(struct world *world, const struct rpc_method *method, const void *request,
                    void **response)
{
    struct answer answer = {0};
    rpc_channel_call(world->channel, method, request, 60000, false, on_answer, &answer);
    WAIT(world, answer.done);
    if (answer.status == NULL && response != NULL) *response = answer.response;
    else message_free(answer.response);
    return answer.status;
}

job_spec *world_spec(uint32_t workers)
{
    static Fsdpd__V1__ModelSpec model;
    static Fsdpd__V1__DataSpec data;
    static Fsdpd__V1__TrainSpec train;
    static Fsdpd__V1__OptimizerSpec optimizer;
    static Fsdpd__V1__ScheduleSpec schedule;
    static Fsdpd__V1__WrapSpec wrap;
    static Fsdpd__V1__FsdpSpec fsdp;
    static Fsdpd__V1__JobSpec spec;
    fsdpd__v1__model_spec__init(&model);
    model.file_name = (char *)"net.yaml";
    model.text = (char *)"fc: Linear(4, 2)\n";
    fsdpd__v1__data_spec__init(&data);
    data.format = (char *)"idx";
    data.dir = (char *)"mnist";
    data.normalize_std = 1;
    fsdpd__v1__train_spec__init(&train);
    train.epochs = 1;
    train.batch_size = 64;
    train.test_batch_size = 1000;
    train.seed = 1;
    train.log_interval = 10;
    train.accumulation_steps = 1;
    train.clip_grad_norm_type = (char *)"2";
    train.non_finite = (char *)"fail";
    train.shuffle = train.evaluate = train.dropout = true;
    fsdpd__v1__optimizer_spec__init(&optimizer);
    optimizer.type = (char *)"sgd";
    optimizer.lr = 0.1;
    fsdpd__v1__schedule_spec__init(&schedule);
    schedule.type = (char *)"constant";
    fsdpd__v1__wrap_spec__init(&wrap);
    wrap.policy = (char *)"none";
    fsdpd__v1__fsdp_spec__init(&fsdp);
    fsdp.strategy = (char *)"full_shard";
    fsdp.backward_prefetch = (char *)"pre";
    fsdp.wrap = &wrap;
    /* A failure is the end, unless a test says something else. */
    static Fsdpd__V1__RetrySpec retry = FSDPD__V1__RETRY_SPEC__INIT;
    fsdpd__v1__job_spec__init(&spec);
    spec.retry = &retry;
    static Fsdpd__V1__CheckpointSpec checkpoint = FSDPD__V1__CHECKPOINT_SPEC__INIT;
    spec.checkpoint = &checkpoint;
    spec.name = (char *)"mnist";
    spec.model = &model;
    spec.data = &data;
    spec.train = &train;
    spec.optimizer = &optimizer;
    spec.schedule = &schedule;
    spec.fsdp = &fsdp;
    spec.workers = workers;
    return &spec;
}

char *world_submit(struct world *world, uint32_t workers)
{
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(workers);
    void *response = NULL;
    expect_ok(world_call(world, &test_submit, &request, &response));
    char *id = mem_strdup(((job_message *)response)->id);
    message_free(response);
    return id;
}

job_message *world_job(struct world *world, const char *id)
{
    Fsdpd__V1__GetJobRequest request = FSDPD__V1__GET_JOB_REQUEST__INIT;
    request.id = (char *)id;
    void *response = NULL;
    expect_ok(world_call(world, &test_get, &request, &response));
    return response;
}

bool world_job_is(struct world *world, const char *id, enum job_state state)
{
    job_message *job = world_job(world, id);
    bool is = (int)job->state == (int)state;
    message_free(job);
    return is;
}

/* ---- streams ---- */

static void on_listener_message(struct rpc_stream *stream, const ProtobufCMessage *message,
                                void *user)
{
    struct listener *listener = user;
    MEM_GROW(listener->messages, listener->count, listener->capacity);
    listener->messages[listener->count++] = message_copy(message);
    if (!listener->paused) rpc_stream_read(stream);
}

static void on_listener_closed(struct rpc_stream *stream, status_t status, void *user)
{
    (void)stream;
    struct listener *listener = user;
    listener->closed = true;
    listener->status = status;
    listener->stream = NULL;
}

void listener_open(struct world *world, struct listener *listener, const struct rpc_method *method,
                   const void *request, bool paused)
{
    static const struct rpc_stream_callbacks callbacks = {.on_message = on_listener_message,
                                                          .on_closed = on_listener_closed};
    *listener = (struct listener){.paused = paused};
    listener->stream =
        rpc_stream_open(world->channel, method, request, 0, false, &callbacks, listener);
    if (!paused) rpc_stream_read(listener->stream);
}

void listener_resume(struct listener *listener)
{
    listener->paused = false;
    if (listener->stream != NULL) rpc_stream_read(listener->stream);
}

void listener_deinit(struct listener *listener)
{
    for (int i = 0; i < listener->count; i++) message_free(listener->messages[i]);
    free(listener->messages);
    status_free(listener->status);
}

/* ---- workers ---- */

static void fake_send(struct fake *fake, const Fsdpd__V1__WorkerMessage *message)
{
    if (fake->stream != NULL) rpc_stream_send(fake->stream, &message->base);
}

static void answer_plan(struct fake *fake, const Fsdpd__V1__PlanOrder *order)
{
    fake->plans++;
    fake->plan_staged = order->staged;
    fake->plan_sharers = order->sharers;
    fake->plan_host_workers = order->host_workers;
    if (fake->silent_plans) return;
    Fsdpd__V1__Unit unit = FSDPD__V1__UNIT__INIT, *units[] = {&unit};
    unit.name = (char *)"(root)";
    Fsdpd__V1__Plan plan = FSDPD__V1__PLAN__INIT;
    plan.world = order->spec->workers;
    plan.parameters = 1 << 20;
    plan.hash = 42;
    plan.n_units = 1;
    plan.units = units;
    plan.module_tree = (char *)"FullyShardedDataParallel()";
    if (order->dump) plan.dump = (char *)"all of it";
    Fsdpd__V1__PlanResult result = FSDPD__V1__PLAN_RESULT__INIT;
    result.request = order->request;
    result.steps = 100;
    result.code = fake->plan_code;
    if (fake->plan_code != STATUS_OK) result.message = (char *)"fc1: 9216 expected, found 9000";
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

static void on_fake_message(struct rpc_stream *stream, const ProtobufCMessage *base, void *user)
{
    struct fake *fake = user;
    const Fsdpd__V1__CoordinatorMessage *message = (const void *)base;
    switch (message->message_case) {
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_WELCOME: fake->welcome = true; break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_PLAN: answer_plan(fake, message->plan); break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ASSIGNMENT:
        message_free(fake->assignment);
        fake->assignment = message_copy(message->assignment);
        fake->report = fake->acknowledged = 0;
        fake->assignments++;
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ORDER: take_order(fake, message->order); break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_DRAIN: fake->drained = true; break;
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
    fake->stream = rpc_stream_open(world->channel, &test_attach, NULL, 0, false, &callbacks, fake);
    Fsdpd__V1__Hello hello = FSDPD__V1__HELLO__INIT;
    hello.id = (char *)fake->id;
    hello.device = (char *)(fake->device != NULL ? fake->device : "cpu");
    hello.shares_device = fake->shares_device;
    hello.version = (char *)(fake->version != NULL ? fake->version : PACKAGE_VERSION);
    hello.protocol = FSDPD__V1__HELLO__PROTOCOL__CURRENT;
    hello.attempts = &held;
    hello.n_attempts = held != NULL;
    hello.memory_bytes = 1 << 30;
    hello.pid = pid;
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
    *fake = (struct fake){.world = world, .id = id};
    say_hello(fake, pid, NULL);
}

void fake_attach_device(struct world *world, struct fake *fake, const char *id, int64_t pid,
                        const char *device, bool shares_device)
{
    *fake =
        (struct fake){.world = world, .id = id, .device = device, .shares_device = shares_device};
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
    held.plan_hash = 42;
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
}

void fake_heartbeat(struct fake *fake, uint64_t step)
{
    Fsdpd__V1__Heartbeat heartbeat = FSDPD__V1__HEARTBEAT__INIT;
    heartbeat.step = step;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_HEARTBEAT;
    message.heartbeat = &heartbeat;
    fake_send(fake, &message);
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
    started.steps = 100;
    started.resumed_step = step;
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
    metrics.op_times_step = step;
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
    epoch.test_loss = 0.1;
    epoch.accuracy = 0.98;
    epoch.evaluated = true;
    epoch.step = step;
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_EPOCH;
    event.epoch = &epoch;
    send_event(fake, &event);
}

void fake_validation(struct fake *fake, uint64_t step, double loss)
{
    Fsdpd__V1__Validation validation = FSDPD__V1__VALIDATION__INIT;
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
    checkpoint.path = (char *)(code == STATUS_OK ? "/somewhere" : "");
    checkpoint.bytes = 1000;
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

/* ---- jobs ---- */

char *world_start_running(struct world *world, struct fake fakes[2])
{
    fake_attach(world, &fakes[0], "host/cpu:0", 1000);
    fake_attach(world, &fakes[1], "host/cpu:1", 1001);
    char *id = world_submit(world, 2);
    for (int r = 0; r < 2; r++) {
        WAIT(world, fakes[r].assignments == 1);
        fake_started(&fakes[r], 42);
    }
    WAIT(world, world_job_is(world, id, JOB_RUNNING));
    return id;
}

void world_check_reason(struct world *world, const char *id, enum job_state state, const char *code,
                        const char *words)
{
    job_message *job = world_job(world, id);
    ck_assert_msg((int)job->state == (int)state, "%s is %d: %s", id, job->state,
                  job->reason->message);
    ck_assert_str_eq(job->reason->code, code);
    ck_assert_msg(strstr(job->reason->message, words) != NULL, "\"%s\" lacks \"%s\"",
                  job->reason->message, words);
    message_free(job);
}

void world_deinit_running(struct world *world, struct fake *fakes, int count, char *id)
{
    for (int i = 0; i < count; i++)
        if (fakes[i].world != NULL) fake_deinit(&fakes[i]);
    free(id);
    world_deinit(world);
}

void world_check_by(struct world *world, const char *id, const char *code, bool user)
{
    Fsdpd__V1__GetHistoryRequest request = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    request.id = (char *)id;
    void *response = NULL;
    expect_ok(world_call(world, &test_history, &request, &response));
    const Fsdpd__V1__History *history = response;
    const char *owner = history->entries[0]->by, *by = NULL;
    ck_assert_str_ne(owner, "");
    for (size_t i = 0; i < history->n_entries; i++)
        if (strcmp(history->entries[i]->reason->code, code) == 0) by = history->entries[i]->by;
    ck_assert_msg(by != NULL, "%s has no entry %s", id, code);
    ck_assert_str_eq(by, user ? owner : "");
    message_free(response);
}

status_t world_cancel(struct world *world, const char *id)
{
    Fsdpd__V1__CancelJobRequest request = FSDPD__V1__CANCEL_JOB_REQUEST__INIT;
    request.id = (char *)id;
    return world_call(world, &test_cancel, &request, NULL);
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
    upload->stream =
        rpc_stream_open(fake->world->channel, &test_upload, NULL, 0, false, &callbacks, upload);
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
