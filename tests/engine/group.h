/*
 * Runs one function on every rank of a group: ranks are threads (the local communicator) or
 * processes (gloo and shared memory, with a rendezvous through files in a temporary directory). For
 * tests.
 */
#ifndef FSDPD_TESTS_ENGINE_GROUP_H
#define FSDPD_TESTS_ENGINE_GROUP_H

#include <stdatomic.h>

#include "runtime/comm.h"

enum group_kind { GROUP_LOCAL, GROUP_GLOO, GROUP_SHARED };

enum { GROUP_MAX = 16 };

struct group_result {
    enum status_code code;
    char message[1024];
    bool killed;    /* a signal killed the rank's process */
    double seconds; /* duration of the body */
};

typedef status_t (*group_body)(struct comm *comm, void *argument);

/*
 * `argument` is the same for all ranks; results that they return through it must lie in
 * group_shared memory. For processes, no thread may run in the caller yet.
 */
void group_run(enum group_kind kind, int world, int64_t timeout_ms, group_body body, void *argument,
               struct group_result results[static GROUP_MAX]);

/* The same, and the test fails unless every rank succeeded. */
void group_check(enum group_kind kind, int world, group_body body, void *argument);

/*
 * Deadlines, in ms. The first outlasts every test: a group that ends with it has ended by what the
 * test is about, however slow the machine is. The second passes while a rank stays away: it is long
 * enough for ranks that are merely delayed to arrive in time.
 */
enum { GROUP_NEVER_MS = 3600000, GROUP_SOON_MS = 3000 };

/* Waits until a rank sets the flag, which lies in group_shared memory; half a minute at most. */
void group_wait_flag(const atomic_bool *flag);

/* Zeroed memory that processes created later share; freed with the process. */
void *group_shared(size_t bytes);

/* A rendezvous store in a directory; the directory's name is its user data. */
struct rendezvous group_file_store(char *directory);

/* A fresh temporary directory; free the name after group_remove_directory. */
char *group_make_directory(void);
void group_remove_directory(const char *directory);

#endif
