/* The roles backup and restore: `fsdpd backup FILE` and `fsdpd restore FILE`. */
#ifndef FSDPD_STORE_ROLE_H
#define FSDPD_STORE_ROLE_H

#include "options.h"

/* Copies the store of the state directory to options->store_file, while fsdpd runs or not. */
status_t backup_role_run(const struct options *options) FSDPD_MUST_USE;

/* The other way round; FAILED_PRECONDITION while fsdpd runs. The old store is kept. */
status_t restore_role_run(const struct options *options) FSDPD_MUST_USE;

#endif
