/*
 * Writes the logs of jobs: what ranks report and what fsdpd records about a job, stored beside the
 * job's other files.
 */
#ifndef FSDPD_COORDINATOR_JOB_LOG_H
#define FSDPD_COORDINATOR_JOB_LOG_H

#include "coordinator/core/internal.h"

/* The directory of the log's files; the caller frees it. */
char *job_log_directory(const struct coordinator *c, const char *job);

/* Appends what a rank of an attempt has logged. `live`: the job is not over. */
void job_log_report(struct coordinator *c, const char *job, bool live, uint32_t attempt, int rank,
                    const Fsdpd__V1__LogReport *report);

/* Appends a line from fsdpd itself. `level`: "INFO", for example. */
void job_log_note(struct coordinator *c, const char *job, uint32_t attempt, const char *level,
                  const char *text);

#endif
