/*
 * A data file whose content is read on demand and never kept. It must not change while it is open:
 * FAILED_PRECONDITION if another process truncated it or wrote to it. It is not mapped, because
 * reading a mapping beyond a truncated file's end would kill this process; all ranks of a host
 * share the page cache in any case. An open file is immutable: any thread may read it.
 */
#ifndef FSDPD_DATA_DATA_FILE_H
#define FSDPD_DATA_DATA_FILE_H

#include <stdint.h>
#include <time.h>

#include "base/status.h"

struct data_file {
    char *path; /* NULL: not open */
    int fd;
    int64_t size; /* bytes, at least 1 */
    struct timespec changed;
};

/* Links must not lead out of `root` (NULL: no root). INVALID_ARGUMENT if the file is empty. */
status_t data_file_open(const char *root, const char *path, struct data_file *file) FSDPD_MUST_USE;
void data_file_close(struct data_file *file); /* accepts a zeroed one */

/* Reads exactly `size` bytes. After several reads of one row, call data_file_check_unchanged. */
status_t data_file_read(const struct data_file *file, void *bytes, size_t size,
                        int64_t offset) FSDPD_MUST_USE;
status_t data_file_check_unchanged(const struct data_file *file) FSDPD_MUST_USE;

/* Little-endian numbers, as in the files. */
static inline uint32_t data_file_u32(const unsigned char *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static inline uint64_t data_file_u64(const unsigned char *bytes)
{
    return data_file_u32(bytes) | (uint64_t)data_file_u32(bytes + 4) << 32;
}

#endif
