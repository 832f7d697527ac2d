/* The state of an executor between steps: shards of parameters and of the optimizer. */
#include <string.h>

#include "base/mem.h"
#include "runtime/executor_internal.h"

/* Values that pass through memory of the host at a time. */
enum { PIECE = 1 << 16, STAGE_BYTES = 1 << 16 };

bool executor_in_host_memory(const struct executor *executor, int unit)
{
    return device_is_host(executor->device) || plan_offloads(executor->plan, unit);
}

void executor_set_guard(struct executor *executor, const struct executor_guard *guard)
{
    MUST_ALONE(&executor->user);
    if (executor->guard.release != NULL) executor->guard.release(executor->guard.user);
    executor->guard = *guard;
}

void executor_announce_change(const struct executor *executor, int unit)
{
    const struct executor_guard *guard = &executor->guard;
    if (guard->before_change != NULL && executor_in_host_memory(executor, unit))
        guard->before_change(guard->user, unit);
}

size_t executor_slot_words(const struct executor *executor, int unit, int slot)
{
    const struct slot_layout *slots = &executor->plan->units->units[unit].flat.slots;
    if (executor_unit_state(executor, unit, slot) == NULL) return 0;
    return (size_t)slot_layout_of(slots, slot).words;
}

size_t executor_shard_elements(const struct executor *executor, int unit)
{
    if (executor_unit_state(executor, unit, -1) == NULL) return 0;
    return (size_t)executor->plan->units->units[unit].flat.shard;
}

/* This rank's part of a parameter's values in a slot, in words, and its address there; NULL if it
 * has none. */
static float *find_part(const struct executor *executor, int parameter, int slot,
                        struct parameter_part *part)
{
    const struct plan *plan = executor->plan;
    const struct parameter *info = &plan->model->parameters[parameter];
    int owner = info->tied_to >= 0 ? info->tied_to : parameter;
    int unit = plan->units->unit_of_parameter[owner];
    const struct flat_parameter *flat = &plan->units->units[unit].flat;
    struct slot_layout layout = slot_layout_of(&flat->slots, slot);
    float *state = executor_unit_state(executor, unit, slot);
    int rank = plan->options.rank % plan->units->units[unit].shard_world;
    int64_t begin = slot_part(&layout, rank), end = slot_part(&layout, rank + 1);
    int64_t offset = flat_parameter_offset(flat, owner);
    *part = (struct parameter_part){0};
    if (state == NULL || offset < 0) return NULL;
    int64_t start = slot_at(&layout, offset);
    int64_t stop = start + slot_words(&layout, offset, tensor_element_count(&info->type));
    int64_t from = start > begin ? start : begin, to = stop < end ? stop : end;
    if (from >= to) return NULL; /* another rank's */
    *part = (struct parameter_part){.offset = from - start, .count = to - from};
    return state + (from - begin);
}

struct parameter_part executor_state_part(const struct executor *executor, int parameter, int slot)
{
    struct parameter_part part;
    find_part(executor, parameter, slot, &part);
    return part;
}

static int unit_of(const struct executor *executor, int parameter)
{
    const struct plan *plan = executor->plan;
    int tied = plan->model->parameters[parameter].tied_to;
    return plan->units->unit_of_parameter[tied >= 0 ? tied : parameter];
}

bool executor_is_unsaved(const struct executor *executor, int parameter)
{
    return executor->plan->units->units[unit_of(executor, parameter)].unsaved;
}

/* Its pieces come in order. */
static bool is_base(const struct executor *executor, int parameter)
{
    int unit = unit_of(executor, parameter);
    return executor->plan->units->units[unit].flat.slots.base != BASE_F32;
}

static struct base_target base_of(const struct executor *executor, int parameter)
{
    const struct plan *plan = executor->plan;
    const struct parameter *info = &plan->model->parameters[parameter];
    int u = unit_of(executor, parameter);
    const struct unit *unit = &plan->units->units[u];
    int owner = info->tied_to >= 0 ? info->tied_to : parameter;
    return (struct base_target){.layout = &unit->flat.slots,
                                .part = plan->options.rank % unit->shard_world,
                                .kept = executor_unit_state(executor, u, -1),
                                .offset = flat_parameter_offset(&unit->flat, owner),
                                .elements = tensor_element_count(&info->type)};
}

struct parameter_part executor_parameter_part(const struct executor *executor, int parameter)
{
    struct parameter_part part;
    if (is_base(executor, parameter)) {
        const struct base_target target = base_of(executor, parameter);
        base_wanted(&target, &part.offset, &part.count);
        return part;
    }
    part = executor_state_part(executor, parameter, -1);
    if (!plan_keeps_rounded(executor->plan, unit_of(executor, parameter))) return part;
    int64_t elements = tensor_element_count(&executor->plan->model->parameters[parameter].type);
    part.offset *= 2;
    part.count *= 2;
    if (part.offset + part.count > elements) part.count = elements - part.offset;
    return part;
}

/* When the executor is settled nothing works on it: `offloaded` state is in host memory. */
static status_t copy_bytes(struct executor *executor, bool offloaded, void *to, const void *from,
                           size_t bytes)
{
    TRY(executor_settle(executor));
    if (offloaded) {
        memcpy(to, from, bytes);
        return NULL;
    }
    struct lane_queue *lane = executor->lanes[LANE_COPY];
    lane_label(lane, NULL);
    TRY(lane_copy(lane, to, from, bytes));
    return executor_wait_lane(executor, LANE_COPY);
}

status_t executor_read_logits(struct executor *executor, const void **logits)
{
    MUST_ALONE(&executor->user);
    const struct plan_program *program = &executor->plan->evaluate;
    const int buffer = executor_find_buffer(program, BUFFER_LOGITS, -1, 0);
    const size_t bytes = program->buffers[buffer].bytes;
    const char *made = executor_buffer(executor, program, buffer);
    *logits = made;
    if (device_is_host(executor->device)) return NULL;
    if (executor->logits == NULL) executor->logits = mem_alloc(bytes);
    *logits = executor->logits;
    return copy_bytes(executor, false, executor->logits, made, bytes);
}

static status_t copy(struct executor *executor, bool offloaded, float *to, const float *from,
                     size_t count)
{
    return copy_bytes(executor, offloaded, to, from, count * sizeof *to);
}

/* The copy in bf16 of the unit's parameters; NULL: it has none. */
static uint16_t *rounded_copy(const struct executor *executor, int unit)
{
    const struct plan *plan = executor->plan;
    const struct plan_program *program = plan->train.graph != NULL ? &plan->train : &plan->evaluate;
    return (
        uint16_t *)(void *)executor_buffer(executor, program,
                                           executor_find_buffer(program, BUFFER_ROUNDED, unit, 0));
}

/* Brings the copy of `count` values from `shard` on up to date. */
static status_t round_values(struct executor *executor, int unit, const float *shard, size_t count)
{
    uint16_t *to = rounded_copy(executor, unit);
    if (to == NULL) return NULL;
    to += shard - executor_unit_state(executor, unit, -1);
    if (plan_offloads(executor->plan, unit)) {
        kernel_f32_to_bf16(count, to, shard);
        return NULL;
    }
    struct lane_queue *lane = executor->lanes[LANE_COPY];
    lane_label(lane, NULL);
    TRY(lane_round(lane, count, to, shard));
    return executor_wait_lane(executor, LANE_COPY);
}

status_t executor_round_parameters(struct executor *executor)
{
    MUST_ALONE(&executor->user);
    TRY(executor_settle(executor));
    for (int u = 0; u < executor->plan->units->unit_count; u++)
        TRY(round_values(executor, u, executor_unit_state(executor, u, -1),
                         executor_shard_elements(executor, u)));
    return NULL;
}

status_t executor_set_state_part(struct executor *executor, int parameter, int slot,
                                 struct parameter_part part, const float *values)
{
    MUST_ALONE(&executor->user);
    struct parameter_part mine;
    const struct plan *plan = executor->plan;
    float *memory = find_part(executor, parameter, slot, &mine);
    if (part.count == 0) return NULL;
    if (memory == NULL || part.offset < mine.offset ||
        part.offset + part.count > mine.offset + mine.count)
        return status_new(STATUS_INTERNAL,
                          "this rank does not hold this part of parameter %d, slot %d", parameter,
                          slot);
    int unit = unit_of(executor, parameter);
    memory += part.offset - mine.offset;
    executor_announce_change(executor, unit);
    TRY(copy(executor, plan_offloads(plan, unit), memory, values, (size_t)part.count));
    return slot >= 0 ? NULL : round_values(executor, unit, memory, (size_t)part.count);
}

/* What base_pack stores. In memory of a device, bytes that follow each other are copied together.
 */
struct stage {
    struct executor *executor;
    bool here; /* in memory of the host */
    char *to;
    size_t count;
    char bytes[STAGE_BYTES];
};

static status_t flush(struct stage *stage)
{
    size_t count = stage->count;
    stage->count = 0;
    return copy_bytes(stage->executor, false, stage->to, stage->bytes, count);
}

static status_t store(void *user, void *to, const void *from, size_t bytes)
{
    struct stage *stage = user;
    bool follows = stage->count > 0 && (char *)to == stage->to + stage->count;
    if (stage->here) {
        memcpy(to, from, bytes);
        return NULL;
    }
    if (stage->count > 0 && (!follows || stage->count + bytes > STAGE_BYTES)) TRY(flush(stage));
    if (bytes > STAGE_BYTES) return copy_bytes(stage->executor, false, to, from, bytes);
    if (stage->count == 0) stage->to = to;
    memcpy(stage->bytes + stage->count, from, bytes);
    stage->count += bytes;
    return NULL;
}

static status_t set_base(struct executor *executor, int parameter, struct parameter_part part,
                         const float *values)
{
    MUST_ALONE(&executor->user);
    TRY(executor_settle(executor));
    struct base_target target = base_of(executor, parameter);
    struct stage stage;
    if (part.count == 0) return NULL;
    stage.executor = executor;
    stage.here = executor_in_host_memory(executor, unit_of(executor, parameter));
    stage.count = 0;
    target.store = store;
    target.user = &stage;
    TRY(base_pack(&executor->packer, &target, parameter, part.offset, part.count, values));
    return stage.count > 0 ? flush(&stage) : NULL;
}

status_t executor_set_parameter_part(struct executor *executor, int parameter,
                                     struct parameter_part part, const float *values)
{
    if (is_base(executor, parameter)) return set_base(executor, parameter, part, values);
    int unit = unit_of(executor, parameter);
    struct parameter_part mine = executor_parameter_part(executor, parameter), words;
    if (!plan_keeps_rounded(executor->plan, unit))
        return executor_set_state_part(executor, parameter, -1, part, values);
    uint16_t *memory = (uint16_t *)(void *)find_part(executor, parameter, -1, &words);
    if (part.count == 0) return NULL;
    if (memory == NULL || part.offset < mine.offset ||
        part.offset + part.count > mine.offset + mine.count)
        return status_new(STATUS_INTERNAL, "this rank does not hold this part of parameter %d",
                          parameter);
    MUST_ALONE(&executor->user);
    memory += part.offset - mine.offset;
    executor_announce_change(executor, unit);
    for (int64_t at = 0; at < part.count; at += PIECE) {
        uint16_t halves[PIECE];
        size_t count = (size_t)(part.count - at < PIECE ? part.count - at : PIECE);
        kernel_f32_to_bf16(count, halves, values + at);
        TRY(copy_bytes(executor, executor_in_host_memory(executor, unit), memory + at, halves,
                       count * sizeof *halves));
    }
    return NULL;
}

status_t executor_set_parameter(struct executor *executor, int parameter, const float *values)
{
    const struct plan *plan = executor->plan;
    if (parameter < 0 || parameter >= plan->model->parameter_count)
        return status_new(STATUS_INTERNAL, "parameter %d of %d", parameter,
                          plan->model->parameter_count);
    struct parameter_part part = executor_parameter_part(executor, parameter);
    return executor_set_parameter_part(executor, parameter, part, values + part.offset);
}

status_t executor_read_slot(struct executor *executor, int unit, int slot, float *values)
{
    MUST_ALONE(&executor->user);
    const float *state = executor_unit_state(executor, unit, slot);
    size_t count = executor_slot_words(executor, unit, slot);
    if (state == NULL || count == 0) return NULL;
    return copy(executor, plan_offloads(executor->plan, unit), values, state, count);
}

float *executor_unit_state(const struct executor *executor, int unit, int slot)
{
    const struct plan *plan = executor->plan;
    const struct plan_program *program = plan->train.graph != NULL ? &plan->train : &plan->evaluate;
    enum buffer_class class = slot < 0 ? BUFFER_SHARD : BUFFER_OPTIMIZER;
    return (float *)(void *)executor_buffer(executor, program,
                                            executor_find_buffer(program, class, unit, slot));
}

/* Of one unit: the average becomes its parameters and, if `swaps`, conversely. */
static status_t set_average(struct executor *executor, int unit, bool swaps, float *piece)
{
    float *average = executor_unit_state(executor, unit, plan_average_slot(executor->plan));
    float *shard = executor_unit_state(executor, unit, -1);
    bool offloaded = plan_offloads(executor->plan, unit);
    size_t count = executor_shard_elements(executor, unit);
    if (average == NULL) return NULL;
    executor_announce_change(executor, unit);
    for (size_t at = 0; at < count; at += PIECE) {
        size_t now = count - at < PIECE ? count - at : PIECE;
        TRY(copy(executor, offloaded, piece, shard + at, now));
        if (swaps) {
            TRY(copy(executor, offloaded, piece + PIECE, average + at, now));
            TRY(copy(executor, offloaded, shard + at, piece + PIECE, now));
        }
        TRY(copy(executor, offloaded, average + at, piece, now));
    }
    return NULL;
}

static status_t set_averages(struct executor *executor, bool swaps)
{
    MUST_ALONE(&executor->user);
    if (plan_average_slot(executor->plan) < 0) return NULL;
    TRY(executor_settle(executor));
    AUTO_FREE float *piece = mem_alloc_array((size_t)2 * PIECE, sizeof *piece);
    for (int u = 0; u < executor->plan->units->unit_count; u++)
        TRY(set_average(executor, u, swaps, piece));
    return swaps ? executor_round_parameters(executor) : NULL;
}

status_t executor_start_average(struct executor *executor)
{
    return set_averages(executor, false);
}

status_t executor_swap_average(struct executor *executor)
{
    return set_averages(executor, true);
}

status_t executor_share_buffers(struct executor *executor)
{
    MUST_ALONE(&executor->user);
    const struct unit_set *units = executor->plan->units;
    TRY(executor_settle(executor));
    for (int u = 0; u < units->unit_count && executor->comm != NULL; u++) {
        if (!units->units[u].buffers) continue;
        executor_announce_change(executor, u);
        struct lane_queue *lane = executor->lanes[LANE_COMM];
        lane_label(lane, "buffers");
        TRY(comm_broadcast(executor->comm, lane, executor_unit_state(executor, u, -1),
                           executor_shard_elements(executor, u) * sizeof(float), 0));
        TRY(executor_wait_lane(executor, LANE_COMM));
    }
    return NULL;
}
