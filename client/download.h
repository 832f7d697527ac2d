/*
 * A file that arrives in chunks: it is written under a temporary name beside the target and renamed
 * over it once it is complete and on the disk. Until then the target is unchanged; after an abort
 * nothing is left. A target that is not a regular file (a pipe, /dev/null) and "-" are written
 * directly.
 */
#ifndef FSDPD_CLIENT_DOWNLOAD_H
#define FSDPD_CLIENT_DOWNLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "fsdpd/v1/control.pb-c.h"

struct download {
    char *target;    /* symbolic links resolved; "-": stdout */
    char *temporary; /* NULL: written directly */
    int fd;
    bool has_begun; /* the first chunk, which has the totals, has arrived */
    uint64_t written, total;
    uint64_t step;
};

/* Creates the temporary file. */
status_t download_begin(struct download *download, const char *path) FSDPD_MUST_USE;

/* DATA_LOSS if the file is larger than the first chunk announced. */
status_t download_add(struct download *download,
                      const Fsdpd__V1__PullStateDictResponse *chunk) FSDPD_MUST_USE;

/* Appends bytes of a file whose size is not known in advance. */
status_t download_put(struct download *download, const void *bytes, size_t size) FSDPD_MUST_USE;

/* Checks the size, syncs and renames. On failure nothing remains. */
status_t download_finish(struct download *download) FSDPD_MUST_USE;

/* Removes the temporary file. Valid after finish, too. */
void download_deinit(struct download *download);

#endif
