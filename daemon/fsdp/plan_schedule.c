/*
 * The schedule: which instructions one step consists of, in which order they are issued, and what
 * waits for what. Pure functions; any thread.
 *
 * Lanes run ahead of each other as far as waits allow, so where a gather stands in the list says
 * only before which other communication it comes. When it may start is said by its waits:
 *
 *   - the limiter: at most `gathered_limit` units (the root not counted) are gathered and not yet
 *     freed, unless more are needed at the same time; a gather waits for the FREE that makes room;
 *   - forward: nothing else, so the next unit is gathered while this one computes, as FSDP1 does on
 * a device whose host runs ahead; `forward_prefetch` only moves the gather up in the list;
 *   - backward, prefetch pre: listed before the gradients of the unit before, thus before that
 * unit's reduce-scatter; post: starts when that unit's gradients are computed, before its
 *     reduce-scatter; none: starts when the compute before its first use is done.
 *
 * A unit is freed after its last use in forward and gathered again in backward, from the first to
 * the last op there that reads its parameters (a unit that backward does not read is not gathered
 * again). Two exceptions: the root, gathered once and freed after its last use; and the unit that
 * is the last to be freed in forward and the first to be gathered in backward, which is not freed
 * in between: nothing could have used its memory.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "fsdp/plan_internal.h"

/* What one pass (forward or backward) does with a unit. */
struct use {
    int unit;
    int first, last; /* ops that read its parameters */
    int begin, end;  /* the same with the ops that write its gradient */
};

struct pass {
    struct use *uses; /* of gathered units, by first */
    int count;
    int *of_unit; /* the unit's use, -1 */
    int next;     /* uses before this one are gathered */
    int wanted;   /* and these may be */
};

struct unit_state {
    bool gathered;
    int gather, free, reduce; /* latest instructions, -1 */
    int last_gradient_op;     /* -1 */
    int reduce_op;            /* the op after which the gradient is reduced, -1 */
};

struct in_flight {
    int unit;
    int freed; /* its FREE, -1 while gathered */
};

struct scheduler {
    const struct plan *plan;
    struct graph *graph;
    struct plan_program *program;
    bool train, thrifty, backward;
    int limit;
    int capacity;
    struct unit_state *units;
    struct in_flight *window; /* units that count for the limiter, oldest first */
    int window_count;
    int room;              /* the last FREE that made room in the window, -1 */
    struct pass passes[2]; /* forward, backward */
    int kept;              /* the unit that stays gathered from forward to backward, -1 */
    int copy, last_compute, stats_op;
    int *completed; /* units in the order of their last gradients */
    int completed_count;
};

enum { OP_UNITS_MAX = OP_MAX_INPUTS + OP_MAX_OUTPUTS };

static bool is_root(const struct scheduler *s, int unit)
{
    return s->plan->units->units[unit].modules[0] == 0;
}

static int append(struct scheduler *s, enum instruction_kind kind, enum lane lane, int unit, int op,
                  int *after, int after_count)
{
    struct plan_instruction instruction = {.kind = kind,
                                           .lane = lane,
                                           .unit = unit,
                                           .op = op,
                                           .source = -1,
                                           .target = -1,
                                           .workspace = -1,
                                           .backward = s->backward};
    instruction.communicated = plan_communicated(s->plan, &instruction);
    int number = plan_append(s->program, &s->capacity, &instruction, after, after_count);
    if (lane == LANE_COMPUTE) s->last_compute = number;
    return number;
}

/* --- Looking at the graph --- */

static int add_unit_once(int *units, int count, int unit)
{
    for (int i = 0; i < count; i++)
        if (units[i] == unit) return count;
    units[count] = unit;
    return count + 1;
}

/* The distinct units whose parameters `op` reads; with `written`, or whose gradient it writes. */
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

/* Every trainable parameter must get a gradient, else its unit's would be partly undefined. */
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
    status_t status = STATUS_OKAY;
    for (int p = 0; p < model->parameter_count && status == STATUS_OKAY; p++) {
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

/* Fills in what the pass of ops `from` to `to` - 1 does with each unit. */
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
            if (v >= 0 && s->graph->values[v].kind == VALUE_PARAMETER_GRADIENT)
                s->units[plan_unit_of_value(s->plan, s->graph, v)].last_gradient_op = o;
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

/* --- Gathering and freeing --- */

/* Drops freed units from the window until there is room, remembering the last FREE that this took.
 * False if there is no room before another unit is freed. */
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

/* False if there is no room; what is needed now is gathered all the same. */
static bool gather(struct scheduler *s, int unit, bool needed)
{
    struct unit_state *state = &s->units[unit];
    bool limited = !is_root(s, unit);
    if (limited) {
        if (!make_room(s) && !needed) return false;
        s->window[s->window_count++] = (struct in_flight){.unit = unit, .freed = -1};
    }
    bool late = s->backward ? s->plan->options.backward_prefetch != PREFETCH_PRE : s->thrifty;
    int after[] = {limited ? s->room : -1, state->free, late ? s->last_compute : -1};
    state->gather = append(s, INSTRUCTION_ALL_GATHER, LANE_COMM, unit, -1, after, 3);
    state->gathered = true;
    return true;
}

/* Gathers what is needed by `op`, and then what is wanted and fits. */
static void gather_until(struct scheduler *s, struct pass *pass, int op)
{
    for (; pass->next < pass->count; pass->next++) {
        const struct use *use = &pass->uses[pass->next];
        bool needed = use->first <= op;
        if (!needed && pass->next >= pass->wanted) return;
        if (s->units[use->unit].gathered) continue;
        if (!gather(s, use->unit, needed)) return;
    }
}

static void release(struct scheduler *s, int unit)
{
    struct unit_state *state = &s->units[unit];
    state->free = append(s, INSTRUCTION_FREE, LANE_COMPUTE, unit, -1, NULL, 0);
    state->gathered = false;
    for (int i = 0; i < s->window_count; i++)
        if (s->window[i].unit == unit && s->window[i].freed < 0) s->window[i].freed = state->free;
}

/* Whether `unit`, whose last use in this pass is over, is needed no more before its next gather. */
static bool may_release(const struct scheduler *s, int unit)
{
    if (s->backward) return true;
    if (is_root(s, unit)) return s->passes[1].of_unit[unit] < 0;
    return unit != s->kept;
}

/* --- One op after the other --- */

/* Allows the pass to gather what it uses next after `use`. In backward the root is passed over: it
 * was gathered in forward. */
static void want_next(const struct scheduler *s, struct pass *pass, int use)
{
    int next = use + 1;
    while (s->backward && next < pass->count && is_root(s, pass->uses[next].unit)) next++;
    if (next + 1 > pass->wanted) pass->wanted = next + 1;
}

static void before_op(struct scheduler *s, struct pass *pass, int o)
{
    bool ahead = s->backward ? s->plan->options.backward_prefetch == PREFETCH_PRE
                             : s->plan->options.forward_prefetch && !s->thrifty;
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
    int units[OP_UNITS_MAX], after[OP_UNITS_MAX + 1], after_count = 0;
    int read = units_of_op(s, op, false, units);
    for (int i = 0; i < read; i++) after[after_count++] = s->units[units[i]].gather;
    bool batch = false;
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        batch = batch || (op->inputs[i] >= 0 &&
                          (op->inputs[i] == s->graph->input || op->inputs[i] == s->graph->target));
    for (int i = 0; i < OP_MAX_OUTPUTS; i++)
        batch = batch || (op->outputs[i] >= 0 && (op->outputs[i] == s->graph->loss ||
                                                  op->outputs[i] == s->graph->correct));
    if (batch) after[after_count++] = s->copy;
    append(s, INSTRUCTION_COMPUTE, LANE_COMPUTE, -1, o, after, after_count);
}

static void after_op(struct scheduler *s, struct pass *pass, int o)
{
    int computed = s->last_compute, units[OP_UNITS_MAX];
    int count = units_of_op(s, &s->graph->ops[o], true, units);
    bool post = s->backward && s->plan->options.backward_prefetch == PREFETCH_POST;
    for (int i = 0; i < count && plan_gathers(s->plan); i++) {
        int use = pass->of_unit[units[i]];
        if (use < 0) continue;
        if (pass->uses[use].last == o && may_release(s, units[i])) release(s, units[i]);
        if (post && pass->uses[use].end == o && !is_root(s, units[i])) want_next(s, pass, use);
    }
    gather_until(s, pass, o);
    for (int i = 0; i < count && s->train; i++) {
        struct unit_state *state = &s->units[units[i]];
        if (state->reduce_op != o) continue;
        s->completed[s->completed_count++] = units[i];
        if (!plan_reduces(s->plan)) continue;
        enum instruction_kind kind =
            plan_gathers(s->plan) ? INSTRUCTION_REDUCE_SCATTER : INSTRUCTION_ALL_REDUCE;
        state->reduce = append(s, kind, LANE_COMM, units[i], -1, &computed, 1);
    }
    if (o == s->stats_op && plan_reduces(s->plan))
        append(s, INSTRUCTION_REDUCE_STATS, LANE_COMM, -1, -1, &computed, 1);
}

static void start_backward(struct scheduler *s)
{
    s->backward = true;
    if (s->plan->options.backward_prefetch == PREFETCH_PRE) want_next(s, &s->passes[1], -1);
}

static void list_instructions(struct scheduler *s)
{
    s->copy = append(s, INSTRUCTION_COPY_BATCH, LANE_COPY, -1, -1, NULL, 0);
    for (int o = 0; o < s->graph->op_count; o++) {
        if (o == s->graph->forward_op_count) start_backward(s);
        struct pass *pass = &s->passes[s->backward];
        before_op(s, pass, o);
        compute(s, o);
        after_op(s, pass, o);
    }
    s->backward = false;
    for (int i = 0; i < s->completed_count; i++) {
        struct unit_state *state = &s->units[s->completed[i]];
        int after[] = {state->reduce, state->gather};
        append(s, INSTRUCTION_OPTIMIZER, LANE_COMPUTE, s->completed[i], -1, after, 2);
    }
}

/* A gradient is reduced as soon as it is complete; with prefetch post, where the next unit is
 * gathered first, when all of the unit's backward is done. */
static void find_reductions(struct scheduler *s)
{
    bool post = plan_gathers(s->plan) && s->plan->options.backward_prefetch == PREFETCH_POST;
    for (int u = 0; u < s->plan->units->unit_count; u++) {
        struct unit_state *state = &s->units[u];
        int use = s->passes[1].of_unit[u];
        state->reduce_op = state->last_gradient_op;
        if (post && use >= 0 && state->reduce_op >= 0)
            state->reduce_op = s->passes[1].uses[use].end;
    }
}

/* The unit freed last in forward, if backward gathers it first. */
static int find_kept(const struct scheduler *s)
{
    int last = -1, kept = -1;
    for (int i = 0; i < s->passes[0].count; i++) {
        const struct use *use = &s->passes[0].uses[i];
        if (is_root(s, use->unit) || use->last < last) continue;
        last = use->last;
        kept = use->unit;
    }
    for (int i = 0; i < s->passes[1].count; i++) {
        int unit = s->passes[1].uses[i].unit;
        if (!is_root(s, unit)) return unit == kept ? kept : -1;
    }
    return -1;
}

status_t plan_schedule(const struct plan *plan, struct graph *graph, bool train, bool thrifty,
                       struct plan_program *program)
{
    int unit_count = plan->units->unit_count;
    struct scheduler s = {.plan = plan,
                          .graph = graph,
                          .program = program,
                          .train = train,
                          .thrifty = thrifty,
                          .limit = plan->options.gathered_limit,
                          .last_compute = -1,
                          .stats_op = -1,
                          .room = -1,
                          .kept = -1};
    if (train) TRY(check_gradients(&s));
    program->graph = graph;
    s.units = mem_alloc_array(unit_count, sizeof *s.units);
    for (int u = 0; u < unit_count; u++)
        s.units[u] =
            (struct unit_state){.gather = -1, .free = -1, .reduce = -1, .last_gradient_op = -1};
    s.window =
        mem_alloc_array(2 * (size_t)unit_count, sizeof *s.window); /* twice gathered at most */
    s.completed = mem_alloc_array(unit_count, sizeof *s.completed);
    find_uses(&s, &s.passes[0], 0, graph->forward_op_count);
    find_uses(&s, &s.passes[1], graph->forward_op_count, graph->op_count);
    find_reductions(&s);
    if (plan_gathers(plan)) s.kept = find_kept(&s);
    else s.passes[0].count = s.passes[1].count = 0;
    if (graph->loss >= 0) s.stats_op = graph->values[graph->loss].producer;
    if (graph->correct >= 0 && graph->values[graph->correct].producer > s.stats_op)
        s.stats_op = graph->values[graph->correct].producer;
    list_instructions(&s);
    for (int i = 0; i < 2; i++) {
        free(s.passes[i].uses);
        free(s.passes[i].of_unit);
    }
    free(s.completed);
    free(s.window);
    free(s.units);
    return STATUS_OKAY;
}
