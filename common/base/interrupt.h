/*
 * Long computations that another thread may stop. The thread that computes names a flag, and looks
 * at it at intervals. Functions that cannot return an error end early with a result that is of no
 * use, and their caller checks. Without a flag nothing interrupts.
 */
#ifndef FSDPD_BASE_INTERRUPT_H
#define FSDPD_BASE_INTERRUPT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/status.h"

/* The flag of the calling thread; NULL: none. It must live until it is replaced. */
void interrupt_watch(const atomic_bool *flag);

bool interrupted(void);

/* CANCELLED if the flag is set. */
status_t interrupt_check(void) FSDPD_MUST_USE;

#endif
