/* The role config: `fsdpd config check` and `fsdpd config dump`. */
#ifndef FSDPD_CONFIG_ROLE_H
#define FSDPD_CONFIG_ROLE_H

#include "options.h"

/* Appends the text of `fsdpd config dump`: YAML that fsdpd can read again, or JSON. */
void config_describe(const struct options *options, bool json, struct buf *out);

/* Prints the requested output; returns the exit code. The options have been parsed, so they are
 * valid. */
int config_role_main(const struct options *options);

#endif
