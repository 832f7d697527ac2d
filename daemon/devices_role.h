/* The role devices: `fsdpd devices` lists the devices that workers can use, and explains it if
 * there are none. */
#ifndef FSDPD_DEVICES_ROLE_H
#define FSDPD_DEVICES_ROLE_H

#include "options.h"

/* Prints the list; returns the exit code. */
int devices_role_main(const struct options *options);

#endif
