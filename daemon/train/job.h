/*
 * What a training run is made from: a job's settings as plain values, already checked for range by
 * common/spec. The worker fills it in from the API's JobSpec.
 */
#ifndef FSDPD_TRAIN_JOB_H
#define FSDPD_TRAIN_JOB_H

#include "checkpoint/weights.h"
#include "fsdp/plan.h"
#include "runtime/device.h"
#include "train/token_file.h"

enum data_format { DATA_IDX, DATA_TOKENS };

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_STEP, SCHEDULE_LINEAR, SCHEDULE_COSINE };

/* Where checkpoints are, and when they are taken. */
struct checkpoint_settings {
    const char *folder; /* of this job's, absolute; NULL: there are none */
    const char *root; /* that it must be below; NULL: any. See folder_open in checkpoint/folder.h */
    const char *run;  /* the name of the job's run: others' checkpoints are not resumed */
    uint32_t attempt;
    uint64_t every_steps;  /* 0: not by steps */
    uint32_t every_epochs; /* 0: not by epochs */
    bool resume;           /* go on from the last one, if there is one */
    bool must_resume;      /* there is one: what cannot be read is an error, not a new beginning */
};

struct train_job {
    const char *id;
    const char *model_text; /* the model file */
    size_t model_length;
    const char *model_file;               /* for messages */
    const struct weights_source *weights; /* where initial values may be; NULL: they are drawn */
    const char *data_dir;  /* resolved, an absolute path below the data root; NULL: none, which is
                              enough to plan */
    const char *data_root; /* that data_dir or data_path is below, and no link leads out of;
                              NULL: none. Likewise for validation_path. */
    const char *validation_root;
    double normalize_mean, normalize_std;
    enum data_format data_format;
    const char *data_path;              /* DATA_TOKENS: the file; resolved, or NULL, as data_dir */
    const char *validation_path;        /* likewise; NULL: a part of the file */
    double validation_fraction;         /* its last part, without a validation_path */
    enum token_encoding token_encoding; /* of both */
    int64_t context;                    /* tokens of a window; 0: the model's */
    bool masked;                        /* the targets are what was masked, not the next tokens */
    double mask_probability;
    int64_t mask_token;
    uint64_t batch_tokens;      /* per optimizer step, all ranks; 0: as accumulation_steps says */
    uint64_t evaluate_interval; /* steps; 0: at the end only */
    uint64_t evaluate_batches;  /* an evaluation has as many windows as so many optimizer steps, at
                                  most; 0: all there are */
    uint32_t epochs;            /* DATA_TOKENS: 0 for no limit but max_steps */
    uint32_t batch_size, test_batch_size;
    uint64_t seed;
    uint32_t log_interval; /* steps */
    uint64_t max_steps;    /* 0: no limit */
    bool dropout, shuffle, evaluate;
    uint32_t accumulation_steps;     /* batches per optimizer step; 0: 1 */
    bool no_sync;                    /* their gradients are reduced once */
    double max_norm;                 /* gradients are clipped to it; 0: no clipping */
    enum norm_kind norm;             /* NORM_NONE: no clipping, nothing measured */
    bool skip_non_finite;            /* needs a norm */
    struct optimizer_step optimizer; /* with the initial lr, and the groups */
    enum schedule_kind schedule;
    uint32_t schedule_step_size;
    double schedule_gamma;
    uint64_t schedule_warmup_steps;
    double schedule_warmup_start_factor;
    uint64_t schedule_total_steps; /* linear, cosine; 0: the job's */
    double schedule_end_factor;    /* linear, cosine */
    enum strategy strategy;
    struct wrap_policy wrap;
    int shard_size;                     /* hybrid_shard: ranks that hold one copy together */
    enum reshard reshard_after_forward; /* RESHARD_DEFAULT: as the strategy has it */
    int reshard_ranks;                  /* RESHARD_GROUP */
    uint64_t bucket_bytes;              /* no_shard; 0: the default */
    enum prefetch backward_prefetch;
    bool forward_prefetch;
    int gathered_limit;            /* 0: none */
    const char *const *checkpoint; /* patterns of modules: activation checkpointing */
    int checkpoint_count;
    enum dtype param_dtype, reduce_dtype; /* DTYPE_F32 or DTYPE_BF16 */
    bool cpu_offload;
    bool register_buffers; /* with the group's communicator (comm_register), if it has a use for it
                            */
    int world;
    bool staged; /* ranks share a device: its collectives go through host memory */
    struct checkpoint_settings checkpoints;
};

/* Whether there is data, rather than a plan alone. */
static inline bool train_job_has_data(const struct train_job *job)
{
    return (job->data_format == DATA_IDX ? job->data_dir : job->data_path) != NULL;
}

#endif
