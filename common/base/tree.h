/* Removal of directory trees. */
#ifndef FSDPD_BASE_TREE_H
#define FSDPD_BASE_TREE_H

#include "base/status.h"

/* rm -r: follows no links and never leaves the tree. A missing entry is not an error. Continues
 * after an error and returns the first one. */
status_t tree_remove(const char *path) FSDPD_MUST_USE;

/* The same for `name` in the directory open as `parent`; `path` is for messages. */
status_t tree_remove_at(int parent, const char *name, const char *path) FSDPD_MUST_USE;

/*
 * Directories and files that are created, replaced or removed by one rename. While they are written
 * or removed their name has this prefix, which is how unfinished ones are found and removed after a
 * crash.
 */

#define UNFINISHED_WRITING ".writing-"
#define UNFINISHED_REMOVING ".removing-"

/* Removes every entry of a directory whose name has the prefix; call it while no process creates or
 * removes entries there. A missing directory is not an error. Continues after an error and returns
 * the first one. */
status_t unfinished_sweep(const char *directory) FSDPD_MUST_USE;

/* The same for an open directory, which stays open; `path` is for messages. */
status_t unfinished_sweep_at(int fd, const char *path) FSDPD_MUST_USE;

#endif
