/* Simulated workers; see load.h. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "config.h"
#include "fsdpd/v1/methods.h"
#include "load.h"

enum { BEAT_MS = 10, HEARTBEAT_MS = 1000, STEPS = 1000, BURST = 200 };

struct load_worker {
    struct load *load;
    struct rpc_channel *channel;
    struct rpc_stream *stream;
    char id[32];
    bool welcome;
    /* Its attempt; job is NULL when it is idle. */
    struct load_job *job;
    uint32_t attempt, rank, world;
    double began_ms;
    uint64_t step;
    int beats; /* until the next heartbeat and, on rank 0, the next report */
};

static void send_message(struct load_worker *worker, Fsdpd__V1__WorkerMessage *message)
{
    if (worker->stream != NULL) rpc_stream_send(worker->stream, &message->base);
}

static void send_event(struct load_worker *worker, Fsdpd__V1__AttemptEvent *event)
{
    event->job = worker->job->id;
    event->attempt = worker->attempt;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_EVENT;
    message.event = event;
    send_message(worker, &message);
}

static void send_plan(struct load_worker *worker, const Fsdpd__V1__PlanOrder *order)
{
    Fsdpd__V1__PlanResult result = FSDPD__V1__PLAN_RESULT__INIT;
    result.request = order->request;
    result.plan = worker->load->plan;
    result.steps = STEPS;
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_PLAN;
    message.plan = &result;
    send_message(worker, &message);
    worker->load->plans_answered++;
}

/* Sends rank 0's report. train_seconds carries the time of the report, for the watchers. */
static void send_metrics(struct load_worker *worker)
{
    struct load_job *job = worker->job;
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    metrics.step = ++worker->step;
    metrics.epoch = (double)worker->step / STEPS;
    metrics.loss = 2.3 / (1 + (double)worker->step / 100);
    metrics.learning_rate = 1;
    metrics.samples_per_second = 4000;
    metrics.step_seconds = 0.032;
    metrics.seconds_left = 32;
    metrics.memory_peak_bytes = metrics.memory_bytes = 36700000;
    metrics.communicated_bytes = 9600000;
    metrics.communication_seconds = metrics.exposed_communication_seconds = 0.002;
    metrics.compute_seconds = 0.03;
    metrics.train_seconds = load_now_ms() / 1000;
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_METRICS;
    event.metrics = &metrics;
    send_event(worker, &event);
    job->metrics++;
    if (!job->running) worker->load->running++;
    job->running = true;
}

static void send_started(struct load_worker *worker)
{
    Fsdpd__V1__Started started = FSDPD__V1__STARTED__INIT;
    started.plan_hash = worker->load->plan->hash;
    started.steps = STEPS;
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_STARTED;
    event.started = &started;
    send_event(worker, &event);
}

static void end(struct load_worker *worker, enum status_code code, const char *why)
{
    struct load *load = worker->load;
    struct load_job *job = worker->job;
    Fsdpd__V1__Finished finished = FSDPD__V1__FINISHED__INIT;
    finished.code = (uint32_t)code;
    finished.message = (char *)why;
    finished.step =
        code == STATUS_OK ? STEPS : worker->step; /* the attempt skips its remaining steps */
    finished.memory_peak_bytes = finished.memory_planned_bytes = load->plan->peak_bytes;
    Fsdpd__V1__AttemptEvent event = FSDPD__V1__ATTEMPT_EVENT__INIT;
    event.event_case = FSDPD__V1__ATTEMPT_EVENT__EVENT_FINISHED;
    event.finished = &finished;
    send_event(worker, &event);
    worker->job = NULL;
    if (code == STATUS_OK && ++job->ended == (int)worker->world) {
        job->finished = true;
        load->finished++;
    }
    if (worker->rank == 0 && job->running) {
        job->running = false;
        load->running--;
    }
}

static void on_assignment(struct load_worker *worker, const Fsdpd__V1__Assignment *assignment)
{
    struct load *load = worker->load;
    struct load_job *job = load_find(load, assignment->job);
    if (job == NULL) {
        load_fail(load, "%s was assigned %s, which was never submitted", worker->id,
                  assignment->job);
    } else if (worker->job != NULL) {
        load_fail(load, "%s was assigned %s while it had %s", worker->id, job->id, worker->job->id);
    } else if (++job->assigned > (int)assignment->world) {
        load_fail(load, "%s was assigned to %d workers and has %u ranks", job->id, job->assigned,
                  assignment->world);
    } else {
        worker->job = job;
        worker->attempt = job->attempt = assignment->attempt;
        worker->rank = assignment->rank;
        worker->world = assignment->world;
        worker->step = 0;
        worker->began_ms = load_now_ms();
        send_started(worker);
    }
}

static void on_message(struct rpc_stream *stream, const ProtobufCMessage *base, void *user)
{
    struct load_worker *worker = user;
    const Fsdpd__V1__CoordinatorMessage *message = (const Fsdpd__V1__CoordinatorMessage *)base;
    switch (message->message_case) {
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_WELCOME:
        if (!worker->welcome) worker->load->attached++;
        worker->welcome = true;
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_PLAN: send_plan(worker, message->plan); break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ASSIGNMENT:
        on_assignment(worker, message->assignment);
        break;
    case FSDPD__V1__COORDINATOR_MESSAGE__MESSAGE_ORDER:
        if (worker->job != NULL && strcmp(message->order->job, worker->job->id) == 0 &&
            message->order->order_case == FSDPD__V1__ORDER__ORDER_CANCEL)
            end(worker, STATUS_CANCELLED, "cancelled");
        break;
    default: break;
    }
    rpc_stream_read(stream);
}

static void on_closed(struct rpc_stream *stream, status_t status, void *user)
{
    (void)stream;
    struct load_worker *worker = user;
    worker->stream = NULL;
    if (status_code(status) != STATUS_CANCELLED)
        load_fail(worker->load, "the link of %s ended: %s", worker->id, status_message(status));
    status_free(status);
}

static void attach(struct load_worker *worker, int number)
{
    static const struct rpc_stream_callbacks callbacks = {.on_message = on_message,
                                                          .on_closed = on_closed};
    struct load *load = worker->load;
    /* Eight workers per host, as in a cluster. */
    snprintf(worker->id, sizeof worker->id, "node%03d/cpu:%d", number / 8, number % 8);
    worker->channel = load_connect(load);
    worker->stream = rpc_stream_open(worker->channel, &worker_link_attach, NULL, 0, true,
                                     &callbacks, worker);
    Fsdpd__V1__Hello hello = FSDPD__V1__HELLO__INIT;
    hello.id = worker->id;
    hello.device = (char *)"cpu";
    hello.version = (char *)PACKAGE_VERSION;
    hello.memory_bytes = (uint64_t)64 << 30;
    hello.pid = 1000000 + number;
    hello.address = (char *)"127.0.0.1";
    Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
    message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_HELLO;
    message.hello = &hello;
    send_message(worker, &message);
    rpc_stream_read(worker->stream);
}

static void beat(struct load_worker *worker, int number)
{
    const struct load *load = worker->load;
    if (!worker->welcome || worker->stream == NULL) return;
    worker->beats++;
    /* Spread the heartbeats over a second, as those of independent processes are. */
    if ((worker->beats + number) % (HEARTBEAT_MS / BEAT_MS) == 0) {
        Fsdpd__V1__Heartbeat heartbeat = FSDPD__V1__HEARTBEAT__INIT;
        heartbeat.step = worker->step;
        Fsdpd__V1__WorkerMessage message = FSDPD__V1__WORKER_MESSAGE__INIT;
        message.message_case = FSDPD__V1__WORKER_MESSAGE__MESSAGE_HEARTBEAT;
        message.heartbeat = &heartbeat;
        send_message(worker, &message);
    }
    if (worker->job == NULL) return;
    bool due = (worker->beats + number) % (load->interval_ms / BEAT_MS) == 0;
    if (worker->rank == 0 && (due || worker->step == 0)) send_metrics(worker);
    /* A long curve, once all jobs wait; plans of others do not wait behind all of it. */
    if (worker->rank == 0 && load->submitted == load->job_count)
        while (worker->step < load->history && rpc_stream_queued(worker->stream) < BURST)
            send_metrics(worker);
    if (load->release && load_now_ms() - worker->began_ms >= load->run_ms)
        end(worker, STATUS_OK, "");
}

static void on_beat(uv_timer_t *timer)
{
    struct load *load = timer->data;
    for (int i = 0; i < load->worker_count; i++) beat(&load->workers[i], i);
}

void load_workers_start(struct load *load, int count)
{
    load->workers = mem_alloc_array((size_t)count, sizeof *load->workers);
    load->worker_count = count;
    for (int i = 0; i < count; i++) {
        load->workers[i].load = load;
        attach(&load->workers[i], i);
    }
    uv_timer_start(&load->beat, on_beat, BEAT_MS, BEAT_MS);
}

static void on_channel_closed(void *user)
{
    ((struct load *)user)->open--;
}

void load_workers_close(struct load *load)
{
    uv_timer_stop(&load->beat);
    for (int i = 0; i < load->worker_count; i++)
        rpc_channel_close(load->workers[i].channel, on_channel_closed, load);
}
