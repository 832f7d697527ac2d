/* The roles of what is kept: `fsdpd backup FILE`, `fsdpd restore FILE` and `fsdpd scrub`. */
#ifndef FSDPD_STORE_ROLE_H
#define FSDPD_STORE_ROLE_H

#include "options.h"

/* Copies the store of the state directory to options->store_file, whether fsdpd runs or not. */
status_t backup_role_run(const struct options *options) FSDPD_MUST_USE;

/* Copies options->store_file back to the state directory and keeps the old store.
 * FAILED_PRECONDITION while fsdpd runs. */
status_t restore_role_run(const struct options *options) FSDPD_MUST_USE;

/* Reads all that is kept, whether fsdpd runs or not, and prints what is damaged; then DATA_LOSS. */
status_t scrub_role_run(const struct options *options) FSDPD_MUST_USE;

#endif
