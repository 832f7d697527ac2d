/*
 * What jobs have in the directories of their own settings (checkpoint.directory), as far as this
 * host has these below its data roots. Other people may write there, so a job's part is reached
 * through the descriptor of what holds it, and no link is followed. For a thread of libuv's: a
 * checkpoint may be large.
 */
#ifndef FSDPD_COORDINATOR_CHECKPOINT_DIRS_H
#define FSDPD_COORDINATOR_CHECKPOINT_DIRS_H

#include "coordinator/coordinator.h"
#include "coordinator/message.h"

/* "JOB@MILLISECONDS": the run, which also tells jobs apart that have the same id in different
 * stores. A job's part of such a directory has this name. Caller frees. */
char *checkpoint_dirs_run(const job_message *job);

/* Removes a run's checkpoints in `directory`. None is no error; the first one otherwise. */
status_t checkpoint_dirs_remove(const struct coordinator_options *options, const char *directory,
                                const char *run) FSDPD_MUST_USE;

/* Removes of them what is half written or half removed. */
status_t checkpoint_dirs_sweep(const struct coordinator_options *options, const char *directory,
                               const char *run) FSDPD_MUST_USE;

#endif
