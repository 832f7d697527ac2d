/* A rendezvous in memory for ranks that are threads of a test, without a deadline (check's ends
 * it). */
#ifndef FSDPD_TESTS_ENGINE_MEMORY_STORE_H
#define FSDPD_TESTS_ENGINE_MEMORY_STORE_H

#include "runtime/rendezvous.h"

/* One per process. */
struct rendezvous memory_store(void);

/* A rank has failed: no rank waits for a key any more, as where the coordinator ends an attempt. */
void memory_store_break(void);

/* Forgets everything, for the next group. */
void memory_store_reset(void);

#endif
