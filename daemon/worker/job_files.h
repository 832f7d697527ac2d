/* The files beside the weights of a model that is a directory (hf/beside.h), for a pull of it. */
#ifndef FSDPD_WORKER_JOB_FILES_H
#define FSDPD_WORKER_JOB_FILES_H

#include "fsdpd/v1/worker.pb-c.h"
#include "worker/settings.h"

/* Reads what `order` (with a `file`) asks for, below the data roots; free *out with message_free.
 * Waits for the disk. INVALID_ARGUMENT for a name of no such file, RESOURCE_EXHAUSTED for one that
 * is too large, otherwise as job_find_path. */
status_t job_files_read(const Fsdpd__V1__PlanOrder *order, const struct worker_options *options,
                        Fsdpd__V1__GetModelFileResponse **out) FSDPD_MUST_USE;

#endif
