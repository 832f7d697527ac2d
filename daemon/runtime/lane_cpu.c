/*
 * The cpu's lanes: one thread each, fed through a ring of fixed size, and events, which count their
 * recordings. The executor's thread feeds the lanes; each lane's thread takes one piece of work at
 * a time. Lane threads block all signals: the process's main loop handles them.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/signals.h"
#include "kernels/kernels.h"
#include "runtime/device_table.h"

enum { RING_SIZE = 1024 };

#define MAX_TIMEOUT_MS ((int64_t)1000 * 86400 * 365)

enum work_kind {
    WORK_CALL,
    WORK_COPY,
    WORK_LAUNCH,
    WORK_OPTIMIZE,
    WORK_ROUND,
    WORK_ZERO,
    WORK_ADD,
    WORK_NORM,
    WORK_GATE,
    WORK_RECORD,
    WORK_WAIT,
    WORK_STAMP
};

struct work {
    enum work_kind kind;
    const char *label;
    union {
        struct {
            status_t (*function)(void *argument);
            void *argument;
        } call;
        struct {
            void *to;
            const void *from;
            uint64_t bytes;
        } copy;
        struct {
            struct device_graph *graph;
            int op;
            struct kernel_call call;
        } launch;
        struct {
            struct optimizer_step step;
            size_t n;
            float *param;
            uint16_t *rounded;
            const float *grad;
            float *slots[OPTIMIZER_MAX_SLOTS];
            const float *stats;
            bool gated;
        } optimize;
        struct {
            size_t n;
            uint16_t *to;
            const float *from;
        } round;
        struct {
            void *memory;
            uint64_t bytes;
        } zero;
        struct {
            size_t n;
            float *to;
            const float *from;
        } add;
        struct {
            enum norm_kind kind;
            size_t n;
            const float *values;
            double *partial;
        } norm;
        struct {
            struct gate_args args;
            const double *partials;
            int count;
            float *stats;
        } gate;
        struct {
            struct cpu_event *event;
            uint64_t recording; /* which one to fire, or to wait for */
        } event;
        int64_t *stamp;
    };
};

struct cpu_event {
    struct event base;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t recorded; /* recordings enqueued; used by the enqueueing thread only */
    _Atomic uint64_t fired;
};

struct cpu_lane {
    struct lane_queue base;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t filled; /* the ring has work, or the lane closes */
    pthread_cond_t room;   /* the ring is no longer full */
    pthread_cond_t idle;   /* nothing is queued and nothing runs */
    struct work ring[RING_SIZE];
    unsigned head, count;      /* head: the oldest */
    bool running;              /* a piece of work is out of the ring and not done: */
    struct lane_now now;       /* this one */
    status_t error;            /* first one since the last lane_wait */
    struct cpu_event *waiting; /* the event that the lane's thread waits for */
    atomic_bool closing;
    _Atomic int64_t busy_ns;
};

static struct cpu_lane *cpu_lane(const struct lane_queue *lane)
{
    return (struct cpu_lane *)lane;
}

static void event_fire(struct cpu_event *event, uint64_t recording)
{
    pthread_mutex_lock(&event->lock);
    if (recording > atomic_load_explicit(&event->fired, memory_order_relaxed))
        atomic_store_explicit(&event->fired, recording, memory_order_release);
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
}

static bool event_has_fired(struct cpu_event *event, uint64_t recording)
{
    return atomic_load_explicit(&event->fired, memory_order_acquire) >= recording;
}

static void event_await(struct cpu_lane *lane, struct cpu_event *event, uint64_t recording)
{
    if (event_has_fired(event, recording)) return;
    pthread_mutex_lock(&lane->lock);
    lane->waiting = event;
    pthread_mutex_unlock(&lane->lock);

    pthread_mutex_lock(&event->lock);
    while (!event_has_fired(event, recording) && !atomic_load(&lane->closing))
        pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);

    pthread_mutex_lock(&lane->lock);
    lane->waiting = NULL;
    pthread_mutex_unlock(&lane->lock);
}

static status_t work_run(struct work *work)
{
    switch (work->kind) {
    case WORK_CALL: return work->call.function(work->call.argument);
    case WORK_COPY: memcpy(work->copy.to, work->copy.from, work->copy.bytes); return NULL;
    case WORK_LAUNCH: {
        struct device_graph *graph = work->launch.graph;
        int op = work->launch.op;
        if (graph->prepared[op] == NULL) return NULL; /* a view */
        return kernel_run(graph->prepared[op], &work->launch.call);
    }
    case WORK_OPTIMIZE:
        step_cpu_optimize(&work->optimize.step, work->optimize.n, work->optimize.param,
                          work->optimize.rounded, work->optimize.grad, work->optimize.slots,
                          work->optimize.stats, work->optimize.gated);
        return NULL;
    case WORK_ROUND:
        kernel_f32_to_bf16(work->round.n, work->round.to, work->round.from);
        return NULL;
    case WORK_ZERO: memset(work->zero.memory, 0, work->zero.bytes); return NULL;
    case WORK_ADD: kernel_add(work->add.n, work->add.to, work->add.from); return NULL;
    case WORK_NORM:
        step_cpu_norm(work->norm.kind, work->norm.n, work->norm.values, work->norm.partial);
        return NULL;
    case WORK_GATE:
        step_cpu_gate(&work->gate.args, work->gate.partials, work->gate.count, work->gate.stats);
        return NULL;
    case WORK_RECORD:
    case WORK_WAIT:
    case WORK_STAMP: break;
    }
    return NULL;
}

static struct lane_now describe(const struct work *work)
{
    return (struct lane_now){.busy = true,
                             .label = work->label,
                             .awaits = work->kind == WORK_WAIT ? work->event.event : NULL,
                             .since_ns = clock_monotonic_ns()};
}

static void *lane_main(void *argument)
{
    struct cpu_lane *lane = argument;
    pthread_mutex_lock(&lane->lock);
    for (;;) {
        while (lane->count == 0 && !atomic_load(&lane->closing))
            pthread_cond_wait(&lane->filled, &lane->lock);
        if (atomic_load(&lane->closing)) break;
        struct work work = lane->ring[lane->head];
        lane->head = (lane->head + 1) % RING_SIZE;
        lane->count--;
        lane->running = true;
        lane->now = describe(&work);
        bool skip = lane->error != NULL;
        if (lane->count == RING_SIZE - 1) pthread_cond_broadcast(&lane->room);
        pthread_mutex_unlock(&lane->lock);

        status_t status = NULL;
        if (work.kind == WORK_RECORD) {
            event_fire(work.event.event, work.event.recording);
        } else if (work.kind == WORK_WAIT) {
            event_await(lane, work.event.event, work.event.recording);
        } else if (work.kind == WORK_STAMP) {
            *work.stamp = clock_monotonic_ns();
        } else if (!skip) {
            int64_t start = clock_monotonic_ns();
            status = work_run(&work);
            atomic_fetch_add(&lane->busy_ns, clock_monotonic_ns() - start);
            if (work.label != NULL) status = status_wrap(status, "%s", work.label);
        }

        pthread_mutex_lock(&lane->lock);
        lane->running = false;
        if (status != NULL) lane->error = status_first(lane->error, status);
        if (lane->count == 0) pthread_cond_broadcast(&lane->idle);
    }
    /* Dropped work must not leave other lanes waiting. */
    for (; lane->count > 0; lane->count--, lane->head = (lane->head + 1) % RING_SIZE) {
        struct work *work = &lane->ring[lane->head];
        if (work->kind == WORK_RECORD) event_fire(work->event.event, work->event.recording);
    }
    pthread_mutex_unlock(&lane->lock);
    return NULL;
}

static const char *const lane_thread_names[LANE_COUNT] = {"lane-compute", "lane-comm", "lane-copy",
                                                          "lane-download", "lane-host"};

status_t lane_cpu_open(struct device *device, enum lane kind, struct lane_queue **lane)
{
    struct cpu_lane *result = mem_alloc(sizeof *result);
    result->base.device = device;
    result->base.kind = kind;
    pthread_mutex_init(&result->lock, NULL);
    condition_init(&result->filled);
    condition_init(&result->room);
    condition_init(&result->idle);
    sigset_t before;
    signals_block(&before);
    int error = pthread_create(&result->thread, NULL, lane_main, result);
    signals_restore(&before);
    if (error != 0) {
        pthread_cond_destroy(&result->idle);
        pthread_cond_destroy(&result->room);
        pthread_cond_destroy(&result->filled);
        pthread_mutex_destroy(&result->lock);
        free(result);
        return status_from_errno(error, "cannot start the thread of the %s lane",
                                 lane_thread_names[kind] + strlen("lane-"));
    }
    pthread_setname_np(result->thread, lane_thread_names[kind]);
    *lane = &result->base;
    return NULL;
}

void lane_cpu_close(struct lane_queue *base)
{
    struct cpu_lane *lane = cpu_lane(base);
    pthread_mutex_lock(&lane->lock);
    atomic_store(&lane->closing, true);
    struct cpu_event *waiting = lane->waiting;
    pthread_cond_broadcast(&lane->filled);
    pthread_mutex_unlock(&lane->lock);
    if (waiting != NULL) {
        pthread_mutex_lock(&waiting->lock);
        pthread_cond_broadcast(&waiting->changed);
        pthread_mutex_unlock(&waiting->lock);
    }
    pthread_join(lane->thread, NULL);
    status_free(lane->error);
    pthread_cond_destroy(&lane->idle);
    pthread_cond_destroy(&lane->room);
    pthread_cond_destroy(&lane->filled);
    pthread_mutex_destroy(&lane->lock);
    free(lane);
}

status_t lane_cpu_event_new(struct device *device, struct event **event)
{
    struct cpu_event *result = mem_alloc(sizeof *result);
    result->base.device = device;
    pthread_mutex_init(&result->lock, NULL);
    condition_init(&result->changed);
    *event = &result->base;
    return NULL;
}

void lane_cpu_event_free(struct event *base)
{
    struct cpu_event *event = (struct cpu_event *)base;
    /* The lane that fired it may still be inside event_fire. */
    pthread_mutex_lock(&event->lock);
    pthread_mutex_unlock(&event->lock);
    pthread_cond_destroy(&event->changed);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

static void enqueue(struct lane_queue *base, const struct work *work)
{
    struct cpu_lane *lane = cpu_lane(base);
    pthread_mutex_lock(&lane->lock);
    /* Everything that queued work waits for was enqueued earlier, so space becomes free. */
    while (lane->count == RING_SIZE) pthread_cond_wait(&lane->room, &lane->lock);
    struct work *slot = &lane->ring[(lane->head + lane->count++) % RING_SIZE];
    *slot = *work;
    slot->label = base->label;
    pthread_cond_signal(&lane->filled);
    pthread_mutex_unlock(&lane->lock);
}

void lane_cpu_record(struct lane_queue *lane, struct event *base)
{
    struct cpu_event *event = (struct cpu_event *)base;
    struct work work = {.kind = WORK_RECORD, .event = {event, ++event->recorded}};
    enqueue(lane, &work);
}

void lane_cpu_wait_event(struct lane_queue *lane, struct event *base)
{
    struct cpu_event *event = (struct cpu_event *)base;
    if (event_has_fired(event, event->recorded)) return;
    struct work work = {.kind = WORK_WAIT, .event = {event, event->recorded}};
    enqueue(lane, &work);
}

status_t lane_cpu_call(struct lane_queue *lane, status_t (*function)(void *argument),
                       void *argument)
{
    struct work work = {.kind = WORK_CALL, .call = {function, argument}};
    enqueue(lane, &work);
    return NULL;
}

status_t lane_cpu_copy(struct lane_queue *lane, void *to, const void *from, uint64_t bytes)
{
    struct work work = {.kind = WORK_COPY, .copy = {to, from, bytes}};
    if (bytes > 0) enqueue(lane, &work);
    return NULL;
}

status_t lane_cpu_launch(struct lane_queue *lane, struct device_graph *graph, int op,
                         const struct kernel_call *call)
{
    struct work work = {.kind = WORK_LAUNCH, .launch = {graph, op, *call}};
    if (graph->prepared[op] != NULL) enqueue(lane, &work);
    return NULL;
}

status_t lane_cpu_optimize(struct lane_queue *lane, const struct optimizer_step *step, size_t n,
                           float *param, uint16_t *rounded, const float *grad, float *const *slots,
                           const float *stats, bool gated)
{
    struct work work = {.kind = WORK_OPTIMIZE,
                        .optimize = {.step = *step,
                                     .n = n,
                                     .param = param,
                                     .rounded = rounded,
                                     .grad = grad,
                                     .stats = stats,
                                     .gated = gated}};
    int slot_count = optimizer_step_slots(step);
    for (int i = 0; i < slot_count; i++) work.optimize.slots[i] = slots[i];
    if (n > 0) enqueue(lane, &work);
    return NULL;
}

status_t lane_cpu_round(struct lane_queue *lane, size_t n, uint16_t *to, const float *from)
{
    struct work work = {.kind = WORK_ROUND, .round = {n, to, from}};
    if (n > 0) enqueue(lane, &work);
    return NULL;
}

status_t lane_cpu_stamp(struct lane_queue *lane, int64_t *ns)
{
    struct work work = {.kind = WORK_STAMP, .stamp = ns};
    enqueue(lane, &work);
    return NULL;
}

status_t lane_cpu_zero(struct lane_queue *lane, void *memory, uint64_t bytes)
{
    struct work work = {.kind = WORK_ZERO, .zero = {memory, bytes}};
    if (bytes > 0) enqueue(lane, &work);
    return NULL;
}

status_t lane_cpu_add(struct lane_queue *lane, size_t n, float *to, const float *from)
{
    struct work work = {.kind = WORK_ADD, .add = {n, to, from}};
    if (n > 0) enqueue(lane, &work);
    return NULL;
}

status_t lane_cpu_norm(struct lane_queue *lane, enum norm_kind kind, size_t n, const float *values,
                       double *partial)
{
    struct work work = {.kind = WORK_NORM, .norm = {kind, n, values, partial}};
    if (n > 0) enqueue(lane, &work);
    return NULL;
}

status_t lane_cpu_gate(struct lane_queue *lane, const struct gate_args *args,
                       const double *partials, int count, float *stats)
{
    struct work work = {.kind = WORK_GATE, .gate = {*args, partials, count, stats}};
    enqueue(lane, &work);
    return NULL;
}

status_t lane_cpu_wait(struct lane_queue *base, int64_t timeout_ms)
{
    struct cpu_lane *lane = cpu_lane(base);
    if (timeout_ms > MAX_TIMEOUT_MS) timeout_ms = MAX_TIMEOUT_MS;
    int64_t deadline_ns = clock_monotonic_ns() + timeout_ms * 1000000;
    bool expired = false;
    pthread_mutex_lock(&lane->lock);
    while ((lane->count > 0 || lane->running) && !expired)
        expired = !condition_wait(&lane->idle, &lane->lock, deadline_ns);
    status_t status = NULL;
    if (lane->count > 0 || lane->running) {
        base->unfinished = true;
        status =
            status_new(STATUS_DEADLINE_EXCEEDED, "the %s lane did not finish within %" PRId64 " ms",
                       lane_thread_names[base->kind] + strlen("lane-"), timeout_ms);
    } else {
        status = lane->error;
        lane->error = NULL;
    }
    pthread_mutex_unlock(&lane->lock);
    return status;
}

struct lane_now lane_cpu_look(struct lane_queue *base)
{
    struct cpu_lane *lane = cpu_lane(base);
    pthread_mutex_lock(&lane->lock);
    struct lane_now now = lane->running ? lane->now : (struct lane_now){0};
    pthread_mutex_unlock(&lane->lock);
    return now;
}

int64_t lane_cpu_busy_ns(const struct lane_queue *lane)
{
    return atomic_load(&cpu_lane(lane)->busy_ns);
}
