/* Inside worker/: a job's adapters, model.lora. */
#ifndef FSDPD_WORKER_JOB_LORA_H
#define FSDPD_WORKER_JOB_LORA_H

#include "worker/job_message.h"

/*
 * Fills in `lora` of the settings from their spec, if it asks for adapters; what they adapt unless
 * the job says it depends on the type of its model. With model.adapter, the spec says what the
 * directory says, or gets it: FAILED_PRECONDITION if it says something else. `options`: where
 * that may be; NULL: the values of the adapter are not needed.
 */
status_t job_lora_read(struct job_settings *settings,
                       const struct worker_options *options) FSDPD_MUST_USE;

#endif
