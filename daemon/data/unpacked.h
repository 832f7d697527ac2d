/*
 * Decompressed copies of gzip files, so that any row can be read on demand. All ranks of a host
 * share one copy: a file in $TMPDIR/fsdpd-data-UID (/tmp without TMPDIR). The first rank writes it
 * while the others wait; the last one to close it removes it. What killed processes leave is
 * removed, or used, by the next one that opens a copy.
 */
#ifndef FSDPD_DATA_UNPACKED_H
#define FSDPD_DATA_UNPACKED_H

#include "data/data_file.h"

struct unpacked {
    struct data_file file; /* its `path` is the packed file's, for messages */
    char *path;            /* of the copy; NULL: not open */
};

/* `packed` must hold exactly `size` bytes when decompressed: INVALID_ARGUMENT if not. */
status_t unpacked_open(const struct data_file *packed, uint64_t size,
                       struct unpacked *unpacked) FSDPD_MUST_USE;
void unpacked_close(struct unpacked *unpacked); /* accepts a zeroed one */

#endif
