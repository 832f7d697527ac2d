/* A directory that is written completely or not at all; see directory.h. */
#include "directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

static status_t check_empty(const char *path)
{
    DIR *entries = opendir(path);
    if (entries == NULL) return status_from_errno(errno, "cannot open %s", path);
    const struct dirent *entry;
    bool empty = true;
    while ((entry = readdir(entries)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) empty = false;
    closedir(entries);
    if (empty) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s is not empty; expected a new directory, or an empty one", path);
}

static status_t find_target(const char *path, char **target)
{
    struct stat info;
    if (strcmp(path, "-") == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "expected a directory, found '-'");
    if (stat(path, &info) == 0) {
        if (!S_ISDIR(info.st_mode))
            return status_new(STATUS_INVALID_ARGUMENT, "%s is not a directory", path);
        TRY(check_empty(path));
        *target = realpath(path, NULL);
        if (*target == NULL) return status_from_errno(errno, "cannot resolve %s", path);
        return NULL;
    }
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    *target = mem_strndup(path, length);
    return NULL;
}

status_t directory_begin(struct directory *directory, const char *path)
{
    *directory = (struct directory){.fd = -1};
    TRY(find_target(path, &directory->target));
    directory->temporary = mem_printf("%s.tmp.XXXXXX", directory->target);
    if (mkdtemp(directory->temporary) != NULL) return NULL;
    status_t status = status_from_errno(errno, "cannot write %s", directory->target);
    free(directory->temporary);
    directory->temporary = NULL;
    directory_deinit(directory);
    return status;
}

/* The directory within it that a name says; NULL: none. The caller frees it. */
static char *inner_directory(const struct directory *directory, const char *name)
{
    if (strchr(name, '/') == NULL) return NULL;
    AUTO_FREE char *path = file_path_join(directory->temporary, name);
    return file_path_directory(path);
}

status_t directory_open(struct directory *directory, const char *name)
{
    MEM_GROW(directory->files, directory->file_count, directory->file_capacity);
    directory->files[directory->file_count++] = mem_strdup(name);
    AUTO_FREE char *path = file_path_join(directory->temporary, name);
    AUTO_FREE char *inner = inner_directory(directory, name);
    if (inner != NULL && mkdir(inner, 0777) != 0 && errno != EEXIST)
        return status_from_errno(errno, "cannot create %s", inner);
    directory->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (directory->fd < 0) return status_from_errno(errno, "cannot write %s", path);
    return NULL;
}

status_t directory_write(struct directory *directory, const void *bytes, size_t size)
{
    for (const char *at = bytes; size > 0;) {
        ssize_t count = write(directory->fd, at, size);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0)
            return status_from_errno(errno, "cannot write %s/%s", directory->temporary,
                                     directory->files[directory->file_count - 1]);
        at += count;
        size -= (size_t)count;
        directory->bytes += (uint64_t)count;
    }
    return NULL;
}

status_t directory_close(struct directory *directory)
{
    int fd = directory->fd;
    directory->fd = -1;
    bool synced = fsync(fd) == 0;
    int error = errno;
    if (close(fd) != 0 && synced) {
        synced = false;
        error = errno;
    }
    if (synced) return NULL;
    return status_from_errno(error, "cannot sync %s/%s", directory->temporary,
                             directory->files[directory->file_count - 1]);
}

status_t directory_put(struct directory *directory, const char *name, const struct buf *bytes)
{
    TRY(directory_open(directory, name));
    TRY(directory_write(directory, buf_text(bytes), bytes->length));
    return directory_close(directory);
}

static status_t sync_inner(const struct directory *directory)
{
    for (int i = 0; i < directory->file_count; i++) {
        AUTO_FREE char *inner = inner_directory(directory, directory->files[i]);
        if (inner != NULL) TRY(file_sync_directory(inner));
    }
    return NULL;
}

status_t directory_finish(struct directory *directory)
{
    mode_t mask = umask(0);
    umask(mask);
    if (chmod(directory->temporary, 0777 & ~mask) != 0)
        return status_from_errno(errno, "cannot set the mode of %s", directory->temporary);
    TRY(sync_inner(directory));
    TRY(file_sync_directory(directory->temporary));
    if (rename(directory->temporary, directory->target) != 0)
        return status_from_errno(errno, "cannot rename %s to %s", directory->temporary,
                                 directory->target);
    free(directory->temporary);
    directory->temporary = NULL;
    return file_sync_parent(directory->target);
}

void directory_deinit(struct directory *directory)
{
    if (directory->fd >= 0) close(directory->fd);
    directory->fd = -1;
    for (int i = 0; i < directory->file_count; i++) {
        if (directory->temporary != NULL) {
            AUTO_FREE char *path = file_path_join(directory->temporary, directory->files[i]);
            unlink(path);
            AUTO_FREE char *inner = inner_directory(directory, directory->files[i]);
            if (inner != NULL) rmdir(inner); /* once its last file is gone */
        }
        free(directory->files[i]);
    }
    if (directory->temporary != NULL) rmdir(directory->temporary);
    free(directory->files);
    free(directory->temporary);
    free(directory->target);
    *directory = (struct directory){.fd = -1};
}
