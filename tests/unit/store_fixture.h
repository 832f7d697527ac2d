/* Shared by the tests of the store: a directory for a store, and checks of statuses. */
#ifndef FSDPD_TEST_STORE_FIXTURE_H
#define FSDPD_TEST_STORE_FIXTURE_H

#include "base/status.h"

extern char store_directory[64];
extern char *store_path; /* a file in it, "store.db"; missing at first */

/* Create and remove the directory: a checked fixture. */
void store_set_up(void);
void store_tear_down(void);

/* Removes the store with the files beside it. */
void store_remove(void);

/* Both take ownership of the status. */
void expect_ok(status_t status);
void expect_error(status_t status, enum status_code code, const char *words);

#endif
