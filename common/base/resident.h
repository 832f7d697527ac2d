/* The resident set of this process: the memory that it occupies, code and shared memory included.
 */
#ifndef FSDPD_BASE_RESIDENT_H
#define FSDPD_BASE_RESIDENT_H

#include <stdint.h>

/* From now on, the peak is that of the time since. Without the right to do so the peak remains that
 * of the process's life. */
void resident_reset_peak(void);

uint64_t resident_peak_bytes(void); /* 0: unknown */

/* For a process whose jobs come one after the other: the allocator returns large memory to the
 * system when it is freed, whichever thread had it. Without this, glibc keeps tens of MB. Call it
 * before other threads exist. */
void resident_return_freed(void);

#endif
