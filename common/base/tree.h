/* Directories with what is in them. */
#ifndef FSDPD_BASE_TREE_H
#define FSDPD_BASE_TREE_H

#include "base/status.h"

/* rm -r, not following links and not leaving the file system's tree: what is gone already is no
 * error. Goes on after one, and returns the first. */
status_t tree_remove(const char *path) FSDPD_MUST_USE;

/* The same of `name` in the directory that is open as `parent`; `path` stands in messages. */
status_t tree_remove_at(int parent, const char *name, const char *path) FSDPD_MUST_USE;

#endif
