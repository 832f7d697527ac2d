/*
 * Trains a small model on every rank of a group and returns the outcome: parameters, losses,
 * collectives, memory. Data and initial parameters are generated, the same for every world size:
 * rank r of W gets rows r * batch ... of a global batch. If the number of rows is not a multiple of
 * W, the last ranks have fewer, followed by rows that do not count. For tests of the engine.
 */
#ifndef FSDPD_TESTS_ENGINE_ENGINE_H
#define FSDPD_TESTS_ENGINE_ENGINE_H

#include "group.h"
#include "runtime/executor.h"

enum { ENGINE_MAX_STEPS = 64, ENGINE_LOG = 16384 };

struct engine_job {
    const char *model; /* the model file's text */
    struct wrap_policy policy;
    enum strategy strategy;
    int shard_size; /* hybrid_shard */
    enum reshard reshard;
    int reshard_ranks;
    uint64_t bucket_bytes;
    enum prefetch prefetch;
    bool forward_prefetch;
    int gathered_limit;
    struct optimizer_step optimizer;
    const bool *matrices; /* as in plan_options */
    int64_t global_batch;
    int steps;
    int micro_steps; /* batches per step; 0: 1 */
    bool no_sync;
    bool by_sample; /* draws are keyed by a sample's place in the step */
    enum norm_kind norm;
    double max_norm;
    double lr_decay; /* factor of the rate from step to step; 0: 1 */
    bool dropout, poison, only_plan;
    bool cpu_offload,
        host_apart;        /* as in plan_options; a cpu then has two arenas of the host's memory */
    bool register_buffers; /* as in plan_options */
    const char *const *checkpoint; /* patterns of modules: activation checkpointing */
    int checkpoint_count;
    enum recompute recompute; /* what of them */
    enum dtype param_dtype, reduce_dtype;
    bool rounded;             /* parameters are kept in bf16 */
    float *const *parameters; /* initial values, by parameter; NULL: generated */
    /* For every batch the samples or tokens of the global batch, then its targets, whatever their
     * type; NULL: generated. */
    const int32_t *windows;
    int ignored_rows; /* of the global batch, at its end, in the evaluation */
    /* In training, every global batch has (its number modulo this) ignored rows; 0: none. */
    int ignored_modulus;
    /* Called before the steps, on every rank; may be NULL. */
    void (*tamper)(struct plan *plan);
    /* Called before step `step`, on every rank; may be NULL. */
    void (*before_step)(struct executor *executor, struct comm *comm, int step);
    /* Called when this rank has finished, before its teardown; may be NULL. */
    void (*finished)(struct comm *comm);
    const char *device; /* NULL: cpu */
    bool logged;        /* on a device of device_logged.h */
    /* Creates the communicator of a device that cannot use the group's; NULL: the group's. */
    status_t (*join)(struct device *device, int rank, int world, struct comm **comm);
};

struct engine_outcome {
    float *parameters; /* all distinct ones, in model order; the same memory for all ranks */
    int64_t parameter_elements;
    float loss[ENGINE_MAX_STEPS];    /* as the graphs compute it, summed over ranks and batches */
    float counted[ENGINE_MAX_STEPS]; /* targets, by weight, of all ranks and batches */
    float norm[ENGINE_MAX_STEPS];    /* of the gradient, if the plan has one */
    float evaluated[PLAN_STATS_COUNT];
    uint64_t hash[GROUP_MAX]; /* of the ranks' plans */
    uint64_t planned_peak[GROUP_MAX], measured_peak[GROUP_MAX], touched[GROUP_MAX];
    uint64_t planned_host[GROUP_MAX], measured_host[GROUP_MAX]; /* offloaded */
    uint64_t planned_bytes[GROUP_MAX], sent_bytes[GROUP_MAX];   /* by the last training step */
    char collectives[ENGINE_LOG];                               /* of rank 0's last training step */
    char planned[ENGINE_LOG]; /* the same, from the plan's instructions */
    struct step_result last;  /* rank 0's last batch */
    char *device_log;         /* rank 0's, threads only; NULL except on the logged device */
    int computes[2];          /* COMPUTE instructions: of a training step, of an evaluation */
};

/* One rank's part, for group_run; `argument` is a struct engine_run. */
struct engine_run {
    const struct engine_job *job;
    struct engine_outcome *outcome; /* shared memory */
};
status_t engine_rank(struct comm *comm, void *argument);

struct engine_outcome *engine_outcome_new(const struct engine_job *job);
void engine_outcome_free(struct engine_outcome *outcome);

/* Runs the job and fails the test unless it succeeds on every rank with the planned memory. */
struct engine_outcome *engine_train(const struct engine_job *job, enum group_kind kind, int world);

/* This rank's shard of a unit's parameters in f32, whatever the type in which it is kept. */
status_t engine_read_shard(struct executor *executor, int unit, float *values);

/* The tutorial's network; read once. */
const char *engine_mnist(void);

/* The same model with the mean instead of the sum as its loss; caller frees. */
char *engine_with_mean(const char *model);

#endif
