/*
 * Reads a file from its start; decompresses it if it is gzipped, which is detected from the
 * content, not the name. The content may be hostile: INVALID_ARGUMENT names the file. Belongs to
 * one thread.
 */
#ifndef FSDPD_DATA_UNZIP_H
#define FSDPD_DATA_UNZIP_H

#include <stdbool.h>

#include "data/data_file.h"

/* Deflate's highest ratio: a file cannot contain more than this. */
enum { UNZIP_MAX_RATIO = 1032 };

struct unzip;

/* `file` must stay open as long as the result. */
status_t unzip_open(const struct data_file *file, struct unzip **unzip) FSDPD_MUST_USE;
void unzip_close(struct unzip *unzip); /* accepts NULL */

bool unzip_is_compressed(const struct unzip *unzip);

/* The next `size` bytes; *count is less only at the end, where gzip's checksum has been checked. */
status_t unzip_read(struct unzip *unzip, void *bytes, size_t size, size_t *count) FSDPD_MUST_USE;

#endif
