/*
 * A training run's settings: a job's settings as plain values, already range-checked by
 * common/spec. The worker fills them in from the API's JobSpec.
 */
#ifndef FSDPD_SETUP_JOB_H
#define FSDPD_SETUP_JOB_H

#include "checkpoint/weights.h"
#include "data/image_transform.h"
#include "data/token_file.h"
#include "fsdp/plan.h"
#include "model/lora.h"
#include "model/preference.h"
#include "model/teach.h"
#include "redundancy/kept.h"
#include "runtime/device.h"
#include "setup/schedules.h"

enum image_format { IMAGES_IDX, IMAGES_ANY }; /* ANY: what the directory has */
enum data_format { DATA_IMAGES, DATA_TOKENS, DATA_DATASET };

/* What a window holds: a part of the stream of tokens, one document, or several documents. */
enum window_kind { WINDOWS_CONTINUOUS, WINDOWS_DOCUMENT, WINDOWS_PACKED };

/* A dataset directory; resolved, an absolute path below the data root. */
struct token_path {
    const char *path;
    const char *root; /* as train_job's data_root */
    int64_t weight;   /* at least 1; the source's share of rows relative to the others */
};

/* Data that evaluations read besides the job's own. */
struct held_out {
    const char *name;
    const char *path; /* a file or a pattern, of DATA_DATASET a directory; resolved, as data_path */
    const char *root;
    uint64_t every_steps, batches; /* as evaluate_interval and evaluate_batches */
};

enum early_stop_metric { EARLY_STOP_LOSS, EARLY_STOP_ACCURACY };

enum best_mode { BEST_AUTO, BEST_MIN, BEST_MAX };

/* When to end a run whose evaluations do not become better; see train/early.h. */
struct early_stop {
    uint32_t patience; /* evaluations; 0: never */
    enum early_stop_metric metric;
    int set; /* whose: 0: of the job's own data; from 1: of held_out */
    double min_delta;
    enum best_mode mode; /* which values are better */
};

/* Where and when to take checkpoints. */
struct checkpoint_settings {
    const char *folder; /* the job's directory, absolute; NULL: no checkpoints */
    const char *root;   /* the folder must be below it; NULL: no limit. See folder_open in
                         * checkpoint/folder.h */
    const char *run;    /* the name of the job's run: other runs' checkpoints are not resumed */
    uint32_t attempt;
    uint64_t every_steps;  /* 0: not by steps */
    uint32_t every_epochs; /* 0: not by epochs */
    bool last_step;        /* also after the last step */
    bool resume;           /* resume from the last one, if there is one */
    bool must_resume;      /* there must be one: an unreadable one is an error, not a new start */
};

/* The checkpoint of another job that a run begins with, or else the step of its weights. */
struct train_source {
    const char *folder, *root, *run; /* as checkpoint_settings; NULL: `weights` has them */
    const char *name;                /* of the checkpoint */
    uint64_t step;                   /* that they were taken after */
};

/* What a run continues with its weights, as train_session_sample does. */
struct train_prompts {
    const struct decoder_prompt *prompts; /* setup/decoder.h */
    int count;                            /* 0: none */
    uint64_t every_steps;                 /* 0: after the last step only */
    uint32_t max_tokens;
    double temperature, top_p, min_p, repetition_penalty; /* as struct train_draw */
    uint32_t top_k;
    uint64_t seed;
    const int32_t *stops; /* as struct train_sample */
    int stop_count;
};

/* What model_teach adds, and its weights, of which a plan needs none. */
struct train_teacher {
    const char *text, *file; /* the model file, and its name for messages */
    struct model_teaching how;
    struct weights_source weights; /* dir NULL: not known here */
};

struct train_job {
    const char *id;
    const char *model_text; /* the model file */
    size_t model_length;
    const char *model_file;                       /* its name, for messages */
    const struct model_argument *model_arguments; /* values for the file's arguments */
    int model_argument_count;
    const struct model_lora *lora; /* adapters that the model gets; NULL: none */
    enum base_dtype base;          /* of parameters that are not trained */
    const struct model_preference *preference; /* it learns from pairs; NULL: it does not */
    const struct train_teacher *teacher;       /* a frozen model that it learns from; NULL: none */
    const struct weights_source *weights; /* files with initial values; NULL: draw them */
    const char *data_dir;  /* resolved, an absolute path below the data root; NULL: none, which
                            * suffices for planning */
    const char *data_root; /* data_dir or data_path is below it, and links must not lead out of it;
                            * NULL: none. Likewise for validation_path. */
    const char *validation_root;
    struct image_transform transform;
    enum image_format image_format;
    enum data_format data_format;
    const char *data_path;              /* DATA_TOKENS: the file; resolved or NULL, like data_dir */
    const char *validation_path;        /* likewise; NULL: a part of the file */
    double validation_fraction;         /* size of this last part, without a validation_path */
    enum token_encoding token_encoding; /* for both files */
    const struct token_path *sources;   /* DATA_DATASET; NULL: none, which suffices for planning */
    int source_count;
    enum window_kind windows; /* DATA_DATASET */
    int64_t context;          /* tokens per window; 0: the model's */
    bool masked;              /* the targets are the masked tokens, not the next ones */
    double mask_probability;
    int64_t mask_token;
    uint64_t batch_tokens;      /* per optimizer step, all ranks; 0: use accumulation_steps */
    uint64_t evaluate_interval; /* steps; 0: at the end only */
    uint64_t evaluate_batches;  /* an evaluation covers the windows of at most this many optimizer
                                 * steps; 0: all */
    const struct held_out *held_out; /* not of images; only if the job evaluates */
    int held_out_count;
    uint32_t epochs;            /* DATA_TOKENS: 0 for no limit except max_steps */
    /* Samples per optimizer step, all ranks, whatever their number; 0: what batch_size and
     * accumulation_steps give. Batches are at most batch_size then. */
    uint64_t global_batch;
    uint32_t batch_size, test_batch_size;
    uint64_t seed;
    uint32_t log_interval; /* steps */
    uint64_t max_steps;    /* 0: no limit */
    bool dropout, shuffle, evaluate;
    bool only_evaluate; /* no step: the run evaluates what it begins with */
    struct train_source source;
    uint32_t accumulation_steps;     /* batches per optimizer step; 0: 1 */
    bool no_sync;                    /* the gradients of a step's batches are reduced once */
    double max_norm;                 /* gradients are clipped to it; 0: no clipping */
    bool skip_non_finite;            /* needs a norm */
    struct early_stop early_stop;
    struct train_prompts prompts;
    struct {
        int64_t context; /* 0: nothing */
        int sequences;
    } reserve;             /* memory is planned for samples of this size */
    uint64_t memory_bytes; /* of a rank's device; 0: what it has when the session is made */
    bool evaluate_average; /* evaluations use the average of the parameters: optimizer.ema_decay */
    struct optimizer_step optimizer; /* with the initial lr, and the groups */
    struct train_schedule schedule;
    /* What the job chooses of its plan; the session adds the rest. gathered_limit 0: none. */
    struct plan_options plan;
    struct wrap_policy wrap;
    const struct wrap_policy *tune; /* units to try in the first steps; the fastest are kept */
    int tune_count;                 /* below TRAIN_TUNE_MAX */
    bool keep_frozen;               /* frozen units are whole on every rank: wrap_policy */
    int shard_size;                 /* hybrid_shard: ranks that hold one copy together */
    const char *const *checkpoint;  /* patterns of modules: activation checkpointing */
    int checkpoint_count;
    enum recompute recompute; /* what of them */
    int world;
    bool staged; /* ranks share a device: its collectives go through host memory */
    bool gloo;   /* even ranks of one host communicate over TCP; otherwise they share memory */
    /* The model's parameters of another job, of which the trained ones replace what the run would
     * begin with (model.adapter.job); NULL: there is none. */
    const struct weights_source *trained;
    struct checkpoint_settings checkpoints;
    /* An evaluation that is better than all before takes a checkpoint (checkpoint.best), which
     * later ones do not remove until there is a better one; patience: 1, or 0: there is none. */
    struct early_stop best;
    bool elastic;               /* later attempts may have other numbers of ranks */
    enum redundancy redundancy; /* in the memory of other ranks' hosts */
    uint64_t redundancy_steps;  /* steps between two generations */
    int parity_group;           /* REDUNDANCY_PARITY: the least number of ranks of a group */
    uint64_t kept_bytes;        /* that this process has allocated for it already */
};

/* How the ranks of such a job are related by redundancy in memory, if all are on one host. */
static inline struct kept_shape train_job_kept_shape(const struct train_job *job, int rank)
{
    int groups = job->parity_group > 0 ? job->world / job->parity_group : 1;
    return (struct kept_shape){.kind = job->redundancy,
                               .world = job->world,
                               .rank = rank,
                               .distance = 1,
                               .groups = groups > 1 ? groups : 1};
}

/* Whether there is data; otherwise the job can only be planned. */
static inline bool train_job_has_data(const struct train_job *job)
{
    if (job->data_format == DATA_DATASET) return job->sources != NULL;
    return (job->data_format == DATA_IMAGES ? job->data_dir : job->data_path) != NULL;
}

#endif
