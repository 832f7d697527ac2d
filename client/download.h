/*
 * A file that arrives in chunks: written under a temporary name beside the target, renamed over it
 * when it is complete and on the disk. Until then the target is as it was; after an abort nothing
 * is left. A target that is not a regular file (a pipe, /dev/null) and "-" are written directly.
 */
#ifndef FSDPD_CLIENT_DOWNLOAD_H
#define FSDPD_CLIENT_DOWNLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "fsdpd/v1/control.pb-c.h"

struct download {
    char *target;    /* symbolic links followed; "-" */
    char *temporary; /* NULL: written directly */
    int fd;
    bool told; /* the first chunk with the totals came */
    uint64_t written, total;
    uint64_t step;
};

/* Makes the temporary file. */
status_t download_begin(struct download *download, const char *path) FSDPD_MUST_USE;

/* DATA_LOSS if there is more than the first chunk announced. */
status_t download_add(struct download *download,
                      const Fsdpd__V1__StateDictChunk *chunk) FSDPD_MUST_USE;

/* Bytes of a file whose size is not known before. */
status_t download_put(struct download *download, const void *bytes, size_t size) FSDPD_MUST_USE;

/* Checks the size, syncs, renames. On failure nothing is left. */
status_t download_finish(struct download *download) FSDPD_MUST_USE;

/* Removes what was written. Fine after finish, too. */
void download_deinit(struct download *download);

#endif
