/* Devices: memory and its accounting, lanes, events, sticky errors, and the record of the device
 * that engine tests have. */
#include "runtime/device.h"
#include "tests/testing.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "kernels/kernels.h"
#include "runtime/arena_pool.h"
#include "runtime/device_table.h"
#include "tests/engine/device_logged.h"

static struct device *open_device(const char *name)
{
    struct device *device;
    status_t status = device_open(name, 1, &device);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    return device;
}

static struct lane_queue *open_lane(struct device *device, enum lane kind)
{
    struct lane_queue *lane;
    ck_assert_ptr_null(lane_open(device, kind, &lane));
    return lane;
}

static struct event *new_event(struct device *device)
{
    struct event *event;
    ck_assert_ptr_null(event_new(device, &event));
    return event;
}

static void check_error(status_t status, enum status_code code, const char *words)
{
    ck_assert_msg(status_code(status) == code, "%s: %s", status_code_name(status_code(status)),
                  status_message(status));
    ck_assert_msg(strstr(status_message(status), words) != NULL, "%s", status_message(status));
    status_free(status);
}

TEST(open)
{
    struct device *device = NULL;
    setenv("FSDPD_BACKEND_DIR", "/nowhere", 1);
    check_error(device_open("cuda:0", 0, &device), STATUS_UNIMPLEMENTED, "/nowhere/fsdpd-cuda.so");
    check_error(device_open("cuda:x", 0, &device), STATUS_INVALID_ARGUMENT, "\"cuda:x\"");
    check_error(device_open("cuda:-1", 0, &device), STATUS_INVALID_ARGUMENT, "\"cuda:-1\"");
    check_error(device_open("tpu", 0, &device), STATUS_INVALID_ARGUMENT, "\"tpu\"");
    check_error(device_open("cudax", 0, &device), STATUS_INVALID_ARGUMENT, "\"cudax\"");
    check_error(device_open("cpu", -1, &device), STATUS_INVALID_ARGUMENT, "-1 threads");
    ck_assert_ptr_null(device);
    device = open_device("cpu");
    ck_assert_str_eq(device_name(device), "cpu");
    ck_assert_uint_gt(device_memory_bytes(device), 1 << 20);
    device_close(device);
    device_close(NULL);
}

TEST(memory)
{
    struct device *device = open_device("cpu");
    void *a, *b, *c;
    ck_assert_ptr_null(device_allocate(device, 1000, &a));
    ck_assert_ptr_null(device_allocate(device, 1 << 20, &b));
    ck_assert_ptr_null(device_allocate(device, 0, &c));
    ck_assert_uint_eq((uintptr_t)a % 256, 0);
    ck_assert_uint_eq((uintptr_t)b % 256, 0);
    ck_assert_ptr_nonnull(c);
    for (int i = 0; i < 1000; i++) ck_assert_int_eq(((char *)a)[i], 0);
    ck_assert_uint_eq(device_allocated_bytes(device), 1000 + (1 << 20));
    device_release(device, b);
    ck_assert_uint_eq(device_allocated_bytes(device), 1000);
    ck_assert_uint_eq(device_peak_bytes(device), 1000 + (1 << 20));
    device_release(device, NULL);
    b = c;
    check_error(device_allocate(device, (uint64_t)1 << 60, &b), STATUS_RESOURCE_EXHAUSTED, "cpu");
    ck_assert_ptr_eq(b, c);
    ck_assert_uint_eq(device_allocated_bytes(device), 1000);
    device_release(device, c);
    device_close(device); /* releases the rest */
}

TEST(shared_memory)
{
    struct device *device = open_device("null");
    uint64_t whole = device_memory_bytes(device);
    device_share_memory(device, 4);
    ck_assert_uint_eq(device_memory_bytes(device), whole / 4);
    device_limit_memory(device, 1000);
    ck_assert_uint_eq(device_memory_bytes(device), 1000);
    device_close(device);
}

TEST(touched)
{
    struct device *device = open_device("cpu");
    void *memory;
    ck_assert_ptr_null(device_allocate(device, 64 << 20, &memory));
    ck_assert_uint_eq(device_touched_bytes(device, memory), 0);
    memset((char *)memory + (8 << 20), 1, 4 << 20);
    uint64_t touched = device_touched_bytes(device, memory);
    ck_assert_uint_ge(touched, 4 << 20);
    ck_assert_uint_lt(touched, 16 << 20); /* the system may use large pages */
    ck_assert_uint_eq(device_touched_bytes(device, device), 0);
    device_close(device);
}

TEST(large_memory_is_touched_ahead)
{
    enum { BYTES = (160 << 20) + 5000 };
    struct device *device = open_device("cpu");
    char *memory;
    ck_assert_ptr_null(device_allocate(device, BYTES, (void **)&memory));
    bool can = madvise(memory, 1, MADV_POPULATE_WRITE) == 0 &&
               access("/sys/devices/system/node/node1", F_OK) != 0;
    device_release(device, memory);
    device_touch_ahead(device);
    for (int i = 0; i < 10; i++) { /* which goes before all of it is touched */
        ck_assert_ptr_null(device_allocate(device, BYTES, (void **)&memory));
        device_release(device, memory);
    }
    ck_assert_ptr_null(device_allocate(device, BYTES, (void **)&memory));
    for (size_t i = 0; i < BYTES; i += 1 << 20) memory[i] = (char)(i >> 20);
    while (can && device_touched_bytes(device, memory) < BYTES) usleep(1000);
    for (size_t i = 0; i < BYTES; i += 1 << 20) ck_assert_int_eq(memory[i], (char)(i >> 20));
    device_close(device);
}

enum { ARENA = 8 << 20, LARGE_ARENA = 80 << 20 };

/* A device's memory of that size, all of it written, and then released for the next one. */
static void leave(uint64_t bytes, bool reuse)
{
    struct device *device = open_device("cpu");
    char *memory;
    ck_assert_ptr_null(device_allocate(device, bytes, (void **)&memory));
    uint64_t zeros = 0;
    while (zeros < bytes && memory[zeros] == 0) zeros++;
    ck_assert_uint_eq(zeros, bytes);
    memset(memory, 1, bytes);
    if (reuse) device_reuse_memory(device);
    device_release(device, memory);
    device_close(device);
}

/* The bytes in touched pages of memory that nothing has been written to yet. */
static uint64_t find(uint64_t bytes)
{
    struct device *device = open_device("cpu");
    void *memory;
    ck_assert_ptr_null(device_allocate(device, bytes, &memory));
    uint64_t touched = device_touched_bytes(device, memory);
    device_close(device);
    return touched;
}

TEST(memory_is_used_again)
{
    leave(ARENA, true);
    ck_assert_uint_eq(find(ARENA), ARENA);
    ck_assert_uint_eq(find(ARENA), 0); /* a device that does not leave it */
    leave(ARENA, true);
    leave(ARENA, true); /* zeroed in between */
    leave(ARENA, false);
    ck_assert_uint_eq(find(ARENA), 0);
    leave(LARGE_ARENA, true);
    ck_assert_uint_eq(find(LARGE_ARENA), 0);
}

TEST(memory_that_is_kept_goes_when_another_amount_is_wanted)
{
    leave(ARENA, true);
    ck_assert_uint_eq(arena_pool_bytes(), ARENA);
    find(2 * ARENA);
    ck_assert_uint_eq(arena_pool_bytes(), 0);
    ck_assert_uint_eq(find(ARENA), 0);
}

struct trace {
    int *values;
    int *count;
    int value;
    int sleep_ms;
    const char *error;
    atomic_bool *begun; /* set when it begins; or NULL */
    atomic_bool *hold;  /* it ends only after this is set; or NULL */
};

static void wait_for(const atomic_bool *flag)
{
    for (int i = 0; i < 30000 && !atomic_load(flag); i++) clock_sleep_ms(1);
}

static status_t append(void *argument)
{
    struct trace *trace = argument;
    if (trace->begun != NULL) atomic_store(trace->begun, true);
    if (trace->hold != NULL) wait_for(trace->hold);
    if (trace->sleep_ms > 0) clock_sleep_ms(trace->sleep_ms);
    trace->values[(*trace->count)++] = trace->value;
    return trace->error != NULL ? status_new(STATUS_DATA_LOSS, "%s", trace->error) : NULL;
}

TESTS_BELOW(.timeout = 30);

/* More calls than the queue's capacity, in order. */
TEST(lane_order)
{
    enum { CALLS = 5000 };
    struct device *device = open_device("cpu");
    struct lane_queue *lane = open_lane(device, LANE_COMPUTE);
    int *values = mem_alloc_array(CALLS, sizeof *values), count = 0;
    struct trace *traces = mem_alloc_array(CALLS, sizeof *traces);
    for (int i = 0; i < CALLS; i++) {
        traces[i] = (struct trace){.values = values, .count = &count, .value = i};
        ck_assert_ptr_null(lane_call(lane, append, &traces[i]));
    }
    ck_assert_ptr_null(lane_wait(lane, 10000));
    ck_assert_int_eq(count, CALLS);
    for (int i = 0; i < CALLS; i++) ck_assert_int_eq(values[i], i);
    free(values);
    free(traces);
    lane_close(lane);
    device_close(device);
}

/*
 * Three lanes take turns on one array that only events guard: each turn runs on some lane after the
 * event of the previous turn. (Run under a thread sanitizer, this finds missing ordering.)
 */
TEST(events_order_lanes)
{
    enum { TURNS = 6000 };
    struct device *device = open_device("cpu");
    struct lane_queue *lanes[LANE_COUNT];
    struct event *events[LANE_COUNT];
    for (int l = 0; l < LANE_COUNT; l++) {
        lanes[l] = open_lane(device, (enum lane)l);
        events[l] = new_event(device);
    }
    int *values = mem_alloc_array(TURNS, sizeof *values), count = 0;
    struct trace *traces = mem_alloc_array(TURNS, sizeof *traces);
    int previous = -1;
    unsigned random = 12345;
    for (int i = 0; i < TURNS; i++) {
        random = random * 1664525u + 1013904223u;
        int lane = (int)(random >> 16) % LANE_COUNT;
        if (previous >= 0 && previous != lane) lane_wait_event(lanes[lane], events[previous]);
        traces[i] = (struct trace){.values = values, .count = &count, .value = i};
        ck_assert_ptr_null(lane_call(lanes[lane], append, &traces[i]));
        lane_record(lanes[lane], events[lane]);
        previous = lane;
    }
    for (int l = 0; l < LANE_COUNT; l++) ck_assert_ptr_null(lane_wait(lanes[l], 20000));
    ck_assert_int_eq(count, TURNS);
    for (int i = 0; i < TURNS; i++) ck_assert_int_eq(values[i], i);
    for (int l = 0; l < LANE_COUNT; l++) {
        lane_close(lanes[l]);
        event_free(events[l]);
    }
    free(values);
    free(traces);
    device_close(device);
}

TEST(sticky_error)
{
    struct device *device = open_device("cpu");
    struct lane_queue *a = open_lane(device, LANE_COMPUTE), *b = open_lane(device, LANE_COPY);
    struct event *event = new_event(device);
    int values[8], count = 0, other_values[8], other_count = 0;
    struct trace fine = {values, &count, 1, 0, NULL, NULL, NULL};
    struct trace bad = {values, &count, 2, 0, "first", NULL, NULL};
    struct trace worse = {values, &count, 3, 0, "second", NULL, NULL};
    struct trace other = {other_values, &other_count, 4, 0, NULL, NULL, NULL};
    ck_assert_ptr_null(lane_call(a, append, &fine));
    lane_label(a, "the second call");
    ck_assert_ptr_null(lane_call(a, append, &bad));
    lane_label(a, NULL);
    ck_assert_ptr_null(lane_call(a, append, &worse));
    lane_record(a, event);
    lane_wait_event(b, event);
    ck_assert_ptr_null(lane_call(b, append, &other));
    ck_assert_ptr_null(lane_wait(b, 5000));
    ck_assert_int_eq(other_count, 1);
    check_error(lane_wait(a, 5000), STATUS_DATA_LOSS, "the second call: first");
    ck_assert_int_eq(count, 2);
    ck_assert_ptr_null(lane_wait(a, 5000)); /* reported once */
    ck_assert_ptr_null(lane_call(a, append, &fine));
    ck_assert_ptr_null(lane_wait(a, 5000));
    ck_assert_int_eq(count, 3);
    lane_close(a);
    lane_close(b);
    event_free(event);
    device_close(device);
}

TEST(wait_deadline)
{
    struct device *device = open_device("cpu");
    struct lane_queue *lane = open_lane(device, LANE_COMM);
    int values[2], count = 0;
    atomic_bool waited = false;
    struct trace slow = {values, &count, 1, 200, NULL, NULL, &waited};
    ck_assert_ptr_null(lane_call(lane, append, &slow));
    check_error(lane_wait(lane, 20), STATUS_DEADLINE_EXCEEDED, "comm lane");
    atomic_store(&waited, true);
    ck_assert_ptr_null(lane_wait(lane, 10000));
    ck_assert_int_eq(count, 1);
    ck_assert_int_ge(lane_busy_ns(lane), 190000000);
    lane_close(lane);
    device_close(device);
}

/* A lane that waits for another's event can be closed, and so can the other, with work queued. */
static void *release_soon(void *flag)
{
    clock_sleep_ms(500);
    atomic_store((atomic_bool *)flag, true);
    return NULL;
}

LOOP_TEST(close_with_work, 0, 2)
{
    struct device *device = open_device("cpu");
    struct lane_queue *a = open_lane(device, LANE_COMPUTE), *b = open_lane(device, LANE_COPY);
    struct event *event = new_event(device);
    int values[4], count = 0, other_values[4], other_count = 0;
    atomic_bool begun = false, released = false;
    struct trace slow = {values, &count, 1, _i == 0 ? 0 : 500, NULL, &begun, NULL};
    struct trace dropped = {.values = values, .count = &count, .value = 2};
    struct trace other = {.values = other_values, .count = &other_count, .value = 3};
    if (_i == 0) slow.hold = &released;
    ck_assert_ptr_null(lane_call(a, append, &slow));
    ck_assert_ptr_null(lane_call(a, append, &dropped));
    lane_record(a, event);
    lane_wait_event(b, event);
    ck_assert_ptr_null(lane_call(b, append, &other));
    wait_for(&begun);
    if (_i == 0) {
        lane_close(b); /* does not wait for a */
        ck_assert_int_eq(count, 0);
        pthread_t thread;
        pthread_create(&thread, NULL, release_soon, &released);
        lane_close(a);
        pthread_join(thread, NULL);
        ck_assert_int_eq(other_count, 0);
    } else {
        lane_close(a); /* fires the event that it drops */
        ck_assert_ptr_null(lane_wait(b, 5000));
        ck_assert_int_eq(other_count, 1);
        lane_close(b);
    }
    ck_assert_int_eq(count, 1);
    event_free(event);
    lane_close(NULL);
    event_free(NULL);
    device_close(device);
}

TEST(copy_and_optimize)
{
    struct device *device = open_device("cpu");
    struct lane_queue *lane = open_lane(device, LANE_COMPUTE);
    float param[5] = {1, 2, 3, 4, 5}, grad[5] = {1, 1, 1, 1, 1}, copy[5] = {0};
    float *slots[1] = {NULL};
    struct optimizer_step step = {.kind = OPTIMIZER_SGD, .lr = 0.5};
    float stats[PLAN_STATS_COUNT] = {[PLAN_STAT_TARGETS] = 8, [PLAN_STAT_COUNTED] = 8};
    ck_assert_ptr_null(lane_optimize(lane, &step, 5, param, NULL, grad, slots, stats, false));
    ck_assert_ptr_null(lane_copy(lane, copy, param, sizeof copy));
    ck_assert_ptr_null(lane_wait(lane, 5000));
    for (int i = 0; i < 5; i++) ck_assert_float_eq(copy[i], (float)i + 0.5f);
    stats[PLAN_STAT_COUNTED] = 2; /* the gradient is that of a quarter of the targets */
    ck_assert_ptr_null(lane_optimize(lane, &step, 5, param, NULL, grad, slots, stats, false));
    ck_assert_ptr_null(lane_wait(lane, 5000));
    for (int i = 0; i < 5; i++) ck_assert_float_eq(param[i], (float)i - 1.5f);
    stats[PLAN_STAT_COUNTED] = 0;
    grad[0] = NAN;
    ck_assert_ptr_null(lane_optimize(lane, &step, 5, param, NULL, grad, slots, stats, false));
    ck_assert_ptr_null(lane_wait(lane, 5000));
    for (int i = 0; i < 5; i++) ck_assert_float_eq(param[i], (float)i - 1.5f);
    lane_close(lane);
    device_close(device);
}

/* A gradient (3, 4), over two ranks that hold one element each. */
static void run_gate(struct lane_queue *lane, const struct gate_args *args, const float *gradient,
                     float *stats)
{
    double partials[2] = {0, 0};
    ck_assert_ptr_null(lane_norm(lane, args->kind, 1, gradient, &partials[0]));
    ck_assert_ptr_null(lane_norm(lane, args->kind, 1, gradient + 1, &partials[1]));
    ck_assert_ptr_null(lane_gate(lane, args, partials, 2, stats));
    ck_assert_ptr_null(lane_wait(lane, 5000));
}

TEST(gate)
{
    struct device *device = open_device("cpu");
    struct lane_queue *lane = open_lane(device, LANE_COMPUTE);
    float gradient[2] = {3, -4},
          stats[PLAN_STATS_COUNT] = {
              [PLAN_STAT_LOSS] = 2, [PLAN_STAT_TARGETS] = 6, [PLAN_STAT_COUNTED] = 6};
    struct gate_args args = {.kind = NORM_2, .max_norm = 10};
    run_gate(lane, &args, gradient, stats);
    ck_assert_float_eq(stats[PLAN_STAT_NORM], 5);
    ck_assert_float_eq(stats[PLAN_STAT_SCALE], 1);
    ck_assert_float_eq(stats[PLAN_STAT_SKIPPED], 0);
    args.max_norm = 1;
    run_gate(lane, &args, gradient, stats);
    ck_assert_float_eq_tol(stats[PLAN_STAT_SCALE], 1 / 5.000001, 1e-7);
    stats[PLAN_STAT_COUNTED] = 12; /* clips the optimizer's gradient */
    run_gate(lane, &args, gradient, stats);
    ck_assert_float_eq(stats[PLAN_STAT_NORM], 2.5f);
    ck_assert_float_eq_tol(stats[PLAN_STAT_SCALE], 0.5 / 2.500001, 1e-7);
    args.kind = NORM_INF;
    run_gate(lane, &args, gradient, stats);
    ck_assert_float_eq(stats[PLAN_STAT_NORM], 2);
    args.skip = true;
    run_gate(lane, &args, gradient, stats);
    ck_assert_float_eq(stats[PLAN_STAT_SKIPPED], 1);
    args.skip = false;
    stats[PLAN_STAT_COUNTED] = 0;
    run_gate(lane, &args, gradient, stats);
    ck_assert(stats[PLAN_STAT_SKIPPED] == 1 && stats[PLAN_STAT_SCALE] == 0);
    ck_assert_float_eq(stats[PLAN_STAT_NORM], 0);
    stats[PLAN_STAT_COUNTED] = 12;

    for (int kind = NORM_2; kind <= NORM_INF; kind++)
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < 2; k++) {
                float bad[2] = {3, -4};
                bad[i] = k == 0 ? NAN : INFINITY;
                args.kind = (enum norm_kind)kind;
                run_gate(lane, &args, bad, stats);
                ck_assert_float_eq(stats[PLAN_STAT_SKIPPED], 1);
                ck_assert(!isfinite(stats[PLAN_STAT_NORM]));
            }
    stats[PLAN_STAT_LOSS] = INFINITY;
    run_gate(lane, &args, gradient, stats);
    ck_assert_float_eq(stats[PLAN_STAT_SKIPPED], 1);

    /* The optimizer obeys. */
    float param[2] = {1, 1};
    struct optimizer_step step = {.kind = OPTIMIZER_SGD, .lr = 1};
    ck_assert_ptr_null(
        lane_optimize(lane, &step, 2, param, NULL, gradient, (float *[]){NULL}, stats, true));
    ck_assert_ptr_null(lane_wait(lane, 5000));
    ck_assert_float_eq(param[0], 1);
    stats[PLAN_STAT_SKIPPED] = 0;
    stats[PLAN_STAT_SCALE] = 0.25f;
    ck_assert_ptr_null(
        lane_optimize(lane, &step, 2, param, NULL, gradient, (float *[]){NULL}, stats, true));
    ck_assert_ptr_null(lane_wait(lane, 5000));
    ck_assert_float_eq(param[0], 0.25f);
    ck_assert_float_eq(param[1], 2);
    lane_close(lane);
    device_close(device);
}

TEST(logged)
{
    struct device *device = device_logged_open();
    struct lane_queue *lane = open_lane(device, LANE_COMM), *copy = open_lane(device, LANE_COPY);
    struct event *event = new_event(device);
    void *memory;
    char here[64];
    struct optimizer_step step = {.kind = OPTIMIZER_ADADELTA};
    ck_assert_ptr_null(device_allocate(device, (uint64_t)1 << 40, &memory));
    ck_assert_ptr_null(lane_copy(copy, (char *)memory + 128, here, sizeof here));
    lane_record(copy, event);
    lane_wait_event(lane, event);
    float *floats = memory;
    ck_assert_ptr_null(
        lane_optimize(lane, &step, 10, floats, NULL, floats + 16, NULL, floats + 8, false));
    ck_assert_ptr_null(
        lane_optimize(lane, &step, 10, floats, NULL, floats + 16, NULL, floats + 32, true));
    ck_assert_ptr_null(lane_zero(lane, floats, 12));
    ck_assert_ptr_null(lane_add(lane, 3, floats, floats + 1));
    ck_assert_ptr_null(lane_norm(lane, NORM_INF, 5, floats, memory));
    struct gate_args gate = {.kind = NORM_INF, .max_norm = 0.5};
    ck_assert_ptr_null(lane_gate(lane, &gate, memory, 2, floats + 4));
    check_error(lane_call(lane, append, NULL), STATUS_UNIMPLEMENTED, "logged");
    ck_assert_ptr_null(lane_wait(lane, 0));
    char *log = device_logged_text(device);
    ck_assert_str_eq(log, "copy: copy 64 host -> m0+128\n"
                          "copy: record e0\n"
                          "comm: wait e0\n"
                          "comm: optimize adadelta 10 m0+0 by m0+64 of m0+32\n"
                          "comm: optimize adadelta 10 m0+0 by m0+64 if m0+128\n"
                          "comm: zero 12 m0+0\n"
                          "comm: add 3 m0+4 -> m0+0\n"
                          "comm: norm inf 5 m0+0 -> m0+0\n"
                          "comm: gate 0.5 2 m0+0 -> m0+16\n");
    free(log);
    ck_assert_uint_eq(device_peak_bytes(device), (uint64_t)1 << 40);
    lane_close(lane);
    lane_close(copy);
    event_free(event);
    device_close(device);
}

static status_t never_end(void *argument)
{
    while (argument == NULL) pause();
    return NULL;
}

static void *wait_for_lane(void *lane)
{
    status_free(lane_wait(lane, INT64_MAX));
    return NULL;
}

/* The lane never gets done, so one of the two meets the other in it. */
TEST(two_threads_may_not_use_a_lane_at_a_time, .signal = SIGABRT)
{
    struct device *device = open_device("cpu");
    struct lane_queue *lane = open_lane(device, LANE_COMPUTE);
    ck_assert_ptr_null(lane_call(lane, never_end, NULL));
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_lane, lane), 0);
    for (;;) lane_label(lane, "another thread's");
}
