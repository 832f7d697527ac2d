/* A file that arrives in chunks; see download.h. */
#include "download.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

/* The mode of the existing file, or the one that open(2) would give a new file. */
static mode_t target_mode(const char *target)
{
    struct stat info;
    if (stat(target, &info) == 0) return info.st_mode & 07777;
    mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}

static status_t begin_direct(struct download *download)
{
    if (strcmp(download->target, "-") == 0) {
        download->fd = dup(STDOUT_FILENO);
        if (download->fd < 0) return status_from_errno(errno, "cannot write to standard output");
        return NULL;
    }
    download->fd = open(download->target, O_WRONLY | O_CLOEXEC);
    if (download->fd < 0) return status_from_errno(errno, "cannot open %s", download->target);
    return NULL;
}

static status_t begin_temporary(struct download *download)
{
    download->temporary = mem_printf("%s.tmp.XXXXXX", download->target);
    download->fd = mkostemp(download->temporary, O_CLOEXEC);
    if (download->fd < 0) {
        status_t status = status_from_errno(errno, "cannot write %s", download->target);
        free(download->temporary);
        download->temporary = NULL;
        return status;
    }
    return NULL;
}

status_t download_begin(struct download *download, const char *path)
{
    *download = (struct download){.fd = -1};
    bool output = strcmp(path, "-") == 0;
    struct stat info = {0};
    bool exists = !output && stat(path, &info) == 0;
    if (exists && S_ISDIR(info.st_mode))
        return status_new(STATUS_INVALID_ARGUMENT, "%s is a directory; expected a file name", path);
    char *real = exists ? realpath(path, NULL) : NULL;
    download->target = real ? real : mem_strdup(path);
    status_t status = output || (exists && !S_ISREG(info.st_mode)) ? begin_direct(download)
                                                                   : begin_temporary(download);
    if (status != NULL) download_deinit(download);
    return status;
}

static status_t write_all(const struct download *download, const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        ssize_t count = write(download->fd, bytes, size);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return status_from_errno(errno, "cannot write %s", download->target);
        bytes += count;
        size -= (size_t)count;
    }
    return NULL;
}

status_t download_add(struct download *download, const Fsdpd__V1__PullStateDictResponse *chunk)
{
    if (!download->has_begun) {
        if (chunk->total_size == 0)
            return status_new(STATUS_DATA_LOSS,
                              "the first chunk: expected the size of the file in it, found none");
        download->has_begun = true;
        download->total = chunk->total_size;
        download->step = chunk->step;
    }
    if (chunk->data.len > download->total - download->written)
        return status_new(STATUS_DATA_LOSS, "expected a file of %llu bytes, found more",
                          (unsigned long long)download->total);
    TRY(write_all(download, chunk->data.data, chunk->data.len));
    download->written += chunk->data.len;
    return NULL;
}

status_t download_put(struct download *download, const void *bytes, size_t size)
{
    TRY(write_all(download, bytes, size));
    download->has_begun = true;
    download->written += size;
    download->total = download->written;
    return NULL;
}

static status_t finish_temporary(struct download *download)
{
    if (fchmod(download->fd, target_mode(download->target)) != 0)
        return status_from_errno(errno, "cannot set the mode of %s", download->temporary);
    if (fsync(download->fd) != 0)
        return status_from_errno(errno, "cannot sync %s", download->temporary);
    int fd = download->fd;
    download->fd = -1;
    if (close(fd) != 0) return status_from_errno(errno, "cannot close %s", download->temporary);
    if (rename(download->temporary, download->target) != 0)
        return status_from_errno(errno, "cannot rename %s to %s", download->temporary,
                                 download->target);
    free(download->temporary);
    download->temporary = NULL;
    return file_sync_parent(download->target);
}

status_t download_finish(struct download *download)
{
    if (!download->has_begun || download->written != download->total)
        return status_new(STATUS_DATA_LOSS,
                          "expected a file of %llu bytes, found the end after %llu",
                          (unsigned long long)download->total,
                          (unsigned long long)download->written);
    return download->temporary ? finish_temporary(download) : NULL;
}

void download_deinit(struct download *download)
{
    if (download->fd >= 0) close(download->fd);
    download->fd = -1;
    if (download->temporary != NULL) unlink(download->temporary);
    free(download->temporary);
    free(download->target);
    download->temporary = download->target = NULL;
}
