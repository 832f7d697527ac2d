/* Removal of directory trees. */
#ifndef FSDPD_BASE_TREE_H
#define FSDPD_BASE_TREE_H

#include "base/status.h"

/* rm -r: follows no links and never leaves the tree. A missing entry is not an error. Continues
 * after an error and returns the first one. */
status_t tree_remove(const char *path) FSDPD_MUST_USE;

/* The same for `name` in the directory open as `parent`; `path` is for messages. */
status_t tree_remove_at(int parent, const char *name, const char *path) FSDPD_MUST_USE;

#endif
