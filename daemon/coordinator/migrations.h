/*
 * The store's schema as a list of numbered steps. Step n makes a store of version n of one of
 * version n - 1; version 0 is an empty file. A step that was released is never changed: what is to
 * be different is a new step at the end, with a store of the version before it among the tests
 * (tests/unit/stores/schema-N.sql, from `sqlite3 store.db .dump`).
 */
#ifndef FSDPD_COORDINATOR_MIGRATIONS_H
#define FSDPD_COORDINATOR_MIGRATIONS_H

#include <sqlite3.h>

#include "base/status.h"

/* The version that this fsdpd writes. */
int migrations_latest(void);

/* What step `version` (from 1) brings, for the log. */
const char *migrations_describe(int version);

/*
 * The version of the store's schema: 0 for an empty file. DATA_LOSS if it has tables but no valid
 * version; FAILED_PRECONDITION if it is newer than migrations_latest(). `path` is for messages.
 */
status_t migrations_version(sqlite3 *database, const char *path, int *version) FSDPD_MUST_USE;

/* Takes the store from version `from` to version `to`, in one transaction: all steps or none. */
status_t migrations_run(sqlite3 *database, const char *path, int from, int to) FSDPD_MUST_USE;

#endif
