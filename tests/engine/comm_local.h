/*
 * The local communicator: ranks are threads of one process that read each other's memory. Every
 * collective is a few phases between barriers; a rank leaves a phase only when all have arrived. A
 * failing rank waits until no peer reads its memory before it returns.
 *
 * The ranks share the group, and the last one frees it. One thread at a time runs a rank's
 * collectives; comm_abort may be called from any.
 */
#ifndef FSDPD_TESTS_COMM_LOCAL_H
#define FSDPD_TESTS_COMM_LOCAL_H

#include "runtime/comm.h"

/* A group of `world` local ranks; give one handle to each thread. */
status_t comm_local_new(int world, int64_t timeout_ms, struct comm **comms) FSDPD_MUST_USE;

#endif
