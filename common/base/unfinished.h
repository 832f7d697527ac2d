/*
 * Directories that come to be, and go, by one rename: while they are filled, and while they are
 * removed, their name begins so. What was cut off in between is found by that and swept away.
 */
#ifndef FSDPD_BASE_UNFINISHED_H
#define FSDPD_BASE_UNFINISHED_H

#include "base/status.h"

#define UNFINISHED_WRITING ".writing-"
#define UNFINISHED_REMOVING ".removing-"

/* Removes from a directory what has such a name: nobody writes or removes there now. No directory
 * is no error. Goes on after an error, and returns the first. */
status_t unfinished_sweep(const char *directory) FSDPD_MUST_USE;

/* The same of a directory that is open, which stays so; `path` stands in messages. */
status_t unfinished_sweep_at(int fd, const char *path) FSDPD_MUST_USE;

#endif
