/*
 * Files below a root that people without rights name: jobs' data, models, weights. Links may lead
 * from one place below the root to another, never out of it, and not for a moment either: what was
 * looked at is what is opened, whoever moves directories or links meanwhile.
 *
 * Of what is outside nothing is told, not even whether it is there: who goes out is refused at that
 * point, also if ".." or a link would have led back. An absolute path or link may come in by other
 * links (/data/x, where /data leads to the root), but not by "..".
 *
 * The path is resolved first, and the result, which has no link left in it, is then opened from the
 * root's own descriptor with links forbidden (openat2 with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS;
 * component by component with O_NOFOLLOW where the kernel has no openat2).
 */
#ifndef FSDPD_BASE_BENEATH_H
#define FSDPD_BASE_BENEATH_H

#include "base/buf.h"
#include "base/status.h"

/*
 * Opens `path` (relative ones start at `root`) for reading, not blocking, without a controlling
 * terminal. NULL for `root` stands for "/", below which everything is. PERMISSION_DENIED if it is
 * outside (whether or not it exists), NOT_FOUND if it does not exist, FAILED_PRECONDITION if it
 * changed meanwhile. With `directory` it must be one, else it must be a regular file
 * (INVALID_ARGUMENT).
 */
status_t beneath_open(const char *root, const char *path, bool directory, int *fd) FSDPD_MUST_USE;

/* Where `path` leads: absolute, without links, below `root`. Refuses as beneath_open does. *real is
 * the caller's to free. What is read there later is opened with beneath_open all the same. */
status_t beneath_resolve(const char *root, const char *path, char **real) FSDPD_MUST_USE;

/* All of a file, at most `limit` bytes; see file_read. */
status_t beneath_read(const char *root, const char *path, size_t limit,
                      struct buf *out) FSDPD_MUST_USE;

/* For tests: never uses openat2, as if the kernel had none. */
void beneath_walk_always(bool walk);

#endif
