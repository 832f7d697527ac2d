/*
 * Plans without a worker: a process of its own, `fsdpd plan --order`, makes them for the devices of
 * a profile, so that no job's model is compiled in the coordinator's process.
 */
#ifndef FSDPD_COORDINATOR_OFFLINE_H
#define FSDPD_COORDINATOR_OFFLINE_H

#include "coordinator/core/internal.h"
#include "fsdpd/v1/worker.pb-c.h"

/* The devices to plan for. */
struct offline_devices {
    const char *profile;   /* NULL: unknown; the job is only checked, and the result has no plan */
    uint64_t memory_bytes; /* of a device; 0: the profile's */
};

/* Called once, never before offline_start returns; owns both. The status is an error of the
 * process; errors of the job are in the result. */
typedef void offline_done(void *user, status_t status, Fsdpd__V1__PlanResult *result);

struct offline;

/* Borrows nothing after it has returned. */
status_t offline_start(struct coordinator *c, const Fsdpd__V1__PlanOrder *order,
                       const struct offline_devices *devices, offline_done *done, void *user,
                       struct offline **offline) FSDPD_MUST_USE;

/* Ends the process; `done` is not called any more. */
void offline_cancel(struct offline *offline);

#endif
