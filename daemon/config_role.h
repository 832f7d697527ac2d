/* The role config: `fsdpd config check` and `fsdpd config dump`. */
#ifndef FSDPD_CONFIG_ROLE_H
#define FSDPD_CONFIG_ROLE_H

#include "options.h"

/* What `fsdpd config dump` prints: YAML that can be read again, or JSON. */
void config_describe(const struct options *options, bool json, struct buf *out);

/* Prints what was asked for; returns the exit code. The options were parsed, so they are right. */
int config_role_main(const struct options *options);

#endif
