/*
 * TensorBoard event files for jobs that request them: rank 0's reports as scalars, in
 * <state_dir>/jobs/<id>/tensorboard. A directory of jobs is a log directory of runs.
 */
#ifndef FSDPD_COORDINATOR_TENSORBOARD_H
#define FSDPD_COORDINATOR_TENSORBOARD_H

#include "base/buf.h"
#include "coordinator/core/internal.h"

struct tensorboard; /* an event file */

struct tensorboard_scalar {
    const char *tag; /* "train/loss" */
    double value;
};

/* Appends a record with the scalars of a step. */
void tensorboard_add_scalars(struct buf *out, double wall_seconds, int64_t step,
                             const struct tensorboard_scalar *scalars, int count);

/* Appends a record with a text of a step. */
void tensorboard_add_text(struct buf *out, double wall_seconds, int64_t step, const char *tag,
                          const char *text);

/* Appends the record that starts every file. */
void tensorboard_add_version(struct buf *out, double wall_seconds);

/* Writes the scalars of a job's event if the job requested them. A failure is logged once and ends
 * the file; the job continues. `*file` is NULL until there is one. */
void tensorboard_record(struct tensorboard **file, const struct coordinator *c,
                        const job_message *job, const job_event *event);

/* Closes and frees it; accepts NULL. */
void tensorboard_close(struct tensorboard *file);

#endif
