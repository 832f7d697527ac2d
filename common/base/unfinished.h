/*
 * Directories and files that are created, replaced or removed by one rename. While they are written
 * or removed their name has this prefix, which is how unfinished ones are found and removed after a
 * crash.
 */
#ifndef FSDPD_BASE_UNFINISHED_H
#define FSDPD_BASE_UNFINISHED_H

#include "base/status.h"

#define UNFINISHED_WRITING ".writing-"
#define UNFINISHED_REMOVING ".removing-"

/* Removes every entry of a directory whose name has the prefix; call it while no process creates or
 * removes entries there. A missing directory is not an error. Continues after an error and returns
 * the first one. */
status_t unfinished_sweep(const char *directory) FSDPD_MUST_USE;

/* The same for an open directory, which stays open; `path` is for messages. */
status_t unfinished_sweep_at(int fd, const char *path) FSDPD_MUST_USE;

#endif
