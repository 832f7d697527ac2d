/*
 * The schedule: the instructions of one step, their issue order, and their dependencies. Pure
 * functions; any thread.
 *
 * Lanes run ahead of each other as far as waits allow, so a gather's place in the list only decides
 * which other communication it precedes. Its waits decide when it may start:
 *
 *   - the limiter: at most `gathered_limit` units (not counting the root) are gathered and not yet
 *     freed, unless more are needed at the same time; a gather waits for the FREE that makes room;
 *   - forward: nothing else, so the next unit is gathered while this one computes, as FSDP1 does on
 *     a device whose host runs ahead; `forward_prefetch` only moves the gather up in the list;
 *   - backward, prefetch pre: listed before the gradients of the preceding unit, thus before that
 *     unit's reduce-scatter; post: starts when that unit's gradients are computed, before its
 *     reduce-scatter; none: starts when the compute before its first use has finished.
 *
 * A unit is freed after its last use in forward and gathered again in backward, from the first to
 * the last op there that reads its parameters (a unit that backward does not read is not gathered
 * again). If it is resharded to a smaller group, a larger shard is kept for that, and the second
 * gather involves fewer ranks. Exceptions: the root, and units that stay gathered until backward,
 * are gathered once and freed after their last use; and the unit that is the last to be freed in
 * forward and the first to be gathered in backward is not freed in between: nothing could have used
 * its memory.
 *
 * An offloaded unit's shard is uploaded for every gather except the second one of a resharded unit,
 * as early as the gather may start, and then waits for the gather. Its gradient is downloaded when
 * it is reduced, and the host's optimizer runs when backward has fetched the unit for the last
 * time, while the next units continue. Only a norm makes it wait for the end of backward.
 *
 * The statistics are reduced as soon as the loss is known, before any gradient, so no optimizer
 * waits for them.
 *
 * A unit's gradient is reduced when it is complete. If every rank has the whole gradient, it is cut
 * into buckets from its end to its start, because backward reaches the parameters in about the
 * reverse order of their registration, and each bucket is reduced when it is complete.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "fsdp/plan_internal.h"

/* The uses of a unit in one pass (forward or backward). */
struct use {
    int unit;
    int first, last; /* ops that read its parameters */
    int begin, end;  /* the same including the ops that write its gradient */
};

struct pass {
    struct use *uses; /* gathered units, by first use */
    int count;
    int *of_unit;       /* the unit's use, -1 */
    int next;           /* units with uses before this one must be gathered */
    int prefetch_until; /* prefetch is allowed up to this use */
};

struct unit_state {
    bool gathered, resharded;
    int gather, free, reduce; /* latest instructions, -1 */
    int upload, download;     /* the same */
    int optimize_op;          /* an offloaded unit is optimized after it, if it need not wait for
                               * anything else; -1 */
    int last_gradient_op;     /* -1 */
    int bucket_begin, bucket_end; /* of the scheduler's buckets */
    int reduce_op;                /* the op after which the gradient is reduced, -1 */
};

struct in_flight {
    int unit;
    int freed; /* its FREE, -1 while gathered */
};

/* A piece of a unit's gradient that is reduced in one collective. */
struct bucket {
    int64_t from, count;
    int ready_op; /* the last instruction that writes into it */
};

struct scheduler {
    const struct plan *plan;
    struct graph *graph;
    struct plan_program *program;
    enum plan_role role;
    bool train;   /* there are gradients */
    bool reduces; /* and they are reduced */
    bool no_prefetch, backward;
    int limit;
    int capacity;
    struct unit_state *units;
    struct in_flight *window; /* units counted by the limiter, oldest first */
    int window_count;
    int room;              /* the last FREE that made room in the window, -1 */
    struct pass passes[2]; /* forward, backward */
    int kept;              /* the unit that stays gathered from forward to backward, -1 */
    int copy, last_compute, stats_op;
    int stats;              /* after it the statistics are those of all ranks, -1 */
    int host_stats;         /* after it the host's optimizers have them, -1 */
    int *gathered_by;       /* by value: its GATHER_VALUE, -1 */
    int *gradient_op;       /* by owning parameter: the last op that writes its gradient, -1 */
    struct bucket *buckets; /* by unit */
    int bucket_count, bucket_capacity;
    int *completed; /* units in the order of their last gradients */
    int completed_count;
    int normed_count; /* number of these whose norm has been computed */
    bool norms_early; /* before all gradients are complete */
};

enum { OP_UNITS_MAX = OP_MAX_INPUTS + OP_MAX_OUTPUTS };

static bool is_root(const struct scheduler *s, int unit)
{
    return s->plan->units->units[unit].modules[0] == 0;
}

static int append_instruction(struct scheduler *s, struct plan_instruction instruction, int *after,
                              int after_count)
{
    instruction.source = instruction.target = instruction.workspace = -1;
    instruction.backward = s->backward;
    instruction.communicated = plan_communicated(s->plan, &instruction);
    int number = plan_append(s->program, &s->capacity, &instruction, after, after_count);
    if (instruction.lane == LANE_COMPUTE) s->last_compute = number;
    return number;
}

static int append(struct scheduler *s, enum instruction_kind kind, enum lane lane, int unit, int op,
                  int *after, int after_count)
{
    struct plan_instruction instruction = {.kind = kind, .lane = lane, .unit = unit, .op = op};
    return append_instruction(s, instruction, after, after_count);
}

/* A collective over `group` on `count` elements starting at `from`, after instruction `after`. */
static int append_collective(struct scheduler *s, enum instruction_kind kind, int unit,
                             enum plan_group group, int64_t from, int64_t count, int *after,
                             int after_count)
{
    struct plan_instruction instruction = {.kind = kind,
                                           .lane = LANE_COMM,
                                           .group = group,
                                           .unit = unit,
                                           .op = -1,
                                           .from = from,
                                           .count = count};
    return append_instruction(s, instruction, after, after_count);
}

/* The group of the ranks that the unit is sharded over. */
static enum plan_group shard_group(const struct scheduler *s, int unit)
{
    return s->plan->units->units[unit].shard_world == s->plan->options.world ? GROUP_WORLD
                                                                             : GROUP_SHARD;
}

/* ---- Looking at the graph ---- */

static int add_unit_once(int *units, int count, int unit)
{
    for (int i = 0; i < count; i++)
        if (units[i] == unit) return count;
    units[count] = unit;
    return count + 1;
}

/* The distinct units whose parameters `op` reads or, with `written`, whose gradient it writes. */
static int units_of_op(const struct scheduler *s, const struct graph_op *op, bool written,
                       int units[static OP_UNITS_MAX])
{
    int count = 0;
    for (int i = 0; i < OP_MAX_INPUTS; i++) {
        int v = op->inputs[i];
        if (v >= 0 && s->graph->values[v].kind == VALUE_PARAMETER)
            count = add_unit_once(units, count, plan_unit_of_value(s->plan, s->graph, v));
    }
    for (int i = 0; written && i < OP_MAX_OUTPUTS; i++) {
        int v = op->outputs[i];
        if (v >= 0 && s->graph->values[v].kind == VALUE_PARAMETER_GRADIENT)
            count = add_unit_once(units, count, plan_unit_of_value(s->plan, s->graph, v));
    }
    return count;
}

/* Every trainable parameter must have a gradient, otherwise its unit's would be partly
 * undefined. */
static status_t check_gradients(const struct scheduler *s)
{
    const struct model *model = s->plan->model;
    bool *has = mem_alloc_array(model->parameter_count, sizeof *has);
    for (int o = 0; o < s->graph->op_count; o++) {
        for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
            int v = s->graph->ops[o].outputs[i];
            if (v >= 0 && s->graph->values[v].kind == VALUE_PARAMETER_GRADIENT)
                has[flat_parameter_owner(model, s->graph->values[v].parameter)] = true;
        }
    }
    status_t status = NULL;
    for (int p = 0; p < model->parameter_count && status == NULL; p++) {
        const struct parameter *parameter = &model->parameters[p];
        if (parameter->tied_to >= 0 || parameter->trainable == has[p]) continue;
        if (has[p])
            status = status_new(STATUS_INTERNAL,
                                "the graph computes a gradient for the frozen parameter '%s'",
                                parameter->name);
        else
            status = status_new(STATUS_INVALID_ARGUMENT,
                                "the parameter '%s' is trainable, but the loss does not depend on "
                                "it; use it in the forward pass, freeze it, or remove it",
                                parameter->name);
    }
    free(has);
    return status;
}

/* Computes the uses of each unit in the pass of ops `from` to `to` - 1. */
static void find_uses(struct scheduler *s, struct pass *pass, int from, int to)
{
    int unit_count = s->plan->units->unit_count;
    pass->uses = mem_alloc_array(unit_count, sizeof *pass->uses);
    pass->of_unit = mem_alloc_array(unit_count, sizeof *pass->of_unit);
    for (int u = 0; u < unit_count; u++) pass->of_unit[u] = -1;
    int *begin = mem_alloc_array(unit_count, sizeof *begin);
    for (int u = 0; u < unit_count; u++) begin[u] = -1;
    int units[OP_UNITS_MAX];
    for (int o = from; o < to; o++) {
        const struct graph_op *op = &s->graph->ops[o];
        int read = units_of_op(s, op, false, units);
        for (int i = 0; i < read; i++) {
            int u = units[i];
            if (!plan_fetches(s->plan, u)) continue;
            if (pass->of_unit[u] < 0) {
                pass->of_unit[u] = pass->count;
                pass->uses[pass->count++] = (struct use){.unit = u, .first = o};
            }
            pass->uses[pass->of_unit[u]].last = o;
        }
        int touched = units_of_op(s, op, true, units);
        for (int i = 0; i < touched; i++) {
            int u = units[i];
            if (begin[u] < 0) begin[u] = o;
        }
        for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
            int v = op->outputs[i];
            if (v < 0 || s->graph->values[v].kind != VALUE_PARAMETER_GRADIENT) continue;
            s->units[plan_unit_of_value(s->plan, s->graph, v)].last_gradient_op = o;
            s->gradient_op[flat_parameter_owner(s->plan->model, s->graph->values[v].parameter)] = o;
        }
    }
    for (int i = 0; i < pass->count; i++) {
        struct use *use = &pass->uses[i];
        use->begin = begin[use->unit];
        use->end = use->last;
        int gradient = s->units[use->unit].last_gradient_op;
        if (gradient > use->end) use->end = gradient;
    }
    free(begin);
}

/* ---- Gathering and freeing ---- */

/* Whether the unit is gathered in forward and stays so until backward is done with it. */
static bool stays(const struct scheduler *s, int unit)
{
    return s->passes[1].of_unit[unit] >= 0 && (is_root(s, unit) || plan_keeps(s->plan, unit));
}

/* Whether the limiter counts the unit. */
static bool is_limited(const struct scheduler *s, int unit)
{
    return !is_root(s, unit) && !stays(s, unit);
}

/* Drops freed units from the window until there is room, remembering the last FREE needed for that.
 * False if there is no room until another unit is freed. */
static bool make_room(struct scheduler *s)
{
    while (s->window_count >= s->limit) {
        int oldest = -1;
        for (int i = 0; i < s->window_count; i++) {
            int freed = s->window[i].freed;
            if (freed >= 0 && (oldest < 0 || freed < oldest)) oldest = freed;
        }
        if (oldest < 0) return false;
        s->room = oldest;
        int left = 0;
        for (int i = 0; i < s->window_count; i++)
            if (s->window[i].freed < 0 || s->window[i].freed > oldest)
                s->window[left++] = s->window[i];
        s->window_count = left;
    }
    return true;
}

/* False if there is no room; a unit that is needed now is gathered regardless. */
static bool gather(struct scheduler *s, int unit, bool needed)
{
    struct unit_state *state = &s->units[unit];
    bool limited = is_limited(s, unit);
    if (limited) {
        if (!make_room(s) && !needed) return false;
        s->window[s->window_count++] = (struct in_flight){.unit = unit, .freed = -1};
    }
    bool late = s->backward ? s->plan->options.backward_prefetch != PREFETCH_PRE : s->no_prefetch;
    int after[] = {limited ? s->room : -1, state->free, late ? s->last_compute : -1, -1};
    state->gathered = true;
    bool uploads = plan_offloads(s->plan, unit) || !plan_gathers(s->plan, unit);
    if (uploads && !state->resharded) {
        /* Staging does not touch what was gathered before. */
        int freed = plan_gathers(s->plan, unit) ? -1 : after[1];
        int before[] = {after[0], freed, after[2]};
        state->upload = after[3] = append(s, INSTRUCTION_UPLOAD, LANE_COPY, unit, -1, before, 3);
        state->gather = state->upload;
        if (!plan_gathers(s->plan, unit)) return true;
    }
    enum plan_group group = state->resharded ? GROUP_RESHARD : shard_group(s, unit);
    int64_t count = state->resharded ? plan_resharded_elements(s->plan, unit)
                                     : plan_gathered_count(s->plan, unit);
    state->gather = append_collective(s, INSTRUCTION_ALL_GATHER, unit, group, 0, count, after, 4);
    return true;
}

/* Gathers the units needed by `op`, then prefetches those that fit. */
static void gather_until(struct scheduler *s, struct pass *pass, int op)
{
    for (; pass->next < pass->count; pass->next++) {
        const struct use *use = &pass->uses[pass->next];
        bool needed = use->first <= op;
        if (!needed && pass->next >= pass->prefetch_until) return;
        if (s->units[use->unit].gathered) continue;
        if (!gather(s, use->unit, needed)) return;
    }
}

static void release(struct scheduler *s, int unit)
{
    struct unit_state *state = &s->units[unit];
    state->resharded =
        !s->backward && s->passes[1].of_unit[unit] >= 0 && plan_reshards(s->plan, unit);
    if (state->resharded) append(s, INSTRUCTION_RESHARD, LANE_COMPUTE, unit, -1, NULL, 0);
    state->free = append(s, INSTRUCTION_FREE, LANE_COMPUTE, unit, -1, NULL, 0);
    state->gathered = false;
    for (int i = 0; i < s->window_count; i++)
        if (s->window[i].unit == unit && s->window[i].freed < 0) s->window[i].freed = state->free;
}

/* Whether `unit`, after its last use in this pass, is not needed before its next gather. */
static bool may_release(const struct scheduler *s, int unit)
{
    return s->backward || (!stays(s, unit) && unit != s->kept);
}

/* ---- One op after the other ---- */

/* Allows the pass to prefetch its next use after `use`. In backward, units that stayed gathered
 * since forward are skipped. */
static void want_next(const struct scheduler *s, struct pass *pass, int use)
{
    int next = use + 1;
    while (s->backward && next < pass->count && stays(s, pass->uses[next].unit)) next++;
    if (next + 1 > pass->prefetch_until) pass->prefetch_until = next + 1;
}

static void before_op(struct scheduler *s, struct pass *pass, int o)
{
    bool ahead = s->backward ? s->plan->options.backward_prefetch == PREFETCH_PRE
                             : s->plan->options.forward_prefetch && !s->no_prefetch;
    int units[OP_UNITS_MAX];
    int count = units_of_op(s, &s->graph->ops[o], true, units);
    for (int i = 0; ahead && i < count; i++) {
        int use = pass->of_unit[units[i]];
        if (use >= 0 && pass->uses[use].begin == o) want_next(s, pass, use);
    }
    gather_until(s, pass, o);
}

static void compute(struct scheduler *s, int o)
{
    const struct graph_op *op = &s->graph->ops[o];
    int units[OP_UNITS_MAX], after[OP_UNITS_MAX + OP_MAX_INPUTS + 1], after_count = 0;
    int read = units_of_op(s, op, false, units);
    for (int i = 0; i < read; i++) after[after_count++] = s->units[units[i]].gather;
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        if (op->inputs[i] >= 0 && s->gathered_by[op->inputs[i]] >= 0)
            after[after_count++] = s->gathered_by[op->inputs[i]];
    bool batch = false;
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        batch =
            batch || (op->inputs[i] >= 0 && graph_is_batch(s->graph->values[op->inputs[i]].kind));
    for (int i = 0; i < OP_MAX_OUTPUTS; i++)
        batch = batch || (op->outputs[i] >= 0 && (op->outputs[i] == s->graph->loss ||
                                                  op->outputs[i] == s->graph->correct ||
                                                  op->outputs[i] == s->graph->tally));
    if (batch) after[after_count++] = s->copy;
    append(s, INSTRUCTION_COMPUTE, LANE_COMPUTE, -1, o, after, after_count);
}

/* Ops over values of all ranks run on the comm lane, in the order of the list, which is the same on
 * every rank. What reads the result waits for it. */
static void gather_value(struct scheduler *s, int o)
{
    const struct graph_op *op = &s->graph->ops[o];
    struct plan_instruction instruction = {.kind = INSTRUCTION_GATHER_VALUE,
                                           .lane = LANE_COMM,
                                           .unit = -1,
                                           .op = o,
                                           .count = tensor_element_count(
                                               &s->graph->values[op->inputs[0]].type)};
    s->gathered_by[op->outputs[0]] = append_instruction(s, instruction, &s->last_compute, 1);
}

/* Reduces the parts of the unit's gradient that `o` has completed. */
static void reduce(struct scheduler *s, int unit, int o, int computed)
{
    struct unit_state *state = &s->units[unit];
    for (int b = state->bucket_begin; b < state->bucket_end; b++) {
        const struct bucket *bucket = &s->buckets[b];
        if (bucket->ready_op != o) continue;
        state->reduce = append_collective(s, INSTRUCTION_ALL_REDUCE, unit, GROUP_WORLD,
                                          bucket->from, bucket->count, &computed, 1);
    }
    if (!plan_gathers(s->plan, unit) || state->reduce_op != o) return;
    int64_t shard = s->plan->units->units[unit].flat.shard;
    enum plan_group group = shard_group(s, unit);
    state->reduce =
        append_collective(s, INSTRUCTION_REDUCE_SCATTER, unit, group, 0, shard, &computed, 1);
    if (group == GROUP_SHARD)
        state->reduce =
            append_collective(s, INSTRUCTION_ALL_REDUCE, unit, GROUP_REPLICA, 0, shard, NULL, 0);
}

/* The optimizer of an offloaded unit, on the host. */
static void optimize_on_host(struct scheduler *s, int unit)
{
    const struct unit_state *state = &s->units[unit];
    int after[] = {state->download, state->upload, s->host_stats};
    append(s, INSTRUCTION_OPTIMIZER, LANE_HOST, unit, -1, after, 3);
}

/* Downloads the unit's gradient once it is what the optimizer reads. */
static void download(struct scheduler *s, int unit, int ready)
{
    struct unit_state *state = &s->units[unit];
    state->download = append(s, INSTRUCTION_DOWNLOAD, LANE_DOWNLOAD, unit, -1, &ready, 1);
}

/* The end-of-step work of an offloaded unit that need not wait: `o` has finished, `computed` is its
 * instruction. */
static void offload(struct scheduler *s, int unit, int o, int computed)
{
    struct unit_state *state = &s->units[unit];
    const struct plan_options *options = &s->plan->options;
    if (s->role != ROLE_TRAIN || !plan_offloads(s->plan, unit)) return;
    if (options->accumulation == ACCUMULATION_REDUCED) return; /* the gradient is not complete */
    if (state->reduce_op == o) download(s, unit, state->reduce >= 0 ? state->reduce : computed);
    if (state->optimize_op == o && options->norm == NORM_NONE) optimize_on_host(s, unit);
}

/* With offloaded units: computes the norm of the gradient completed before the last one, so that
 * its memory is not kept until the end; by then its reduction could overlap a unit's backward. */
static void take_norms(struct scheduler *s, int until)
{
    for (; s->normed_count < until; s->normed_count++) {
        int unit = s->completed[s->normed_count];
        int after[] = {s->units[unit].reduce, s->units[unit].gather};
        append(s, INSTRUCTION_NORM, LANE_COMPUTE, unit, -1, after, 2);
    }
}

/* If an optimizer on the host reads them. */
static void download_stats(struct scheduler *s)
{
    bool host_optimizes = false;
    for (int u = 0; u < s->plan->units->unit_count; u++)
        host_optimizes =
            host_optimizes || (plan_offloads(s->plan, u) && s->units[u].last_gradient_op >= 0);
    if (host_optimizes && s->role == ROLE_TRAIN)
        s->host_stats = append(s, INSTRUCTION_DOWNLOAD_STATS, LANE_DOWNLOAD, -1, -1, &s->stats, 1);
}

/* Before all gradients. With a norm, the gate writes the statistics last. */
static void reduce_stats(struct scheduler *s, int computed)
{
    s->stats = computed;
    if (plan_reduces(s->plan))
        s->stats = append_collective(s, INSTRUCTION_REDUCE_STATS, -1, GROUP_WORLD, 0,
                                     PLAN_STATS_COUNT + graph_tally_count(s->graph), &computed, 1);
    if (s->plan->options.norm == NORM_NONE) download_stats(s);
}

static void after_op(struct scheduler *s, struct pass *pass, int o)
{
    int computed = s->last_compute, units[OP_UNITS_MAX];
    int count = units_of_op(s, &s->graph->ops[o], true, units);
    bool post = s->backward && s->plan->options.backward_prefetch == PREFETCH_POST;
    for (int i = 0; i < count; i++) {
        int use = pass->of_unit[units[i]];
        if (use < 0) continue;
        if (pass->uses[use].last == o && may_release(s, units[i])) release(s, units[i]);
        if (post && pass->uses[use].end == o && !stays(s, units[i])) want_next(s, pass, use);
    }
    gather_until(s, pass, o);
    if (o == s->stats_op) reduce_stats(s, computed);
    for (int i = 0; i < count && s->train; i++) {
        if (s->reduces) reduce(s, units[i], o, computed);
        offload(s, units[i], o, computed);
        if (s->units[units[i]].reduce_op == o) s->completed[s->completed_count++] = units[i];
    }
    if (s->norms_early && s->completed_count > 0) take_norms(s, s->completed_count - 1);
}

static void start_backward(struct scheduler *s)
{
    s->backward = true;
    if (s->plan->options.backward_prefetch == PREFETCH_PRE) want_next(s, &s->passes[1], -1);
}

/* An instruction on the compute lane for every unit with a complete gradient, in that order. */
static void for_each_unit(struct scheduler *s, enum instruction_kind kind)
{
    for (int i = 0; i < s->completed_count; i++) {
        struct unit_state *state = &s->units[s->completed[i]];
        if (kind == INSTRUCTION_OPTIMIZER && plan_offloads(s->plan, s->completed[i])) continue;
        int after[] = {state->reduce, state->gather, state->download, s->stats};
        append(s, kind, LANE_COMPUTE, s->completed[i], -1, after,
               kind == INSTRUCTION_OPTIMIZER ? 4 : 3);
    }
}

/* The remaining work of offloaded units: all of it if gradients accumulate, the optimizers if there
 * is a norm. */
static void end_offloaded(struct scheduler *s)
{
    const struct plan_options *options = &s->plan->options;
    bool sums = options->accumulation == ACCUMULATION_REDUCED;
    if (!sums && options->norm == NORM_NONE) return;
    for (int i = 0; i < s->completed_count; i++) {
        int unit = s->completed[i];
        if (!plan_offloads(s->plan, unit)) continue;
        if (sums) download(s, unit, s->last_compute);
        optimize_on_host(s, unit);
    }
}

static void list_matrices(struct scheduler *s)
{
    AUTO_FREE int *ready = mem_alloc_array((size_t)s->plan->units->unit_count, sizeof *ready);
    struct plan_listing listing = {s->plan, s->program, &s->capacity, s->stats, ready};
    for (int u = 0; u < s->plan->units->unit_count; u++) ready[u] = s->units[u].reduce;
    if (optimizer_factors(s->plan->options.optimizer))
        plan_list_factors(&listing, s->completed, s->completed_count);
    else plan_list_matrices(&listing, s->completed, s->completed_count);
    for (int u = 0; u < s->plan->units->unit_count; u++) s->units[u].reduce = ready[u];
}

/* End of step: clip, optimize, zero. Nothing waits for the host: the gate decides, and optimizers
 * read its decision on the device. */
static void end_step(struct scheduler *s)
{
    const struct plan_options *options = &s->plan->options;
    if (options->accumulation == ACCUMULATION_REDUCED) for_each_unit(s, INSTRUCTION_ACCUMULATE);
    if (s->role != ROLE_TRAIN) return;
    if (options->norm != NORM_NONE && s->completed_count > 0) {
        take_norms(s, s->completed_count);
        int reduced = -1;
        if (plan_reduces(s->plan))
            reduced = append_collective(s, INSTRUCTION_REDUCE_NORM, -1, GROUP_WORLD, 0,
                                        PLAN_NORM_FLOATS, &s->last_compute, 1);
        int after[] = {reduced, s->stats};
        s->stats = append(s, INSTRUCTION_GATE, LANE_COMPUTE, -1, -1, after, 2);
        download_stats(s);
    }
    end_offloaded(s);
    list_matrices(s);
    for_each_unit(s, INSTRUCTION_OPTIMIZER);
    if (options->accumulation != ACCUMULATION_NONE) for_each_unit(s, INSTRUCTION_ZERO);
}

static void list_held(struct scheduler *s)
{
    for (int u = 0; u < s->plan->units->unit_count; u++)
        if (plan_holds(s->plan, u)) gather(s, u, true);
}

static void list_instructions(struct scheduler *s)
{
    s->copy = append(s, INSTRUCTION_COPY_BATCH, LANE_COPY, -1, -1, NULL, 0);
    for (int o = 0; o < s->graph->op_count; o++) {
        if (o == s->graph->forward_op_count) start_backward(s);
        struct pass *pass = &s->passes[s->backward];
        before_op(s, pass, o);
        if (s->graph->ops[o].kind == OP_GATHER_RANKS) gather_value(s, o);
        else compute(s, o);
        after_op(s, pass, o);
    }
    s->backward = false;
    end_step(s);
}

/* A gradient is reduced as soon as it is complete; with prefetch post, which gathers the next unit
 * first, once all of the unit's backward has finished. */
static void find_reductions(struct scheduler *s)
{
    bool post = s->plan->options.backward_prefetch == PREFETCH_POST;
    for (int u = 0; u < s->plan->units->unit_count; u++) {
        struct unit_state *state = &s->units[u];
        int use = s->passes[1].of_unit[u];
        state->reduce_op = state->last_gradient_op;
        if (post && use >= 0 && state->reduce_op >= 0)
            state->reduce_op = s->passes[1].uses[use].end;
        state->optimize_op = state->reduce_op;
        if (use >= 0 && state->reduce_op >= 0 && s->passes[1].uses[use].end > state->optimize_op)
            state->optimize_op = s->passes[1].uses[use].end;
    }
}

/* Cuts the gradient of a unit that is whole on every rank into buckets, from its end to its start,
 * at the first parameter's start where a bucket is large enough. */
static void cut_buckets(struct scheduler *s, int unit, bool first)
{
    const struct flat_parameter *flat = &s->plan->units->units[unit].flat;
    struct unit_state *state = &s->units[unit];
    uint64_t bytes = s->plan->options.bucket_bytes;
    if (first && bytes > PLAN_FIRST_BUCKET_BYTES) bytes = PLAN_FIRST_BUCKET_BYTES;
    int64_t end = flat->padded;
    int ready = -1;
    state->bucket_begin = s->bucket_count;
    for (int i = flat->parameter_count - 1; i >= 0; i--) {
        int op = s->gradient_op[flat->parameters[i]];
        if (op > ready) ready = op;
        uint64_t size = (uint64_t)(end - flat->offsets[i]) * sizeof(float);
        if (i > 0 && size < bytes) continue;
        MEM_GROW(s->buckets, s->bucket_count, s->bucket_capacity);
        s->buckets[s->bucket_count++] = (struct bucket){.from = flat->offsets[i],
                                                        .count = end - flat->offsets[i],
                                                        .ready_op = ready};
        end = flat->offsets[i];
        ready = -1;
        bytes = s->plan->options.bucket_bytes;
    }
    state->bucket_end = s->bucket_count;
}

static void find_buckets(struct scheduler *s)
{
    const struct unit_set *units = s->plan->units;
    int first = -1; /* the unit whose gradients are complete first */
    for (int o = s->graph->forward_op_count; o < s->graph->op_count && first < 0; o++)
        for (int i = 0; i < OP_MAX_OUTPUTS; i++) {
            int v = s->graph->ops[o].outputs[i];
            if (v >= 0 && s->graph->values[v].kind == VALUE_PARAMETER_GRADIENT)
                first = plan_unit_of_value(s->plan, s->graph, v);
        }
    for (int u = 0; u < units->unit_count; u++)
        if (units->units[u].shard_world == 1 && !units->units[u].frozen)
            cut_buckets(s, u, u == first);
}

/* The unit freed last in forward, if backward gathers it first. */
static int find_kept(const struct scheduler *s)
{
    int last = -1, kept = -1;
    for (int i = 0; i < s->passes[0].count; i++) {
        const struct use *use = &s->passes[0].uses[i];
        if (!is_limited(s, use->unit) || use->last < last) continue;
        last = use->last;
        kept = use->unit;
    }
    for (int i = 0; i < s->passes[1].count; i++) {
        int unit = s->passes[1].uses[i].unit;
        if (is_limited(s, unit)) return unit == kept ? kept : -1;
    }
    return -1;
}

status_t plan_schedule(const struct plan *plan, struct graph *graph, enum plan_role role,
                       bool no_prefetch, struct plan_program *program)
{
    bool train = role == ROLE_TRAIN || role == ROLE_ACCUMULATE;
    bool reduces = role == ROLE_TRAIN ||
                   (role == ROLE_ACCUMULATE && plan->options.accumulation == ACCUMULATION_REDUCED);
    int unit_count = plan->units->unit_count;
    struct scheduler s = {.plan = plan,
                          .graph = graph,
                          .program = program,
                          .role = role,
                          .train = train,
                          .reduces = reduces && plan_reduces(plan),
                          .no_prefetch = no_prefetch,
                          .norms_early = role == ROLE_TRAIN && plan->options.norm != NORM_NONE &&
                                         plan->options.accumulation != ACCUMULATION_REDUCED &&
                                         plan_has_offloaded(plan),
                          .limit = plan->options.gathered_limit,
                          .last_compute = -1,
                          .stats_op = -1,
                          .stats = -1,
                          .host_stats = -1,
                          .room = -1,
                          .kept = -1};
    if (train) TRY(check_gradients(&s));
    program->graph = graph;
    s.units = mem_alloc_array(unit_count, sizeof *s.units);
    for (int u = 0; u < unit_count; u++)
        s.units[u] = (struct unit_state){.gather = -1,
                                         .free = -1,
                                         .reduce = -1,
                                         .upload = -1,
                                         .download = -1,
                                         .optimize_op = -1,
                                         .last_gradient_op = -1};
    s.window =
        mem_alloc_array(2 * (size_t)unit_count, sizeof *s.window); /* gathered at most twice */
    s.completed = mem_alloc_array(unit_count, sizeof *s.completed);
    s.gradient_op = mem_alloc_array(plan->model->parameter_count, sizeof *s.gradient_op);
    for (int p = 0; p < plan->model->parameter_count; p++) s.gradient_op[p] = -1;
    s.gathered_by = mem_alloc_array(graph->value_count, sizeof *s.gathered_by);
    for (int v = 0; v < graph->value_count; v++) s.gathered_by[v] = -1;
    find_uses(&s, &s.passes[0], 0, graph->forward_op_count);
    find_uses(&s, &s.passes[1], graph->forward_op_count, graph->op_count);
    find_reductions(&s);
    if (s.reduces) find_buckets(&s);
    s.kept = find_kept(&s);
    if (graph->loss >= 0) s.stats_op = graph->values[graph->loss].producer;
    if (graph->correct >= 0 && graph->values[graph->correct].producer > s.stats_op)
        s.stats_op = graph->values[graph->correct].producer;
    if (graph->tally >= 0 && graph->values[graph->tally].producer > s.stats_op)
        s.stats_op = graph->values[graph->tally].producer;
    if (role == ROLE_HOLD) list_held(&s);
    else list_instructions(&s);
    for (int i = 0; i < 2; i++) {
        free(s.passes[i].uses);
        free(s.passes[i].of_unit);
    }
    free(s.buckets);
    free(s.gradient_op);
    free(s.gathered_by);
    free(s.completed);
    free(s.window);
    free(s.units);
    return NULL;
}
