/* Files of data; see data_file.h. */
#include "data/data_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/beneath.h"
#include "base/file.h"
#include "base/mem.h"

status_t data_file_open(const char *root, const char *path, struct data_file *file)
{
    int fd = -1;
    TRY(beneath_open(root, path, false, &fd));
    struct stat info;
    status_t status = NULL;
    if (fstat(fd, &info) != 0) status = status_from_errno(errno, "cannot read %s", path);
    else if (info.st_size == 0) status = status_new(STATUS_INVALID_ARGUMENT, "%s is empty", path);
    if (status != NULL) {
        close(fd);
        return status;
    }
    *file = (struct data_file){.path = mem_strdup(path),
                               .fd = fd,
                               .size = info.st_size,
                               .changed = info.st_mtim};
    return NULL;
}

void data_file_close(struct data_file *file)
{
    if (file->path != NULL) close(file->fd);
    free(file->path);
    *file = (struct data_file){0};
}

status_t data_file_read(const struct data_file *file, void *bytes, size_t size, int64_t offset)
{
    size_t count;
    TRY(file_read_part(file->fd, file->path, bytes, size, (uint64_t)offset, &count));
    if (count < size)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "%s was cut while it was read: it had %" PRId64
                          " bytes, and now there is none at %" PRId64,
                          file->path, file->size, offset + (int64_t)count);
    return NULL;
}

/* Detects changes by other processes: rows read meanwhile would mix old and new content. */
status_t data_file_check_unchanged(const struct data_file *file)
{
    struct stat info;
    if (fstat(file->fd, &info) != 0) return status_from_errno(errno, "cannot stat %s", file->path);
    if (info.st_size != file->size)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "%s changed while it was read: it had %" PRId64 " bytes, now %" PRId64,
                          file->path, file->size, (int64_t)info.st_size);
    if (info.st_mtim.tv_sec != file->changed.tv_sec ||
        info.st_mtim.tv_nsec != file->changed.tv_nsec)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "%s was written to while it was read: its modification time has changed",
                          file->path);
    return NULL;
}
