/*
 * The store's schema as a list of numbered steps. Step n turns a store of version n - 1 into one of
 * version n; version 0 is an empty file. A released step never changes: a schema change is a new
 * step at the end, and a store of the previous version becomes a test
 * (tests/unit/stores/schema-N.sql, from `sqlite3 store.db .dump`).
 */
#ifndef FSDPD_COORDINATOR_MIGRATIONS_H
#define FSDPD_COORDINATOR_MIGRATIONS_H

#include <sqlite3.h>

#include "base/status.h"

/* The version that this fsdpd writes. */
int migrations_latest(void);

/*
 * The version of the store's schema: 0 for an empty file. DATA_LOSS if it has tables but no valid
 * version; FAILED_PRECONDITION if it is newer than migrations_latest(). `path` is for messages.
 */
status_t migrations_version(sqlite3 *database, const char *path, int *version) FSDPD_MUST_USE;

/* Migrates the store from version `from` to version `to`, in one transaction: all steps or none.
 * The connection must have record_crc(); see store_sums.c. */
status_t migrations_run(sqlite3 *database, const char *path, int from, int to) FSDPD_MUST_USE;

#endif
