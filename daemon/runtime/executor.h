/*
 * The executor: runs a plan's programs on a device and a communicator. It allocates the arenas and
 * everything else when created, and nothing later. One thread owns an executor; others may call
 * only executor_abort and executor_look.
 */
#ifndef FSDPD_RUNTIME_EXECUTOR_H
#define FSDPD_RUNTIME_EXECUTOR_H

#include "runtime/comm.h"
#include "runtime/device.h"
#include "runtime/trace.h"

struct executor;

/* `comm` may be NULL for world 1. The graphs are the plan's, lowered by this device; all arguments
 * must outlive the executor. Shards start as zeros. */
status_t executor_new(struct device *device, struct comm *comm, const struct plan *plan,
                      struct device_graph *train, struct device_graph *evaluate, uint64_t seed,
                      struct executor **executor) FSDPD_MUST_USE;
void executor_free(struct executor *executor); /* accepts NULL; stops the lanes */

/*
 * The same for a plan of generation, whose steps are evaluations, on the lender's device and in its
 * group. What the plan says is lent is the lender's memory, so the lender must outlive the
 * executor, and only one of the two may run. INTERNAL if the lender has it at other places.
 */
status_t executor_new_borrowing(const struct plan *plan, struct device_graph *graph,
                                struct executor *lender, struct executor **executor) FSDPD_MUST_USE;

/* Gathers what the plan holds; before the first step, unless the plan holds nothing. */
status_t executor_hold(struct executor *executor) FSDPD_MUST_USE;

struct device *executor_device(const struct executor *executor);

/* The logits that the last step of a plan of generation made, f32 or bf16 as the graph says, in the
 * host's memory, until the next step. Settles the executor. */
status_t executor_read_logits(struct executor *executor, const void **logits) FSDPD_MUST_USE;

/* For plan_options.collective_workspace_bytes: the maximum over the groups of these units. */
uint64_t executor_collective_bytes(const struct unit_set *units, int world);

/* Writes this rank's part of a parameter (its full, plain values) into its shard. */
status_t executor_set_parameter(struct executor *executor, int parameter,
                                const float *values) FSDPD_MUST_USE;

/* The same in pieces: this rank's part of a parameter (count 0: none), and a part of that. A unit
 * that keeps its parameters in bf16 gets them rounded to nearest. */
struct parameter_part {
    int64_t offset, count; /* elements */
};
/* Whether it is set at every attempt (struct unit). The pieces of those that are kept in another
 * type than f32 MUST come in order; in nf4 a rank that keeps a part needs all of it. */
bool executor_is_unsaved(const struct executor *executor, int parameter);
struct parameter_part executor_parameter_part(const struct executor *executor, int parameter);
status_t executor_set_parameter_part(struct executor *executor, int parameter,
                                     struct parameter_part part,
                                     const float *values) FSDPD_MUST_USE;

/* After values were written through executor_unit_state: brings the copies in bf16 that ops read up
 * to date. */
status_t executor_round_parameters(struct executor *executor) FSDPD_MUST_USE;

/* The same for the parameter's optimizer state (slot -1: its values), in the words of that slot
 * (fsdp/slots.h) from the parameter's first one on. */
struct parameter_part executor_state_part(const struct executor *executor, int parameter, int slot);
status_t executor_set_state_part(struct executor *executor, int parameter, int slot,
                                 struct parameter_part part, const float *values) FSDPD_MUST_USE;

/* Between steps, if the plan has an average of the parameters (plan_average_slot): it becomes the
 * parameters; it and the parameters change places, until the next call. */
status_t executor_start_average(struct executor *executor) FSDPD_MUST_USE;
status_t executor_swap_average(struct executor *executor) FSDPD_MUST_USE;

struct step_input {
    const void *input;               /* (batch, ...) f32, the plan's batch size */
    const int32_t *target;           /* (batch); negative: one that does not count */
    const int32_t *starts;           /* (batch, time), if the graph has them: see ops/op.h */
    const float *reference;          /* (batch * texts), if the graph has them */
    int64_t samples;                 /* targets that count */
    float signal;                    /* this rank's part of PLAN_STAT_SIGNAL */
    uint64_t step;                   /* keys dropout, with `micro` and the rank; from 0 */
    bool by_sample;                  /* dropout is keyed by step and sample instead: */
    uint64_t first_sample;           /* the place of the first row in the step's samples */
    uint32_t micro, micro_steps;     /* which of a step's batches, and their number; 0 of 0 if it is
                                      * the only one */
    struct optimizer_step optimizer; /* train only */
    double max_norm;                 /* clips gradients, if the plan has a norm; 0: no clipping */
    bool skip;                       /* updates nothing, if the plan has a norm */
};

/* Busy times are those of steps that have ended since the last result, so a step whose tail still
 * runs (executor_settle) is in the next result; the last one is in none. */
struct step_result {
    float stats[PLAN_STATS_COUNT]; /* summed over the ranks */
    const float *sums; /* of an evaluation's VALUE_TALLY, likewise; until the next step */
    int64_t step_ns;   /* of the call */
    int64_t compute_ns;      /* busy time of the compute lane */
    int64_t comm_ns;         /* busy time of the comm lane */
    int64_t exposed_comm_ns; /* the part of comm_ns not overlapped by compute */
};

status_t executor_train_step(struct executor *executor, const struct step_input *input,
                             struct step_result *result) FSDPD_MUST_USE;
/* A micro-step before the last one, which is a train step; if the plan accumulates. */
status_t executor_accumulate_step(struct executor *executor, const struct step_input *input,
                                  struct step_result *result) FSDPD_MUST_USE;
status_t executor_evaluate_step(struct executor *executor, const struct step_input *input,
                                struct step_result *result) FSDPD_MUST_USE;

/*
 * A step returns when its statistics are known. If the device replays it and can run ahead, the
 * rest of the step, its tail, runs on, and the next step is enqueued behind it. This waits until
 * nothing runs; a failure in a tail is reported here, or by the next step. To be called before
 * anything else is done with the device's lanes, with the group, or with the state; the functions
 * below that access the state call it, too.
 */
status_t executor_settle(struct executor *executor) FSDPD_MUST_USE;

/* Between steps, on every rank: gives all ranks the model's buffers as rank 0 has them. Each moved
 * its own in training. */
status_t executor_share_buffers(struct executor *executor) FSDPD_MUST_USE;

/* Copies the words of an optimizer slot (-1: of the parameters; runtime/base.h reads those) to host
 * memory, between steps; writes nothing if the unit has none (executor_unit_state). */
status_t executor_read_slot(struct executor *executor, int unit, int slot,
                            float *values) FSDPD_MUST_USE;
/* The number of a shard's elements; of words copied. */
size_t executor_shard_elements(const struct executor *executor, int unit);
size_t executor_slot_words(const struct executor *executor, int unit, int slot);

/* Address of this rank's shard of one of the unit's lasting arrays: the parameters (slot -1) or an
 * optimizer slot. NULL if the unit has none. In device memory or, if plan_offloads the unit, in
 * host memory. Writing there does not notify the executor's guard; to access it, settle first. */
float *executor_unit_state(const struct executor *executor, int unit, int slot);
/* Whether the host can read the unit's arrays there. */
bool executor_in_host_memory(const struct executor *executor, int unit);

/*
 * A guard reads units' lasting arrays where they are, from a thread of its own and while steps run,
 * as a checkpoint that is being written does. Whatever changes them waits until the guard has
 * copied what it still needs.
 */
struct executor_guard {
    /* The arrays of `unit`, which are in host memory, are about to change. On a lane's thread or
     * the executor's; every time. */
    void (*before_change)(void *user, int unit);
    /* The last call, on the executor's thread: all arrays are about to change or to be freed. */
    void (*release)(void *user);
    void *user;
};
/* Between steps. The executor releases the guard when it gets another one or is freed. */
void executor_set_guard(struct executor *executor, const struct executor_guard *guard);

/* Releases the work arena, which is unused between steps; no further steps are possible. Settles
 * the executor. */
status_t executor_release_work(struct executor *executor) FSDPD_MUST_USE;

const struct plan *executor_plan(const struct executor *executor);

/*
 * From the next training step on, every instruction stores when it began and ended on its lane,
 * until the trace is full. The trace is made for the plan's training programs; it must live until
 * it is full or NULL is set. It changes no result, allocates nothing, and costs nothing when off.
 */
void executor_set_trace(struct executor *executor, struct trace *trace);
/* Whether further steps go into `trace`: not when it is full or another executor has taken over. */
bool executor_is_tracing(const struct executor *executor, const struct trace *trace);
/* Whether steps go into any trace. */
bool executor_has_trace(const struct executor *executor);

/* Makes the current and later steps fail with ABORTED. From any thread. */
void executor_abort(struct executor *executor, const char *why);

/* Why steps are enqueued call by call instead of replayed, returned once; NULL otherwise. The
 * caller's. */
char *executor_take_note(struct executor *executor);

/* What one lane does in a step. */
struct executor_lane {
    enum lane lane;
    int instruction;  /* of the program: which it carries out, or begins next; -1: unknown */
    int awaits;       /* another lane's instruction that it waits for; -1: none */
    int64_t since_ns; /* CLOCK_MONOTONIC */
};

/* What an executor does now: its program, and the lanes that have work. */
struct executor_now {
    const struct plan_program *program; /* NULL: it is between steps; a tail may run */
    const char *name;                   /* "train", "accumulate", "evaluate" */
    int64_t since_ns;
    struct executor_lane lanes[LANE_COUNT];
    int lane_count;
};

/* From any thread, as long as the executor lives, even while a step hangs. */
void executor_look(struct executor *executor, struct executor_now *now);

/* `bytes` were allocated by another executor when this one was created; the device has now got them
 * back, so executor_memory no longer subtracts them. */
void executor_replaced(struct executor *executor, uint64_t bytes);

/* For tests: fills the work arena with NaNs before every step, and a unit's gathered buffer after
 * it is freed, to detect reads of data that is not or no longer there. */
status_t executor_set_poison(struct executor *executor, bool on) FSDPD_MUST_USE;

/* Measured: the device's peak of allocated bytes for this executor's arenas (equals
 * plan.peak_bytes), and the bytes among these in touched pages (0 if unknown). */
uint64_t executor_memory(const struct executor *executor); /* of the arenas, now */
uint64_t executor_memory_peak(const struct executor *executor);
uint64_t executor_memory_touched(const struct executor *executor);

#endif
