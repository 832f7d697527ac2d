/* Derived numbers in a file; see derived.h. */
#include "checkpoint/derived.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/tree.h"

/* The file: this header, the values, and the digest of both. */
struct derived_header {
    char magic[8];
    uint64_t count;
    struct digest from;
};

static const char magic[8] = "fsdpd-d1";

static void make_header(const struct digest *from, size_t count, struct derived_header *header)
{
    *header = (struct derived_header){.count = count, .from = *from};
    memcpy(header->magic, magic, sizeof magic);
}

static status_t write_bytes(int fd, const char *path, const struct buf *bytes)
{
    for (size_t at = 0; at < bytes->length;) {
        ssize_t written = write(fd, bytes->data + at, bytes->length - at);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return status_from_errno(errno, "cannot write %s", path);
        at += (size_t)written;
    }
    return fsync(fd) == 0 ? NULL : status_from_errno(errno, "cannot sync %s", path);
}

static status_t replace(const struct folder *folder, const char *name, const struct buf *bytes)
{
    AUTO_FREE char *unfinished = mem_printf(UNFINISHED_WRITING "%s", name);
    AUTO_FREE char *path = file_path_join(folder->path, unfinished);
    int fd =
        openat(folder->fd, unfinished, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (fd < 0) return status_from_errno(errno, "cannot create %s", path);
    status_t status = write_bytes(fd, path, bytes);
    close(fd);
    if (status == NULL && renameat(folder->fd, unfinished, folder->fd, name) != 0)
        status = status_from_errno(errno, "cannot rename %s to %s", path, name);
    if (status == NULL && fsync(folder->fd) != 0)
        status = status_from_errno(errno, "cannot sync %s", folder->path);
    if (status != NULL) unlinkat(folder->fd, unfinished, 0);
    return status;
}

status_t derived_write(const struct folder *folder, const char *name, const struct digest *from,
                       const float *values, size_t count)
{
    AUTO(buf_deinit) struct buf bytes = {0};
    struct derived_header header;
    struct digest sum;
    make_header(from, count, &header);
    buf_add(&bytes, &header, sizeof header);
    buf_add(&bytes, values, count * sizeof *values);
    digest_of(bytes.data, bytes.length, &sum);
    buf_add(&bytes, &sum, sizeof sum);
    return replace(folder, name, &bytes);
}

static status_t check(const struct buf *bytes, const char *path, const struct digest *from,
                      size_t count)
{
    struct derived_header header, expected;
    struct digest sum, found;
    if (bytes->length < sizeof header + sizeof sum)
        return status_new(STATUS_DATA_LOSS, "%s is too short: %zu bytes", path, bytes->length);
    size_t length = bytes->length - sizeof sum;
    digest_of(bytes->data, length, &sum);
    memcpy(&found, bytes->data + length, sizeof found);
    memcpy(&header, bytes->data, sizeof header);
    make_header(from, count, &expected);
    if (!digest_equal(&sum, &found) || memcmp(header.magic, magic, sizeof magic) != 0)
        return status_new(STATUS_DATA_LOSS, "%s is damaged: its digest is not that of its bytes",
                          path);
    if (memcmp(&header, &expected, sizeof header) != 0 ||
        length != sizeof header + count * sizeof(float))
        return status_new(STATUS_FAILED_PRECONDITION,
                          "%s was made of other data: expected those with which the job began",
                          path);
    return NULL;
}

status_t derived_read(const struct folder *folder, const char *name, const struct digest *from,
                      float *values, size_t count)
{
    AUTO_FREE char *path = file_path_join(folder->path, name);
    AUTO(buf_deinit) struct buf bytes = {0};
    int fd = openat(folder->fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) return status_new(STATUS_NOT_FOUND, "there is no %s", path);
    if (fd < 0) return status_from_errno(errno, "cannot open %s", path);
    size_t size = sizeof(struct derived_header) + count * sizeof *values + sizeof *from;
    status_t status = file_read_descriptor(fd, path, size, &bytes);
    close(fd);
    if (status_code(status) == STATUS_INVALID_ARGUMENT) { /* more values than these */
        status_free(status);
        status = status_new(STATUS_FAILED_PRECONDITION,
                            "%s has more than %zu numbers: it was made of other data", path, count);
    }
    if (status == NULL) status = check(&bytes, path, from, count);
    if (status == NULL)
        memcpy(values, bytes.data + sizeof(struct derived_header), count * sizeof *values);
    return status;
}
