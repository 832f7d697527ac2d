/*
 * Files: whole reads with a limit, durable writes (temporary file, fsync, rename, fsync of the
 * directory), directories, locks, and paths that may not leave a root.
 */
#ifndef FSDPD_BASE_FILE_H
#define FSDPD_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/status.h"

/* Reads all of `path` into `*out`, replacing its content; INVALID_ARGUMENT above `limit` bytes. */
status_t file_read(const char *path, size_t limit, struct buf *out) FSDPD_MUST_USE;

/* The same of a regular file only: never waits for the other end of a FIFO. INVALID_ARGUMENT for
 * anything else. */
status_t file_read_regular(const char *path, size_t limit, struct buf *out) FSDPD_MUST_USE;

/* The same for an open descriptor at offset 0; `path` is for messages. */
status_t file_read_descriptor(int fd, const char *path, size_t limit,
                              struct buf *out) FSDPD_MUST_USE;

/* Reads `size` bytes from byte `at` on; `path` is for messages. *count is less at the end of the
 * file only. */
status_t file_read_part(int fd, const char *path, void *bytes, size_t size, uint64_t at,
                        size_t *count) FSDPD_MUST_USE;

/* The same, all of them: a file that ends before was cut, an error of this code. */
status_t file_read_at(int fd, const char *path, void *bytes, size_t size, uint64_t at,
                      enum status_code cut) FSDPD_MUST_USE;

/* Replaces `path` durably: a reader sees the old bytes or all of the new ones, also after a crash.
 */
status_t file_write_atomic(const char *path, const void *bytes, size_t size,
                           mode_t mode) FSDPD_MUST_USE;

/* The same, but only if nothing of that name exists. Otherwise ALREADY_EXISTS, and nothing changes,
 * even if it was created a moment ago. */
status_t file_write_new(const char *path, const void *bytes, size_t size,
                        mode_t mode) FSDPD_MUST_USE;

/* PERMISSION_DENIED if every user may read or write the file, which is a `what`: "private key". */
status_t file_check_private(const char *path, const char *what) FSDPD_MUST_USE;

/* Syncs the directory: entries created, renamed or removed in it are on disk when this returns. */
status_t file_sync_directory(const char *path) FSDPD_MUST_USE;
/* The same for the directory that contains `path`. */
status_t file_sync_parent(const char *path) FSDPD_MUST_USE;

/* mkdir -p; every directory created gets `mode`, whatever the umask. */
status_t file_make_directory(const char *path, mode_t mode) FSDPD_MUST_USE;

/*
 * Takes an exclusive lock on `path` (created if missing), held until the process ends or *fd is
 * closed, and writes the process id into it. FAILED_PRECONDITION, with the holder's process id, if
 * another process holds it.
 */
status_t file_lock(const char *path, int *fd) FSDPD_MUST_USE;

/* "a/b" from "a" and "b"; `b` alone if it is absolute. Caller frees. */
char *file_path_join(const char *a, const char *b);

/* The directory part of `path` ("." if it has none). Caller frees. */
char *file_path_directory(const char *path);

/* Whether `name` is that of a file in a directory, without any path, and ends as `end`. */
bool file_name_is_plain(const char *name, const char *end);

/* "~" and "~/x" with the user's home directory; anything else unchanged. Caller frees. */
char *file_path_expand_home(const char *path);

/* Where temporary files belong: $TMPDIR if that is absolute, else /tmp. */
const char *file_temporary_directory(void);

/*
 * Resolves `path` (relative paths start at `root`), following symbolic links, and requires the
 * result to be `root` or below it. PERMISSION_DENIED if it is outside, NOT_FOUND if it does not
 * exist. By the time it is opened it may name another file: open it with beneath.h. The caller
 * frees *resolved.
 */
status_t file_resolve_under(const char *root, const char *path, char **resolved) FSDPD_MUST_USE;

#endif
