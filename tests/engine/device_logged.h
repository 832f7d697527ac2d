/*
 * A device that computes nothing, as the null device of planning, and logs one line per call of a
 * lane. Its memory is address space without backing, so any access outside a lane crashes.
 * Addresses are logged as "m0+64": byte 64 of the first allocation; anything else is "host".
 */
#ifndef FSDPD_TESTS_DEVICE_LOGGED_H
#define FSDPD_TESTS_DEVICE_LOGGED_H

#include "runtime/device.h"

struct device *device_logged_open(void);

/* What a logged device has logged; NULL: another device. The caller frees it. */
char *device_logged_text(const struct device *device);

#endif
