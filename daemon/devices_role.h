/* The role devices: `fsdpd devices` lists what workers could run on, and what is wrong if nothing. */
#ifndef FSDPD_DEVICES_ROLE_H
#define FSDPD_DEVICES_ROLE_H

#include "options.h"

/* Prints what was asked for; returns the exit code. */
int devices_role_main(const struct options *options);

#endif
