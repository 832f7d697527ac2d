/*
 * Files below a root, named by users without privileges: data, models and weights of jobs. Links
 * may lead from one place below the root to another, but never out of it, not even between two
 * checks: the file that was checked is the file that is opened, even if directories or links are
 * moved meanwhile.
 *
 * Errors reveal nothing about what is outside, not even whether it exists: a path is refused where
 * it leaves the root, even if ".." or a link would have led back. An absolute path or link may
 * enter through other links (/data/x, where /data leads to the root), but not through "..".
 *
 * The path is resolved first. The result contains no links; it is opened relative to the root's
 * descriptor with links forbidden (openat2 with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS; component
 * by component with O_NOFOLLOW where the kernel has no openat2).
 */
#ifndef FSDPD_BASE_BENEATH_H
#define FSDPD_BASE_BENEATH_H

#include "base/buf.h"
#include "base/status.h"

/*
 * Opens `path` (relative paths start at `root`) for reading, without blocking and without acquiring
 * a controlling terminal. A NULL `root` is "/". PERMISSION_DENIED if the path is outside (whether
 * or not it exists), NOT_FOUND if it does not exist, FAILED_PRECONDITION if it changed meanwhile.
 * With `directory` it must be a directory, otherwise a regular file (INVALID_ARGUMENT).
 */
status_t beneath_open(const char *root, const char *path, bool directory, int *fd) FSDPD_MUST_USE;

/* Where `path` leads: absolute, without links, below `root`. Refuses what beneath_open refuses. The
 * caller frees *real. Open it with beneath_open all the same: it may change meanwhile. */
status_t beneath_resolve(const char *root, const char *path, char **real) FSDPD_MUST_USE;

/* Reads a whole file of at most `limit` bytes; see file_read. */
status_t beneath_read(const char *root, const char *path, size_t limit,
                      struct buf *out) FSDPD_MUST_USE;

/* For tests: never uses openat2, as on a kernel without it. */
void beneath_walk_always(bool walk);

#endif
