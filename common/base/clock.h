/* Clocks. Durations are measured with the monotonic clock; only records for people use wall time. */
#ifndef FSDPD_BASE_CLOCK_H
#define FSDPD_BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

int64_t clock_monotonic_ns(void);

/* Milliseconds since the Unix epoch, UTC. */
int64_t clock_wall_ms(void);

/* "2026-01-31T12:34:56.789Z"; `text` holds at least 32 bytes. Returns `text`. */
char *clock_format_wall(int64_t wall_ms, char text[static 32]);

void clock_sleep_ms(int64_t milliseconds);

/* Condition variables whose waits end by the monotonic clock. */

void condition_init(pthread_cond_t *condition);

/* Waits until the condition is signalled, with the usual false alarms; false once
 * clock_monotonic_ns() has reached `deadline_ns`. */
bool condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t deadline_ns);

#endif
