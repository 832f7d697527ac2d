/* The world of the coordinator's tests; see test_coordinator_world.h. */
#include "test_coordinator_world.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "spec/spec.h"

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

void world_reload(struct world *world, const struct coordinator_options *options)
{
    AUTO(coordinator_files_deinit) struct coordinator_files files = {0};
    expect_ok(coordinator_files_read(options, &files));
    expect_ok(coordinator_reload(world->coordinator, options, &files));
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
    data.format = FSDPD__V1__DATA_FORMAT__DATA_FORMAT_IDX;
    data.dir = (char *)"mnist";
    data.normalize_std = 1;
    fsdpd__v1__train_spec__init(&train);
    train.epochs = 1;
    train.batch_size = 64;
    train.test_batch_size = 1000;
    train.seed = 1;
    train.log_interval = 10;
    train.accumulation_steps = 1;
    train.clip_grad_norm_type = FSDPD__V1__NORM_TYPE__NORM_TYPE_2;
    train.non_finite = FSDPD__V1__NON_FINITE__NON_FINITE_FAIL;
    train.shuffle = train.evaluate = train.dropout = true;
    fsdpd__v1__optimizer_spec__init(&optimizer);
    optimizer.type = FSDPD__V1__OPTIMIZER_TYPE__OPTIMIZER_TYPE_SGD;
    optimizer.lr = 0.1;
    fsdpd__v1__schedule_spec__init(&schedule);
    schedule.type = FSDPD__V1__SCHEDULE_TYPE__SCHEDULE_TYPE_CONSTANT;
    fsdpd__v1__wrap_spec__init(&wrap);
    wrap.policy = FSDPD__V1__WRAP_POLICY__WRAP_POLICY_NONE;
    fsdpd__v1__fsdp_spec__init(&fsdp);
    fsdp.strategy = FSDPD__V1__STRATEGY__STRATEGY_FULL_SHARD;
    fsdp.backward_prefetch = FSDPD__V1__PREFETCH__PREFETCH_PRE;
    fsdp.wrap = &wrap;
    /* A failure is final, unless a test sets another policy. */
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
    spec_mark_given(&spec);
    return &spec;
}

char *world_submit(struct world *world, uint32_t workers)
{
    Fsdpd__V1__SubmitJobRequest request = FSDPD__V1__SUBMIT_JOB_REQUEST__INIT;
    request.spec = world_spec(workers);
    void *response = NULL;
    expect_ok(world_call(world, &control_submit_job, &request, &response));
    char *id = mem_strdup(((job_message *)response)->id);
    message_free(response);
    return id;
}

job_message *world_job(struct world *world, const char *id)
{
    Fsdpd__V1__GetJobRequest request = FSDPD__V1__GET_JOB_REQUEST__INIT;
    request.id = (char *)id;
    void *response = NULL;
    expect_ok(world_call(world, &control_get_job, &request, &response));
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

void world_check_reached(struct world *world, const char *id, const char *code, const char *words)
{
    Fsdpd__V1__GetHistoryRequest request = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    request.id = (char *)id;
    void *response = NULL;
    expect_ok(world_call(world, &control_get_history, &request, &response));
    const Fsdpd__V1__GetHistoryResponse *history = response;
    bool reached = false;
    const char *last = "";
    for (size_t i = 0; i < history->n_entries; i++) {
        const Fsdpd__V1__Reason *reason = history->entries[i]->reason;
        if (strcmp(reason->code, code) != 0) continue;
        last = reason->message;
        reached = reached || strstr(last, words) != NULL;
    }
    ck_assert_msg(reached, "%s has no entry %s with \"%s\"; the last is \"%s\"", id, code, words,
                  last);
    message_free(response);
}

void world_check_by(struct world *world, const char *id, const char *code, bool user)
{
    Fsdpd__V1__GetHistoryRequest request = FSDPD__V1__GET_HISTORY_REQUEST__INIT;
    request.id = (char *)id;
    void *response = NULL;
    expect_ok(world_call(world, &control_get_history, &request, &response));
    const Fsdpd__V1__GetHistoryResponse *history = response;
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
    return world_call(world, &control_cancel_job, &request, NULL);
}
