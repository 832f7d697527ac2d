/*
 * Workers that get no more work, because an operator said so: by their id, or by the name of their
 * host, which holds for all workers that it has and will have. It is in the store, and so survives
 * restarts of the coordinator, of the workers and of the host.
 */
#ifndef FSDPD_COORDINATOR_DRAINS_H
#define FSDPD_COORDINATOR_DRAINS_H

#include "coordinator/workers.h"

struct drain {
    char *worker; /* id or host */
    char *by;
    int64_t time_ms;
};

/* Reads them from the store, when the coordinator starts. */
status_t drains_load(struct coordinator *c) FSDPD_MUST_USE;
void drains_free(struct coordinator *c);

/* What drains this worker, its own entry before its host's; NULL: nothing does. */
const struct drain *drains_find(const struct coordinator *c, const char *id, const char *host);

void drains_drain(struct rpc_call *call, const ProtobufCMessage *request, void *service);
void drains_undrain(struct rpc_call *call, const ProtobufCMessage *request, void *service);

#endif
