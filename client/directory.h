/*
 * A directory that is written completely or not at all: its files go into a temporary directory
 * beside it, which is renamed once all of them are on the disk. After an abort nothing is left.
 */
#ifndef FSDPD_CLIENT_DIRECTORY_H
#define FSDPD_CLIENT_DIRECTORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

struct directory {
    char *target;    /* symbolic links resolved */
    char *temporary; /* NULL if it does not exist (any more) */
    char **files;    /* names of the files opened so far */
    int file_count, file_capacity;
    int fd; /* the file being written; -1: none */
    uint64_t bytes;
};

/* INVALID_ARGUMENT if `path` exists and is not an empty directory. */
status_t directory_begin(struct directory *directory, const char *path) FSDPD_MUST_USE;

/* Opens the next file; only one can be open. A name may be of a file in a directory, "a/b", which
 * is created if it is new. */
status_t directory_open(struct directory *directory, const char *name) FSDPD_MUST_USE;
status_t directory_write(struct directory *directory, const void *bytes,
                         size_t size) FSDPD_MUST_USE;
status_t directory_close(struct directory *directory) FSDPD_MUST_USE;

/* A file of these bytes. */
status_t directory_put(struct directory *directory, const char *name,
                       const struct buf *bytes) FSDPD_MUST_USE;

/* Syncs and renames. On failure nothing remains. */
status_t directory_finish(struct directory *directory) FSDPD_MUST_USE;

/* Removes the files written so far. Valid after finish, too. */
void directory_deinit(struct directory *directory);

#endif
