/* Shared by the two halves of plan_validate; see plan_validate.c. Internal to this room. */
#ifndef FSDPD_FSDP_PLAN_VALIDATE_H
#define FSDPD_FSDP_PLAN_VALIDATE_H

#include "fsdp/plan.h"

struct validator {
    const struct plan *plan;
    const struct plan_program *program;
    const struct graph *graph;
    const char *name; /* of the program */
    bool train;       /* has gradients */
    bool updates;     /* is the train program: ends an optimizer step */
    bool reduces;
    bool holds;  /* only gathers what is held */
    int *clocks; /* computed from the waits */
};

/* An INTERNAL error that names the program and instruction `i` (-1: none). */
status_t validate_fail(const struct validator *v, int i, const char *format, ...)
    FSDPD_PRINTF(3, 4);

/* Whether instruction `a` is done before `b` starts, by the validator's own clocks. */
static inline bool validate_before(const struct validator *v, int a, int b)
{
    return a != b && v->clocks[b * LANE_COUNT + v->program->instructions[a].lane] >= a;
}

/* Requirements of the plan's strategy and the unit, derived from its shard world alone. */
bool validate_gathers(const struct validator *v, int unit);
bool validate_replicates(const struct validator *v, int unit); /* whole on every rank */
/* The number of ranks that hold a copy together between forward and backward; 1: the unit stays
 * gathered. */
int validate_between(const struct validator *v, int unit);
/* Whether it is freed in between except for a shard among fewer ranks. */
bool validate_reshards(const struct validator *v, int unit);
enum dtype validate_gathered_dtype(const struct validator *v, int unit);
bool validate_stays(const struct validator *v, int unit);    /* gathered from forward to backward */
bool validate_offloads(const struct validator *v, int unit); /* its shard is the host's */

static inline enum base_dtype validate_base(const struct validator *v, int unit)
{
    return v->plan->units->units[unit].flat.slots.base;
}

/* Whether it is kept in a type that ops do not read. */
static inline bool validate_unpacks(const struct validator *v, int unit)
{
    enum base_dtype base = validate_base(v, unit);
    if (base == BASE_BF16) return validate_gathered_dtype(v, unit) == DTYPE_F32;
    return base != BASE_F32;
}

/* Whether ops read the unit where it was gathered before the first step. */
static inline bool validate_held(const struct validator *v, int unit)
{
    return v->plan->options.holds && v->plan->units->units[unit].flat.padded > 0 &&
           (validate_gathers(v, unit) || validate_unpacks(v, unit));
}

/* Whether ops read the unit in a temporary buffer, not in its place between steps. */
static inline bool validate_fetches(const struct validator *v, int unit)
{
    return !validate_held(v, unit) &&
           (validate_gathers(v, unit) || validate_offloads(v, unit) || validate_unpacks(v, unit));
}

/* Whether ops read the unit's parameters as bf16; and whether a copy of them lies there between
 * steps. */
static inline bool validate_low(const struct validator *v, int unit)
{
    return validate_gathered_dtype(v, unit) == DTYPE_BF16 && !v->plan->units->units[unit].buffers;
}

/* Whether its parameters are kept in bf16 only. */
static inline bool validate_keeps_rounded(const struct validator *v, int unit)
{
    return v->plan->options.rounded && !v->plan->units->units[unit].unsaved &&
           validate_low(v, unit);
}

static inline bool validate_rounds(const struct validator *v, int unit)
{
    return validate_low(v, unit) && !validate_gathers(v, unit) &&
           validate_base(v, unit) == BASE_F32 && !validate_keeps_rounded(v, unit);
}

/* The parameter that owns the memory of a value's parameter. */
int validate_owner(const struct validator *v, int value);

/* Whether this program reduces gradients; with one rank none does. */
static inline bool validate_reduces_gradients(const struct validator *v)
{
    return v->reduces && v->train &&
           (v->updates || v->plan->options.accumulation == ACCUMULATION_REDUCED);
}

/* plan_validate_matrices.c: every matrix has one owner; a unit's elements of matrices; the bytes
 * that COLLECT or DISTRIBUTE sends; those of BUFFER_MATRICES. */
status_t validate_owners(const struct validator *v) FSDPD_MUST_USE;
int64_t validate_matrices(const struct validator *v, int unit);
uint64_t validate_exchanged(const struct validator *v, const struct plan_instruction *in);
uint64_t validate_matrix_bytes(const struct validator *v, int unit);
/* Scratch memory of ORTHOGONALIZE. */
uint64_t validate_matrix_scratch(const struct validator *v, int unit);

/* plan_validate_factors.c: whether a unit has sums over rows and columns; how many these are; the
 * bytes that COLLECT or DISTRIBUTE sends, and those of BUFFER_FACTORS. */
bool validate_factors(const struct validator *v, int unit);
int64_t validate_factor_sums(const struct validator *v, int unit);
uint64_t validate_moved(const struct validator *v, const struct plan_instruction *in);
uint64_t validate_factor_bytes(const struct validator *v, int unit);

/* plan_validate_step.c: the order of the operations on complete gradients, each exactly once. */
status_t validate_step(const struct validator *v) FSDPD_MUST_USE;

/* plan_validate_gathers.c: every gather, its uses and its end, and how many there are at a time. */
status_t validate_gatherings(const struct validator *v) FSDPD_MUST_USE;

/* The distinct units whose parameters the op reads or, with `gradient`, whose gradients it writes;
 * their number. */
enum { OP_UNITS_MAX = OP_MAX_INPUTS > OP_MAX_OUTPUTS ? OP_MAX_INPUTS : OP_MAX_OUTPUTS };
int validate_op_units(const struct validator *v, int op, bool gradient, int units[OP_UNITS_MAX]);

/* plan_validate_places.c: all buffers; the buffers of instruction i; that one of these is of the
 * class and the unit (-1: any); the place of a value that it touches; whether a buffer is a gradient
 * that outlives the step. */
status_t validate_buffers(const struct validator *v) FSDPD_MUST_USE;
status_t validate_unit_buffer(const struct validator *v, int i, int buffer, enum buffer_class class,
                              int unit) FSDPD_MUST_USE;
status_t validate_operands(const struct validator *v, int i) FSDPD_MUST_USE;
status_t validate_value(const struct validator *v, int i, int value) FSDPD_MUST_USE;
bool validate_keeps_gradient(const struct validator *v, const struct plan_buffer *buffer);

/* plan_validate_memory.c: sharing of bytes, order of reads and writes,
 * figures. */
status_t validate_memory(const struct validator *v) FSDPD_MUST_USE;

/* The sums of the task that the graph (may be NULL) makes, behind the statistics. */
int validate_sums(const struct graph *graph);

/* Words that a rank keeps of a frozen unit of another type than f32. */
int64_t validate_base_words(const struct validator *v, int unit);

#endif
