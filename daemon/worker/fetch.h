/*
 * Weights of another job that this host may not see, read through the coordinator into a file.
 */
#ifndef FSDPD_WORKER_FETCH_H
#define FSDPD_WORKER_FETCH_H

#include "worker/link.h"

/* Writes `source` (with a job) to the new file `path`, as fsdpctl pull would; `average`: of the
 * weights. Waits: not on the loop's thread. ABORTED if the gate closes, DATA_LOSS if bytes are
 * missing; the file is the caller's also then. */
status_t fetch_weights(struct link *link, struct gate *gate, const Fsdpd__V1__Source *source,
                       bool average, const char *path) FSDPD_MUST_USE;

#endif
