/* A coordinator that the test controls; see test_worker_world.h. */
#include "test_worker_world.h"

#include <ftw.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "fsdpd/v1/methods.h"
#include "hf/safetensors.h"
#include "proto/descriptors.h"

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

static char directory[64]; /* with the data, the model, and the socket */

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
        world->timed += event->metrics->n_op_times > 0;
        world->step = event->metrics->step;
        break;
    case EVENT(EPOCH): world->epochs++; break;
    case EVENT(FINISHED):
        world->finishes++;
        ck_assert(world->log_end); /* logged lines arrive before the end */
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
        if (strcmp(event->logs->lines[0]->text, "odd path=a?\xc3\xa9?") == 0)
            world->odd_line = true;
        break;
    default: ck_abort_msg("event %d", event->event_case);
    }
}

/* Heartbeats at this interval in milliseconds; 0: none. */
void welcome(struct rpc_call *call, uint32_t heartbeat_ms)
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
    case WORKER(CALIBRATION):
        world->calibrations++;
        keep(&world->calibration, message);
        break;
    case WORKER(HEARTBEAT):
        world->heartbeats++;
        keep(&world->heartbeat, message);
        world->step = message->heartbeat->step;
        break;
    case WORKER(DIAGNOSIS):
        world->diagnoses++;
        keep(&world->diagnosis, message);
        break;
    case WORKER(LEAVE):
        world->leaves++;
        world->finishes_before_leave = world->finishes;
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

void world_serve(struct world *world)
{
    static const struct rpc_handler handlers[] = {
        {.method = &worker_link_attach,
         .on_start = attach_start,
         .on_message = attach_message,
         .on_closed = attach_closed},
        {.method = &worker_link_store_set, .on_start = store_set},
        {.method = &worker_link_store_get, .on_start = store_get},
        {.method = &worker_link_upload_state,
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

void world_prepare(struct world *world, bool supervised)
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

void world_run(struct world *world)
{
    ck_assert_int_eq(pthread_create(&world->thread, NULL, worker_thread, world), 0);
    WAIT(world, world->hellos == 1);
}

void world_init(struct world *world, bool supervised)
{
    world_prepare(world, supervised);
    world_run(world);
}

void on_done(void *user)
{
    *(bool *)user = true;
}

void world_send(struct world *world, const coordinator_message *message)
{
    ck_assert_ptr_nonnull(world->attached);
    rpc_call_send(world->attached, &message->base);
}

void world_drain(struct world *world)
{
    coordinator_message message = FSDPD__V1__COORDINATOR_MESSAGE__INIT;
    Fsdpd__V1__Drain drain = FSDPD__V1__DRAIN__INIT;
    message.message_case = COORDINATOR(DRAIN);
    message.drain = &drain;
    world_send(world, &message);
}

/* The worker has left, or gets the order to; its exit code must be this one. */
void world_end(struct world *world, int exit_code)
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
    worker_message *kept[] = {world->hello,    world->plan,        world->calibration,
                              world->finished, world->pull_failed, world->heartbeat,
                              world->diagnosis};
    for (size_t i = 0; i < COUNT_OF(kept); i++)
        if (kept[i] != NULL) fsdpd__v1__worker_message__free_unpacked(kept[i], NULL);
    buf_deinit(&world->upload.start);
    free(world->address);
}

/* The coordinator's messages. */

Fsdpd__V1__JobSpec *make_spec(const char *steps, const char *save_model)
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

void world_order_plan(struct world *world, Fsdpd__V1__JobSpec *spec, uint64_t request)
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

void world_assign(struct world *world, Fsdpd__V1__JobSpec *spec, uint32_t rank, uint32_t ranks)
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
    assignment.sharers = world->sharers;
    message.message_case = COORDINATOR(ASSIGNMENT);
    message.assignment = &assignment;
    world_send(world, &message);
}

void world_order(struct world *world, const char *job, uint64_t sequence,
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

void world_cancel(struct world *world, uint64_t sequence, bool at_once)
{
    Fsdpd__V1__CancelOrder cancel = FSDPD__V1__CANCEL_ORDER__INIT;
    cancel.at_once = at_once;
    cancel.message = (char *)"not wanted";
    world_order(world, "digits-1", sequence, &cancel, NULL);
}

void world_pull(struct world *world, uint64_t sequence, uint64_t pull)
{
    Fsdpd__V1__PullOrder order = FSDPD__V1__PULL_ORDER__INIT;
    order.pull = pull;
    world_order(world, "digits-1", sequence, NULL, &order);
}

/* A long run with one rank, in its first steps. */
void world_train(struct world *world)
{
    Fsdpd__V1__JobSpec *spec = make_spec("0", "false");
    world_assign(world, spec, 0, 1);
    spec_free(spec);
    WAIT(world, world->step > 2);
}

void expect_finished(struct world *world, enum status_code code, const char *words)
{
    WAIT(world, world->finishes > 0);
    const Fsdpd__V1__Finished *finished = world->finished->event->finished;
    ck_assert_str_eq(world->finished->event->job, "digits-1");
    ck_assert_msg(finished->code == (uint32_t)code && strstr(finished->message, words) != NULL,
                  "%u %s: %s", finished->code, finished->reason, finished->message);
}

void expect_upload(struct world *world, uint64_t pull)
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

void world_acknowledge(struct world *world, uint64_t report)
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

void world_release(struct world *world)
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
const Fsdpd__V1__HeldAttempt *world_cut(struct world *world)
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

/* The data. */

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *ftw)
{
    (void)info, (void)type, (void)ftw;
    return remove(path);
}

void draw_digits(void)
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

void remove_digits(void)
{
    nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}
