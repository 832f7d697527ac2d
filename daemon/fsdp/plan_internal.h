/*
 * How a plan is made, in the order of the files: the schedule lists the instructions and their
 * waits (plan_schedule.c, plan_order.c), the memory step creates buffers (plan_memory.c) and
 * assigns their offsets (plan_place.c). Internal to this room.
 */
#ifndef FSDPD_FSDP_PLAN_INTERNAL_H
#define FSDPD_FSDP_PLAN_INTERNAL_H

#include "base/mem.h"
#include "fsdp/plan.h"
#include "fsdp/units.h"

/* Buffers begin at multiples of PLAN_ALIGN bytes of their arena, as all of an arena does: what
 * NVIDIA's libraries are given by their own callers. */
enum { PLAN_ALIGN = 256, PLAN_GATHERED_LIMIT = 2 };

/* As in PyTorch's DDP: buckets of 25 MiB, with a small first one so that communication starts
 * early. */
enum { PLAN_BUCKET_BYTES = 25 << 20, PLAN_FIRST_BUCKET_BYTES = 1 << 20 };

static inline uint64_t plan_align(uint64_t bytes)
{
    return round_up(bytes, PLAN_ALIGN);
}

/* One double per rank, transferred as raw bits. */
enum { PLAN_NORM_FLOATS = sizeof(double) / sizeof(float) };

/* Derived from the options and the units. */
static inline bool plan_gathers(const struct plan *plan, int unit)
{
    return plan->units->units[unit].shard_world > 1;
}

/* The type in which a unit is kept. */
static inline enum base_dtype plan_base(const struct plan *plan, int unit)
{
    return plan->units->units[unit].flat.slots.base;
}

/* Whether what ops read is made of what the unit keeps whenever it is fetched. */
static inline bool plan_unpacks(const struct plan *plan, int unit)
{
    enum base_dtype base = plan_base(plan, unit);
    return base != BASE_F32 && (base != BASE_BF16 || plan_param_dtype(plan, unit) != DTYPE_BF16);
}

/* Elements of the unit's flat parameter that one rank keeps. */
static inline int64_t plan_kept_elements(const struct plan *plan, int unit)
{
    return plan->units->units[unit].flat.shard;
}

/* Whether ops read the unit in a buffer that it is copied to before: from other ranks, or out of
 * another type; and which stays. */
static inline bool plan_holds(const struct plan *plan, int unit)
{
    return plan->options.holds && plan_kept_elements(plan, unit) > 0 &&
           (plan_gathers(plan, unit) || plan_unpacks(plan, unit));
}

/* Whether ops read the unit in a buffer that it is copied to and that is freed: from other ranks,
 * from the host, or out of another type. */
static inline bool plan_fetches(const struct plan *plan, int unit)
{
    return !plan_holds(plan, unit) &&
           (plan_gathers(plan, unit) || plan_offloads(plan, unit) || plan_unpacks(plan, unit));
}

/* Whether ops read the unit's copy in bf16 that its optimizer writes, or the copy of that. */
static inline bool plan_rounds(const struct plan *plan, int unit)
{
    return !plan_gathers(plan, unit) && !plan->units->units[unit].buffers &&
           plan_base(plan, unit) == BASE_F32 && !plan_keeps_rounded(plan, unit) &&
           plan_param_dtype(plan, unit) == DTYPE_BF16;
}

/* Whether every rank keeps the whole unit, with its whole gradient. */
static inline bool plan_replicates(const struct plan *plan, int unit)
{
    return plan->units->units[unit].shard_world == 1 &&
           (plan->options.world > 1 || plan->options.strategy == STRATEGY_NO_SHARD);
}

/* Whether the unit stays gathered from forward to backward. */
static inline bool plan_keeps(const struct plan *plan, int unit)
{
    if (plan_gathers(plan, unit)) return plan_reshard_world(plan, unit) == 1;
    enum reshard reshard = plan->units->units[unit].reshard;
    if (reshard == RESHARD_DEFAULT) reshard = plan->options.reshard;
    if (reshard == RESHARD_DEFAULT) return plan->options.strategy == STRATEGY_SHARD_GRAD_OP;
    return reshard == RESHARD_NO;
}

/* Whether it is freed except for a larger shard. */
static inline bool plan_reshards(const struct plan *plan, int unit)
{
    int ranks = plan_reshard_world(plan, unit);
    return ranks > 1 && ranks < plan->units->units[unit].shard_world;
}

static inline int plan_group_ranks(const struct plan *plan, enum plan_group group, int unit)
{
    int world = plan->options.world;
    if (group == GROUP_WORLD) return world;
    int shard = plan->units->units[unit].shard_world;
    if (group == GROUP_RESHARD) return plan_reshard_world(plan, unit);
    return group == GROUP_SHARD ? shard : world / shard;
}

static inline bool plan_reduces(const struct plan *plan)
{
    return plan->options.world > 1;
}

static inline bool plan_is_parameter(const struct graph_value *value)
{
    return value->kind == VALUE_PARAMETER || value->kind == VALUE_PARAMETER_GRADIENT ||
           value->kind == VALUE_BUFFER;
}

/* The unit of a parameter's or a gradient's value. */
static inline int plan_unit_of_value(const struct plan *plan, const struct graph *graph, int value)
{
    return plan->units->unit_of_parameter[graph->values[value].parameter];
}

/* Bytes of what a rank keeps of it in an optimizer slot; -1: of its parameters. */
static inline uint64_t plan_slot_bytes(const struct plan *plan, int unit, int slot)
{
    struct slot_layout layout = slot_layout_of(&plan->units->units[unit].flat.slots, slot);
    return (uint64_t)layout.words * sizeof(float);
}

/* What an ALL_GATHER takes of each rank: elements, or words of a unit of another type than f32. */
static inline int64_t plan_gathered_count(const struct plan *plan, int unit)
{
    const struct slot_layout *kept = &plan->units->units[unit].flat.slots;
    return plan_base(plan, unit) != BASE_F32 ? kept->words : plan_kept_elements(plan, unit);
}

/* Bytes of an element of the unit's parameters as ops read them. */
static inline uint64_t plan_parameter_size(const struct plan *plan, int unit)
{
    bool low = plan_gathers(plan, unit) || plan_rounds(plan, unit) ||
               plan_keeps_rounded(plan, unit) || plan_base(plan, unit) != BASE_F32;
    return low ? dtype_size(plan_param_dtype(plan, unit)) : sizeof(float);
}

/* The same for what the unit keeps between forward and backward. */
static inline int64_t plan_resharded_elements(const struct plan *plan, int unit)
{
    return plan->units->units[unit].flat.padded / plan_reshard_world(plan, unit);
}

/* The offset in the unit's flat parameter. */
static inline int64_t plan_kept_start(const struct plan *plan, int unit)
{
    int parts = plan->units->units[unit].shard_world;
    return plan_kept_elements(plan, unit) * (plan->options.rank % parts);
}

/* ---- plan_order.c ---- */

/*
 * Appends `instruction` to the program and computes its waits. `after` lists the instructions that
 * it must follow, on any lane and in any order; -1 is skipped. Sorts the array in place. Returns
 * the instruction's number.
 */
int plan_append(struct plan_program *program, int *capacity,
                const struct plan_instruction *instruction, int *after, int after_count);

static inline bool plan_clock_before(const int *clocks, enum lane lane_a, int a, int b)
{
    return a != b && clocks[b * LANE_COUNT + lane_a] >= a;
}

/* ---- plan_schedule.c ---- */

enum plan_role { ROLE_TRAIN, ROLE_ACCUMULATE, ROLE_EVALUATE, ROLE_HOLD };

/*
 * Lists the instructions of one step of `graph`, with waits and clocks, without buffers. With
 * `no_prefetch` a forward gather starts only when the compute before its first use has finished.
 * The role determines whether gradients are reduced and used; ROLE_HOLD only gathers what is held.
 */
status_t plan_schedule(const struct plan *plan, struct graph *graph, enum plan_role role,
                       bool no_prefetch, struct plan_program *program) FSDPD_MUST_USE;

/* ---- plan_matrices.c ---- */

/* Lists the matrices and chooses their owners. */
void plan_assign_matrices(struct plan *plan);

/* Bytes that this rank sends with COLLECT or DISTRIBUTE. */
uint64_t plan_exchanged_bytes(const struct plan *plan, const struct plan_instruction *instruction);

struct plan_listing {
    const struct plan *plan;
    struct plan_program *program;
    int *capacity;
    int stats;  /* the instruction that makes the gradient's scale known */
    int *ready; /* by unit: the one after which its gradient is complete, -1; then the one after
                 * which its optimizer may run */
};

/* Appends a step of a unit's whole matrices; an exchange moves `count` elements. Returns its index. */
int plan_append_whole(struct plan_listing *listing, enum instruction_kind kind, int unit,
                      int64_t count, int *after, int after_count);

/* Appends what whole matrices need before the optimizers of these units. */
void plan_list_matrices(struct plan_listing *listing, const int *units, int count);

/* ---- plan_factors.c ---- */

/* The same for sums over rows and columns; the bytes that this rank sends with COLLECT or
 * DISTRIBUTE of such a unit, and those of its BUFFER_FACTORS. */
void plan_list_factors(struct plan_listing *listing, const int *units, int count);
uint64_t plan_moved_bytes(const struct plan *plan, const struct plan_instruction *instruction);
uint64_t plan_factor_bytes(const struct plan *plan, int unit);

/* ---- plan_memory.c ---- */

/* A span of a work buffer's life, from its first access to its last, by lane and in list order. */
struct live_range {
    int buffer;
    int begin, end;                          /* in list order */
    int first[LANE_COUNT], last[LANE_COUNT]; /* -1 if that lane does not access it */
    int after[LANE_COUNT]; /* that lane's instructions from this one on follow it (plan_place.c) */
    int next;              /* the buffer's next range, -1 */
};

struct live_ranges {
    struct live_range *ranges;
    int count, capacity;
    int *of_buffer; /* its first range, -1 for none */
};

/* Creates the buffers that outlive a step, the same for all programs; `bytes` are the arenas' (by
 * plan_arena). */
struct plan_buffer *plan_state_buffers(const struct plan *plan, const struct graph *train,
                                       const struct graph *evaluate, int *count,
                                       uint64_t bytes[ARENA_HOST + 1]);

/* The start of the state arena that another executor lends. */
uint64_t plan_lent_bytes(const struct plan *plan, const struct plan_buffer *state, int count);

/* Assigns a buffer to every value, unit and instruction, and places the work buffers. */
status_t plan_memory(const struct plan *plan, const struct lowering *lowering,
                     const struct plan_buffer *state, int state_count,
                     struct plan_program *program) FSDPD_MUST_USE;

/* ---- plan_place.c ---- */

/* Computes offsets for the work buffers, and the program's work_bytes. No placement needs fewer
 * than `least` bytes. */
void plan_place(struct plan_program *program, struct live_ranges *live, uint64_t least);

/* Computes live_peak, peak_instruction, class_bytes_at_peak. */
void plan_account(struct plan_program *program, const struct live_ranges *live);

/* ---- plan_hash.c ---- */

uint64_t plan_compute_hash(const struct plan *plan);

/* ---- plan_query.c ---- */

/* Bytes sent by this rank: the minimum of any algorithm. */
uint64_t plan_communicated(const struct plan *plan, const struct plan_instruction *instruction);

/* ---- plan_build.c ---- */

void plan_program_deinit(struct plan_program *program);

#endif
