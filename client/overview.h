/* What status and top tell of: the daemon, its workers, and the jobs that are not over. */
#ifndef FSDPD_CLIENT_OVERVIEW_H
#define FSDPD_CLIENT_OVERVIEW_H

#include <stddef.h>
#include <stdint.h>

#include "fsdpd/v1/control.pb-c.h"
#include "session.h"

/* All NULL until it has been read. */
struct overview {
    Fsdpd__V1__Version *version;
    Fsdpd__V1__ListWorkersResponse *workers;
    Fsdpd__V1__ListJobsResponse *queued, *started; /* the newest; left_out counts the others */
    Fsdpd__V1__Job **jobs; /* those that have been started, then those in the queue; borrowed */
    size_t job_count;
};

/* At most so many jobs that have been started, and so many of the queue. *overview is untouched
 * unless all has been read; overview_deinit frees it. */
status_t overview_read(struct session *session, uint32_t started, uint32_t queued,
                       struct overview *overview) FSDPD_MUST_USE;
void overview_deinit(struct overview *overview);

/* All jobs in that state, shown or not. */
uint64_t overview_count(const struct overview *overview, Fsdpd__V1__JobState state);
size_t overview_busy_workers(const struct overview *overview);

#endif
