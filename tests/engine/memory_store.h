/* A rendezvous of ranks that are threads of a test: in memory, without a deadline (check's ends
 * it). */
#ifndef FSDPD_TESTS_ENGINE_MEMORY_STORE_H
#define FSDPD_TESTS_ENGINE_MEMORY_STORE_H

#include "runtime/rendezvous.h"

/* The process has one. */
struct rendezvous memory_store(void);

/* Forgets everything, for the next group. */
void memory_store_reset(void);

#endif
