/*
 * The jobs' checkpoints in directories that their own settings name (checkpoint.directory), as far
 * as this host has these below its data roots. Other users may write there, so a job's part is
 * opened through its parent's descriptor, and no link is followed. Runs on a libuv worker thread: a
 * checkpoint may be large.
 */
#ifndef FSDPD_COORDINATOR_CHECKPOINT_DIRS_H
#define FSDPD_COORDINATOR_CHECKPOINT_DIRS_H

#include "coordinator/core/settings.h"
#include "coordinator/store/message.h"

/* "JOB@MILLISECONDS": the run, and the name of a job's part of such a directory. It distinguishes
 * jobs that have the same id in different stores. The caller frees it. */
char *checkpoint_dirs_run(const job_message *job);

/* Removes a run's checkpoints in `directory`. Returns the first error; having none to remove is not
 * an error. */
status_t checkpoint_dirs_remove(const struct coordinator_options *options, const char *directory,
                                const char *run) FSDPD_MUST_USE;

/* Removes those of the run's checkpoints that are only partly written or partly removed. */
status_t checkpoint_dirs_sweep(const struct coordinator_options *options, const char *directory,
                               const char *run) FSDPD_MUST_USE;

#endif
