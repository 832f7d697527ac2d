/* Condition variables whose waits end by the monotonic clock. */
#ifndef FSDPD_BASE_CONDITION_H
#define FSDPD_BASE_CONDITION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

void condition_init(pthread_cond_t *condition);

/* Waits until the condition is signalled, with the usual false alarms; false once
 * clock_monotonic_ns() has reached `deadline_ns`. */
bool condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t deadline_ns);

#endif
