/*
 * Devices: opens one by name, accounts for its memory, lowers a graph, and dispatches lanes and
 * events to the device's table of functions. Memory accounting is thread-safe.
 */
#include "runtime/device.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/host.h"
#include "base/mem.h"
#include "base/text.h"
#include "kernels/kernels.h"
#include "runtime/backend.h"
#include "runtime/device_table.h"

/* "cuda" or "cuda:3". */
static status_t open_cuda(const char *name, int threads, struct device **device)
{
    int64_t number = 0;
    if (name[4] == ':' && (!text_parse_i64(name + 5, &number) || number < 0 || number > 1023))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "device \"%s\": expected cuda:N with N from 0 to 1023", name);
    const struct backend_table *backend = NULL;
    TRY(status_wrap(backend_load(&backend), "device %s", name));
    TRY(status_wrap(backend->open((int)number, device), "device %s", name));
    (*device)->threads = threads > 0 ? threads : 1;
    return NULL;
}

status_t device_open(const char *name, int threads, struct device **device)
{
    if (threads < 0 || threads > 4096)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "device %s: %d threads; expected 0 (one) to 4096", name, threads);
    if (strcmp(name, "cpu") == 0) return device_cpu_open(threads > 0 ? threads : 1, device);
    if (strcmp(name, "null") == 0) return device_null_open(device);
    if (strncmp(name, "cuda", 4) == 0 && (name[4] == '\0' || name[4] == ':'))
        return open_cuda(name, threads, device);
    return status_new(STATUS_INVALID_ARGUMENT, "device \"%s\": expected cpu or cuda:N", name);
}

void device_init(struct device *device, const struct device_table *table, const char *name,
                 int threads)
{
    device->table = table;
    device->name = mem_strdup(name);
    device->threads = threads;
    pthread_mutex_init(&device->lock, NULL);
}

static void unmap(struct device *device, struct device_allocation allocation)
{
    const struct device_table *table = device->table;
    void (*function)(struct device *, void *, uint64_t) = table->unmap;
    if (allocation.host && table->unmap_host != NULL) function = table->unmap_host;
    if (allocation.registrable && table->unmap_registrable != NULL)
        function = table->unmap_registrable;
    function(device, allocation.memory, allocation.bytes > 0 ? allocation.bytes : 1);
}

void device_deinit(struct device *device)
{
    device_close(device->host);
    for (int i = 0; i < device->allocation_count; i++) unmap(device, device->allocations[i]);
    free(device->allocations);
    pthread_mutex_destroy(&device->lock);
    free(device->name);
}

void device_close(struct device *device)
{
    if (device != NULL) device->table->close(device);
}

const char *device_name(const struct device *device)
{
    return device->name;
}

bool device_has_bf16(const struct device *device)
{
    return !device_is_host(device) || kernels_have_bf16();
}

const char *device_note(const struct device *device, int index)
{
    return device->table->note != NULL ? device->table->note(device, index) : NULL;
}

status_t device_model(const struct device *device, char *text, size_t size)
{
    if (device->table->model != NULL) return device->table->model(device, text, size);
    snprintf(text, size, "%s", device->name);
    return NULL;
}

uint64_t device_memory_bytes(const struct device *device)
{
    uint64_t bytes = device->table->memory_bytes(device);
    if (device->sharers > 1) bytes /= (uint64_t)device->sharers;
    uint64_t limit = device->limit, allocated = device_allocated_bytes(device);
    if (limit == 0) return bytes;
    uint64_t left = limit > allocated ? limit - allocated : 0;
    return left < bytes ? left : bytes;
}

void device_allow_timing(struct device *device)
{
    device->may_time = true;
}

void device_reuse_memory(struct device *device)
{
    device->reuses = true;
}

void device_touch_ahead(struct device *device)
{
    device->touches = true;
}

static atomic_bool is_lost;

void device_lose(void)
{
    atomic_store(&is_lost, true);
}

bool device_is_lost(void)
{
    return atomic_load(&is_lost);
}

void device_share_memory(struct device *device, int sharers)
{
    device->sharers = sharers;
}

void device_limit_memory(struct device *device, uint64_t bytes)
{
    device->limit = bytes;
}

uint64_t device_allocated_bytes(const struct device *device)
{
    pthread_mutex_t *lock = &((struct device *)device)->lock;
    pthread_mutex_lock(lock);
    uint64_t bytes = device->allocated;
    pthread_mutex_unlock(lock);
    return bytes;
}

uint64_t device_peak_bytes(const struct device *device)
{
    pthread_mutex_t *lock = &((struct device *)device)->lock;
    pthread_mutex_lock(lock);
    uint64_t bytes = device->peak;
    pthread_mutex_unlock(lock);
    return bytes;
}

/* `wanted` holds size and kind, and receives the address. */
static status_t allocate(struct device *device, struct device_allocation wanted, void **memory)
{
    const struct device_table *table = device->table;
    status_t (*function)(struct device *, uint64_t, void **) = table->map;
    if (wanted.host && table->map_host != NULL) function = table->map_host;
    if (wanted.registrable && table->map_registrable != NULL) function = table->map_registrable;
    /* An empty allocation still gets an address of its own. */
    TRY(function(device, wanted.bytes > 0 ? wanted.bytes : 1, &wanted.memory));
    pthread_mutex_lock(&device->lock);
    MEM_GROW(device->allocations, device->allocation_count, device->allocation_capacity);
    device->allocations[device->allocation_count++] = wanted;
    *(wanted.host ? &device->host_allocated : &device->allocated) += wanted.bytes;
    if (device->allocated > device->peak) device->peak = device->allocated;
    pthread_mutex_unlock(&device->lock);
    *memory = wanted.memory;
    return NULL;
}

status_t device_allocate(struct device *device, uint64_t bytes, void **memory)
{
    return allocate(device, (struct device_allocation){.bytes = bytes}, memory);
}

status_t device_allocate_registrable(struct device *device, uint64_t bytes, void **memory)
{
    TRY(device_check_registrable(device));
    return allocate(device, (struct device_allocation){.bytes = bytes, .registrable = true},
                    memory);
}

status_t device_check_registrable(const struct device *device)
{
    if (device->table->check_registrable == NULL) return NULL;
    return device->table->check_registrable(device);
}

status_t device_allocate_host(struct device *device, uint64_t bytes, void **memory)
{
    return allocate(device, (struct device_allocation){.bytes = bytes, .host = true}, memory);
}

uint64_t device_host_allocated_bytes(const struct device *device)
{
    pthread_mutex_t *lock = &((struct device *)device)->lock;
    pthread_mutex_lock(lock);
    uint64_t bytes = device->host_allocated;
    pthread_mutex_unlock(lock);
    return bytes;
}

void device_share_host(struct device *device, int ranks)
{
    device->host_ranks = ranks;
}

int device_host_ranks(const struct device *device)
{
    return device->host_ranks > 1 ? device->host_ranks : 1;
}

uint64_t device_host_memory_bytes(const struct device *device)
{
    uint64_t available = host_memory_available(), limit = device->host_limit, taken;
    if (limit == 0) return available;
    /* assumes that the other ranks allocate as much as this one */
    if (__builtin_mul_overflow(device_host_allocated_bytes(device),
                               (uint64_t)device_host_ranks(device), &taken) ||
        taken > limit)
        taken = limit;
    return limit - taken < available ? limit - taken : available;
}

bool device_is_host(const struct device *device)
{
    return strcmp(device->name, "cpu") == 0;
}

void device_release(struct device *device, void *memory)
{
    if (memory == NULL) return;
    struct device_allocation found = {0};
    pthread_mutex_lock(&device->lock);
    for (int i = 0; i < device->allocation_count && found.memory == NULL; i++) {
        if (device->allocations[i].memory != memory) continue;
        found = device->allocations[i];
        device->allocations[i] = device->allocations[--device->allocation_count];
        *(found.host ? &device->host_allocated : &device->allocated) -= found.bytes;
    }
    pthread_mutex_unlock(&device->lock);
    MUST(found.memory != NULL); /* else a foreign pointer, or released before */
    unmap(device, found);
}

uint64_t device_touched_bytes(struct device *device, void *memory)
{
    uint64_t bytes = 0;
    pthread_mutex_lock(&device->lock);
    for (int i = 0; i < device->allocation_count; i++)
        if (device->allocations[i].memory == memory) bytes = device->allocations[i].bytes;
    pthread_mutex_unlock(&device->lock);
    return bytes > 0 ? device->table->touched(device, memory, bytes) : 0;
}

/* Whether elements are in row-major order, whatever the layout is called. */
static bool is_plain(const struct tensor_type *type)
{
    if (type->layout == LAYOUT_PLAIN || type->dim_count != 4) return true;
    return type->dims[1] == 1 || type->dims[2] * type->dims[3] == 1;
}

/* A reshape that moves nothing. One that accumulates adds to the output: that is arithmetic; and a
 * parameter's memory is only its own. */
static bool is_view(const struct graph *graph, int op, const struct op_desc *desc)
{
    const struct tensor_type *x = &desc->inputs[0], *y = &desc->outputs[0];
    if (desc->kind != OP_RESHAPE || desc->accumulate[0]) return false;
    if (graph->values[graph->ops[op].inputs[0]].kind == VALUE_PARAMETER) return false;
    return (is_plain(x) && is_plain(y)) || (x->layout == y->layout && tensor_same_shape(x, y));
}

static bool is_in_place(const struct op_desc *desc)
{
    const struct tensor_type *x = &desc->inputs[0], *y = &desc->outputs[0];
    return op_info_get(desc->kind)->element_wise && desc->input_present[0] &&
           desc->output_present[0] && !desc->accumulate[0] && x->dtype == y->dtype &&
           x->layout == y->layout && tensor_same_shape(x, y);
}

/* Whether the gradients of an op's weights may be computed beside those of its data, op `op` + 1. */
static bool runs_beside_next(const struct device *device, const struct graph *graph, int op,
                             const struct op_desc *desc)
{
    struct op_desc next;
    if (device->table->runs_beside == NULL || op + 1 == graph->op_count) return false;
    graph_describe_op(graph, op + 1, &next);
    return device->table->runs_beside(device, desc, &next);
}

status_t device_lower(struct device *device, struct graph *graph, struct device_graph **lowered)
{
    if (device->table->choose_layouts != NULL) device->table->choose_layouts(graph);
    struct device_graph *result = mem_alloc(sizeof *result);
    size_t count = (size_t)graph->op_count;
    result->device = device;
    result->graph = graph;
    result->op_count = graph->op_count;
    result->workspace_bytes = mem_alloc_array(count, sizeof *result->workspace_bytes);
    result->view = mem_alloc_array(count, sizeof *result->view);
    result->in_place = mem_alloc_array(count, sizeof *result->in_place);
    result->beside = mem_alloc_array(count, sizeof *result->beside);
    result->prepared = mem_alloc_array(count, sizeof *result->prepared);
    result->lowering = (struct lowering){.workspace_bytes = result->workspace_bytes,
                                         .view = result->view,
                                         .in_place = result->in_place,
                                         .beside = result->beside};
    for (int op = 0; op < graph->op_count; op++) {
        struct op_desc desc;
        graph_describe_op(graph, op, &desc);
        result->view[op] = is_view(graph, op, &desc);
        result->in_place[op] = !result->view[op] && is_in_place(&desc);
        result->beside[op] = runs_beside_next(device, graph, op, &desc);
        if (result->view[op] || desc.kind == OP_GATHER_RANKS) continue; /* the communicator's */
        status_t status = device->table->prepare(device, &desc, &result->prepared[op],
                                                 &result->workspace_bytes[op]);
        if (status != NULL) {
            device_graph_free(result);
            return status_wrap(status, "device %s cannot run op %d, %s (%s)", device->name, op,
                               graph->ops[op].name, op_info_get(desc.kind)->name);
        }
    }
    *lowered = result;
    return NULL;
}

void device_graph_free(struct device_graph *lowered)
{
    if (lowered == NULL) return;
    for (int op = 0; op < lowered->op_count; op++)
        if (lowered->prepared[op] != NULL) lowered->device->table->unprepare(lowered->prepared[op]);
    free(lowered->prepared);
    free(lowered->beside);
    free(lowered->in_place);
    free(lowered->view);
    free(lowered->workspace_bytes);
    free(lowered);
}

const struct lowering *device_graph_lowering(const struct device_graph *lowered)
{
    return &lowered->lowering;
}

status_t lane_open(struct device *device, enum lane kind, struct lane_queue **lane)
{
    if (kind == LANE_HOST && device->table->event_fired != NULL) {
        if (device->host == NULL) {
            TRY(device_cpu_open(device->threads, &device->host));
            kernels_set_threads(
                device->threads); /* no host op was prepared, so nothing to wait for */
        }
        device = device->host;
    }
    return device->table->lane_open(device, kind, lane);
}

void lane_close(struct lane_queue *lane)
{
    if (lane == NULL) return;
    MUST(lane->user.thread == NULL); /* no thread uses it */
    lane->device->table->lane_close(lane);
}

status_t event_new(struct device *device, struct event **event)
{
    return device->table->event_new(device, event);
}

void event_free(struct event *event)
{
    if (event != NULL) event->device->table->event_free(event);
}

void lane_record(struct lane_queue *lane, struct event *event)
{
    MUST_ALONE(&lane->user);
    lane->device->table->record(lane, event);
}

/* The host waits for another device by polling, so that the driver's threads stay free. The polled
 * work finishes or fails before the device is closed, as its other lanes do. */
static status_t wait_for_device(void *argument)
{
    enum { PAUSE_NS = 20000 };
    struct event *event = argument;
    for (;;) {
        bool fired = false;
        TRY(event->device->table->event_fired(event, &fired));
        if (fired) return NULL;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
}

void lane_wait_event(struct lane_queue *lane, struct event *event)
{
    MUST_ALONE(&lane->user);
    if (event->device == lane->device) lane->device->table->wait_event(lane, event);
    else
        status_free(lane_call(lane, wait_for_device, event)); /* it runs on the host: it accepts
                                                               * calls */
}

void lane_label(struct lane_queue *lane, const char *label)
{
    MUST_ALONE(&lane->user);
    lane->label = label;
}

status_t lane_call(struct lane_queue *lane, status_t (*function)(void *argument), void *argument)
{
    MUST_ALONE(&lane->user);
    if (lane->device->table->call == NULL)
        return status_new(STATUS_UNIMPLEMENTED, "device %s: its lanes cannot run host functions",
                          lane->device->name);
    return lane->device->table->call(lane, function, argument);
}

status_t lane_copy(struct lane_queue *lane, void *to, const void *from, uint64_t bytes)
{
    MUST_ALONE(&lane->user);
    return lane->device->table->copy(lane, to, from, bytes);
}

status_t lane_transfer(struct lane_queue *lane, void *to, const void *from, uint64_t bytes)
{
    MUST_ALONE(&lane->user);
    const struct device_table *table = lane->device->table;
    return (table->transfer != NULL ? table->transfer : table->copy)(lane, to, from, bytes);
}

status_t lane_deliver(struct lane_queue *lane, void *to, const void *from, uint64_t bytes)
{
    MUST_ALONE(&lane->user);
    const struct device_table *table = lane->device->table;
    return (table->deliver != NULL ? table->deliver : table->copy)(lane, to, from, bytes);
}

struct lane_now lane_look(struct lane_queue *lane)
{
    struct lane_now (*look)(struct lane_queue *) = lane->device->table->look;
    return look != NULL ? look(lane) : (struct lane_now){0};
}

status_t lane_launch(struct lane_queue *lane, struct device_graph *graph, int op,
                     const struct kernel_call *call)
{
    MUST_ALONE(&lane->user);
    return lane->device->table->launch(lane, graph, op, call);
}

static int own_slots(const struct optimizer_step *step)
{
    switch (step->kind) {
#define SLOTS(KIND, name, kernel, count, ...)                                                      \
    case OPTIMIZER_##KIND: return count;
        OPTIMIZERS(SLOTS)
#undef SLOTS
    case OPTIMIZER_COUNT: break;
    }
    return 0;
}

int optimizer_step_slots(const struct optimizer_step *step)
{
    int own = own_slots(step), others = step->others != NULL ? own_slots(step->others) : 0;
    return (own > others ? own : others) + (step->ema_decay > 0);
}

struct optimizer_step optimizer_step_of(const struct optimizer_step *optimizer, int number,
                                        bool other)
{
    struct optimizer_step step = *optimizer;
    const struct optimizer_group *group = NULL;
    if (number > 0 && number <= optimizer->group_count) group = &optimizer->groups[number - 1];
    if (other) {
        step = *optimizer->others;
        step.lr *= optimizer->lr;
        step.taken = optimizer->taken;
        step.ema_decay = optimizer->ema_decay;
    }
    step.others = NULL;
    if (group == NULL) return step;
    step.lr *= group->lr_scale;
    /* Without a value of its own a group shows that of the optimizer. */
    if (!other || group->own_decay || group->match == NULL) step.weight_decay = group->weight_decay;
    return step;
}

enum slot_shape optimizer_step_shape(const struct optimizer_step *step)
{
    if (optimizer_factors(step->kind)) return SHAPE_FACTORS;
    bool more = step->others != NULL && own_slots(step->others) > own_slots(step);
    return optimizer_takes_matrices(step->kind) && more ? SHAPE_OTHERS : SHAPE_PLAIN;
}

status_t lane_optimize(struct lane_queue *lane, const struct optimizer_step *step, size_t n,
                       float *param, uint16_t *rounded, const float *grad, float *const *slots,
                       const float *stats, bool gated)
{
    MUST_ALONE(&lane->user);
    return lane->device->table->optimize(lane, step, n, param, rounded, grad, slots, stats, gated);
}

status_t lane_round(struct lane_queue *lane, size_t n, uint16_t *to, const float *from)
{
    MUST_ALONE(&lane->user);
    return lane->device->table->round(lane, n, to, from);
}

status_t lane_zero(struct lane_queue *lane, void *memory, uint64_t bytes)
{
    MUST_ALONE(&lane->user);
    return lane->device->table->zero(lane, memory, bytes);
}

status_t lane_add(struct lane_queue *lane, size_t n, float *to, const float *from)
{
    MUST_ALONE(&lane->user);
    return lane->device->table->add(lane, n, to, from);
}

status_t lane_norm(struct lane_queue *lane, enum norm_kind kind, size_t n, const float *values,
                   double *partial)
{
    MUST_ALONE(&lane->user);
    return lane->device->table->norm(lane, kind, n, values, partial);
}

status_t lane_gate(struct lane_queue *lane, const struct gate_args *args, const double *partials,
                   int count, float *stats)
{
    MUST_ALONE(&lane->user);
    return lane->device->table->gate(lane, args, partials, count, stats);
}

status_t lane_stamp(struct lane_queue *lane, int64_t *ns)
{
    MUST_ALONE(&lane->user);
    if (lane->device->table->stamp == NULL) return NULL;
    return lane->device->table->stamp(lane, ns);
}

status_t lane_wait(struct lane_queue *lane, int64_t timeout_ms)
{
    MUST_ALONE(&lane->user);
    lane->unfinished = false;
    return lane->device->table->wait(lane, timeout_ms);
}

bool lane_is_running(const struct lane_queue *lane)
{
    return lane->unfinished;
}

bool device_records(const struct device *device)
{
    return device->table->recording_new != NULL;
}

status_t recording_new(struct device *device, struct lane_queue *const *lanes, int count,
                       struct recording **recording)
{
    if (device->table->recording_new == NULL)
        return status_new(STATUS_UNIMPLEMENTED, "device %s records nothing", device->name);
    return device->table->recording_new(device, lanes, count, recording);
}

void recording_free(struct recording *recording)
{
    if (recording != NULL) recording->device->table->recording_free(recording);
}

status_t recording_begin(struct recording *recording, enum recording_pass pass)
{
    MUST(!recording->in_pass);
    TRY(recording->device->table->recording_begin(recording, pass));
    recording->in_pass = true;
    return NULL;
}

status_t recording_end(struct recording *recording, status_t walked)
{
    MUST(recording->in_pass);
    recording->in_pass = false;
    return recording->device->table->recording_end(recording, walked);
}

bool recording_is_disturbed(const struct recording *recording)
{
    return recording->disturbed;
}

bool recording_delivers(const struct recording *recording)
{
    return recording->delivers;
}

status_t recording_wait(struct recording *recording, int64_t timeout_ms, bool *delivered)
{
    MUST(recording->delivers && !recording->in_pass);
    return recording->device->table->recording_wait(recording, timeout_ms, delivered);
}

bool lane_is_dry_run(const struct lane_queue *lane)
{
    return lane->is_dry_run;
}

uint64_t device_lane_host_bytes(const struct device *device)
{
    return device->table->lane_host_bytes;
}

uint64_t device_matrix_workspace_bytes(const struct device *device)
{
    return device->table->matrix_workspace_bytes;
}

int64_t lane_busy_ns(const struct lane_queue *lane)
{
    return lane->device->table->busy_ns(lane);
}
