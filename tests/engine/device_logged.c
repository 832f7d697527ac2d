/* The logged device; see device_logged.h. */
#include "device_logged.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/buf.h"
#include "base/mem.h"
#include "kernels/kernels.h"
#include "runtime/device_table.h"

struct logged_device {
    struct device base;
    struct buf log; /* guarded by base.lock, as are the counters */
    int events;
};

struct logged_event {
    struct event base;
    int number;
};

static struct logged_device *logged_device(const struct device *device)
{
    return (struct logged_device *)device;
}

static void logged_close(struct device *device)
{
    buf_deinit(&logged_device(device)->log);
    device_deinit(device);
    free(device);
}

static uint64_t logged_memory_bytes(const struct device *device)
{
    (void)device;
    return (uint64_t)1 << 46;
}

static status_t logged_map(struct device *device, uint64_t bytes, void **memory)
{
    void *mapped = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "device %s: no address space for %" PRIu64 " bytes", device->name, bytes);
    *memory = mapped;
    return NULL;
}

static void logged_unmap(struct device *device, void *memory, uint64_t bytes)
{
    (void)device;
    munmap(memory, bytes);
}

static uint64_t logged_touched(struct device *device, void *memory, uint64_t bytes)
{
    (void)device;
    (void)memory;
    (void)bytes;
    return 0;
}

static status_t logged_prepare(struct device *device, const struct op_desc *desc, void **prepared,
                             uint64_t *workspace_bytes)
{
    (void)device;
    (void)desc;
    *prepared = NULL;
    *workspace_bytes = 0;
    return NULL;
}

static void logged_unprepare(void *prepared)
{
    (void)prepared;
}

static void log_address(struct logged_device *device, const void *address)
{
    for (int i = 0; i < device->base.allocation_count; i++) {
        const struct device_allocation *a = &device->base.allocations[i];
        uint64_t offset = (uint64_t)((const char *)address - (const char *)a->memory);
        if (address >= a->memory && offset < a->bytes) {
            buf_printf(&device->log, "m%d+%" PRIu64, i, offset);
            return;
        }
    }
    buf_add_text(&device->log, "host");
}

static const char *const lane_names[LANE_COUNT] = {"compute", "comm", "copy", "download", "host"};

/* Starts a line; log_end ends it and releases the lock. */
static struct logged_device *log_begin(const struct lane_queue *lane, const char *what)
{
    struct logged_device *device = logged_device(lane->device);
    pthread_mutex_lock(&device->base.lock);
    buf_printf(&device->log, "%s: %s", lane_names[lane->kind], what);
    return device;
}

static void log_end(struct logged_device *device)
{
    buf_add_char(&device->log, '\n');
    pthread_mutex_unlock(&device->base.lock);
}

static status_t logged_lane_open(struct device *device, enum lane kind, struct lane_queue **lane)
{
    struct lane_queue *result = mem_alloc(sizeof *result);
    result->device = device;
    result->kind = kind;
    *lane = result;
    return NULL;
}

static void logged_lane_close(struct lane_queue *lane)
{
    free(lane);
}

static status_t logged_event_new(struct device *device, struct event **event)
{
    struct logged_event *result = mem_alloc(sizeof *result);
    result->base.device = device;
    result->number = logged_device(device)->events++;
    *event = &result->base;
    return NULL;
}

static void logged_event_free(struct event *event)
{
    free(event);
}

static void logged_record(struct lane_queue *lane, struct event *event)
{
    struct logged_device *device = log_begin(lane, "record ");
    buf_printf(&device->log, "e%d", ((struct logged_event *)event)->number);
    log_end(device);
}

static void logged_wait_event(struct lane_queue *lane, struct event *event)
{
    struct logged_device *device = log_begin(lane, "wait ");
    buf_printf(&device->log, "e%d", ((struct logged_event *)event)->number);
    log_end(device);
}

static status_t logged_copy(struct lane_queue *lane, void *to, const void *from, uint64_t bytes)
{
    struct logged_device *device = log_begin(lane, "copy ");
    buf_printf(&device->log, "%" PRIu64 " ", bytes);
    log_address(device, from);
    buf_add_text(&device->log, " -> ");
    log_address(device, to);
    log_end(device);
    return NULL;
}

static status_t logged_launch(struct lane_queue *lane, struct device_graph *graph, int op,
                            const struct kernel_call *call)
{
    struct logged_device *device = log_begin(lane, "launch ");
    buf_printf(&device->log, "%s (", graph->graph->ops[op].name);
    const char *separator = "";
    for (int i = 0; i < OP_MAX_INPUTS; i++) {
        if (call->inputs[i] == NULL) continue;
        buf_add_text(&device->log, separator);
        log_address(device, call->inputs[i]);
        separator = ", ";
    }
    buf_add_text(&device->log, ") ->");
    for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
        if (call->outputs[i] == NULL) continue;
        buf_add_char(&device->log, ' ');
        log_address(device, call->outputs[i]);
    }
    log_end(device);
    return NULL;
}

static status_t logged_optimize(struct lane_queue *lane, const struct optimizer_step *step, size_t n,
                              float *param, uint16_t *rounded, const float *grad,
                              float *const *slots, const float *stats, bool gated)
{
    (void)slots;
    struct logged_device *device = log_begin(lane, "optimize ");
    buf_printf(&device->log, "%s %zu ", plan_optimizer_name(step->kind), n);
    log_address(device, param);
    if (rounded != NULL) {
        buf_add_text(&device->log, " and ");
        log_address(device, rounded);
    }
    buf_add_text(&device->log, " by ");
    log_address(device, grad);
    buf_add_text(&device->log, gated ? " if " : " of ");
    log_address(device, stats);
    log_end(device);
    return NULL;
}

static status_t logged_round(struct lane_queue *lane, size_t n, uint16_t *to, const float *from)
{
    struct logged_device *device = log_begin(lane, "round ");
    buf_printf(&device->log, "%zu ", n);
    log_address(device, from);
    buf_add_text(&device->log, " -> ");
    log_address(device, to);
    log_end(device);
    return NULL;
}

static status_t logged_zero(struct lane_queue *lane, void *memory, uint64_t bytes)
{
    struct logged_device *device = log_begin(lane, "zero ");
    buf_printf(&device->log, "%" PRIu64 " ", bytes);
    log_address(device, memory);
    log_end(device);
    return NULL;
}

static status_t logged_add(struct lane_queue *lane, size_t n, float *to, const float *from)
{
    struct logged_device *device = log_begin(lane, "add ");
    buf_printf(&device->log, "%zu ", n);
    log_address(device, from);
    buf_add_text(&device->log, " -> ");
    log_address(device, to);
    log_end(device);
    return NULL;
}

static status_t logged_norm(struct lane_queue *lane, enum norm_kind kind, size_t n,
                          const float *values, double *partial)
{
    struct logged_device *device = log_begin(lane, "norm ");
    buf_printf(&device->log, "%s %zu ", kind == NORM_2 ? "2" : "inf", n);
    log_address(device, values);
    buf_add_text(&device->log, " -> ");
    log_address(device, partial);
    log_end(device);
    return NULL;
}

static status_t logged_gate(struct lane_queue *lane, const struct gate_args *args,
                          const double *partials, int count, float *stats)
{
    struct logged_device *device = log_begin(lane, "gate ");
    buf_printf(&device->log, "%g %d ", args->max_norm, count);
    log_address(device, partials);
    buf_add_text(&device->log, " -> ");
    log_address(device, stats);
    log_end(device);
    return NULL;
}

static status_t logged_wait(struct lane_queue *lane, int64_t timeout_ms)
{
    (void)lane;
    (void)timeout_ms;
    return NULL;
}

static int64_t logged_busy_ns(const struct lane_queue *lane)
{
    (void)lane;
    return 0;
}

char *device_logged_text(const struct device *base)
{
    if (strcmp(base->name, "logged") != 0) return NULL;
    struct logged_device *device = logged_device(base);
    pthread_mutex_lock(&device->base.lock);
    char *text = mem_strdup(buf_text(&device->log));
    pthread_mutex_unlock(&device->base.lock);
    return text;
}

struct device *device_logged_open(void)
{
    static const struct device_table table = {
        .close = logged_close,
        .memory_bytes = logged_memory_bytes,
        .map = logged_map,
        .unmap = logged_unmap,
        .touched = logged_touched,
        .choose_layouts = graph_use_channels_last,
        .prepare = logged_prepare,
        .unprepare = logged_unprepare,
        .lane_open = logged_lane_open,
        .lane_close = logged_lane_close,
        .event_new = logged_event_new,
        .event_free = logged_event_free,
        .record = logged_record,
        .wait_event = logged_wait_event,
        .copy = logged_copy,
        .launch = logged_launch,
        .optimize = logged_optimize,
        .round = logged_round,
        .zero = logged_zero,
        .add = logged_add,
        .norm = logged_norm,
        .gate = logged_gate,
        .wait = logged_wait,
        .busy_ns = logged_busy_ns,
    };
    struct logged_device *result = mem_alloc(sizeof *result);
    device_init(&result->base, &table, "logged", 1);
    return &result->base;
}
