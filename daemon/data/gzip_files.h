/* Gzip files, read from their start, and decompressed copies of them. */
#ifndef FSDPD_DATA_GZIP_FILES_H
#define FSDPD_DATA_GZIP_FILES_H

#include <stdbool.h>

#include "data/data_file.h"

/*
 * Reads a file from its start; decompresses it if it is gzipped, which is detected from the
 * content, not the name. The content may be hostile: INVALID_ARGUMENT names the file. Belongs to
 * one thread.
 */
/* Deflate's highest ratio: a file cannot contain more than this. */
enum { UNZIP_MAX_RATIO = 1032 };

struct unzip;

/* `file` must stay open as long as the result. */
status_t unzip_open(const struct data_file *file, struct unzip **unzip) FSDPD_MUST_USE;
void unzip_close(struct unzip *unzip); /* accepts NULL */

bool unzip_is_compressed(const struct unzip *unzip);

/* The next `size` bytes; *count is less only at the end, where gzip's checksum has been checked. */
status_t unzip_read(struct unzip *unzip, void *bytes, size_t size, size_t *count) FSDPD_MUST_USE;

/*
 * Decompressed copies of gzip files, so that any row can be read on demand. All ranks of a host
 * share one copy: a file in $TMPDIR/fsdpd-data-UID (/tmp without TMPDIR). The first rank writes it
 * while the others wait; the last one to close it removes it. What killed processes leave is
 * removed, or used, by the next one that opens a copy.
 */
struct unpacked {
    struct data_file file; /* its `path` is the packed file's, for messages */
    char *path;            /* of the copy; NULL: not open */
};

/* `packed` must hold exactly `size` bytes when decompressed: INVALID_ARGUMENT if not. */
status_t unpacked_open(const struct data_file *packed, uint64_t size,
                       struct unpacked *unpacked) FSDPD_MUST_USE;
void unpacked_close(struct unpacked *unpacked); /* accepts a zeroed one */

#endif
