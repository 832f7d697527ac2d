/*
 * What this process may use of its host: the kernel's figures, and the least that any of its
 * control groups allows (base/cgroup.h). Every call reads them again, since limits change.
 */
#ifndef FSDPD_BASE_HOST_LIMITS_H
#define FSDPD_BASE_HOST_LIMITS_H

#include <stdint.h>

/* Memory in bytes that processes can still get without swapping: MemAvailable, or what the control
 * groups leave. */
uint64_t host_memory_available(void);

/* Memory in bytes if nothing used any: the host's, or the least limit of a control group. */
uint64_t host_memory_most(void);

/* Processors: those of this process's affinity, or the least quota of a control group, rounded up;
 * at least 1. */
int host_processors(void);

#endif
