/*
 * The part of plan_validate for the end of a step: each operation on a trainable unit's complete
 * gradient happens as often as it should and in order. plan_validate.c checks that gradients are
 * complete; plan_validate_memory.c checks that every operand is where it should be. Pure functions;
 * any thread.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fsdp/plan_validate.h"

/* The instruction, by unit; -1 if none. */
struct unit_end {
    int accumulate, norm, optimize, zero, download;
    int momentum, collect, orthogonalize, distribute; /* of matrices */
    int squares, factor, update, gather_sums, scale;  /* of sums over rows and columns */
};

/* The instruction in the whole program; -1 if none. */
struct end {
    struct unit_end *units;
    int reduce_stats, reduce_norm, gate, download_stats;
    int loss; /* the op that writes it */
};

static status_t note(const struct validator *v, struct end *end, int i)
{
    const struct plan_instruction *in = &v->program->instructions[i];
    struct unit_end *unit = in->unit >= 0 ? &end->units[in->unit] : NULL;
    int *slot = NULL;
    for (int k = 0; in->kind == INSTRUCTION_COMPUTE && k < OP_MAX_OUTPUTS; k++) {
        int output = v->graph->ops[in->op].outputs[k];
        if (output >= 0 && output == v->graph->loss) end->loss = i;
    }
    switch (in->kind) {
    case INSTRUCTION_ACCUMULATE: slot = &unit->accumulate; break;
    case INSTRUCTION_NORM: slot = &unit->norm; break;
    case INSTRUCTION_OPTIMIZER: slot = &unit->optimize; break;
    case INSTRUCTION_ZERO: slot = &unit->zero; break;
    case INSTRUCTION_REDUCE_STATS: slot = &end->reduce_stats; break;
    case INSTRUCTION_REDUCE_NORM: slot = &end->reduce_norm; break;
    case INSTRUCTION_GATE: slot = &end->gate; break;
    case INSTRUCTION_DOWNLOAD: slot = &unit->download; break;
    case INSTRUCTION_MOMENTUM: slot = &unit->momentum; break;
    case INSTRUCTION_COLLECT: slot = &unit->collect; break;
    case INSTRUCTION_ORTHOGONALIZE: slot = &unit->orthogonalize; break;
    case INSTRUCTION_DISTRIBUTE: slot = &unit->distribute; break;
    case INSTRUCTION_SQUARES: slot = &unit->squares; break;
    case INSTRUCTION_FACTOR: slot = &unit->factor; break;
    case INSTRUCTION_UPDATE: slot = &unit->update; break;
    case INSTRUCTION_GATHER_SUMS: slot = &unit->gather_sums; break;
    case INSTRUCTION_SCALE: slot = &unit->scale; break;
    case INSTRUCTION_DOWNLOAD_STATS: slot = &end->download_stats; break;
    default: return NULL;
    }
    if (*slot >= 0) return validate_fail(v, i, "appears twice");
    *slot = i;
    return NULL;
}

/* Both exist, and `a` comes before `b`. */
static status_t check_order(const struct validator *v, int a, int b, const char *what)
{
    if (a < 0 || b < 0) return validate_fail(v, -1, "%s is missing", what);
    if (!validate_before(v, a, b))
        return validate_fail(v, b, "does not come after instruction %d: %s", a, what);
    return NULL;
}

/* `*first` becomes the first instruction that changes the gradient, if one does before the
 * optimizer. */
static status_t check_matrices(const struct validator *v, const struct unit_end *unit, int u,
                               int *first)
{
    if (validate_matrices(v, u) == 0) return NULL;
    int last = unit->momentum;
    *first = unit->momentum;
    if (validate_gathers(v, u)) {
        TRY(check_order(v, last, unit->collect, "the momentum"));
        last = unit->collect;
    }
    TRY(check_order(v, last, unit->orthogonalize, "the matrices' updates"));
    last = unit->orthogonalize;
    if (v->reduces) {
        TRY(check_order(v, last, unit->distribute, "the orthogonal updates"));
        last = unit->distribute;
    }
    return check_order(v, last, unit->optimize, "the matrices' updates");
}

/* The same. */
static status_t check_factors(const struct validator *v, const struct unit_end *unit, int u,
                              int *first)
{
    if (!validate_factors(v, u)) return NULL;
    bool gathers = validate_gathers(v, u);
    *first = unit->update;
    if (validate_factor_sums(v, u) > 0) {
        *first = unit->squares;
        int ready = gathers ? unit->collect : unit->squares;
        int known = gathers ? unit->distribute : unit->factor;
        if (gathers) TRY(check_order(v, unit->squares, ready, "the sums of squares"));
        TRY(check_order(v, ready, unit->factor, "the sums of squares"));
        if (gathers) TRY(check_order(v, unit->factor, known, "the factors"));
        TRY(check_order(v, known, unit->update, "the factors"));
    }
    int summed = gathers ? unit->gather_sums : unit->update;
    if (gathers) TRY(check_order(v, unit->update, summed, "the updates"));
    TRY(check_order(v, summed, unit->scale, "the sums of updates"));
    return check_order(v, unit->scale, unit->optimize, "the updates' scale");
}

static status_t check_unit(const struct validator *v, const struct end *end, int u)
{
    const struct unit_end *unit = &end->units[u];
    const struct plan_options *options = &v->plan->options;
    bool reduced = options->accumulation == ACCUMULATION_REDUCED;
    if (reduced && unit->accumulate < 0)
        return validate_fail(v, -1, "the gradient of unit %s is never added up",
                             v->plan->units->units[u].name);
    if (!v->updates) return NULL;
    if (unit->optimize < 0)
        return validate_fail(v, -1, "unit %s is never optimized", v->plan->units->units[u].name);
    int taken = unit->optimize; /* the last operation on the gradient on the device */
    int stats = unit->optimize; /* the first that reads them */
    TRY(check_matrices(v, unit, u, &stats));
    TRY(check_factors(v, unit, u, &stats));
    if (reduced) TRY(check_order(v, unit->accumulate, stats, "the last micro-step"));
    if (validate_offloads(v, u)) {
        taken = unit->download;
        TRY(check_order(v, taken, unit->optimize, "the gradient's way to the host"));
    }
    if (reduced) TRY(check_order(v, unit->accumulate, taken, "the last micro-step"));
    if (options->accumulation != ACCUMULATION_NONE)
        TRY(check_order(v, taken, unit->zero, "the gradient's new start"));
    if (validate_offloads(v, u)) {
        stats = end->download_stats;
        TRY(check_order(v, stats, unit->optimize, "the statistics' way to the host"));
    }
    TRY(check_order(v, end->loss, stats, "the loss"));
    if (v->reduces) TRY(check_order(v, end->reduce_stats, stats, "the statistics over the ranks"));
    if (options->norm == NORM_NONE) return NULL;
    TRY(check_order(v, end->gate, stats, "the gate"));
    if (reduced) TRY(check_order(v, unit->accumulate, unit->norm, "the last micro-step"));
    return check_order(v, unit->norm, v->reduces ? end->reduce_norm : end->gate, "a unit's norm");
}

static status_t check(const struct validator *v, struct end *end)
{
    for (int i = 0; i < v->program->instruction_count; i++) TRY(note(v, end, i));
    if (!v->train) return NULL;
    bool trains = false; /* all parameters may be frozen */
    for (int u = 0; u < v->plan->units->unit_count; u++) {
        const struct unit *unit = &v->plan->units->units[u];
        trains = trains || (!unit->frozen && unit->flat.parameter_count > 0);
    }
    if (!trains && (end->gate >= 0 || end->reduce_norm >= 0))
        return validate_fail(v, -1, "there is no gradient to take a norm of");
    if (trains && v->updates && v->plan->options.norm != NORM_NONE && v->reduces) {
        TRY(check_order(v, end->reduce_norm, end->gate, "the norm over the ranks"));
        TRY(check_order(v, end->reduce_stats, end->gate, "the loss over the ranks"));
    }
    if (end->gate >= 0) TRY(check_order(v, end->loss, end->gate, "the loss"));
    for (int u = 0; u < v->plan->units->unit_count; u++) {
        const struct unit *unit = &v->plan->units->units[u];
        if (!unit->frozen && unit->flat.parameter_count > 0) TRY(check_unit(v, end, u));
    }
    return NULL;
}

status_t validate_step(const struct validator *v)
{
    int count = v->plan->units->unit_count;
    struct end end = {.units = mem_alloc_array((size_t)count + 1, sizeof *end.units),
                      .reduce_stats = -1,
                      .reduce_norm = -1,
                      .gate = -1,
                      .download_stats = -1,
                      .loss = -1};
    for (int u = 0; u < count; u++) memset(&end.units[u], -1, sizeof end.units[u]); /* -1 each */
    status_t status = check(v, &end);
    free(end.units);
    return status;
}
