/*
 * The worker against a coordinator that does what the test says: common/rpc's server on the test's
 * own loop, the whole worker (worker_main) on a thread of its own. Everything waits with a
 * deadline. What is trained is a large linear layer over drawn digits, so that a state_dict is
 * larger than what the transport takes without a reader.
 */
#include <check.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "fsdpd/v1/worker.pb-c.h"
#include "hf/safetensors.h"
#include "proto/descriptors.h"
#include "rpc/server.h"
#include "spec/spec.h"
#include "worker/logs.h"
#include "worker/methods.h"
#include "worker/worker.h"

typedef Fsdpd__V1__WorkerMessage worker_message;
typedef Fsdpd__V1__CoordinatorMessage coordinator_message;
typedef Fsdpd__V1__AttemptEvent attempt_event;
#define WORKER(name) FSDPD__V1__WORKER_MESSAGE__MESSAGE_##name
#define COORDINATOR(name) FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_##name
#define EVENT(name) FSDPD__V1__ATTEMPT_EVENT__EVENT_##name

static const char model_text[] = "name: Large\n"
                                 "input: [1, 28, 28]\n"
                                 "classes: 10\n"
                                 "modules:\n"
                                 "  hidden: Linear(784, 2600)\n"
                                 "  out: Linear(2600, 10)\n"
                                 "forward:\n"
                                 "  - x = relu(hidden(flatten(x, 1)))\n"
                                 "  - output = log_softmax(out(x), 1)\n"
                                 "loss: nll_loss(output, target)\n";
enum { STATE_BYTES = 4 * (784 * 2600 + 2600 + 2600 * 10 + 10) };

static char directory[64]; /* with the data, the model, and the socket */

struct upload {
    struct rpc_call *call;
    uint64_t pull, total, step, bytes;
    struct buf start; /* at least the safetensors header */
    bool paused, ended, closed;
};

struct world {
    uv_loop_t loop;
    uv_timer_t waker; /* so that waits look at their condition often */
    struct rpc_runtime *runtime;
    struct rpc_server *server;
    char *address;
    bool server_closed, runtime_closed;
    pthread_t thread;
    struct worker_options options;
    int exit_code;
    _Atomic bool exited;

    /* seen */
    struct rpc_call *attached;
    int hellos;
    worker_message *hello, *plan; /* the latest */
    int heartbeats, plans, started, metrics, epochs, finishes, pulls_failed, store_sets, store_gets;
    uint64_t step; /* of the latest metrics or heartbeat */
    worker_message *finished, *pull_failed;
    int uploads;
    bool odd_line;
    bool log_end; /* the attempt's last line came */
    struct upload upload;     /* the latest */
    struct rpc_call *waiting; /* the latest StoreGet; never answered */
    bool pause_uploads;
    uint64_t first_report, last_report; /* of this stream; 0: none yet */
    int gaps;                           /* reports that came in no order */
    bool refuse;                        /* hellos */
};

/* The service. */

static worker_message *keep(worker_message **slot, const worker_message *message)
{
    if (*slot != NULL) fsdpd__v1__worker_message__free_unpacked(*slot, NULL);
    size_t size = fsdpd__v1__worker_message__get_packed_size(message);
    uint8_t *bytes = mem_alloc(size + 1);
    fsdpd__v1__worker_message__pack(message, bytes);
    *slot = fsdpd__v1__worker_message__unpack(NULL, size, bytes);
    free(bytes);
    return *slot;
}

static void on_event(struct world *world, const worker_message *message)
{
    const attempt_event *event = message->event;
    if (event->report > 0) {
        if (world->first_report == 0) world->first_report = event->report;
        else if (event->report != world->last_report + 1) world->gaps++;
        world->last_report = event->report;
    }
    switch (event->event_case) {
    case EVENT(STARTED): world->started++; break;
    case EVENT(METRICS):
        world->metrics++;
        world->step = event->metrics->step;
        break;
    case EVENT(EPOCH): world->epochs++; break;
    case EVENT(FINISHED):
        world->finishes++;
        ck_assert(world->log_end); /* what was logged is told before the end */
        world->log_end = false;
        keep(&world->finished, message);
        break;
    case EVENT(PULL_FAILED):
        world->pulls_failed++;
        keep(&world->pull_failed, message);
        break;
    case EVENT(LOGS):
        ck_assert_uint_eq(event->logs->n_lines, 1);
        if (strncmp(event->logs->lines[0]->text, "attempt_ended ", 14) == 0) world->log_end = true;
        if (strcmp(event->logs->lines[0]->text, "odd path=a?\xc3\xa9?") == 0) world->odd_line = true;
        break;
    default: ck_abort_msg("event %d", event->event_case);
    }
}

/* Heartbeats every so many milliseconds; 0: none. */
static void welcome(struct rpc_call *call, uint32_t heartbeat_ms)
{
    coordinator_message message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    Fsdpd__V1__Welcome body = FSDPD__V1__WELCOME__INIT;
    body.heartbeat_ms = heartbeat_ms;
    message.message_case = COORDINATOR(WELCOME);
    message.welcome = &body;
    rpc_call_send(call, &message.base);
}

static void attach_start(struct rpc_call *call, const ProtobufCMessage *request, void *user)
{
    (void)request;
    struct world *world = user;
    ck_assert_ptr_null(world->attached);
    world->attached = call;
    rpc_call_read(call);
}

static void attach_message(struct rpc_call *call, const ProtobufCMessage *base, void *user)
{
    struct world *world = user;
    const worker_message *message = (const worker_message *)base;
    if (message == NULL) {
        rpc_call_finish(call, NULL);
        return;
    }
    switch (message->message_case) {
    case WORKER(HELLO):
        world->hellos++;
        keep(&world->hello, message);
        if (world->refuse) {
            rpc_call_finish(call, status_new(STATUS_UNAVAILABLE, "no"));
            return;
        }
        welcome(call, 0);
        break;
    case WORKER(PLAN):
        world->plans++;
        keep(&world->plan, message);
        break;
    case WORKER(HEARTBEAT):
        world->heartbeats++;
        world->step = message->heartbeat->step;
        break;
    case WORKER(EVENT): on_event(world, message); break;
    default: ck_abort_msg("message %d", message->message_case);
    }
    rpc_call_read(call);
}

static void attach_closed(struct rpc_call *call, bool cancelled, void *user)
{
    (void)cancelled;
    struct world *world = user;
    if (world->attached == call) world->attached = NULL;
}

static void store_set(struct rpc_call *call, const ProtobufCMessage *request, void *user)
{
    (void)request;
    struct world *world = user;
    world->store_sets++;
    Fsdpd__V1__StoreSetResponse response = FSDPD__V1__STORE_SET_RESPONSE__INIT;
    rpc_call_reply(call, &response.base);
}

static void store_get(struct rpc_call *call, const ProtobufCMessage *request, void *user)
{
    (void)request;
    struct world *world = user;
    world->store_gets++;
    world->waiting = call;
}

static void upload_start(struct rpc_call *call, const ProtobufCMessage *request, void *user)
{
    (void)request;
    struct world *world = user;
    world->uploads++;
    buf_deinit(&world->upload.start);
    world->upload = (struct upload){.call = call, .paused = world->pause_uploads};
    if (!world->pause_uploads) rpc_call_read(call);
}

static void upload_message(struct rpc_call *call, const ProtobufCMessage *base, void *user)
{
    struct world *world = user;
    struct upload *upload = &world->upload;
    const Fsdpd__V1__UploadStateRequest *message = (const Fsdpd__V1__UploadStateRequest *)base;
    if (message == NULL) {
        upload->ended = true;
        Fsdpd__V1__UploadStateResponse response = FSDPD__V1__UPLOAD_STATE_RESPONSE__INIT;
        rpc_call_reply(call, &response.base);
        return;
    }
    if (message->total_size > 0) {
        ck_assert_str_eq(message->job, "digits-1");
        ck_assert_uint_eq(message->attempt, 1);
        upload->pull = message->pull;
        upload->total = message->total_size;
        upload->step = message->step;
    }
    if (upload->bytes == 0) buf_add(&upload->start, message->data.data, message->data.len);
    upload->bytes += message->data.len;
    rpc_call_read(call);
}

static void upload_closed(struct rpc_call *call, bool cancelled, void *user)
{
    (void)cancelled;
    struct world *world = user;
    if (world->upload.call == call) world->upload.closed = true;
}

static void world_serve(struct world *world)
{
    static const struct rpc_handler handlers[] = {
        {.method = &worker_method_attach,
         .on_start = attach_start,
         .on_message = attach_message,
         .on_closed = attach_closed},
        {.method = &worker_method_store_set, .on_start = store_set},
        {.method = &worker_method_store_get, .on_start = store_get},
        {.method = &worker_method_upload_state,
         .on_start = upload_start,
         .on_message = upload_message,
         .on_closed = upload_closed},
    };
    const struct rpc_service service = {"fsdpd.v1.WorkerLink", handlers, 4, world, RPC_WORKER, 0};
    status_t status = rpc_server_new(world->runtime, &service, 1, proto_descriptors,
                                     proto_descriptors_size, &world->server);
    if (status == NULL) status = rpc_server_listen(world->server, world->address, 0, NULL);
    if (status == NULL) status = rpc_server_start(world->server);
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

/* The world. */

#define WAIT(world, condition)                                                                     \
    do {                                                                                           \
        uint64_t until_ = uv_hrtime() + UINT64_C(30000000000);                                     \
        while (!(condition)) {                                                                     \
            ck_assert_msg(uv_hrtime() < until_, "waited for: %s", #condition);                     \
            uv_run(&(world)->loop, UV_RUN_ONCE);                                                   \
        }                                                                                          \
    } while (0)

static void on_waker(uv_timer_t *timer)
{
    (void)timer;
}

static void *worker_thread(void *argument)
{
    struct world *world = argument;
    world->exit_code = worker_main(&world->options);
    world->exited = true;
    return NULL;
}

static void world_prepare(struct world *world, bool supervised)
{
    *world = (struct world){.address = mem_printf("unix:%s/socket", directory), .exit_code = -1};
    world->options = (struct worker_options){
        .device = "cpu",
        .coordinator = world->address,
        .id = "here/cpu",
        .data_roots = {directory},
        .data_root_count = 1,
        .supervised = supervised,
    };
    uv_loop_init(&world->loop);
    uv_timer_init(&world->loop, &world->waker);
    uv_timer_start(&world->waker, on_waker, 2, 2);
    status_t status = rpc_runtime_new(&world->loop, &world->runtime);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    world_serve(world);
}

static void world_run(struct world *world)
{
    ck_assert_int_eq(pthread_create(&world->thread, NULL, worker_thread, world), 0);
    WAIT(world, world->hellos == 1);
}

static void world_init(struct world *world, bool supervised)
{
    world_prepare(world, supervised);
    world_run(world);
}

static void on_done(void *user)
{
    *(bool *)user = true;
}

static void world_send(struct world *world, const coordinator_message *message)
{
    ck_assert_ptr_nonnull(world->attached);
    rpc_call_send(world->attached, &message->base);
}

static void world_drain(struct world *world)
{
    coordinator_message message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    Fsdpd__V1__Drain drain = FSDPD__V1__DRAIN__INIT;
    message.message_case = COORDINATOR(DRAIN);
    message.drain = &drain;
    world_send(world, &message);
}

/* The worker has left, or is told to; its exit code must be this one. */
static void world_end(struct world *world, int exit_code)
{
    if (!world->exited && world->attached != NULL) world_drain(world);
    WAIT(world, world->exited);
    pthread_join(world->thread, NULL);
    ck_assert_int_eq(world->exit_code, exit_code);
    rpc_server_close(world->server, 0, on_done, &world->server_closed);
    WAIT(world, world->server_closed);
    rpc_runtime_close(world->runtime, on_done, &world->runtime_closed);
    WAIT(world, world->runtime_closed);
    uv_close((uv_handle_t *)&world->waker, NULL);
    uv_run(&world->loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&world->loop), 0);
    worker_message *kept[] = {world->hello, world->plan, world->finished, world->pull_failed};
    for (int i = 0; i < 4; i++)
        if (kept[i] != NULL) fsdpd__v1__worker_message__free_unpacked(kept[i], NULL);
    buf_deinit(&world->upload.start);
    free(world->address);
}

/* What the coordinator says. */

static Fsdpd__V1__JobSpec *make_spec(const char *steps, const char *save_model)
{
    char *text = mem_printf("name: digits\n"
                            "model: {file: net.yaml}\n"
                            "data: {dir: .}\n"
                            "train: {batch_size: 4, test_batch_size: 16, log_interval: 1,\n"
                            "        max_steps: %s, epochs: 100000, evaluate: false}\n"
                            "optimizer: {type: sgd}\n"
                            "save_model: %s\n",
                            steps, save_model);
    char *file = file_path_join(directory, "job.yaml");
    Fsdpd__V1__JobSpec *spec;
    status_t status = spec_read_text(text, strlen(text), file, NULL, 0, &spec);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    free(file);
    free(text);
    return spec;
}

static void world_order_plan(struct world *world, Fsdpd__V1__JobSpec *spec, uint64_t request)
{
    coordinator_message message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    Fsdpd__V1__PlanOrder order = FSDPD__V1__PLAN_ORDER__INIT;
    order.request = request;
    order.spec = spec;
    order.dump = true;
    message.message_case = COORDINATOR(PLAN);
    message.plan = &order;
    world_send(world, &message);
}

static void world_assign(struct world *world, Fsdpd__V1__JobSpec *spec, uint32_t rank,
                         uint32_t ranks)
{
    coordinator_message message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    Fsdpd__V1__Assignment assignment = FSDPD__V1__ASSIGNMENT__INIT;
    assignment.job = (char *)"digits-1";
    assignment.attempt = 1;
    assignment.rank = rank;
    assignment.world = ranks;
    assignment.spec = spec;
    assignment.store = (char *)"digits-1/1";
    assignment.timeout_ms = 60000;
    assignment.address = (char *)"127.0.0.1";
    message.message_case = COORDINATOR(ASSIGNMENT);
    message.assignment = &assignment;
    world_send(world, &message);
}

static void world_order(struct world *world, const char *job, uint64_t sequence,
                        Fsdpd__V1__CancelOrder *cancel, Fsdpd__V1__PullOrder *pull)
{
    coordinator_message message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    Fsdpd__V1__Order order = FSDPD__V1__ORDER__INIT;
    order.job = (char *)job;
    order.attempt = 1;
    order.sequence = sequence;
    order.order_case = cancel ? FSDPD__V1__ORDER__ORDER_CANCEL : FSDPD__V1__ORDER__ORDER_PULL;
    if (cancel) order.cancel = cancel;
    else order.pull = pull;
    message.message_case = COORDINATOR(ORDER);
    message.order = &order;
    world_send(world, &message);
}

static void world_cancel(struct world *world, uint64_t sequence, bool at_once)
{
    Fsdpd__V1__CancelOrder cancel = FSDPD__V1__CANCEL_ORDER__INIT;
    cancel.at_once = at_once;
    cancel.message = (char *)"not wanted";
    world_order(world, "digits-1", sequence, &cancel, NULL);
}

static void world_pull(struct world *world, uint64_t sequence, uint64_t pull)
{
    Fsdpd__V1__PullOrder order = FSDPD__V1__PULL_ORDER__INIT;
    order.pull = pull;
    world_order(world, "digits-1", sequence, NULL, &order);
}

/* A long run with one rank, in its first steps. */
static void world_train(struct world *world)
{
    Fsdpd__V1__JobSpec *spec = make_spec("0", "false");
    world_assign(world, spec, 0, 1);
    spec_free(spec);
    WAIT(world, world->step > 2);
}

static void expect_finished(struct world *world, enum status_code code, const char *words)
{
    WAIT(world, world->finishes > 0);
    const Fsdpd__V1__Finished *finished = world->finished->event->finished;
    ck_assert_str_eq(world->finished->event->job, "digits-1");
    ck_assert_msg(finished->code == (uint32_t)code && strstr(finished->message, words) != NULL,
                  "%u %s: %s", finished->code, finished->reason, finished->message);
}

static void expect_upload(struct world *world, uint64_t pull)
{
    const struct upload *upload = &world->upload;
    WAIT(world, upload->ended && upload->closed);
    ck_assert_uint_eq(upload->pull, pull);
    ck_assert_uint_eq(upload->bytes, upload->total);
    struct safetensors_header header;
    uint64_t needed;
    status_t status = safetensors_read_header(upload->start.data, upload->start.length,
                                              upload->total, &header, &needed);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_int_eq(header.count, 4);
    ck_assert_uint_eq(upload->total - header.data_offset, STATE_BYTES);
    safetensors_header_deinit(&header);
}

/* Tests. */

START_TEST(attaches)
{
    struct world world;
    world_init(&world, false);
    const Fsdpd__V1__Hello *hello = world.hello->hello;
    ck_assert_str_eq(hello->id, "here/cpu");
    ck_assert_str_eq(hello->device, "cpu");
    ck_assert_str_ne(hello->version, "");
    ck_assert_str_eq(hello->address, "127.0.0.1");
    ck_assert_int_eq(hello->pid, getpid());
    ck_assert_uint_gt(hello->memory_bytes, 1 << 20);
    welcome(world.attached, 10);
    WAIT(&world, world.heartbeats > 2);
    ck_assert_uint_eq(world.step, 0);
    /* Of another attempt, or of none: no concern of a worker that is idle. */
    world_cancel(&world, 1, true);
    world_pull(&world, 1, 7);
    world_end(&world, 0);
    ck_assert_int_eq(world.finishes, 0);
}
END_TEST

START_TEST(plans)
{
    struct world world;
    world_init(&world, false);
    Fsdpd__V1__JobSpec *spec = make_spec("5", "true");
    world_order_plan(&world, spec, 11);
    WAIT(&world, world.plans == 1);
    ck_assert_uint_eq(world.plan->plan->request, 11);
    ck_assert_msg(world.plan->plan->code == 0, "%s", world.plan->plan->message);
    ck_assert_uint_eq(world.plan->plan->steps, 5);
    ck_assert_uint_gt(world.plan->plan->plan->peak_bytes, STATE_BYTES);
    ck_assert_ptr_nonnull(strstr(world.plan->plan->plan->dump, "hidden"));

    free(spec->data->dir);
    spec->data->dir = mem_strdup("/etc");
    world_order_plan(&world, spec, 12);
    WAIT(&world, world.plans == 2);
    ck_assert_uint_eq(world.plan->plan->code, STATUS_PERMISSION_DENIED);

    world_order_plan(&world, NULL, 13);
    WAIT(&world, world.plans == 3);
    ck_assert_uint_eq(world.plan->plan->request, 13);
    ck_assert_uint_eq(world.plan->plan->code, STATUS_INVALID_ARGUMENT);

    /* Plans under way when the worker leaves. */
    for (uint64_t i = 0; i < 8; i++) world_order_plan(&world, spec, 20 + i);
    world_drain(&world);
    for (uint64_t i = 0; i < 8; i++) world_order_plan(&world, spec, 30 + i);
    world_end(&world, 0);
    spec_free(spec);
}
END_TEST

START_TEST(trains_and_uploads)
{
    struct world world;
    world_init(&world, false);
    Fsdpd__V1__JobSpec *spec = make_spec("6", "true");
    for (int run = 1; run <= 2; run++) { /* and is free again after */
        world_assign(&world, spec, 0, 1);
        WAIT(&world, world.finishes == run);
        expect_finished(&world, STATUS_OK, "trained");
        const Fsdpd__V1__Finished *finished = world.finished->event->finished;
        ck_assert_uint_eq(finished->step, 6);
        ck_assert_uint_gt(finished->memory_peak_bytes, 0);
        ck_assert_uint_le(finished->memory_peak_bytes, finished->memory_planned_bytes);
        ck_assert_int_eq(world.started, run);
        ck_assert_int_eq(world.uploads, run);
        ck_assert_int_ge(world.metrics, 6 * run);
        expect_upload(&world, 0);
        ck_assert_uint_eq(world.upload.step, 6);
        /* Finished is told before the thread has ended. */
        usleep(200000);
    }
    spec_free(spec);
    world_end(&world, 0);
}
END_TEST

START_TEST(pulls_while_training)
{
    struct world world;
    world_init(&world, false);
    world_train(&world);
    world_order(&world, "another-1", 1, NULL, &(Fsdpd__V1__PullOrder)FSDPD__V1__PULL_ORDER__INIT);
    for (uint64_t pull = 1; pull <= 3; pull++) {
        world_pull(&world, pull, 100 + pull);
        world_pull(&world, pull, 100 + pull); /* a repetition changes nothing */
        WAIT(&world, world.uploads == (int)pull);
        expect_upload(&world, 100 + pull);
        uint64_t step = world.upload.step;
        WAIT(&world, world.step > step);
    }
    world_cancel(&world, 4, false);
    expect_finished(&world, STATUS_CANCELLED, "not wanted");
    ck_assert_int_eq(world.uploads, 3);
    ck_assert_int_eq(world.pulls_failed, 0);
    world_end(&world, 0);
}
END_TEST

/* 0: by agreement, 1: at once. Nobody reads the state_dict that is on its way. */
START_TEST(ends_in_the_middle_of_a_pull)
{
    struct world world;
    world_init(&world, false);
    world.pause_uploads = true;
    world_train(&world);
    world_pull(&world, 1, 5);
    world_pull(&world, 2, 6);
    WAIT(&world, world.uploads == 1);
    uint64_t step = world.step;
    WAIT(&world, world.step > step + 3);
    world_cancel(&world, 3, _i == 1);
    WAIT(&world, world.pulls_failed == 2);
    expect_finished(&world, _i == 1 ? STATUS_ABORTED : STATUS_CANCELLED, "not wanted");
    WAIT(&world, world.upload.closed);
    ck_assert_uint_eq(world.pull_failed->event->pull_failed->pull, 6);
    world_end(&world, 0);
}
END_TEST

/* The coordinator refuses the upload: that pull fails, training does not. */
START_TEST(upload_refused)
{
    struct world world;
    world_init(&world, false);
    world.pause_uploads = true;
    world_train(&world);
    world_pull(&world, 1, 5);
    WAIT(&world, world.uploads == 1);
    rpc_call_finish(world.upload.call, status_new(STATUS_NOT_FOUND, "nobody waits for it"));
    WAIT(&world, world.pulls_failed == 1);
    const Fsdpd__V1__PullFailed *failed = world.pull_failed->event->pull_failed;
    ck_assert_uint_eq(failed->pull, 5);
    ck_assert_uint_eq(failed->code, STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(failed->message, "nobody waits"));
    uint64_t step = world.step;
    WAIT(&world, world.step > step + 1);
    world.pause_uploads = false;
    world_pull(&world, 2, 6);
    WAIT(&world, world.uploads == 2);
    expect_upload(&world, 6);
    world_cancel(&world, 3, false);
    expect_finished(&world, STATUS_CANCELLED, "not wanted");
    world_end(&world, 0);
}
END_TEST

/* The other rank never comes. */
START_TEST(cancelled_while_it_waits_for_the_others)
{
    struct world world;
    world_init(&world, false);
    Fsdpd__V1__JobSpec *spec = make_spec("0", "false");
    spec->workers = 2;
    world_assign(&world, spec, 0, 2);
    spec_free(spec);
    WAIT(&world, world.store_gets > 0);
    ck_assert_int_gt(world.store_sets, 0);
    world_cancel(&world, 1, true);
    expect_finished(&world, STATUS_ABORTED, "not wanted");
    world_end(&world, 0);
}
END_TEST

START_TEST(refuses_assignments_without_sense)
{
    struct world world;
    world_init(&world, false);
    Fsdpd__V1__JobSpec *spec = make_spec("3", "false");
    static const uint32_t ranks[][2] = {{1, 1}, {0, 2}, {0, 0}};
    for (int i = 0; i < 4; i++) {
        world_assign(&world, i < 3 ? spec : NULL, i < 3 ? ranks[i][0] : 0, i < 3 ? ranks[i][1] : 1);
        WAIT(&world, world.finishes == i + 1);
        expect_finished(&world, STATUS_INVALID_ARGUMENT, "makes no sense");
        usleep(100000);
    }
    spec_free(spec);
    world_end(&world, 0);
}
END_TEST

/* What is no UTF-8 does not cost the link, which would not take it. */
START_TEST(odd_lines)
{
    struct world world;
    world_init(&world, false);
    world_train(&world);
    log_event(LOG_INFO, "odd", "path=a\xff\xc3\xa9\xc3");
    WAIT(&world, world.odd_line);
    world_cancel(&world, 1, false);
    expect_finished(&world, STATUS_CANCELLED, "not wanted");
    world_end(&world, 0);
}
END_TEST

START_TEST(assigned_while_busy)
{
    struct world world;
    world_init(&world, false);
    world_train(&world);
    Fsdpd__V1__JobSpec *spec = make_spec("3", "false");
    world_assign(&world, spec, 0, 1);
    spec_free(spec);
    expect_finished(&world, STATUS_ABORTED, "assigned while busy");
    world_end(&world, 1);
}
END_TEST

START_TEST(drained_while_training)
{
    struct world world;
    world_init(&world, false);
    world_train(&world);
    world_pull(&world, 1, 5);
    world_drain(&world);
    expect_finished(&world, STATUS_ABORTED, "the daemon is stopping");
    world_end(&world, 0);
}
END_TEST

static void world_acknowledge(struct world *world, uint64_t report)
{
    coordinator_message message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    Fsdpd__V1__Ack ack = FSDPD__V1__ACK__INIT;
    ack.job = (char *)"digits-1";
    ack.attempt = 1;
    ack.report = report;
    message.message_case = COORDINATOR(ACK);
    message.ack = &ack;
    world_send(world, &message);
}

static void world_release(struct world *world)
{
    coordinator_message message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    Fsdpd__V1__Release release = FSDPD__V1__RELEASE__INIT;
    release.job = (char *)"digits-1";
    release.attempt = 1;
    message.message_case = COORDINATOR(RELEASE);
    message.release = &release;
    world_send(world, &message);
}

/* Cuts the link and waits for the next hello, which must name the running attempt. */
static const Fsdpd__V1__HeldAttempt *world_cut(struct world *world)
{
    int hellos = world->hellos;
    rpc_call_finish(world->attached, status_new(STATUS_UNAVAILABLE, "gone"));
    WAIT(world, world->hellos > hellos);
    const Fsdpd__V1__Hello *hello = world->hello->hello;
    ck_assert_uint_eq(hello->n_attempts, 1);
    ck_assert_str_eq(hello->attempts[0]->job, "digits-1");
    ck_assert_uint_eq(hello->attempts[0]->attempt, 1);
    return hello->attempts[0];
}

/* It trains on, says so, and repeats the reports that nobody has acknowledged, in order. */
START_TEST(link_lost_while_training)
{
    struct world world;
    world_init(&world, false);
    world_train(&world);
    world_pull(&world, 1, 5);
    WAIT(&world, world.uploads == 1);
    expect_upload(&world, 5);
    uint64_t last = world.last_report, step = world.step;
    ck_assert_uint_gt(last, 3);
    world.first_report = 0; /* of the next stream */
    const Fsdpd__V1__HeldAttempt *held = world_cut(&world);
    ck_assert(held->running);
    ck_assert_uint_eq(held->world, 1);
    ck_assert_uint_ne(held->plan_hash, 0);
    ck_assert_uint_ge(held->step, step);
    ck_assert_uint_eq(held->orders, 1);
    ck_assert_uint_eq(held->n_tail, 1);
    ck_assert_uint_eq(held->tail[0]->pull->pull, 5);
    WAIT(&world, world.last_report > last);
    ck_assert_uint_eq(world.first_report, 1);
    ck_assert_uint_eq(world.gaps, 0);

    /* What was acknowledged is not repeated. */
    world_acknowledge(&world, last);
    step = world.step;
    WAIT(&world, world.step > step + 1);
    last = world.last_report;
    world.first_report = 0;
    world_cut(&world);
    WAIT(&world, world.last_report > last);
    ck_assert_uint_gt(world.first_report, 3);
    ck_assert_uint_le(world.first_report, last + 1);
    world_cancel(&world, 2, false);
    expect_finished(&world, STATUS_CANCELLED, "not wanted");

    /* The end is kept, too, until somebody has it. */
    ck_assert(!world_cut(&world)->running);
    WAIT(&world, world.finishes == 2);
    world_release(&world);
    int hellos = world.hellos;
    rpc_call_finish(world.attached, status_new(STATUS_UNAVAILABLE, "gone"));
    WAIT(&world, world.hellos > hellos);
    ck_assert_uint_eq(world.hello->hello->n_attempts, 0);
    world_end(&world, 0);
}
END_TEST

/* The whole server goes, and another one comes: first with the attempt, then without. */
START_TEST(coordinator_restarts)
{
    struct world world;
    world_init(&world, false);
    world_train(&world);
    rpc_server_close(world.server, 0, on_done, &world.server_closed);
    WAIT(&world, world.server_closed);
    world.server_closed = false;
    world_serve(&world);
    WAIT(&world, world.hellos == 2);
    ck_assert(world.hello->hello->attempts[0]->running);
    uint64_t step = world.step;
    WAIT(&world, world.step > step + 1);
    ck_assert_int_eq(world.finishes, 0);
    world_release(&world); /* it knows nothing of it */
    expect_finished(&world, STATUS_ABORTED, "ended this attempt");
    world_release(&world);
    usleep(200000); /* it is told before the thread has ended */
    world.step = 0;
    world.finishes = 0;
    world_train(&world);
    world_cancel(&world, 1, false);
    expect_finished(&world, STATUS_CANCELLED, "not wanted");
    world_end(&world, 0);
}
END_TEST

/* The final state_dict is on its way when the coordinator goes: it comes again. */
START_TEST(state_dict_outlives_the_coordinator)
{
    struct world world;
    world_init(&world, false);
    world.pause_uploads = true;
    Fsdpd__V1__JobSpec *spec = make_spec("3", "true");
    world_assign(&world, spec, 0, 1);
    spec_free(spec);
    WAIT(&world, world.uploads == 1);
    rpc_server_close(world.server, 0, on_done, &world.server_closed);
    WAIT(&world, world.server_closed);
    world.server_closed = false;
    world.pause_uploads = false;
    ck_assert_int_eq(world.finishes, 0);
    world_serve(&world);
    WAIT(&world, world.uploads == 2);
    expect_upload(&world, 0);
    expect_finished(&world, STATUS_OK, "trained");
    world_end(&world, 0);
}
END_TEST

/* A rank that waits for its peer's key waits on, and what it has set is set again. */
START_TEST(rendezvous_outlives_the_coordinator)
{
    struct world world;
    world_init(&world, false);
    Fsdpd__V1__JobSpec *spec = make_spec("0", "false");
    spec->workers = 2;
    world_assign(&world, spec, 0, 2);
    spec_free(spec);
    WAIT(&world, world.store_gets > 0);
    int sets = world.store_sets, gets = world.store_gets;
    ck_assert_int_gt(sets, 0);
    rpc_server_close(world.server, 0, on_done, &world.server_closed);
    WAIT(&world, world.server_closed);
    world.server_closed = false;
    world_serve(&world);
    WAIT(&world, world.store_gets > gets);
    WAIT(&world, world.store_sets >= 2 * sets);
    ck_assert_int_eq(world.finishes, 0);
    world_cancel(&world, 1, true);
    expect_finished(&world, STATUS_ABORTED, "not wanted");
    world_end(&world, 0);
}
END_TEST

/* Silence is as good as a broken link. */
START_TEST(silent_coordinator)
{
    struct world world;
    world_init(&world, false);
    coordinator_message message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    Fsdpd__V1__Welcome body = FSDPD__V1__WELCOME__INIT;
    body.heartbeat_ms = 20;
    body.silence_ms = 100;
    message.message_case = COORDINATOR(WELCOME);
    message.welcome = &body;
    world_send(&world, &message);
    WAIT(&world, world.hellos == 2);
    world_end(&world, 0);
}
END_TEST

/* 0: a worker that does nothing ends with its supervisor; 1: one that trains goes on; 2: not for
 * ever. */
START_TEST(supervised_worker_and_its_coordinator)
{
    struct world world;
    world_prepare(&world, true);
    world.options.away_ms = _i == 2 ? 300 : 60000;
    world_run(&world);
    if (_i > 0) world_train(&world);
    if (_i == 1) {
        ck_assert(world_cut(&world)->running);
        uint64_t step = world.step;
        WAIT(&world, world.step > step + 1);
        world_end(&world, 0);
        return;
    }
    world.refuse = true;
    rpc_call_finish(world.attached, NULL);
    WAIT(&world, world.exited);
    world_end(&world, 1);
}
END_TEST

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *ftw)
{
    (void)info, (void)type, (void)ftw;
    return remove(path);
}

static void draw_digits(void)
{
    strcpy(directory, "/tmp/fsdpd-test-worker-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    const char *builddir = getenv("builddir");
    char *command = mem_printf("%s/fsdpd-digits --seed 7 --train 64 --test 16 -o %s",
                               builddir ? builddir : ".", directory);
    ck_assert_int_eq(system(command), 0);
    free(command);
    char *path = file_path_join(directory, "net.yaml");
    status_t status = file_write_atomic(path, model_text, strlen(model_text), 0644);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    free(path);
}

static void remove_digits(void)
{
    nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* A burst goes, then a steady rate; what is dropped is counted. */
START_TEST(log_rate)
{
    struct log_rate rate = {0};
    int64_t now = INT64_C(1000000000000);
    int taken = 0;
    for (int i = 0; i < 2 * LOG_RATE_BURST; i++) taken += log_rate_take(&rate, now);
    ck_assert_int_eq(taken, LOG_RATE_BURST);
    ck_assert_uint_eq(rate.dropped, LOG_RATE_BURST);
    taken = 0;
    for (int i = 0; i < 10000; i++) { /* ten seconds */
        now += 1000000;
        taken += log_rate_take(&rate, now);
    }
    ck_assert_int_eq(taken, 10 * LOG_RATE_PER_SECOND);
    now += INT64_C(1000000000000); /* long idle: one burst, not more */
    taken = 0;
    for (int i = 0; i < 2 * LOG_RATE_BURST; i++) taken += log_rate_take(&rate, now);
    ck_assert_int_eq(taken, LOG_RATE_BURST);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("worker");
    TCase *tests = tcase_create("worker");
    tcase_set_timeout(tests, 90);
    tcase_add_unchecked_fixture(tests, draw_digits, remove_digits);
    tcase_add_test(tests, log_rate);
    tcase_add_test(tests, attaches);
    tcase_add_test(tests, plans);
    tcase_add_test(tests, trains_and_uploads);
    tcase_add_test(tests, pulls_while_training);
    tcase_add_loop_test(tests, ends_in_the_middle_of_a_pull, 0, 2);
    tcase_add_test(tests, upload_refused);
    tcase_add_test(tests, cancelled_while_it_waits_for_the_others);
    tcase_add_test(tests, refuses_assignments_without_sense);
    tcase_add_test(tests, odd_lines);
    tcase_add_test(tests, assigned_while_busy);
    tcase_add_test(tests, drained_while_training);
    tcase_add_test(tests, link_lost_while_training);
    tcase_add_test(tests, coordinator_restarts);
    tcase_add_test(tests, state_dict_outlives_the_coordinator);
    tcase_add_test(tests, rendezvous_outlives_the_coordinator);
    tcase_add_test(tests, silent_coordinator);
    tcase_add_loop_test(tests, supervised_worker_and_its_coordinator, 0, 3);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
