/* Inside worker/: a job's model that is a directory of Hugging Face's transformers. */
#ifndef FSDPD_WORKER_JOB_MODEL_H
#define FSDPD_WORKER_JOB_MODEL_H

#include "worker/job_message.h"

/* Fills in the spec's model text, configuration and family, unless the job came with them, and
 * `weights` (of a file that the job names: the names of its tensors), from the directory that
 * `hf_dir` and `hf_root` say and the directories of families. */
status_t job_model_read(struct job_settings *settings,
                        const struct worker_options *options) FSDPD_MUST_USE;

#endif
