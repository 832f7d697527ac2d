/*
 * The executor: runs a plan's programs on a device and a communicator. It allocates the arenas
 * and everything else when it is made, and nothing after. One thread owns an executor; only
 * executor_abort may be called from others.
 */
#ifndef FSDPD_RUNTIME_EXECUTOR_H
#define FSDPD_RUNTIME_EXECUTOR_H

#include "runtime/comm.h"
#include "runtime/device.h"
#include "runtime/trace.h"

struct executor;

/* `comm` may be NULL for world 1. The graphs are the plan's, lowered by this device; everything
 * given must outlive the executor. Shards start as zeros. */
status_t executor_new(struct device *device, struct comm *comm, const struct plan *plan,
                      struct device_graph *train, struct device_graph *evaluate, uint64_t seed,
                      struct executor **executor) FSDPD_MUST_USE;
void executor_free(struct executor *executor); /* accepts NULL; stops the lanes */

/* For plan_options.collective_workspace_bytes: the most that any group of these units needs. */
uint64_t executor_collective_bytes(const struct unit_set *units, int world);

/* Writes this rank's part of a parameter (its full, plain values) into its shard. */
status_t executor_set_parameter(struct executor *executor, int parameter,
                                const float *values) FSDPD_MUST_USE;

/* The same in pieces: what this rank holds of a parameter (count 0: nothing), and a part of that.
 */
struct parameter_part {
    int64_t offset, count; /* elements */
};
struct parameter_part executor_parameter_part(const struct executor *executor, int parameter);
status_t executor_set_parameter_part(struct executor *executor, int parameter,
                                     struct parameter_part part,
                                     const float *values) FSDPD_MUST_USE;

/* The same of what the optimizer keeps for the parameter (slot -1: its values). */
status_t executor_set_state_part(struct executor *executor, int parameter, int slot,
                                 struct parameter_part part, const float *values) FSDPD_MUST_USE;

struct step_input {
    const void *input;               /* (batch, ...) f32, the plan's batch size */
    const int32_t *target;           /* (batch); negative: a row that does not count */
    int64_t samples;                 /* rows that count */
    float signal;                    /* this rank's part of PLAN_STAT_SIGNAL */
    uint64_t step;                   /* keys dropout, with `micro`; from 0 */
    uint32_t micro, micro_steps;     /* which of a step's batches, and how many a whole one has; 0
                                      * of 0 if it is the only one */
    struct optimizer_step optimizer; /* train only */
    double max_norm;                 /* clips gradients, if the plan has a norm; 0: no clipping */
    bool skip;                       /* updates nothing, if the plan has a norm */
};

struct step_result {
    float stats[PLAN_STATS_COUNT]; /* summed over the ranks */
    int64_t step_ns;
    int64_t compute_ns;      /* busy time of the compute lane */
    int64_t comm_ns;         /* busy time of the comm lane */
    int64_t exposed_comm_ns; /* of it, while nothing computed: what of the step compute leaves */
};

status_t executor_train_step(struct executor *executor, const struct step_input *input,
                             struct step_result *result) FSDPD_MUST_USE;
/* A micro-step before the last one, which is a train step; where the plan accumulates. */
status_t executor_accumulate_step(struct executor *executor, const struct step_input *input,
                                  struct step_result *result) FSDPD_MUST_USE;
status_t executor_evaluate_step(struct executor *executor, const struct step_input *input,
                                struct step_result *result) FSDPD_MUST_USE;

/* Copies this rank's parameter shard of `unit` (flat.shard elements) to
 * host memory, between steps. */
status_t executor_read_shard(struct executor *executor, int unit, float *values) FSDPD_MUST_USE;
/* The same of an optimizer slot's; nothing is written if the unit has none (executor_unit_state).
 */
status_t executor_read_slot(struct executor *executor, int unit, int slot,
                            float *values) FSDPD_MUST_USE;
/* Elements that they give. */
size_t executor_shard_elements(const struct executor *executor, int unit);

/* Where this rank's shard of one of the unit's lasting arrays lies: the parameters (slot -1) or an
 * optimizer slot. NULL if the unit has none. In device memory, or, where plan_offloads says so of
 * the unit, in the host's. */
float *executor_unit_state(const struct executor *executor, int unit, int slot);

/* Gives the work arena back, in which nothing is between steps; there can be no more of them. */
void executor_release_work(struct executor *executor);

const struct plan *executor_plan(const struct executor *executor);

/*
 * From the next training step on every instruction notes when it began and ended on its lane, until
 * the trace is full. Made for the plan's programs of training; it must live until it
 * is full or NULL is set. Changes no result, allocates nothing, and costs nothing when it is off.
 */
void executor_set_trace(struct executor *executor, struct trace *trace);
/* Whether further steps go into `trace`: not when it is full, nor after another executor took over.
 */
bool executor_is_tracing(const struct executor *executor, const struct trace *trace);
/* Whether they go into any. */
bool executor_has_trace(const struct executor *executor);

/* The step in progress, and those to come, fail with ABORTED. From any thread. */
void executor_abort(struct executor *executor, const char *why);

/* What a device would do at once is enqueued call by call: why, once; NULL otherwise. The caller's.
 */
char *executor_take_note(struct executor *executor);

/* Of `bytes` that were allocated when the executor was made, another's, the device has been given
 * back all: they are no longer to be taken off what executor_memory measures. */
void executor_replaced(struct executor *executor, uint64_t bytes);

/* For tests: from now on the work arena is full of NaNs before every step, and a unit's gathered
 * buffer after it was freed, so that whoever reads what is not there yet or any more is found. */
void executor_set_poison(struct executor *executor, bool on);

/* Measured: the device's peak of allocated bytes for this executor's arenas (equals
 * plan.peak_bytes), and of those the bytes of pages that were really touched (0 if unknown). */
uint64_t executor_memory(const struct executor *executor); /* of the arenas, now */
uint64_t executor_memory_peak(const struct executor *executor);
uint64_t executor_memory_touched(const struct executor *executor);

#endif
