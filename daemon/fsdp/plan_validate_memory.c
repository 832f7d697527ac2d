/*
 * The second half of plan_validate: buffers that share bytes are ordered, reads follow writes, and
 * the figures are right. Pure functions; any thread.
 *
 * It tracks storages: ranges of bytes with one meaning from their first access to their last. A
 * value is one (with its views), a gathered unit is one per gather, and so are a unit's gradient, a
 * scratch buffer, and each piece of state. Two storages that share a byte must not overlap in time;
 * within a storage every write is ordered with every other access.
 */
#include <stdlib.h>
#include <string.h>

#include "base/interrupt.h"
#include "base/mem.h"
#include "fsdp/plan_internal.h"
#include "fsdp/plan_validate.h"

struct storage {
    int buffer;
    uint64_t begin, end; /* bytes in the arena */
    enum plan_arena arena;
    bool viewed;  /* it contains more than one value */
    bool written; /* so far during the walk; state that survives from step to step starts written */
    int write;    /* last write, -1 */
    int read[LANE_COUNT];                    /* last reads since then, -1 */
    int first[LANE_COUNT], last[LANE_COUNT]; /* touches, -1 */
};

struct storages {
    struct storage *items;
    int count, capacity;
    int *of_value;  /* activations and gradients, -1 before they are written */
    int *of_buffer; /* everything else; for a gathered buffer, the latest gather's; for a gradient
                     * reduced in buckets, the first bucket's: they are consecutive */
};

static const char *storage_name(const struct validator *v, const struct storage *storage)
{
    const struct plan_buffer *buffer = &v->program->buffers[storage->buffer];
    if (buffer->value >= 0) return v->graph->values[buffer->value].name;
    return plan_buffer_class_name(buffer->class);
}

/* ---- Storages and who touches them ---- */

static int add_storage(const struct validator *v, struct storages *all, int buffer, uint64_t offset,
                       uint64_t bytes)
{
    MEM_GROW(all->items, all->count, all->capacity);
    const struct plan_buffer *it = &v->program->buffers[buffer];
    struct storage *storage = &all->items[all->count];
    *storage =
        (struct storage){.buffer = buffer,
                         .begin = it->offset + offset,
                         .end = it->offset + offset + bytes,
                         .arena = it->arena,
                         .written = it->class == BUFFER_SHARD || it->class == BUFFER_ROUNDED ||
                                    it->class == BUFFER_OPTIMIZER ||
                                    it->class == BUFFER_ACCUMULATED ||
                                    (it->class == BUFFER_GATHERED && it->arena == ARENA_STATE) ||
                                    (v->plan->options.accumulation == ACCUMULATION_LOCAL &&
                                     validate_keeps_gradient(v, it)),
                         .write = -1};
    for (int lane = 0; lane < LANE_COUNT; lane++)
        storage->read[lane] = storage->first[lane] = storage->last[lane] = -1;
    return all->count++;
}

static void note_touch(const struct validator *v, struct storage *storage, int i)
{
    enum lane lane = v->program->instructions[i].lane;
    if (storage->first[lane] < 0) storage->first[lane] = i;
    storage->last[lane] = i;
}

static status_t read_storage(const struct validator *v, struct storage *storage, int i)
{
    if (!storage->written)
        return validate_fail(v, i, "reads %s, which nothing has written", storage_name(v, storage));
    if (storage->write >= 0 && storage->write != i && !validate_before(v, storage->write, i))
        return validate_fail(v, i, "reads %s without waiting for instruction %d, which writes it",
                             storage_name(v, storage), storage->write);
    storage->read[v->program->instructions[i].lane] = i;
    note_touch(v, storage, i);
    return NULL;
}

static status_t write_storage(const struct validator *v, struct storage *storage, int i)
{
    int others[LANE_COUNT + 1], count = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++) others[count++] = storage->read[lane];
    others[count++] = storage->write;
    for (int k = 0; k < count; k++)
        if (others[k] >= 0 && others[k] != i && !validate_before(v, others[k], i))
            return validate_fail(v, i, "writes %s without waiting for instruction %d",
                                 storage_name(v, storage), others[k]);
    for (int lane = 0; lane < LANE_COUNT; lane++) storage->read[lane] = -1;
    storage->written = true;
    storage->write = i;
    note_touch(v, storage, i);
    return NULL;
}

/* Reads or writes the storages of a buffer that overlap its bytes `from` to `to` - 1. */
static status_t touch_buffer(const struct validator *v, struct storages *all, int i, int buffer,
                             uint64_t from, uint64_t to, bool write)
{
    uint64_t start = v->program->buffers[buffer].offset;
    for (int s = all->of_buffer[buffer]; s < all->count && all->items[s].buffer == buffer; s++) {
        struct storage *storage = &all->items[s];
        bool whole = from == 0 && to == v->program->buffers[buffer].bytes;
        if (!whole && (storage->end <= start + from || storage->begin >= start + to)) continue;
        TRY(write ? write_storage(v, storage, i) : read_storage(v, storage, i));
    }
    return NULL;
}

static bool own_storage(const struct graph_value *value)
{
    return value->kind == VALUE_ACTIVATION || value->kind == VALUE_GRADIENT;
}

/* The storage of a value that is read, or was already written. */
static struct storage *storage_of_value(const struct validator *v, struct storages *all, int value)
{
    int buffer = v->program->buffer_of_value[value];
    int s = all->of_value[value] >= 0               ? all->of_value[value]
            : own_storage(&v->graph->values[value]) ? -1
                                                    : all->of_buffer[buffer];
    return s >= 0 ? &all->items[s] : NULL;
}

/* Whether elements are in row-major order, whatever the layout is called. */
static bool is_plain(const struct tensor_type *type)
{
    return type->layout == LAYOUT_PLAIN || type->dim_count != 4 || type->dims[1] == 1 ||
           type->dims[2] * type->dims[3] == 1;
}

/* Whether a reshape between the two moves no byte. */
static bool same_bytes(const struct tensor_type *from, const struct tensor_type *to)
{
    return (is_plain(from) && is_plain(to)) ||
           (from->layout == to->layout && tensor_same_shape(from, to));
}

static uint64_t address(const struct validator *v, int value)
{
    return v->program->buffers[v->program->buffer_of_value[value]].offset +
           v->program->offset_of_value[value];
}

/* Whether output 0 of the op is the same storage as input 0: a reshape in place. */
static bool is_view(const struct validator *v, const struct graph_op *op)
{
    if (op->kind != OP_RESHAPE) return false;
    int from = op->inputs[0], to = op->outputs[0];
    return v->program->buffer_of_value[from] == v->program->buffer_of_value[to] &&
           address(v, from) == address(v, to) &&
           same_bytes(&v->graph->values[from].type, &v->graph->values[to].type);
}

static status_t walk_op(const struct validator *v, struct storages *all, int i, bool *written)
{
    const struct graph_op *op = &v->graph->ops[v->program->instructions[i].op];
    for (int k = 0; k < OP_MAX_INPUTS; k++) {
        int value = op->inputs[k];
        if (value < 0) continue;
        TRY(validate_value(v, i, value));
        struct storage *storage = storage_of_value(v, all, value);
        if (storage == NULL)
            return validate_fail(v, i, "reads %s, which nothing has written",
                                 v->graph->values[value].name);
        TRY(read_storage(v, storage, i));
    }
    for (int k = 0; k < OP_MAX_OUTPUTS; k++) {
        int value = op->outputs[k];
        if (value < 0) continue;
        const struct graph_value *it = &v->graph->values[value];
        TRY(validate_value(v, i, value));
        bool adds_up = it->kind == VALUE_PARAMETER_GRADIENT &&
                       v->plan->options.accumulation == ACCUMULATION_LOCAL;
        if (adds_up && !op->accumulate[k])
            return validate_fail(v, i, "writes over %s, which earlier micro-steps added up",
                                 it->name);
        if (op->accumulate[k] && !written[value] && !adds_up)
            return validate_fail(v, i, "adds to %s, which nothing has written", it->name);
        if (it->kind == VALUE_PARAMETER || graph_is_batch(it->kind))
            return validate_fail(v, i, "writes %s", it->name);
        written[value] = true;
        if (own_storage(it) && all->of_value[value] < 0) {
            if (k == 0 && is_view(v, op)) {
                /* Nothing runs; readers of the view read the input's storage. */
                struct storage *input = storage_of_value(v, all, op->inputs[0]);
                input->viewed = true;
                all->of_value[value] = (int)(input - all->items);
                continue;
            }
            all->of_value[value] =
                add_storage(v, all, v->program->buffer_of_value[value],
                            v->program->offset_of_value[value], tensor_bytes(&it->type));
        }
        if (!own_storage(it)) {
            uint64_t from = v->program->offset_of_value[value];
            TRY(touch_buffer(v, all, i, v->program->buffer_of_value[value], from,
                             from + tensor_bytes(&it->type), true));
            continue;
        }
        struct storage *storage = storage_of_value(v, all, value);
        if (storage->viewed)
            return validate_fail(v, i, "writes %s, whose bytes are another value too", it->name);
        TRY(write_storage(v, storage, i));
    }
    return NULL;
}

static status_t walk_instruction(const struct validator *v, struct storages *all, int i,
                                 bool *written)
{
    const struct plan_instruction *in = &v->program->instructions[i];
    TRY(validate_operands(v, i));
    if (in->workspace >= 0) {
        if (all->of_buffer[in->workspace] >= 0)
            return validate_fail(v, i, "shares its scratch buffer with another instruction");
        all->of_buffer[in->workspace] =
            add_storage(v, all, in->workspace, 0, v->program->buffers[in->workspace].bytes);
        TRY(write_storage(v, &all->items[all->of_buffer[in->workspace]], i));
    }
    switch (in->kind) {
    case INSTRUCTION_COMPUTE:
    case INSTRUCTION_GATHER_VALUE: return walk_op(v, all, i, written);
    case INSTRUCTION_COPY_BATCH:
        for (int b = 0; b < v->program->buffer_count; b++) {
            enum buffer_class class = v->program->buffers[b].class;
            if (class == BUFFER_BATCH || class == BUFFER_STATS)
                TRY(write_storage(v, &all->items[all->of_buffer[b]], i));
        }
        return NULL;
    case INSTRUCTION_UPLOAD:
    case INSTRUCTION_ALL_GATHER:
        all->of_buffer[in->target] =
            add_storage(v, all, in->target, 0, v->program->buffers[in->target].bytes);
        break;
    case INSTRUCTION_UPDATE: /* the sums of a unit of vectors begin here */
        TRY(touch_buffer(v, all, i, in->source, 0, v->program->buffers[in->source].bytes, true));
        /* fall through */
    case INSTRUCTION_SCALE:
        TRY(touch_buffer(v, all, i, in->target, 0, v->program->buffers[in->target].bytes, false));
        /* fall through */
    case INSTRUCTION_SQUARES:
    case INSTRUCTION_FACTOR:
    case INSTRUCTION_MOMENTUM:
    case INSTRUCTION_ORTHOGONALIZE:
        for (int b = 0; b < v->program->buffer_count; b++) {
            const struct plan_buffer *buffer = &v->program->buffers[b];
            bool moves = in->kind == INSTRUCTION_MOMENTUM || in->kind == INSTRUCTION_FACTOR ||
                         in->kind == INSTRUCTION_UPDATE;
            bool average = moves && buffer->class == BUFFER_OPTIMIZER && buffer->unit == in->unit &&
                           buffer->slot == 0;
            bool shard = in->kind == INSTRUCTION_UPDATE && buffer->class == BUFFER_SHARD &&
                         buffer->unit == in->unit;
            if (average || shard || buffer->class == BUFFER_STATS)
                TRY(read_storage(v, &all->items[all->of_buffer[b]], i));
            if (average) TRY(write_storage(v, &all->items[all->of_buffer[b]], i));
        }
        break;
    case INSTRUCTION_OPTIMIZER: {
        unsigned slots = 0, expected = (1u << v->plan->options.optimizer_slots) - 1;
        int copies = 0;
        for (int b = 0; b < v->program->buffer_count; b++) {
            const struct plan_buffer *buffer = &v->program->buffers[b];
            if (buffer->class == BUFFER_ROUNDED && buffer->unit == in->unit) {
                TRY(validate_unit_buffer(v, i, b, BUFFER_ROUNDED, in->unit));
                TRY(write_storage(v, &all->items[all->of_buffer[b]], i));
                copies++;
            }
            if (buffer->class != BUFFER_OPTIMIZER || buffer->unit != in->unit) continue;
            TRY(validate_unit_buffer(v, i, b, BUFFER_OPTIMIZER, in->unit));
            slots |= 1u << (buffer->slot & 31);
            TRY(read_storage(v, &all->items[all->of_buffer[b]], i));
            TRY(write_storage(v, &all->items[all->of_buffer[b]], i));
        }
        if (slots != expected) return validate_fail(v, i, "lacks buffers of optimizer state");
        if (copies != validate_rounds(v, in->unit))
            return validate_fail(v, i, "has %d copies of its parameters in bf16", copies);
        for (int b = 0; b < v->program->buffer_count; b++)
            if (v->program->buffers[b].class ==
                (validate_offloads(v, in->unit) ? BUFFER_HOST_STATS : BUFFER_STATS))
                TRY(read_storage(v, &all->items[all->of_buffer[b]], i));
        break;
    }
    default: break;
    }
    for (int write = 0; write < 2; write++) {
        int buffer = write ? in->target : in->source;
        if (buffer < 0) continue;
        uint64_t from = 0, to = v->program->buffers[buffer].bytes;
        if (in->kind == INSTRUCTION_ALL_REDUCE) {
            from = 4 * (uint64_t)in->from;
            to = from + 4 * (uint64_t)in->count;
        }
        TRY(touch_buffer(v, all, i, buffer, from, to, write));
    }
    return NULL;
}

/* A gradient reduced in buckets is one storage per bucket; the buckets are known to cover it. */
static bool add_buckets(const struct validator *v, struct storages *all, int b)
{
    bool found = false;
    for (int i = 0; i < v->program->instruction_count; i++) {
        const struct plan_instruction *in = &v->program->instructions[i];
        if (in->kind != INSTRUCTION_ALL_REDUCE || in->unit != v->program->buffers[b].unit) continue;
        int s = add_storage(v, all, b, 4 * (uint64_t)in->from, 4 * (uint64_t)in->count);
        if (!found) all->of_buffer[b] = s;
        found = true;
    }
    return found;
}

/* Every buffer that is a single storage: all except gathered units, values and scratch. */
static void add_fixed_storages(const struct validator *v, struct storages *all)
{
    for (int b = 0; b < v->program->buffer_count; b++) {
        const struct plan_buffer *buffer = &v->program->buffers[b];
        all->of_buffer[b] = -1;
        if (v->holds && buffer->class == BUFFER_GATHERED) continue; /* its gather adds it */
        bool bucketed = buffer->class == BUFFER_GRADIENT && buffer->unit >= 0 &&
                        validate_replicates(v, buffer->unit);
        if (bucketed && add_buckets(v, all, b)) continue;
        if (buffer->arena != ARENA_WORK || buffer->class == BUFFER_GRADIENT ||
            buffer->class == BUFFER_GRADIENT_SHARD || buffer->class == BUFFER_GATHERED ||
            buffer->class == BUFFER_NORM || buffer->class == BUFFER_RESHARDED ||
            buffer->class == BUFFER_MATRICES || buffer->class == BUFFER_FACTORS)
            all->of_buffer[b] = add_storage(v, all, b, 0, buffer->bytes);
    }
}

/* ---- Sharing ---- */

static bool storage_before(const struct validator *v, const struct storage *a,
                           const struct storage *b)
{
    for (int la = 0; la < LANE_COUNT; la++)
        for (int lb = 0; lb < LANE_COUNT; lb++)
            if (a->last[la] >= 0 && b->first[lb] >= 0 &&
                !validate_before(v, a->last[la], b->first[lb]))
                return false;
    return true;
}

/* Whether `b` is the result of an element-wise op on `a`, in place, as the last reader of `a`; what
 * other lanes do with `b`, as gathering it, comes after. */
static bool taken_over(const struct validator *v, const struct storages *all,
                       const struct storage *a, const struct storage *b)
{
    int i = b->first[LANE_COMPUTE];
    if (i < 0 || i != a->last[LANE_COMPUTE] || a->begin != b->begin || a->end != b->end)
        return false;
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (lane != LANE_COMPUTE &&
            (a->last[lane] >= 0 || (b->first[lane] >= 0 && !validate_before(v, i, b->first[lane]))))
            return false;
    if (v->program->instructions[i].kind != INSTRUCTION_COMPUTE) return false;
    const struct graph_op *op = &v->graph->ops[v->program->instructions[i].op];
    if (!op_info_get(op->kind)->element_wise || op->accumulate[0]) return false;
    const struct tensor_type *from = &v->graph->values[op->inputs[0]].type;
    const struct tensor_type *to = &v->graph->values[op->outputs[0]].type;
    if (from->layout != to->layout || all->of_value[op->inputs[0]] != a - all->items ||
        all->of_value[op->outputs[0]] != b - all->items)
        return false;
    for (int k = 1; k < OP_MAX_INPUTS; k++)
        if (op->inputs[k] >= 0 && all->of_value[op->inputs[k]] == a - all->items) return false;
    return true;
}

static bool touched(const struct storage *storage)
{
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (storage->first[lane] >= 0) return true;
    return storage->arena != ARENA_WORK;
}

static int compare_storage(const void *a, const void *b)
{
    const struct storage *x = *(struct storage *const *)a, *y = *(struct storage *const *)b;
    if (x->arena != y->arena) return x->arena < y->arena ? -1 : 1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static status_t check_sharing(const struct validator *v, const struct storages *all)
{
    struct storage **sorted = mem_alloc_array(all->count, sizeof *sorted);
    int count = 0;
    for (int s = 0; s < all->count; s++)
        if (touched(&all->items[s]) && all->items[s].begin < all->items[s].end)
            sorted[count++] = &all->items[s];
    if (count > 1) qsort(sorted, count, sizeof *sorted, compare_storage);
    status_t status = NULL;
    for (int i = 0; i < count && status == NULL; i++) {
        const struct storage *a = sorted[i];
        status = interrupt_check();
        for (int k = i + 1; k < count; k++) {
            const struct storage *b = sorted[k];
            if (status != NULL || b->arena != a->arena || b->begin >= a->end) break;
            if (a->arena == ARENA_WORK && (storage_before(v, a, b) || storage_before(v, b, a) ||
                                           taken_over(v, all, a, b) || taken_over(v, all, b, a)))
                continue;
            status = validate_fail(v, -1,
                                   "buffers %d (%s) and %d (%s) share bytes, but nothing orders "
                                   "them",
                                   a->buffer, storage_name(v, a), b->buffer, storage_name(v, b));
            break;
        }
    }
    free(sorted);
    return status;
}

/* ---- Figures ---- */

static status_t check_figures(const struct validator *v)
{
    const struct plan_program *program = v->program;
    uint64_t sum = 0, *alive = mem_alloc_array(program->instruction_count + 1, sizeof *alive);
    uint64_t state = 0, host = 0, most = 0;
    for (int b = 0; b < program->buffer_count; b++) {
        const struct plan_buffer *buffer = &program->buffers[b];
        if (buffer->arena == ARENA_STATE) state += plan_align(buffer->bytes);
        if (buffer->arena == ARENA_HOST) host += plan_align(buffer->bytes);
        /* Gathered buffers may be unused in between; the others give a lower bound. */
        if (buffer->arena != ARENA_WORK || buffer->class == BUFFER_GATHERED || buffer->first < 0)
            continue;
        alive[buffer->first] += plan_align(buffer->bytes);
        alive[buffer->last + 1] -= plan_align(buffer->bytes);
    }
    for (int i = 0; i < program->instruction_count; i++) {
        sum += alive[i];
        if (sum > most) most = sum;
    }
    free(alive);
    if (host != v->plan->host_bytes)
        return validate_fail(v, -1, "%llu bytes of the host's memory are not those of its buffers",
                             (unsigned long long)v->plan->host_bytes);
    if (program->live_peak < state + most ||
        program->live_peak > v->plan->state_bytes + program->work_bytes)
        return validate_fail(v, -1, "%llu bytes cannot be the most that is alive at once",
                             (unsigned long long)program->live_peak);
    uint64_t classes = 0;
    for (int c = 0; c < BUFFER_CLASS_COUNT; c++) classes += program->class_bytes_at_peak[c];
    if (classes != program->live_peak || program->peak_instruction < 0 ||
        program->peak_instruction >= program->instruction_count)
        return validate_fail(v, -1, "the memory table does not add up to its peak");
    return NULL;
}

/* The storages determine the first and last access of every work buffer. */
static status_t check_touches(const struct validator *v, const struct storages *all)
{
    int count = v->program->buffer_count;
    int *first = mem_alloc_array(count, sizeof *first),
        *last = mem_alloc_array(count, sizeof *last);
    for (int b = 0; b < count; b++) first[b] = last[b] = -1;
    for (int s = 0; s < all->count; s++) {
        const struct storage *storage = &all->items[s];
        if (storage->arena != ARENA_WORK) continue;
        for (int lane = 0; lane < LANE_COUNT; lane++) {
            if (storage->first[lane] < 0) continue;
            int b = storage->buffer;
            if (first[b] < 0 || storage->first[lane] < first[b]) first[b] = storage->first[lane];
            if (storage->last[lane] > last[b]) last[b] = storage->last[lane];
        }
    }
    status_t status = NULL;
    for (int b = 0; b < count && status == NULL; b++) {
        const struct plan_buffer *buffer = &v->program->buffers[b];
        if (buffer->first != first[b] || buffer->last != last[b])
            status = validate_fail(v, -1,
                                   "buffer %d (%s) is touched by instructions %d to %d, not "
                                   "%d to %d",
                                   b, plan_buffer_class_name(buffer->class), first[b], last[b],
                                   buffer->first, buffer->last);
    }
    free(first);
    free(last);
    return status;
}

status_t validate_memory(const struct validator *v)
{
    TRY(validate_buffers(v));
    struct storages all = {.of_value = mem_alloc_array(v->graph->value_count, sizeof(int)),
                           .of_buffer = mem_alloc_array(v->program->buffer_count, sizeof(int))};
    for (int value = 0; value < v->graph->value_count; value++) all.of_value[value] = -1;
    add_fixed_storages(v, &all);
    bool *written = mem_alloc_array(v->graph->value_count, sizeof *written);
    status_t status = NULL;
    for (int i = 0; i < v->program->instruction_count && status == NULL; i++)
        status = walk_instruction(v, &all, i, written);
    if (status == NULL) status = check_sharing(v, &all);
    if (status == NULL) status = check_touches(v, &all);
    if (status == NULL) status = check_figures(v);
    free(written);
    free(all.items);
    free(all.of_value);
    free(all.of_buffer);
    return status;
}
