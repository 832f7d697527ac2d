/* Inside worker/: the parts of job_message.c. */
#ifndef FSDPD_WORKER_JOB_INTERNAL_H
#define FSDPD_WORKER_JOB_INTERNAL_H

#include "worker/job_message.h"

/* job_choices.c: one value of an enum of a job's message with more than two. */
struct job_choice {
    const ProtobufCEnumDescriptor *type;
    int given, value; /* of the message's enum, and of training's */
};

/* All of them; the last one has no type. */
extern const struct job_choice job_choices[];

/* Training's value. Only for one that common/spec has checked. */
int job_choice(const ProtobufCEnumDescriptor *type, int given);

/* job_paths.c: fills in the paths of the settings and their roots; errors as job_find_path. The
 * data, and the directory for checkpoints, which must exist, to detect a mistyped path or a missing
 * mount now; */
status_t job_find_data(const Fsdpd__V1__DataSpec *data, const struct worker_options *options,
                       struct job_settings *settings) FSDPD_MUST_USE;
status_t job_find_checkpoints(const Fsdpd__V1__JobSpec *spec, const struct worker_options *options,
                              struct job_settings *settings) FSDPD_MUST_USE;
/* a model that is a directory, and the root that it is below; */
status_t job_find_model(const Fsdpd__V1__ModelSpec *model, const struct worker_options *options,
                        struct job_settings *settings) FSDPD_MUST_USE;
/* the file of initial values, which takes the place of what the model's directory has. */
status_t job_find_weights(const Fsdpd__V1__ModelSpec *model, const struct worker_options *options,
                          struct job_settings *settings) FSDPD_MUST_USE;
bool job_has_tokens(const Fsdpd__V1__DataSpec *data); /* else images */
bool job_has_dataset(const Fsdpd__V1__DataSpec *data);

/* job_model.c: fills in the spec's model text, configuration and family, unless the job came with
 * them, and `weights` (of a file that the job names: the names of its tensors), from the directory
 * of Hugging Face's transformers that `hf_dir` and `hf_root` say and the directories of families.
 */
status_t job_model_read(struct job_settings *settings,
                        const struct worker_options *options) FSDPD_MUST_USE;

#endif
