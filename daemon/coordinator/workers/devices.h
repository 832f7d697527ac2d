/*
 * The devices that jobs are planned for while no worker is attached: those of the configuration's
 * profile, or else those of the last worker that planned a job, as the store's jobs remember, with
 * the profile that was measured on such devices, if one was.
 */
#ifndef FSDPD_COORDINATOR_DEVICES_H
#define FSDPD_COORDINATOR_DEVICES_H

#include "coordinator/workers/offline.h"

/* A worker has made this plan for a job on this kind of device, with all of a rank's memory. */
void devices_note(struct coordinator *c, const char *kind, const Fsdpd__V1__Plan *plan);

/* The devices of workers of this kind ("": any); the profile is NULL if none are known. Returns
 * where they are known from, as an end of a sentence. Valid until the next call of devices_note or
 * kept_profiles_put. */
const char *devices_find(struct coordinator *c, const char *kind, struct offline_devices *devices);

void devices_free(struct coordinator *c);

#endif
