/* From the API's messages to the plain structs of the layers below. */
#ifndef FSDPD_WORKER_JOB_MESSAGE_H
#define FSDPD_WORKER_JOB_MESSAGE_H

#include "fsdpd/v1/worker.pb-c.h"
#include "setup/session.h"
#include "worker/link.h"
#include "worker/settings.h"

/* A train_job with the memory that it points to. */
struct job_settings {
    struct train_job job;
    Fsdpd__V1__JobSpec *spec; /* a copy; the job's strings point into it */
    struct wrap_unit_spec *units;
    struct wrap_policy tune[TRAIN_TUNE_MAX - 1]; /* an attempt's; into its assignment */
    struct wrap_unit_spec *tune_units[TRAIN_TUNE_MAX - 1];
    struct optimizer_group *groups;
    struct decoder_prompt *prompts; /* with train.sample; their tokens are owned here */
    struct train_schedule *phases;
    struct optimizer_step others;  /* of a job whose optimizer takes matrices only */
    struct weights_source weights; /* of model.weights, or else of a model that is a directory */
    char *hf_dir, *hf_root;
    struct hf_family *family;                        /* of hf_dir; NULL: there is none */
    char *weights_path, *weights_dir, *weights_root; /* model.weights; NULL: there is none */
    char *data_dir, *data_path, *validation_path;
    char *data_root, *validation_root; /* that these are below */
    struct model_argument *model_arguments;
    struct model_lora lora; /* rank 0: the model has no adapters; it points into the spec */
    struct lora_rule *lora_rules;
    struct model_preference preference;              /* with data.objective: dpo */
    struct job_settings *teacher; /* of model.teacher alone; NULL: there is none */
    struct train_teacher taught;  /* what the job has of it */
    char *adapter_dir, *adapter_root, *adapter_note; /* model.adapter; NULL: there is none */
    struct token_path *sources; /* of datasets; their paths and roots are owned here */
    int source_count;
    struct held_out *held_out; /* their paths and roots are owned here */
    int held_out_count;
    /* The spec's directory on this host, and its root; NULL: it names none. */
    char *checkpoint_dir, *checkpoint_root;
    char *checkpoint_folder, *run; /* an attempt's; NULL: there are no checkpoints */
    Fsdpd__V1__Source *source;     /* an attempt's, a copy; NULL: the spec names no job */
    char *source_folder, *source_root;
    struct weights_source trained; /* of model.adapter.job */
    char *trained_dir,
        *fetched_dir; /* of its file; of files that were fetched, which are removed */
    char *id;
};

/* For a spec without checkpoints. */
enum { JOB_CHECKPOINTS_KEPT = 3 };

/*
 * Checks `spec` (common/spec), finds its data below one of the data roots, and fills in `settings`.
 * PERMISSION_DENIED for a path outside all roots, NOT_FOUND for one that does not exist. A model
 * that is a directory is found and read likewise; `settings->spec` then has its text.
 */
status_t job_settings_init(struct job_settings *settings, const Fsdpd__V1__JobSpec *spec,
                           const char *id, const struct worker_options *options) FSDPD_MUST_USE;

/* The same without data, which is enough to plan the job. `options` may be NULL if the model is a
 * file. */
status_t job_settings_init_without_data(struct job_settings *settings,
                                        const Fsdpd__V1__JobSpec *spec, const char *id,
                                        const struct worker_options *options) FSDPD_MUST_USE;
void job_settings_deinit(struct job_settings *settings);

/* A path below one of the data roots, returned in *root; `key` is the key with the value `dir`.
 * Later reads open it from the root again. */
status_t job_find_path(const char *key, const char *dir, const struct worker_options *options,
                       char **resolved, char **root) FSDPD_MUST_USE;

/* Finds a held-out set of such data. Also after an error the caller frees `path` and `root`. */
status_t job_find_held_out(const Fsdpd__V1__DataSpec *data, const Fsdpd__V1__HeldOutSet *set,
                           const struct worker_options *options,
                           struct held_out *held) FSDPD_MUST_USE;

/* Likewise for an attempt: also where its checkpoints are, what units it tries, and whether it
 * continues from a checkpoint. Then initial values are not looked for. The settings point into the
 * assignment. */
status_t job_settings_init_attempt(struct job_settings *settings,
                                   const Fsdpd__V1__Assignment *assignment,
                                   const struct worker_options *options) FSDPD_MUST_USE;

/* A checked policy; it points into `wrap`, and to *units, which the caller frees. */
void job_wrap_policy_init(struct wrap_policy *policy, struct wrap_unit_spec **units,
                          const Fsdpd__V1__WrapSpec *wrap, int world);

/* job_prompts.c: within job_settings_init, and its end. */
void job_prompts_init(struct job_settings *settings, const Fsdpd__V1__JobSpec *spec);
void job_prompts_deinit(struct job_settings *settings);

/* ---- job_from.c ---- */

/* The weights of other jobs that a job begins with (JobWeights). */

/* Compares names and shapes of the parameters, from the models' texts alone: the first that differ
 * are INVALID_ARGUMENT, with the key. */
status_t job_from_check(const struct job_settings *settings) FSDPD_MUST_USE;

/* Finds the files of an attempt, or reads them through the coordinator into files that live as long
 * as the settings. Not on the loop's thread. */
status_t job_from_find(struct job_settings *settings, const Fsdpd__V1__Assignment *assignment,
                       struct link *link, struct gate *gate) FSDPD_MUST_USE;
void job_from_deinit(struct job_settings *settings); /* before job_settings_deinit */

/* ---- job_files.c ---- */

/* The files beside the weights of a model that is a directory (hf/beside.h), for a pull of it. */

/* Reads what `order` (with a `file`) asks for, below the data roots; free *out with message_free.
 * Waits for the disk. INVALID_ARGUMENT for a name of no such file, RESOURCE_EXHAUSTED for one that
 * is too large, otherwise as job_find_path. */
status_t job_files_read(const Fsdpd__V1__PlanOrder *order, const struct worker_options *options,
                        Fsdpd__V1__GetModelFileResponse **out) FSDPD_MUST_USE;

#endif
