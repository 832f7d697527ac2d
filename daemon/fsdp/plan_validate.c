/*
 * Checks a plan independently of the builder. This file: the list of instructions, its order, and
 * the requirements of strategy and units. plan_validate_memory.c: buffers. Neither uses
 * intermediate results of the builder (clocks, uses, lifetimes), only the plan, the graph and the
 * units. Pure functions; any thread.
 */
#include "fsdp/plan_validate.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "fsdp/plan_internal.h"

status_t validate_fail(const struct validator *v, int i, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    status_t status = status_new_v(STATUS_INTERNAL, format, args);
    va_end(args);
    if (i < 0) return status_wrap(status, "%s", v->name);
    const struct plan_instruction *instruction = &v->program->instructions[i];
    const char *subject = "";
    if (instruction->op >= 0 && instruction->op < v->graph->op_count)
        subject = v->graph->ops[instruction->op].name;
    else if (instruction->unit >= 0 && instruction->unit < v->plan->units->unit_count)
        subject = v->plan->units->units[instruction->unit].name;
    return status_wrap(status, "%s: instruction %d (%s%s%s)", v->name, i,
                       plan_instruction_name(instruction->kind), subject[0] != '\0' ? " " : "",
                       subject);
}

int validate_owner(const struct validator *v, int value)
{
    int p = v->graph->values[value].parameter;
    while (v->plan->model->parameters[p].tied_to >= 0) p = v->plan->model->parameters[p].tied_to;
    return p;
}

/* ---- What units are to be like ---- */

static const struct unit *unit_of(const struct validator *v, int unit)
{
    return &v->plan->units->units[unit];
}

bool validate_gathers(const struct validator *v, int unit)
{
    return unit_of(v, unit)->shard_world > 1;
}

bool validate_replicates(const struct validator *v, int unit)
{
    if (validate_gathers(v, unit)) return false;
    return v->reduces || v->plan->options.strategy == STRATEGY_NO_SHARD;
}

int validate_between(const struct validator *v, int unit)
{
    const struct plan_options *options = &v->plan->options;
    enum reshard reshard = unit_of(v, unit)->reshard;
    int all = unit_of(v, unit)->shard_world, some = unit_of(v, unit)->reshard_ranks;
    if (reshard == RESHARD_DEFAULT) {
        reshard = options->reshard;
        some = options->reshard_ranks;
    }
    if (reshard == RESHARD_DEFAULT)
        reshard = options->strategy == STRATEGY_SHARD_GRAD_OP ? RESHARD_NO : RESHARD_YES;
    if (all == 1 || reshard == RESHARD_NO) return 1;
    return reshard == RESHARD_GROUP ? some : all;
}

bool validate_reshards(const struct validator *v, int unit)
{
    int between = validate_between(v, unit);
    return between != 1 && between != unit_of(v, unit)->shard_world;
}

enum dtype validate_gathered_dtype(const struct validator *v, int unit)
{
    return unit_dtype_or(unit_of(v, unit)->param_dtype, v->plan->options.gathered_dtype);
}

bool validate_stays(const struct validator *v, int unit)
{
    const struct plan_options *options = &v->plan->options;
    if (unit_of(v, unit)->modules[0] == 0) return true;
    if (validate_gathers(v, unit)) return validate_between(v, unit) == 1;
    enum reshard reshard = unit_of(v, unit)->reshard;
    if (reshard == RESHARD_DEFAULT) reshard = options->reshard;
    if (reshard == RESHARD_DEFAULT) return options->strategy == STRATEGY_SHARD_GRAD_OP;
    return reshard == RESHARD_NO;
}

bool validate_offloads(const struct validator *v, int unit)
{
    const struct plan_options *options = &v->plan->options;
    return options->host_apart && (options->cpu_offload || unit_of(v, unit)->cpu_offload);
}

/* The number of ranks that share a copy of the unit, and that share a shard. */
static status_t check_groups(const struct validator *v)
{
    int world = v->plan->options.world;
    for (int u = 0; u < v->plan->units->unit_count; u++) {
        const struct unit *unit = unit_of(v, u);
        if (unit->shard_world < 1 || world % unit->shard_world != 0 ||
            unit->flat.padded != unit->flat.shard * unit->shard_world)
            return validate_fail(v, -1, "unit %s is cut for %d of %d ranks", unit->name,
                                 unit->shard_world, world);
        int between = validate_between(v, u);
        if (between < 1 || unit->shard_world % between != 0)
            return validate_fail(v, -1, "unit %s is to be kept by %d of %d ranks", unit->name,
                                 between, unit->shard_world);
    }
    return NULL;
}

/* ---- Form ---- */

static bool kind_allowed(const struct validator *v, const struct plan_instruction *in)
{
    bool fetches =
        in->unit >= 0 && (v->holds ? validate_held(v, in->unit) : validate_fetches(v, in->unit));
    switch (in->kind) {
    case INSTRUCTION_COPY_BATCH:
    case INSTRUCTION_COMPUTE: return !v->holds;
    case INSTRUCTION_ALL_GATHER: return fetches && validate_gathers(v, in->unit);
    case INSTRUCTION_FREE: return validate_fetches(v, in->unit);
    case INSTRUCTION_UPLOAD:
        return validate_offloads(v, in->unit) ||
               (fetches && validate_unpacks(v, in->unit) && !validate_gathers(v, in->unit));
    case INSTRUCTION_DOWNLOAD: return v->updates && validate_offloads(v, in->unit);
    case INSTRUCTION_DOWNLOAD_STATS: return v->updates;
    case INSTRUCTION_RESHARD: return v->train && validate_reshards(v, in->unit);
    case INSTRUCTION_REDUCE_SCATTER:
        return validate_reduces_gradients(v) && validate_gathers(v, in->unit);
    case INSTRUCTION_ALL_REDUCE:
        return validate_reduces_gradients(v) &&
               unit_of(v, in->unit)->shard_world < v->plan->options.world;
    case INSTRUCTION_REDUCE_STATS: return v->reduces;
    case INSTRUCTION_GATHER_VALUE: return v->plan->options.world > 1;
    case INSTRUCTION_ACCUMULATE:
        return v->train && v->plan->options.accumulation == ACCUMULATION_REDUCED;
    case INSTRUCTION_NORM:
    case INSTRUCTION_GATE: return v->updates && v->plan->options.norm != NORM_NONE;
    case INSTRUCTION_REDUCE_NORM:
        return v->updates && v->reduces && v->plan->options.norm != NORM_NONE;
    case INSTRUCTION_ZERO: return v->updates && v->plan->options.accumulation != ACCUMULATION_NONE;
    case INSTRUCTION_OPTIMIZER: return v->updates;
    case INSTRUCTION_MOMENTUM:
    case INSTRUCTION_ORTHOGONALIZE: return v->updates && validate_matrices(v, in->unit) > 0;
    case INSTRUCTION_COLLECT:
        if (validate_factors(v, in->unit))
            return v->updates && validate_factor_sums(v, in->unit) > 0 &&
                   validate_gathers(v, in->unit);
        return v->updates && validate_matrices(v, in->unit) > 0 && validate_gathers(v, in->unit);
    case INSTRUCTION_DISTRIBUTE:
        if (validate_factors(v, in->unit))
            return v->updates && validate_factor_sums(v, in->unit) > 0 &&
                   validate_gathers(v, in->unit);
        return v->updates && validate_matrices(v, in->unit) > 0 && v->reduces;
    case INSTRUCTION_SQUARES:
    case INSTRUCTION_FACTOR:
        return v->updates && validate_factors(v, in->unit) && validate_factor_sums(v, in->unit) > 0;
    case INSTRUCTION_UPDATE:
    case INSTRUCTION_SCALE: return v->updates && validate_factors(v, in->unit);
    case INSTRUCTION_GATHER_SUMS:
        return v->updates && validate_factors(v, in->unit) && validate_gathers(v, in->unit);
    case INSTRUCTION_KIND_COUNT: break;
    }
    return false;
}

/* Whether instruction `i` comes after a RESHARD of its unit. */
static bool was_resharded(const struct validator *v, int i)
{
    const struct plan_instruction *in = &v->program->instructions[i];
    if (!validate_reshards(v, in->unit)) return false;
    for (int k = i - 1; k >= 0; k--) {
        const struct plan_instruction *other = &v->program->instructions[k];
        if (other->kind == INSTRUCTION_RESHARD && other->unit == in->unit) return true;
    }
    return false;
}

/* The op must be a gather over all ranks; finds its elements. */
static status_t check_gather_value(const struct validator *v, int i, int64_t *count)
{
    int o = v->program->instructions[i].op;
    if (o < 0 || o >= v->graph->op_count || v->graph->ops[o].kind != OP_GATHER_RANKS)
        return validate_fail(v, i, "has op %d, which gathers nothing", o);
    const struct tensor_type *all = &v->graph->values[v->graph->ops[o].outputs[0]].type;
    *count = tensor_element_count(&v->graph->values[v->graph->ops[o].inputs[0]].type);
    if (tensor_element_count(all) == *count * v->plan->options.world) return NULL;
    return validate_fail(v, i, "gathers %lld elements of %d ranks into %lld", (long long)*count,
                         v->plan->options.world, (long long)tensor_element_count(all));
}

/* Checks the participants and the number of elements. */
static status_t check_collective(const struct validator *v, int i)
{
    const struct plan_instruction *in = &v->program->instructions[i];
    enum plan_group group = GROUP_WORLD;
    int64_t from = 0, count = 0;
    bool sharded = in->unit >= 0 && unit_of(v, in->unit)->shard_world > 1;
    bool parted = sharded && unit_of(v, in->unit)->shard_world < v->plan->options.world;
    switch (in->kind) {
    case INSTRUCTION_ALL_GATHER:
        if (was_resharded(v, i)) {
            group = GROUP_RESHARD;
            count = unit_of(v, in->unit)->flat.padded / validate_between(v, in->unit);
            break;
        }
        /* fall through */
    case INSTRUCTION_REDUCE_SCATTER:
        group = parted ? GROUP_SHARD : GROUP_WORLD;
        count = unit_of(v, in->unit)->flat.shard;
        if (validate_base(v, in->unit) != BASE_F32) count = validate_base_words(v, in->unit);
        break;
    case INSTRUCTION_ALL_REDUCE:
        group = parted ? GROUP_REPLICA : GROUP_WORLD;
        count = unit_of(v, in->unit)->flat.shard;
        if (sharded) break;
        /* A bucket: any range of the whole. */
        if (in->from < 0 || in->count < 1 || in->from > count || in->count > count - in->from)
            return validate_fail(v, i, "reduces elements %lld and %lld more of %lld",
                                 (long long)in->from, (long long)in->count, (long long)count);
        from = in->from;
        count = in->count;
        break;
    case INSTRUCTION_COLLECT:
    case INSTRUCTION_DISTRIBUTE:
        group = parted ? GROUP_SHARD : GROUP_WORLD;
        count = validate_factors(v, in->unit) ? validate_factor_sums(v, in->unit)
                                              : validate_matrices(v, in->unit);
        break;
    case INSTRUCTION_GATHER_SUMS:
        group = parted ? GROUP_SHARD : GROUP_WORLD;
        count = 4 * (int64_t)unit_of(v, in->unit)->flat.parameter_count;
        break;
    case INSTRUCTION_REDUCE_STATS: count = PLAN_STATS_COUNT + validate_sums(v->graph); break;
    case INSTRUCTION_REDUCE_NORM: count = 2; break;
    case INSTRUCTION_GATHER_VALUE: TRY(check_gather_value(v, i, &count)); break;
    default: break;
    }
    if (in->group != group || in->from != from || in->count != count)
        return validate_fail(v, i,
                             "is for %lld elements from %lld on in group %d; expected %lld from "
                             "%lld on in group %d",
                             (long long)in->count, (long long)in->from, in->group, (long long)count,
                             (long long)from, group);
    return NULL;
}

static enum lane lane_of(const struct validator *v, const struct plan_instruction *in)
{
    switch (in->kind) {
    case INSTRUCTION_COPY_BATCH:
    case INSTRUCTION_UPLOAD: return LANE_COPY;
    case INSTRUCTION_DOWNLOAD:
    case INSTRUCTION_DOWNLOAD_STATS: return LANE_DOWNLOAD;
    case INSTRUCTION_OPTIMIZER: return validate_offloads(v, in->unit) ? LANE_HOST : LANE_COMPUTE;
    case INSTRUCTION_ALL_GATHER:
    case INSTRUCTION_REDUCE_SCATTER:
    case INSTRUCTION_ALL_REDUCE:
    case INSTRUCTION_REDUCE_STATS:
    case INSTRUCTION_GATHER_VALUE:
    case INSTRUCTION_COLLECT:
    case INSTRUCTION_DISTRIBUTE:
    case INSTRUCTION_GATHER_SUMS:
    case INSTRUCTION_REDUCE_NORM: return LANE_COMM;
    default: return LANE_COMPUTE;
    }
}

static bool kind_has_unit(enum instruction_kind kind)
{
    return kind == INSTRUCTION_ALL_GATHER || kind == INSTRUCTION_FREE ||
           kind == INSTRUCTION_REDUCE_SCATTER || kind == INSTRUCTION_ALL_REDUCE ||
           kind == INSTRUCTION_OPTIMIZER || kind == INSTRUCTION_ACCUMULATE ||
           kind == INSTRUCTION_NORM || kind == INSTRUCTION_ZERO || kind == INSTRUCTION_RESHARD ||
           kind == INSTRUCTION_UPLOAD || kind == INSTRUCTION_DOWNLOAD ||
           kind == INSTRUCTION_MOMENTUM || kind == INSTRUCTION_COLLECT ||
           kind == INSTRUCTION_ORTHOGONALIZE || kind == INSTRUCTION_DISTRIBUTE ||
           (kind >= INSTRUCTION_SQUARES && kind <= INSTRUCTION_SCALE);
}

/* Bytes sent by this rank: every other rank's part to the ranks that need it. */
static uint64_t expected_traffic(const struct validator *v,
                                 const struct plan_instruction *instruction)
{
    uint64_t world = (uint64_t)v->plan->options.world, rank = (uint64_t)v->plan->options.rank;
    uint64_t elements = (uint64_t)instruction->count;
    if (instruction->group != GROUP_WORLD) {
        /* Rank r is number r % S of group r / S of S ranks. */
        uint64_t each = (uint64_t)unit_of(v, instruction->unit)->shard_world;
        rank = instruction->group == GROUP_SHARD ? rank % each : rank / each;
        world = instruction->group == GROUP_SHARD ? each : world / each;
        if (instruction->group == GROUP_RESHARD)
            world = (uint64_t)validate_between(v, instruction->unit);
    }
    uint64_t part = (elements + world - 1) / world, sent = 0;
    uint64_t reduced = 4;
    if (instruction->unit >= 0 && unit_dtype_or(unit_of(v, instruction->unit)->reduce_dtype,
                                                v->plan->options.reduce_dtype) == DTYPE_BF16)
        reduced = 2;
    switch (instruction->kind) {
    case INSTRUCTION_ALL_GATHER:
        if (instruction->group != GROUP_RESHARD && validate_base(v, instruction->unit) != BASE_F32)
            return 4 * elements * (world - 1); /* words */
        return (validate_gathered_dtype(v, instruction->unit) == DTYPE_BF16 ? 2 : 4) * elements *
               (world - 1);
    case INSTRUCTION_REDUCE_SCATTER: return reduced * elements * (world - 1);
    case INSTRUCTION_COLLECT:
    case INSTRUCTION_DISTRIBUTE:
        return validate_factors(v, instruction->unit) ? validate_moved(v, instruction)
                                                      : validate_exchanged(v, instruction);
    case INSTRUCTION_GATHER_SUMS:
    case INSTRUCTION_GATHER_VALUE:
    case INSTRUCTION_REDUCE_NORM: return 4 * elements * (world - 1);
    case INSTRUCTION_ALL_REDUCE:
    case INSTRUCTION_REDUCE_STATS:
        /* Each other rank receives its own part to sum, and our sum. */
        for (uint64_t other = 0; other < world; other++) {
            if (other == rank) continue;
            for (int k = 0; k < 2; k++) {
                uint64_t start = part * (k == 0 ? other : rank);
                uint64_t left = start < elements ? elements - start : 0;
                sent += (k == 0 ? reduced : 4) * (left < part ? left : part);
            }
        }
        return sent;
    default: return 0;
    }
}

static status_t check_form(const struct validator *v)
{
    const struct plan_program *program = v->program;
    int last_op = -1;
    for (int i = 0; i < program->instruction_count; i++) {
        const struct plan_instruction *in = &program->instructions[i];
        bool unit_fits = kind_has_unit(in->kind)
                             ? in->unit >= 0 && in->unit < v->plan->units->unit_count
                             : in->unit == -1;
        if (!unit_fits) return validate_fail(v, i, "has unit %d", in->unit);
        if (in->lane != lane_of(v, in)) return validate_fail(v, i, "is on lane %d", in->lane);
        if (kind_has_unit(in->kind) && v->plan->units->units[in->unit].flat.padded == 0)
            return validate_fail(v, i, "is for a unit without parameters");
        if (!kind_allowed(v, in))
            return validate_fail(v, i, "does not belong in this kind of program");
        TRY(check_collective(v, i));
        if (in->kind == INSTRUCTION_COMPUTE || in->kind == INSTRUCTION_GATHER_VALUE) {
            if (in->op != last_op + 1 || in->op >= v->graph->op_count)
                return validate_fail(v, i, "runs op %d after op %d", in->op, last_op);
            if (in->kind == INSTRUCTION_COMPUTE && v->graph->ops[in->op].kind == OP_GATHER_RANKS)
                return validate_fail(v, i, "computes a gather over all ranks");
            last_op = in->op;
            if (in->backward != (in->op >= v->graph->forward_op_count))
                return validate_fail(v, i, "is marked with the wrong pass");
        } else if (in->op != -1) {
            return validate_fail(v, i, "has op %d", in->op);
        }
        if (in->communicated != expected_traffic(v, in))
            return validate_fail(v, i, "claims to send %llu bytes; expected %llu",
                                 (unsigned long long)in->communicated,
                                 (unsigned long long)expected_traffic(v, in));
        if (in->wait_count < 0 || in->wait_count >= LANE_COUNT)
            return validate_fail(v, i, "has %d waits; expected at most one for each other lane",
                                 in->wait_count);
        for (int k = 0; k < in->wait_count; k++) {
            int other = in->waits[k];
            if (other < 0 || other >= i || (k > 0 && other <= in->waits[k - 1]) ||
                program->instructions[other].lane == in->lane)
                return validate_fail(v, i,
                                     "waits for instruction %d; expected earlier ones of other "
                                     "lanes, ascending",
                                     other);
            if (program->instructions[other].lane == LANE_HOST)
                return validate_fail(v, i, "waits for instruction %d of the host", other);
        }
    }
    if (!v->holds && last_op != v->graph->op_count - 1)
        return validate_fail(v, -1, "%d of the graph's %d ops are run", last_op + 1,
                             v->graph->op_count);
    return NULL;
}

static status_t check_clocks(struct validator *v)
{
    const struct plan_program *program = v->program;
    int last[LANE_COUNT];
    for (int lane = 0; lane < LANE_COUNT; lane++) last[lane] = -1;
    v->clocks = mem_alloc_array((size_t)program->instruction_count * LANE_COUNT, sizeof *v->clocks);
    for (int i = 0; i < program->instruction_count; i++) {
        const struct plan_instruction *in = &program->instructions[i];
        int *clock = &v->clocks[i * LANE_COUNT];
        for (int lane = 0; lane < LANE_COUNT; lane++)
            clock[lane] = last[in->lane] < 0 ? -1 : v->clocks[last[in->lane] * LANE_COUNT + lane];
        for (int k = 0; k < in->wait_count; k++)
            for (int lane = 0; lane < LANE_COUNT; lane++)
                if (v->clocks[in->waits[k] * LANE_COUNT + lane] > clock[lane])
                    clock[lane] = v->clocks[in->waits[k] * LANE_COUNT + lane];
        clock[in->lane] = i;
        last[in->lane] = i;
        if (memcmp(clock, &program->clocks[i * LANE_COUNT], LANE_COUNT * sizeof *clock) != 0)
            return validate_fail(v, i, "has a clock that its waits do not give");
    }
    return NULL;
}

/* ---- What is in the list, and how often ---- */

int validate_op_units(const struct validator *v, int op, bool gradient, int units[OP_UNITS_MAX])
{
    const struct graph_op *o = &v->graph->ops[op];
    int count = 0;
    for (int k = 0; k < (gradient ? OP_MAX_OUTPUTS : OP_MAX_INPUTS); k++) {
        int value = gradient ? o->outputs[k] : o->inputs[k];
        if (value < 0) continue;
        enum value_kind kind = v->graph->values[value].kind;
        if (kind != (gradient ? VALUE_PARAMETER_GRADIENT : VALUE_PARAMETER)) continue;
        int unit = v->plan->units->unit_of_parameter[validate_owner(v, value)];
        bool known = false;
        for (int i = 0; i < count; i++) known = known || units[i] == unit;
        if (!known) units[count++] = unit;
    }
    return count;
}

int validate_sums(const struct graph *graph)
{
    int count = 0;
    for (int v = 0; graph != NULL && v < graph->value_count; v++)
        if (graph->values[v].kind == VALUE_TALLY)
            count += (int)tensor_element_count(&graph->values[v].type);
    return count;
}

static status_t check_batch_and_stats(const struct validator *v)
{
    int copy = -1, stats = -1;
    for (int i = 0; i < v->program->instruction_count; i++) {
        const struct plan_instruction *in = &v->program->instructions[i];
        if (in->kind == INSTRUCTION_COPY_BATCH) {
            if (copy >= 0) return validate_fail(v, i, "appears twice");
            copy = i;
        }
        if (in->kind == INSTRUCTION_REDUCE_STATS) {
            if (stats >= 0) return validate_fail(v, i, "appears twice");
            stats = i;
        }
    }
    if (copy < 0) return validate_fail(v, -1, "the batch is never copied");
    if (!v->reduces || v->graph->logits >= 0) return NULL; /* every rank computes the same */
    if (stats < 0) return validate_fail(v, -1, "the statistics are never reduced");
    for (int i = 0; i < v->program->instruction_count; i++) {
        const struct plan_instruction *in = &v->program->instructions[i];
        if (in->kind != INSTRUCTION_COMPUTE) continue;
        for (int k = 0; k < OP_MAX_OUTPUTS; k++) {
            int value = v->graph->ops[in->op].outputs[k];
            if (value < 0 ||
                (value != v->graph->loss && value != v->graph->correct && value != v->graph->tally))
                continue;
            if (!validate_before(v, i, stats))
                return validate_fail(v, i, "is not done when the statistics are reduced");
        }
    }
    return NULL;
}

/* The state of a unit's gradient. */
struct reduction {
    int *written;  /* by parameter of the unit: the last instruction that writes its gradient, -1 */
    bool *reduced; /* by parameter of the unit: some part of it is reduced */
    int scatter;   /* -1 */
    int last;      /* the last ALL_REDUCE, -1 */
    int64_t done;  /* elements covered by ALL_REDUCEs */
};

/* Checks that the unit's parameters in elements `from` to `from` + `count` - 1 are written, and
 * forbids later writes. */
static status_t reduce_range(const struct validator *v, struct reduction *of, int i, int64_t from,
                             int64_t count)
{
    const struct flat_parameter *flat = &unit_of(v, v->program->instructions[i].unit)->flat;
    for (int k = 0; k < flat->parameter_count; k++) {
        int64_t end = flat->offsets[k] +
                      tensor_element_count(&v->plan->model->parameters[flat->parameters[k]].type);
        if (end <= from || flat->offsets[k] >= from + count) continue;
        if (of->written[k] < 0 || !validate_before(v, of->written[k], i))
            return validate_fail(v, i, "does not wait for the gradient of %s",
                                 v->plan->model->parameters[flat->parameters[k]].name);
        of->reduced[k] = true;
    }
    return NULL;
}

static status_t check_reduction(const struct validator *v, struct reduction *of, int i,
                                const int *earlier)
{
    const struct plan_instruction *in = &v->program->instructions[i];
    const struct flat_parameter *flat = &unit_of(v, in->unit)->flat;
    if (in->kind == INSTRUCTION_REDUCE_SCATTER) {
        if (of->scatter >= 0) return validate_fail(v, i, "reduces a second time");
        of->scatter = i;
        return reduce_range(v, of, i, 0, flat->padded);
    }
    if (validate_gathers(v, in->unit)) {
        if (of->last >= 0) return validate_fail(v, i, "reduces a second time");
        if (of->scatter < 0) return validate_fail(v, i, "adds up what is not reduced yet");
        of->last = i;
        of->done = in->count;
        return NULL;
    }
    for (int k = of->last; k >= 0; k = earlier[k]) {
        const struct plan_instruction *other = &v->program->instructions[k];
        if (other->from < in->from + in->count && in->from < other->from + other->count)
            return validate_fail(v, i, "reduces a second time what instruction %d does", k);
    }
    of->last = i;
    of->done += in->count;
    return reduce_range(v, of, i, in->from, in->count);
}

/* The last instruction of the unit's gradient to wait for, -1 while the gradient is incomplete. */
static int gradient_ready(const struct validator *v, const struct reduction *of, int unit)
{
    const struct flat_parameter *flat = &unit_of(v, unit)->flat;
    if (!validate_reduces_gradients(v)) {
        int last = -1;
        for (int k = 0; k < flat->parameter_count; k++) {
            if (of->written[k] < 0) return -1;
            if (of->written[k] > last) last = of->written[k];
        }
        return last; /* all on one lane */
    }
    if (unit_of(v, unit)->shard_world == v->plan->options.world) return of->scatter;
    return of->done == flat->shard ? of->last : -1; /* all on one lane */
}

static int place_in_unit(const struct flat_parameter *flat, int parameter)
{
    int low = 0, high = flat->parameter_count - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (flat->parameters[middle] < parameter) low = middle + 1;
        else high = middle;
    }
    return flat->parameter_count > 0 && flat->parameters[low] == parameter ? low : -1;
}

static status_t check_gradient_writes(const struct validator *v, struct reduction *of, int i)
{
    const struct graph_op *op = &v->graph->ops[v->program->instructions[i].op];
    for (int k = 0; k < OP_MAX_OUTPUTS; k++) {
        int value = op->outputs[k];
        if (value < 0 || v->graph->values[value].kind != VALUE_PARAMETER_GRADIENT) continue;
        int owner = validate_owner(v, value), unit = v->plan->units->unit_of_parameter[owner];
        if (!v->train || unit_of(v, unit)->frozen)
            return validate_fail(v, i, "writes a gradient that nothing uses");
        int at = place_in_unit(&unit_of(v, unit)->flat, owner);
        if (at < 0)
            return validate_fail(v, i, "writes a gradient that is not in unit %s",
                                 unit_of(v, unit)->name);
        if (of[unit].reduced[at])
            return validate_fail(v, i, "writes a gradient that was reduced before");
        of[unit].written[at] = i;
    }
    return NULL;
}

/* Every trainable unit: its gradients are written, reduced exactly once, each part after the last
 * write into it, and optimized once afterwards; none of this happens for frozen units. */
static status_t walk_gradients(const struct validator *v, struct reduction *of, int *earlier)
{
    int unit_count = v->plan->units->unit_count;
    for (int i = 0; i < v->program->instruction_count; i++) {
        const struct plan_instruction *in = &v->program->instructions[i];
        switch (in->kind) {
        case INSTRUCTION_COMPUTE: TRY(check_gradient_writes(v, of, i)); break;
        case INSTRUCTION_REDUCE_SCATTER:
        case INSTRUCTION_ALL_REDUCE:
            earlier[i] = of[in->unit].last;
            TRY(check_reduction(v, &of[in->unit], i, earlier));
            break;
        case INSTRUCTION_ACCUMULATE:
        case INSTRUCTION_NORM:
        case INSTRUCTION_DOWNLOAD:
        case INSTRUCTION_MOMENTUM:
        case INSTRUCTION_SQUARES:
        case INSTRUCTION_UPDATE:
        case INSTRUCTION_OPTIMIZER: {
            int ready = gradient_ready(v, &of[in->unit], in->unit);
            if (ready < 0 || !validate_before(v, ready, i))
                return validate_fail(v, i, "does not wait for the reduced gradient");
            break;
        }
        default: break;
        }
    }
    for (int u = 0; u < unit_count && v->train; u++) {
        const struct unit *unit = unit_of(v, u);
        if (unit->frozen || unit->flat.parameter_count == 0) continue;
        if (gradient_ready(v, &of[u], u) < 0)
            return validate_fail(v, -1, "the gradient of unit %s is never reduced", unit->name);
    }
    return NULL;
}

static status_t check_gradients(const struct validator *v)
{
    int unit_count = v->plan->units->unit_count;
    struct reduction *of = mem_alloc_array(unit_count, sizeof *of);
    int *earlier = mem_alloc_array(v->program->instruction_count, sizeof *earlier);
    for (int u = 0; u < unit_count; u++) {
        int count = unit_of(v, u)->flat.parameter_count;
        of[u] = (struct reduction){
            .written = mem_alloc_array(count, sizeof(int)),
            .reduced = mem_alloc_array(count, sizeof(bool)),
            .scatter = -1,
            .last = -1,
        };
        for (int k = 0; k < count; k++) of[u].written[k] = -1;
    }
    status_t status = walk_gradients(v, of, earlier);
    for (int u = 0; u < unit_count; u++) {
        free(of[u].written);
        free(of[u].reduced);
    }
    free(earlier);
    free(of);
    return status;
}

/* Every unit that is held is gathered once. */
static status_t check_held(const struct validator *v)
{
    int unit_count = v->plan->units->unit_count;
    AUTO_FREE int *gathers = mem_alloc_array(unit_count, sizeof *gathers);
    for (int i = 0; i < v->program->instruction_count; i++) {
        const struct plan_instruction *in = &v->program->instructions[i];
        if (++gathers[in->unit] > 1) return validate_fail(v, i, "is the second of its unit");
    }
    for (int u = 0; u < unit_count; u++)
        if (validate_held(v, u) && gathers[u] == 0)
            return validate_fail(v, -1, "unit %s is never gathered", unit_of(v, u)->name);
    return NULL;
}

static status_t validate_program(struct validator *v)
{
    TRY(check_groups(v));
    TRY(check_form(v));
    TRY(check_clocks(v));
    if (v->holds) {
        TRY(check_held(v));
        return validate_memory(v);
    }
    TRY(check_batch_and_stats(v));
    TRY(check_gradients(v));
    TRY(validate_step(v));
    TRY(validate_gatherings(v));
    return validate_memory(v);
}

status_t plan_validate(const struct plan *plan)
{
    const struct plan_program *programs[] = {&plan->train, &plan->accumulate, &plan->evaluate,
                                             &plan->hold};
    static const char *const names[] = {"train", "accumulate", "evaluate", "hold"};
    uint64_t work_bytes = 0;
    if ((plan->accumulate.graph != NULL) != (plan->options.accumulation != ACCUMULATION_NONE))
        return status_new(STATUS_INTERNAL, "the accumulate program does not fit the options");
    bool holds = plan->held_bytes > 0 && plan->options.lent == LENT_PARAMETERS;
    if ((plan->hold.graph != NULL) != holds)
        return status_new(STATUS_INTERNAL, "the hold program does not fit the options");
    for (int i = 0; i < 4; i++) {
        if (programs[i]->graph == NULL) continue;
        struct validator v = {.plan = plan,
                              .program = programs[i],
                              .graph = programs[i]->graph,
                              .name = names[i],
                              .train = i<2, .updates = i == 0, .reduces = plan->options.world> 1,
                              .holds = i == 3};
        status_t status = i == 0 ? validate_owners(&v) : NULL;
        if (status == NULL) status = validate_program(&v);
        free(v.clocks);
        TRY(status);
        if (programs[i]->work_bytes > work_bytes) work_bytes = programs[i]->work_bytes;
    }
    if (plan->work_bytes != work_bytes || plan->peak_bytes != plan->state_bytes + work_bytes)
        return status_new(STATUS_INTERNAL, "the arenas are not as large as the programs say");
    if (plan->hash != plan_compute_hash(plan))
        return status_new(STATUS_INTERNAL, "the hash is not the plan's");
    return NULL;
}
