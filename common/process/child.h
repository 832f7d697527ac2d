/*
 * A child process on a libuv loop that is given its whole input and whose whole output is
 * collected. Its standard error is this process's. On the loop's thread.
 */
#ifndef FSDPD_PROCESS_CHILD_H
#define FSDPD_PROCESS_CHILD_H

#include <uv.h>

#include "base/buf.h"
#include "base/status.h"

struct child_options {
    const char *what;             /* for messages: "the planning process" */
    const char *program;          /* a path */
    const char *const *arguments; /* the program's name first, NULL after the last */
    const void *input;            /* copied; the child may end without having read it */
    size_t input_size;
    size_t output_max; /* a child that writes more bytes is killed */
};

struct child_process;

/* Called once, never before child_start returns. INTERNAL, which the callee owns, if the child did
 * not end by itself with status 0; `output` is valid during the call. */
typedef void child_done(void *user, status_t status, const struct buf *output);
/* Called once the loop has closed the handles, whether the child started or not. May be NULL. */
typedef void child_closed(void *user);

/* UNAVAILABLE if it cannot be started: then `done` is not called. The options are only used during
 * the call. */
status_t child_start(uv_loop_t *loop, const struct child_options *options, child_done *done,
                     void *user, child_closed *closed, void *closed_user,
                     struct child_process **child) FSDPD_MUST_USE;

/* Kills it; `done` follows when it has ended. */
void child_kill(struct child_process *child);

/* Kills it; `done` is not called any more. */
void child_cancel(struct child_process *child);

#endif
