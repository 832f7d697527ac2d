/* The data of status and top: the daemon, its workers, and all jobs that are not over. */
#ifndef FSDPD_CLIENT_OVERVIEW_H
#define FSDPD_CLIENT_OVERVIEW_H

#include <stddef.h>
#include <stdint.h>

#include "fsdpd/v1/control.pb-c.h"
#include "session.h"

/* All pointers are NULL until it has been read. */
struct overview {
    Fsdpd__V1__GetVersionResponse *version;
    Fsdpd__V1__ListWorkersResponse *workers;
    Fsdpd__V1__ListJobsResponse *queued, *started; /* the newest; left_out counts the rest */
    Fsdpd__V1__Job **jobs; /* the started jobs, then the queued ones; borrowed */
    size_t job_count;
};

/* Reads at most the given numbers of started and queued jobs; with `fold`, an array stands for its
 * queued jobs. On failure *overview is unchanged. overview_deinit frees it. */
status_t overview_read(struct session *session, uint32_t started, uint32_t queued, bool fold,
                       struct overview *overview) FSDPD_MUST_USE;
void overview_deinit(struct overview *overview);

/* The number of all jobs in that state, shown or not. */
uint64_t overview_count(const struct overview *overview, Fsdpd__V1__JobState state);
size_t overview_busy_workers(const struct overview *overview);

#endif
