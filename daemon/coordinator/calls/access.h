/*
 * Access rules for jobs: every user sees all jobs, a user may change only the jobs they submitted,
 * and an operator may change any. common/rpc identifies the caller (rpc/peer.h).
 */
#ifndef FSDPD_COORDINATOR_ACCESS_H
#define FSDPD_COORDINATOR_ACCESS_H

#include "coordinator/jobs/jobs.h"

/* The caller's name; valid as long as the call. */
const char *access_user(const struct rpc_call *call);

bool access_is_operator(const struct rpc_call *call);

/* Whether the peer may change the job: PERMISSION_DENIED names the owner. `doing` is a verb. */
status_t access_check(const struct rpc_peer *peer, const job_message *job,
                      const char *doing) FSDPD_MUST_USE;

/*
 * Finds a job that is not over and that the caller may change. NOT_FOUND; PERMISSION_DENIED;
 * FAILED_PRECONDITION if it is over, or an array.
 */
status_t access_find(struct coordinator *c, const struct rpc_call *call, const char *id,
                     const char *doing, struct job **job) FSDPD_MUST_USE;

/* The same for a caller that is not gRPC's. */
status_t access_find_for(struct coordinator *c, const struct rpc_peer *peer, const char *id,
                         const char *doing, struct job **job) FSDPD_MUST_USE;

/* The same; it may be an array. */
status_t access_find_any(struct coordinator *c, const struct rpc_call *call, const char *id,
                         const char *doing, struct job **job) FSDPD_MUST_USE;

/* FAILED_PRECONDITION, with the reason JOB_IS_AN_ARRAY, for an array's record. */
status_t access_refuse_array(const job_message *message, const char *doing) FSDPD_MUST_USE;

/*
 * Whether the caller, a worker, may act for the job's attempt: PERMISSION_DENIED if its certificate
 * belongs to a host that runs no rank of the job. Workers on a Unix socket all run as fsdpd's own
 * user and pass. A job without an attempt passes, too: the handler refuses it.
 */
status_t access_check_rank(struct coordinator *c, const struct rpc_call *call,
                           const char *job) FSDPD_MUST_USE;

/* Whether the worker's id belongs to the peer's certificate: "<its name>/...". */
bool access_is_workers_id(const struct rpc_peer *peer, const char *id);

/* Whether the caller may give a job this priority. INVALID_ARGUMENT if it is out of bounds. */
status_t access_check_priority(const struct coordinator *c, const struct rpc_call *call,
                               int priority) FSDPD_MUST_USE;

#endif
