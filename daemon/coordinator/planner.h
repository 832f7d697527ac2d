/* Asks an attached worker for the plan of a spec. The coordinator has no devices, so it cannot
 * plan. */
#ifndef FSDPD_COORDINATOR_PLANNER_H
#define FSDPD_COORDINATOR_PLANNER_H

#include "coordinator/workers.h"

/*
 * Called once, never before planner_ask returns: with a plan (valid during the call) and status
 * NULL, or with an error that the callee owns. `spec` is the request's, its device filled in; valid
 * during the call.
 */
typedef void planner_done(void *user, status_t status, const job_spec *spec,
                          const Fsdpd__V1__PlanResult *result);

/*
 * `spec` is copied. An empty device becomes that of the first worker that could plan. Without such
 * a worker the request waits a while for one. Returns a number for planner_forget; 0 with *status
 * if there are too many requests.
 */
uint64_t planner_ask(struct coordinator *c, const job_spec *spec, bool details, bool dump,
                     planner_done *done, void *user, status_t *status);

/* `done` of this request will not be called. */
void planner_forget(struct coordinator *c, uint64_t request);

void planner_worker_attached(struct coordinator *c);
void planner_worker_lost(struct worker *worker);
void planner_result(struct worker *worker, const Fsdpd__V1__PlanResult *result);
void planner_tick(struct coordinator *c);

/* Ends all requests with UNAVAILABLE: the coordinator is going. */
void planner_close(struct coordinator *c);

#endif
