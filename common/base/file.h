/*
 * Files: whole reads with a limit, durable writes (temporary file, fsync, rename, fsync of the
 * directory), directories, locks, and paths that may not leave a root.
 */
#ifndef FSDPD_BASE_FILE_H
#define FSDPD_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/status.h"

/* Reads all of `path` into `*out` (replacing what it held); RESOURCE_EXHAUSTED above `limit` bytes.
 */
status_t file_read(const char *path, size_t limit, struct buf *out) FSDPD_MUST_USE;

/* The same of a descriptor that is open at the beginning; `path` stands in messages. */
status_t file_read_descriptor(int fd, const char *path, size_t limit,
                              struct buf *out) FSDPD_MUST_USE;

/* Replaces `path` durably: a reader sees the old bytes or all of the new ones, also after a crash.
 */
status_t file_write_atomic(const char *path, const void *bytes, size_t size,
                           mode_t mode) FSDPD_MUST_USE;

/* The same where there is nothing of that name yet; ALREADY_EXISTS, and nothing changed, if there
 * is, even since a moment ago. */
status_t file_write_new(const char *path, const void *bytes, size_t size,
                        mode_t mode) FSDPD_MUST_USE;

/* What was made, renamed or removed in the directory is on the disk when this returns. */
status_t file_sync_directory(const char *path) FSDPD_MUST_USE;
/* The same of the directory that `path` is in. */
status_t file_sync_parent(const char *path) FSDPD_MUST_USE;

/* mkdir -p; the last directory gets `mode` if it is made. */
status_t file_make_directory(const char *path, mode_t mode) FSDPD_MUST_USE;

/*
 * Takes an exclusive lock on `path` (made if missing), held until the process ends or *fd is
 * closed, and writes the process id into it. FAILED_PRECONDITION, naming the holder's process id,
 * if somebody else holds it.
 */
status_t file_lock(const char *path, int *fd) FSDPD_MUST_USE;

/* "a/b" from "a" and "b"; `b` alone if it is absolute. Caller frees. */
char *file_path_join(const char *a, const char *b);

/* The directory part of `path` ("." if it has none). Caller frees. */
char *file_path_directory(const char *path);

/* "~" and "~/x" with the user's home directory; anything else unchanged. Caller frees. */
char *file_path_expand_home(const char *path);

/*
 * Resolves `path` (relative ones start at `root`) with symbolic links followed, and requires the
 * result to be `root` itself or below it. PERMISSION_DENIED if it is outside, NOT_FOUND if it does
 * not exist. What it names may be another file by the time that it is opened: beneath.h opens.
 * *resolved is the caller's to free.
 */
status_t file_resolve_under(const char *root, const char *path, char **resolved) FSDPD_MUST_USE;

#endif
