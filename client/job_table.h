/* Jobs as a table, for list, status and top. */
#ifndef FSDPD_CLIENT_JOB_TABLE_H
#define FSDPD_CLIENT_JOB_TABLE_H

#include <stddef.h>

#include "report.h"

/* What differs between a list of jobs and a live screen of them. */
struct job_table {
    struct view view;
    bool bars;    /* a bar of each job's progress; reasons are cut instead of continued */
    bool unicode; /* draw bars with blocks */
};

/* A row for each job. Figures that no job has, and those with no room, are left out; a job's reason
 * is last. */
void job_table_print(const struct job_table *table, Fsdpd__V1__Job *const *jobs, size_t count,
                     struct buf *out);

#endif
