/*
 * TensorBoard's event files, for jobs that ask for them: what rank 0 reports, as scalars, in
 * <state_dir>/jobs/<id>/tensorboard. A directory of jobs is a log directory of runs.
 */
#ifndef FSDPD_COORDINATOR_TENSORBOARD_H
#define FSDPD_COORDINATOR_TENSORBOARD_H

#include "base/buf.h"
#include "coordinator/internal.h"

struct job;

struct tensorboard_scalar {
    const char *tag; /* "train/loss" */
    double value;
};

/* One record with the scalars of a step. */
void tensorboard_add_scalars(struct buf *out, double wall_seconds, int64_t step,
                             const struct tensorboard_scalar *scalars, int count);

/* The record that every file begins with. */
void tensorboard_add_version(struct buf *out, double wall_seconds);

/* Writes what an event of the job says, if the job asked for it. A failure is logged once, and ends
 * the file; the job goes on. */
void tensorboard_record(struct job *job, const job_event *event);

/* The job's record is freed. */
void tensorboard_close(struct job *job);

#endif
