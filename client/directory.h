/*
 * A directory that is made whole or not at all: its files are written into a temporary one beside
 * it, which gets its name when all of them are on the disk. After an abort nothing is left.
 */
#ifndef FSDPD_CLIENT_DIRECTORY_H
#define FSDPD_CLIENT_DIRECTORY_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct directory {
    char *target;    /* links followed */
    char *temporary; /* NULL when it is not there (any more) */
    char **files;    /* names of those that were begun */
    int file_count, file_capacity;
    int fd; /* the one that is being written; -1: none */
    uint64_t bytes;
};

/* INVALID_ARGUMENT if there is something already other than an empty directory. */
status_t directory_begin(struct directory *directory, const char *path) FSDPD_MUST_USE;

/* One file after the other. */
status_t directory_open(struct directory *directory, const char *name) FSDPD_MUST_USE;
status_t directory_write(struct directory *directory, const void *bytes,
                         size_t size) FSDPD_MUST_USE;
status_t directory_close(struct directory *directory) FSDPD_MUST_USE;

/* Syncs and renames. On failure nothing is left. */
status_t directory_finish(struct directory *directory) FSDPD_MUST_USE;

/* Removes what was written. Fine after finish, too. */
void directory_deinit(struct directory *directory);

#endif
