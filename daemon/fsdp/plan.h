/*
 * The plan: everything that one rank does in one step, and where every byte lies, computed before
 * the first step. All ranks of a group have the same plan (shard contents differ, not sizes), so
 * plans are compared by hash. Pure: no threads, no devices; sizes that depend on a device are given
 * as a `lowering`.
 *
 * A program is a list of instructions in issue order. Each runs on one lane; a lane runs its
 * instructions in list order; `waits` name instructions on other lanes that must finish first. This
 * partial order (happens-before) is all that the executor guarantees, and all that memory sharing
 * may rely on.
 *
 * Memory is two arenas per rank. The state arena holds data that lives as long as the job:
 * parameter shards, optimizer state, the batch, statistics, and with no_shard the gradients. The
 * work arena holds everything else; two buffers share bytes only if every access to one happens
 * before every access to the other. The work arena has the size of the program that needs most.
 * Every offset is a multiple of 256. If units are offloaded there is a third arena, in host memory:
 * for their shards and optimizer state, and for gradients in transit to the optimizer.
 *
 * The operands of an instruction, by kind (`source` -> `target`, buffers; units without parameters
 * have neither instructions nor buffers):
 *
 *   COPY_BATCH      none: writes the graph's input, target and starts, and the buffer STATS
 *   ALL_GATHER      the unit's SHARD -> its GATHERED; in GROUP_RESHARD RESHARDED -> the same
 *   COMPUTE         none: the op's values, through buffer_of_value and offset_of_value
 *   RESHARD         GATHERED -> RESHARDED: this rank's part of it among fewer ranks
 *   FREE            GATHERED -> none
 *   REDUCE_SCATTER  GRADIENT -> GRADIENT_SHARD
 *   ALL_REDUCE      GRADIENT -> the same
 *   REDUCE_STATS    STATS -> the same
 *   OPTIMIZER       GRADIENT_SHARD (no_shard: GRADIENT) -> SHARD and its ROUNDED, with the unit's
 *                   OPTIMIZER buffers and STATS, which holds the gradient's scale
 *   NORM            what OPTIMIZER reads -> NORM
 *   REDUCE_NORM     NORM -> the same
 *   GATE            NORM -> STATS
 *   ACCUMULATE      GRADIENT_SHARD (no_shard: GRADIENT) -> ACCUMULATED, which OPTIMIZER reads
 *   ZERO            none -> the sums over micro-steps: ACCUMULATED, or the gradient that ops
 *                   write
 *   UPLOAD          SHARD (host) -> STAGED, which ALL_GATHER reads; if no other rank has a part of
 *                   the unit, SHARD or with bf16 ROUNDED -> GATHERED
 *   DOWNLOAD        what OPTIMIZER would read -> HOST_GRADIENT, which it reads
 *   DOWNLOAD_STATS  STATS -> HOST_STATS, which an offloaded unit's OPTIMIZER reads instead
 *   GATHER_VALUE    an op's input -> its output, which has every rank's
 *   MOMENTUM        what OPTIMIZER reads -> the same, with the first of the unit's OPTIMIZER
 *                   buffers and STATS: of matrices, the update in place of the gradient
 *   COLLECT         what OPTIMIZER reads -> MATRICES; with FACTORS: these -> the same
 *   ORTHOGONALIZE   MATRICES (a unit that is not sharded: what OPTIMIZER reads) -> the same
 *   DISTRIBUTE      the same -> what OPTIMIZER reads; with FACTORS: these -> the same
 *   SQUARES         what OPTIMIZER reads -> FACTORS, with STATS
 *   FACTOR          FACTORS -> the same, with the first of the unit's OPTIMIZER buffers and STATS
 *   UPDATE          FACTORS -> what OPTIMIZER reads, which it also reads, with that buffer, SHARD
 *                   and STATS; and sums of squares into FACTORS
 *   GATHER_SUMS     FACTORS -> the same
 *   SCALE           FACTORS -> what OPTIMIZER reads, which it also reads, with STATS
 *
 * An offloaded unit (PyTorch's CPUOffload(offload_params=True)) is uploaded to the device for every
 * use, even if it is not sharded; its optimizer runs on the host, as soon as its gradient is
 * available and backward no longer reads its parameters. Sums over micro-steps stay on the device.
 *
 * A unit whose shard world is the group is sharded over all ranks (full_shard, shard_grad_op). One
 * whose shard world is 1 is whole on every rank (no_shard), and its gradient is reduced in buckets,
 * each an ALL_REDUCE of a range. One in between (hybrid_shard) is sharded over neighbouring ranks,
 * rank r in group r / shard world, and an ALL_REDUCE GRADIENT_SHARD -> the same among the ranks
 * that hold the same shard adds up the groups' gradient shards. To count every parameter exactly
 * once over the ranks, count a unit's shard only on ranks below its shard world.
 *
 * With one rank there are no collectives: parameters are used in place, in SHARD or, as bf16, in
 * ROUNDED, which every writer of SHARD keeps up to date, and gradients are written directly into
 * GRADIENT_SHARD (no_shard: GRADIENT). Bytes between and after the parameters of a flat parameter
 * have no meaning, in gradients and shards alike.
 */
#ifndef FSDPD_FSDP_PLAN_H
#define FSDPD_FSDP_PLAN_H

#include "fsdp/matrices.h"
#include "fsdp/units.h"
#include "model/graph.h"
#include "ops/optimizers.h"

enum lane {
    LANE_COMPUTE,
    LANE_COMM,
    LANE_COPY, /* to the device */
    /* With offloaded units only: */
    LANE_DOWNLOAD, /* from the device */
    LANE_HOST,     /* host arithmetic; no other lane waits for it */
    LANE_COUNT
};

enum strategy {
    STRATEGY_FULL_SHARD,
    STRATEGY_NO_SHARD,
    STRATEGY_SHARD_GRAD_OP, /* gathered once per step, from forward to backward */
    STRATEGY_HYBRID_SHARD,  /* full_shard in each group of units->shard_world ranks */
    STRATEGY_COUNT
};
enum prefetch { PREFETCH_NONE, PREFETCH_PRE, PREFETCH_POST };

/*
 * How the gradients of several micro-steps are combined before an optimizer step. The accumulate
 * program runs for all micro-steps but the last, the train program for the last.
 */
enum accumulation {
    ACCUMULATION_NONE,    /* one micro-step is a step */
    ACCUMULATION_LOCAL,   /* unsharded gradients are summed on each rank and reduced once: uses more
                           * memory. Ops that write parameters' gradients must accumulate */
    ACCUMULATION_REDUCED, /* each micro-step's gradients are reduced and their shards summed: more
                           * communication. Needs more than one rank */
};

/* For all gradients together. */
enum norm_kind { NORM_NONE, NORM_2, NORM_INF };

/* The participants of a collective. */
enum plan_group {
    GROUP_WORLD,
    GROUP_SHARD,   /* the ranks that hold one copy of the unit together */
    GROUP_REPLICA, /* the ranks that hold the same shard of it */
    GROUP_RESHARD, /* neighbours among the former that hold one together until backward */
};

enum instruction_kind {
    INSTRUCTION_COPY_BATCH, /* copy lane: host batch -> the input and target buffers */
    INSTRUCTION_ALL_GATHER, /* comm lane: the unit's shards -> its gathered buffer */
    INSTRUCTION_COMPUTE,    /* compute lane: one graph op */
    INSTRUCTION_FREE,       /* compute lane, takes no time: the unit's gathered buffer is dead */
    INSTRUCTION_REDUCE_SCATTER, /* comm lane: the unit's gradient -> mean -> its gradient shard */
    INSTRUCTION_ALL_REDUCE,     /* comm lane: mean of the unit's gradient in place: a bucket of it
                                   (no_shard), its shard (hybrid_shard) */
    INSTRUCTION_REDUCE_STATS,   /* comm lane: sum over ranks of the statistics buffer, in place */
    INSTRUCTION_ACCUMULATE,     /* compute lane: the unit's reduced gradient is added to its sum */
    INSTRUCTION_NORM,           /* compute lane: the gradient's contribution to the norm over all
                                 * units */
    INSTRUCTION_REDUCE_NORM,    /* comm lane: every rank's part to every rank */
    INSTRUCTION_GATE,           /* compute lane: norm, scale and the decision to skip, into STATS */
    INSTRUCTION_ZERO,           /* compute lane: zeroes the unit's sum of gradients */
    INSTRUCTION_OPTIMIZER,      /* compute lane (offloaded: host lane): the unit's shard from its
                                   gradient shard and state */
    INSTRUCTION_RESHARD,        /* compute lane: before FREE, keeps a larger shard for backward */
    INSTRUCTION_UPLOAD,         /* copy lane: an offloaded unit's shard to the device */
    INSTRUCTION_DOWNLOAD,       /* download lane: its reduced gradient to the host */
    INSTRUCTION_DOWNLOAD_STATS, /* download lane: the statistics, for optimizers of the host */
    INSTRUCTION_GATHER_VALUE,   /* comm lane: one graph op, an OP_GATHER_RANKS */
    /* Of units with matrices that are updated whole (fsdp/matrices.h), before their OPTIMIZER: */
    INSTRUCTION_MOMENTUM,      /* compute lane: gradients become updates */
    INSTRUCTION_COLLECT,       /* comm lane: updates to the owners of the matrices */
    INSTRUCTION_ORTHOGONALIZE, /* compute lane: this rank's own matrices */
    INSTRUCTION_DISTRIBUTE,    /* comm lane: updates from their owners to all who need them */
    /* Of units whose matrices have sums of rows and columns (fsdp/factors.h); these also have
     * COLLECT and DISTRIBUTE: */
    INSTRUCTION_SQUARES,     /* compute lane: sums of this rank's squared gradients */
    INSTRUCTION_FACTOR,      /* compute lane: the state of this rank's own matrices */
    INSTRUCTION_UPDATE,      /* compute lane: gradients become updates */
    INSTRUCTION_GATHER_SUMS, /* comm lane: every rank's sums of squared updates to every rank */
    INSTRUCTION_SCALE,       /* compute lane: updates times their parameters' rates */
    INSTRUCTION_KIND_COUNT
};

/* The class of a buffer, as in the memory table. */
enum buffer_class {
    BUFFER_SHARD, /* state: the unit's parameter shard (no_shard: its whole flat parameter) */
    BUFFER_GRADIENT_SHARD, /* work: from the reduction (one rank: the gradient) to the optimizer */
    BUFFER_OPTIMIZER,      /* state: one per unit and optimizer slot */
    BUFFER_BATCH,          /* state: see graph_batch_value */
    BUFFER_STATS,          /* state: PLAN_STATS_COUNT floats */
    BUFFER_GATHERED,       /* work: the unit's parameters, gathered; state if held */
    BUFFER_GRADIENT,       /* work: the unit's gradient, not yet reduced (no_shard: state) */
    BUFFER_ACTIVATION,     /* work: forward values that backward or a later op needs */
    BUFFER_TEMPORARY,      /* work: backward's values */
    BUFFER_WORKSPACE,      /* work: an op's or a collective's scratch */
    BUFFER_ACCUMULATED,    /* state: sum of the unit's reduced gradients (ACCUMULATION_REDUCED) */
    BUFFER_NORM,           /* work: each rank's contribution to the norm, a double each */
    BUFFER_RESHARDED,      /* work: the unit's larger shard from forward to backward, in the type
                              in which it is gathered */
    BUFFER_STAGED,         /* work: an offloaded unit's shard, from UPLOAD to ALL_GATHER */
    BUFFER_HOST_GRADIENT,  /* host: its gradient, from DOWNLOAD to OPTIMIZER */
    BUFFER_HOST_STATS,     /* host: the statistics, from DOWNLOAD_STATS to OPTIMIZER */
    BUFFER_ROUNDED,  /* state: with bf16, of a unit that is not sharded: SHARD rounded, for ops */
    BUFFER_MATRICES, /* work: a rank's own whole matrices of the unit, from COLLECT to DISTRIBUTE */
    BUFFER_FACTORS,  /* work: sums over rows and columns, from SQUARES or UPDATE to SCALE */
    BUFFER_CACHE,    /* state: the keys or the values of one attention, by slot in their order */
    BUFFER_LOGITS,   /* state: those of the sequences that the graph continues */
    BUFFER_CLASS_COUNT
};

/* The arena of a buffer. A buffer in either of the last two has its place for as long as the
 * job. */
enum plan_arena {
    ARENA_WORK,
    ARENA_STATE,
    ARENA_HOST, /* memory of the host: SHARD, ROUNDED and OPTIMIZER of offloaded units, HOST_* */
};

/* The statistics buffer: f32 each, summed over ranks at the end of every program. Behind these are
 * the sums that an evaluation's graph makes (VALUE_TALLY). */
enum plan_stat {
    PLAN_STAT_LOSS,    /* written by the graph */
    PLAN_STAT_CORRECT, /* written by the graph of an evaluation, otherwise 0 */
    PLAN_STAT_SAMPLES, /* set with the batch: rows that count */
    PLAN_STAT_SIGNAL,  /* set with the batch: the ranks' messages to each other at a step
                        * boundary */
    /* Written by GATE, if the plan has one, the same on every rank: */
    PLAN_STAT_NORM,    /* of the gradient, before it was clipped */
    PLAN_STAT_SCALE,   /* the factor that the optimizer applied to gradients */
    PLAN_STAT_SKIPPED, /* 1 if nothing was updated because the loss or the norm is not finite */
    /* Set with the batch: 1 from a rank whose device has this program recorded. */
    PLAN_STAT_RECORDED,
    /*
     * Set with a training batch. A gradient whose losses were divided by all targets of a batch,
     * times the quotient of these two, is the mean over the targets that count, of all ranks and
     * batches of the step. Where the loss is a sum the two are equal.
     */
    PLAN_STAT_TARGETS, /* of this batch, including those that do not count */
    PLAN_STAT_COUNTED, /* that count, of the step's batches so far; 0 after the last: no update.
                        * Where the mean is weighted, the sum of their weights. Times the ranks if
                        * reductions leave the gradient's sum over them */
    PLAN_STAT_WEIGHT,  /* set with the batch: of its targets that count, the sum of the weights */
    PLAN_STAT_PREFERENCE, /* written by the graph of pairs: enum op_preference_sum from here on */
    PLAN_STATS_COUNT = PLAN_STAT_PREFERENCE + PREFERENCE_SUMS
};

struct plan_buffer {
    enum buffer_class class;
    enum plan_arena arena;
    int unit;        /* -1 if of none */
    int value;       /* graph value, -1 if none */
    int slot;        /* optimizer slot */
    uint64_t bytes;  /* as used */
    uint64_t offset; /* in its arena */
    int first,
        last; /* first and last instruction, in list order, that accesses it; -1 if none. A gathered
               * buffer may be unused in between, from its FREE to its next ALL_GATHER */
};

struct plan_instruction {
    enum instruction_kind kind;
    enum lane lane;
    enum plan_group group; /* of a collective */
    int unit;              /* -1 if of none */
    int op;                /* graph op of COMPUTE and GATHER_VALUE, else -1 */
    int source, target;    /* buffers, -1 if none; see above */
    int workspace;         /* buffer, -1 if none */
    bool backward;         /* belongs to the backward pass */
    int64_t from, count;   /* a collective's elements: of each rank's part; ALL_REDUCE: `count`
                            * elements of the buffer, starting at `from` */
    uint64_t communicated; /* bytes sent by this rank */
    int waits[LANE_COUNT]; /* instructions on other lanes, at most one of each, ascending */
    int wait_count;
};

/* One kind of step. */
struct plan_program {
    struct graph *graph; /* borrowed */
    struct plan_instruction *instructions;
    int instruction_count;
    int *clocks; /* [instruction * LANE_COUNT + lane]: the last instruction of that lane that has
                  * finished when this one has, including itself; -1 if none */
    struct plan_buffer
        *buffers; /* state buffers (shared by the programs, same offsets), then work */
    int buffer_count;
    int *buffer_of_value; /* by graph value; the unit's buffer for parameters and their gradients */
    uint64_t *offset_of_value; /* of the value inside that buffer, bytes */
    uint64_t work_bytes;       /* arena bytes that this program needs */
    uint64_t live_peak;   /* largest sum of buffers alive at once, including state, excluding host
                           * memory: <= planned bytes */
    int peak_instruction; /* where */
    uint64_t class_bytes_at_peak[BUFFER_CLASS_COUNT];
    uint64_t
        *live_bytes; /* by instruction: alive with it, in the order in which that peak occurs */
};

/* A device's answers about a graph after lowering it; arrays are by op and owned by their
 * creator. */
struct lowering {
    const uint64_t *workspace_bytes; /* by op */
    const bool *view;     /* by op: output 0 is input 0 under another shape, nothing runs */
    const bool *in_place; /* by op: output 0 may take over input 0's memory */
    const bool *beside;   /* by op: it may run at the same time as the next op */
};

/* What a plan of generation uses of another executor, at the same places of its state arena. */
enum plan_lent {
    LENT_NOTHING,
    LENT_PARAMETERS, /* SHARD and ROUNDED, of one that trains */
    LENT_CACHE,      /* these, what is held, and CACHE, of one for a graph with the same caches */
};

struct plan_options {
    enum plan_lent lent;
    bool holds; /* generation: units are gathered once, by the program `hold`, and not by steps */
    int rank, world;
    enum strategy strategy; /* for units without their own setting */
    enum reshard reshard;   /* whether units are freed after forward; RESHARD_DEFAULT: the strategy
                             * decides */
    int reshard_ranks;      /* RESHARD_GROUP: neighbouring ranks that keep a copy together */
    uint64_t bucket_bytes;  /* no_shard: minimum size of a gradient bucket; 0: 25 MiB */
    enum prefetch backward_prefetch;
    bool forward_prefetch;
    int gathered_limit; /* maximum of units gathered and not yet freed, without the root and those
                         * that stay gathered until backward; 0: 2, the default */
    enum optimizer_kind optimizer;
    int optimizer_slots;    /* buffers per shard, at most OPTIMIZER_MAX_SLOTS, of the bytes that the
                             * units' layouts say (fsdp/slots.h) */
    enum state_dtype state; /* as in the units' policy, */
    bool rounded;           /* as is this */
    bool averages;          /* the last slot is the parameters' average over steps */
    /* The type in which parameters are gathered (ops read it directly): DTYPE_F32 or DTYPE_BF16;
     * and the type to which parts of gradients are rounded on the wire. Shards, gradients and their
     * sums are always f32. */
    enum dtype gathered_dtype, reduce_dtype;
    /* By parameter: its settings group, 0 for the optimizer's own. Borrowed; NULL: all 0. */
    const int *group_of_parameter;
    /* By parameter: whether `optimizer` updates it, as a whole matrix; `others` updates the rest.
     * Borrowed; NULL: it updates all. */
    const bool *matrix_of_parameter;
    enum optimizer_kind others;
    int ns_steps; /* iterations for a matrix */
    uint64_t matrix_workspace_bytes; /* that the device's products need beside their operands */
    enum accumulation accumulation;
    uint32_t micro_steps;                /* of a step, with accumulation */
    enum norm_kind norm;                 /* NORM_NONE: no NORM, no GATE */
    uint64_t collective_workspace_bytes; /* the communicator's scratch for a reduction */
    /* For all units, overriding their own setting. Without `host_apart`, on a device whose memory
     * is the host's, nothing is offloaded. */
    bool cpu_offload, host_apart;
    /* For an estimate only: work buffers have no places, so `work_bytes` is a lower bound, and the
     * plan is not checked. */
    bool sketch;
    /* The communicator registers the collectives' buffers, so their offsets must be the same on
     * every rank: the hash includes them. */
    bool register_buffers;
};

struct plan {
    struct plan_options options;
    const struct model *model; /* borrowed, as are units */
    const struct unit_set *units;
    /* Without a graph where there is none. `hold` gathers what the steps of an evaluation read,
     * with LENT_PARAMETERS; a plan with LENT_CACHE finds it gathered. */
    struct plan_program train, accumulate, evaluate, hold;
    struct plan_matrix *matrices;                    /* of all units, in their order */
    int matrix_count;
    uint64_t state_bytes; /* arena sizes */
    uint64_t lent_bytes;  /* of the state arena, at its start: another executor's */
    uint64_t held_bytes;  /* of the state arena, behind the parameters: units that stay gathered */
    uint64_t cache_bytes; /* of the state arena, behind these */
    uint64_t work_bytes;
    uint64_t peak_bytes; /* state + work; without lent_bytes what the runtime allocates per rank */
    uint64_t host_bytes; /* the arena of offloaded units: host memory that the runtime allocates */
    uint64_t hash;       /* of everything that must be equal on all ranks */
};

/*
 * Builds and validates. Graphs, model and units must outlive the plan. `evaluate_graph` may be
 * NULL. In a plan of generation (options->lent) it continues sequences, `train_graph` is NULL, and
 * there is neither optimizer state nor a gradient.
 */
status_t plan_build(const struct model *model, const struct unit_set *units,
                    struct graph *train_graph, const struct lowering *train_lowering,
                    struct graph *evaluate_graph, const struct lowering *evaluate_lowering,
                    const struct plan_options *options, struct plan **plan) FSDPD_MUST_USE;
void plan_free(struct plan *plan); /* accepts NULL */

/*
 * Checks a plan independently of how it was built: every read has an earlier, ordered writer;
 * buffers that share bytes are ordered; a unit is gathered when used and freed after its last use,
 * and gathered units stay within the limit; every gradient is reduced once and used by the
 * optimizer afterwards; all offsets are inside the arenas. INTERNAL names the instruction and the
 * buffers.
 */
status_t plan_validate(const struct plan *plan) FSDPD_MUST_USE;

/* RESOURCE_EXHAUSTED if `peak_bytes`, and the `outside_bytes` that the process needs beside the
 * arenas, exceed `memory_bytes`; names the largest unit and class. */
status_t plan_check_fits(const struct plan *plan, uint64_t outside_bytes,
                         uint64_t memory_bytes) FSDPD_MUST_USE;

/* The host's memory and its users. */
struct plan_host {
    uint64_t memory_bytes;  /* available to all of them */
    uint64_t staging_bytes; /* pinned by each for copies, besides the plan's host_bytes */
    int ranks;              /* of the job on this host; at least 1 */
};

/* The same for the host memory pinned by all ranks on the host; the message says what it is for. */
status_t plan_check_host_fits(const struct plan *plan, const struct plan_host *host) FSDPD_MUST_USE;

/* Whether instruction `a` is done before `b` starts, by lane order and waits. */
bool plan_happens_before(const struct plan_program *program, int a, int b);

const char *plan_strategy_name(enum strategy strategy); /* "full_shard" */

/* Whether some unit's parameters are spread over ranks and must be gathered. */
bool plan_is_sharded(const struct plan *plan);

/* The number of neighbouring ranks that hold the unit's parameters together between forward and
 * backward: its shard world, fewer with RESHARD_GROUP, 1 if they stay gathered. (The root always
 * stays gathered.) */
int plan_reshard_world(const struct plan *plan, int unit);

const char *plan_optimizer_name(enum optimizer_kind kind); /* "adamw" */

/* Whether an optimizer of that name exists; sets *kind. */
bool plan_optimizer_find(const char *name, enum optimizer_kind *kind);

/* "adamw", "muon and adamw": whose state a checkpoint has. Caller frees. */
char *plan_optimizers_text(const struct plan *plan);

/* Bytes of the optimizer's state, all shards of every unit together. */
uint64_t plan_optimizer_bytes(const struct plan *plan);

/* Whether the unit's shard and optimizer are on the host. */
bool plan_offloads(const struct plan *plan, int unit);
/* Whether any unit's are. */
bool plan_has_offloaded(const struct plan *plan);

/* The type in which the unit is gathered, if it is, and in which its gradients are sent. */
enum dtype plan_param_dtype(const struct plan *plan, int unit);
enum dtype plan_reduce_dtype(const struct plan *plan, int unit);
/* Whether the unit's parameters are kept in bf16 only. */
bool plan_keeps_rounded(const struct plan *plan, int unit);

/* Elements of the part of a flat parameter that this rank keeps. */
struct plan_range {
    int64_t from, count;
    int group;     /* as in plan_options */
    bool matrix;   /* of parameters that are updated as whole matrices */
    bool packed;   /* the optimizer's state of a parameter, or of whole blocks of it, in 8 bits; or
                    * of a parameter in bf16 */
    int parameter; /* the first one of the run, */
    int64_t first; /* of which it begins at that element, a multiple of FLAT_ALIGN_ELEMENTS */
    int64_t state; /* word at which it begins, in this rank's array of each slot that packs */
};

/*
 * The runs of values of one settings group in the unit's kept part, ascending. State in 8 bits is
 * a run of its own, as is each parameter with anything in bf16. Gaps between parameters have no
 * meaning; they are omitted unless `with_gaps` allows them within a run. Returns the number of
 * runs; the caller frees *ranges.
 */
int plan_find_ranges(const struct plan *plan, int unit, bool with_gaps, struct plan_range **ranges);

/* Bytes that this rank sends in an optimizer step with all its micro-steps. */
uint64_t plan_communicated_per_step(const struct plan *plan);

/* Whether this rank counts its part of the unit in the norm: each part is counted once, however
 * many ranks have it. */
bool plan_counts_in_norm(const struct plan *plan, int unit);

/* The slot of the parameters' average; -1: there is none. */
int plan_average_slot(const struct plan *plan);
/* Bytes of it in the device's memory, as the table of memory counts them. */
uint64_t plan_average_bytes(const struct plan *plan);

/* Human-readable text, which golden tests compare; see docs/plan.md. Caller frees. */
char *plan_dump(const struct plan *plan);

const char *plan_instruction_name(enum instruction_kind kind); /* "all_gather" */
const char *plan_buffer_class_name(enum buffer_class class);   /* "parameters (shard)" */
const char *plan_lane_name(enum lane lane);

#endif
