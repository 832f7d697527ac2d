/*
 * Runs one function on every rank of a group: ranks are threads (the local communicator) or
 * processes (gloo, with a rendezvous through files in a temporary directory). For tests.
 */
#ifndef FSDPD_TESTS_ENGINE_GROUP_H
#define FSDPD_TESTS_ENGINE_GROUP_H

#include "runtime/comm.h"

enum group_kind { GROUP_LOCAL, GROUP_GLOO };

enum { GROUP_MAX = 16 };

struct group_result {
    enum status_code code;
    char message[1024];
    bool killed;    /* the rank's process died of a signal */
    double seconds; /* the body took */
};

typedef status_t (*group_body)(struct comm *comm, void *argument);

/*
 * `argument` is the same for all ranks; what they are to hand back through it must lie in
 * group_shared memory. For processes, no thread may run in the caller yet.
 */
void group_run(enum group_kind kind, int world, int64_t timeout_ms, group_body body, void *argument,
               struct group_result results[static GROUP_MAX]);

/* The same, and the test fails unless every rank succeeded. */
void group_check(enum group_kind kind, int world, group_body body, void *argument);

/* Zeroed memory that processes made later share; freed with the process. */
void *group_shared(size_t bytes);

/* A rendezvous store that is a directory; the directory's name is its user data. */
struct rendezvous group_file_store(char *directory);

/* A fresh temporary directory; free the name after group_remove_directory. */
char *group_make_directory(void);
void group_remove_directory(const char *directory);

#endif
