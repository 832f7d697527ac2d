/* Files; see file.h. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/tree.h"

static status_t read_all(int fd, const char *path, size_t limit, struct buf *out)
{
    char chunk[65536];
    for (;;) {
        ssize_t count = read(fd, chunk, sizeof chunk);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return status_from_errno(errno, "cannot read %s", path);
        if (count == 0) return NULL;
        if ((size_t)count > limit - out->length)
            return status_new(STATUS_INVALID_ARGUMENT, "%s is larger than the %zu bytes allowed",
                              path, limit);
        buf_add(out, chunk, (size_t)count);
    }
}

status_t file_read_descriptor(int fd, const char *path, size_t limit, struct buf *out)
{
    struct buf bytes = {0};
    status_t status = read_all(fd, path, limit, &bytes);
    if (status != NULL) {
        buf_deinit(&bytes);
        return status;
    }
    buf_deinit(out);
    *out = bytes;
    return NULL;
}

status_t file_read_part(int fd, const char *path, void *bytes, size_t size, uint64_t at,
                        size_t *count)
{
    for (*count = 0; *count < size;) {
        ssize_t now = pread(fd, (char *)bytes + *count, size - *count, (off_t)(at + *count));
        if (now < 0 && errno == EINTR) continue;
        if (now < 0)
            return status_from_errno(errno, "cannot read %s at byte %" PRIu64, path, at + *count);
        if (now == 0) break;
        *count += (size_t)now;
    }
    return NULL;
}

status_t file_read_at(int fd, const char *path, void *bytes, size_t size, uint64_t at,
                      enum status_code cut)
{
    size_t count;
    TRY(file_read_part(fd, path, bytes, size, at, &count));
    if (count == size) return NULL;
    return status_new(cut, "%s was cut: it ends at byte %" PRIu64, path, at + count);
}

status_t file_read(const char *path, size_t limit, struct buf *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return status_from_errno(errno, "cannot open %s", path);
    status_t status = file_read_descriptor(fd, path, limit, out);
    close(fd);
    return status;
}

status_t file_read_regular(const char *path, size_t limit, struct buf *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat info;
    status_t status = NULL;
    if (fd < 0) return status_from_errno(errno, "cannot open %s", path);
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
        status = file_read_descriptor(fd, path, limit, out);
    else status = status_new(STATUS_INVALID_ARGUMENT, "%s is not a regular file", path);
    close(fd);
    return status;
}

static status_t write_all(int fd, const char *path, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t count = write(fd, bytes, size);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return status_from_errno(errno, "cannot write %s", path);
        bytes += count;
        size -= (size_t)count;
    }
    return NULL;
}

status_t file_sync_directory(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    status_t status = NULL;
    if (fd < 0 || fsync(fd) != 0) status = status_from_errno(errno, "cannot sync %s", path);
    if (fd >= 0) close(fd);
    return status;
}

status_t file_sync_parent(const char *path)
{
    AUTO_FREE char *directory = file_path_directory(path);
    return file_sync_directory(directory);
}

static status_t put_in_place(const char *temporary, const char *path, bool replace)
{
    if (replace ? rename(temporary, path) != 0 : link(temporary, path) != 0)
        return status_from_errno(errno, replace ? "cannot rename %s to %s" : "cannot link %s to %s",
                                 temporary, path);
    if (!replace) unlink(temporary);
    return file_sync_parent(path);
}

static status_t write_durably(const char *path, const void *bytes, size_t size, mode_t mode,
                              bool replace)
{
    const char *slash = strrchr(path, '/');
    int folder = slash != NULL ? (int)(slash + 1 - path) : 0;
    AUTO_FREE char *temporary =
        mem_printf("%.*s" UNFINISHED_WRITING "%s-XXXXXX", folder, path, path + folder);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) return status_from_errno(errno, "cannot make %s", temporary);
    status_t status = write_all(fd, temporary, bytes, size);
    if (status == NULL && fchmod(fd, mode) != 0)
        status = status_from_errno(errno, "cannot set the mode of %s", temporary);
    if (status == NULL && fsync(fd) != 0)
        status = status_from_errno(errno, "cannot sync %s", temporary);
    if (close(fd) != 0 && status == NULL)
        status = status_from_errno(errno, "cannot close %s", temporary);
    if (status == NULL) status = put_in_place(temporary, path, replace);
    if (status != NULL) unlink(temporary);
    return status;
}

status_t file_write_atomic(const char *path, const void *bytes, size_t size, mode_t mode)
{
    return write_durably(path, bytes, size, mode, true);
}

status_t file_write_new(const char *path, const void *bytes, size_t size, mode_t mode)
{
    return write_durably(path, bytes, size, mode, false);
}

status_t file_check_private(const char *path, const char *what)
{
    struct stat info;
    if (stat(path, &info) != 0) return status_from_errno(errno, "cannot open %s", path);
    if ((info.st_mode & 0007) == 0) return NULL;
    return status_new(STATUS_PERMISSION_DENIED,
                      "%s: every user may use this %s (mode %03o); chmod o= it", path, what,
                      (unsigned)(info.st_mode & 0777));
}

status_t file_make_directory(const char *path, mode_t mode)
{
    AUTO_FREE char *partial = mem_strdup(path);
    for (char *slash = partial + 1; partial[0] != '\0'; slash++) {
        char end = *slash;
        if (end != '/' && end != '\0') continue;
        *slash = '\0';
        int made = mkdir(partial, mode);
        if (made == 0) made = chmod(partial, mode);
        if (made != 0 && errno != EEXIST)
            return status_from_errno(errno, "cannot make the directory %s", partial);
        if (end == '\0') break;
        *slash = end;
    }
    struct stat info;
    if (stat(path, &info) != 0) return status_from_errno(errno, "cannot open %s", path);
    if (!S_ISDIR(info.st_mode))
        return status_new(STATUS_FAILED_PRECONDITION, "%s is not a directory", path);
    return NULL;
}

status_t file_lock(const char *path, int *fd)
{
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (lock < 0) return status_from_errno(errno, "cannot open the lock file %s", path);
    if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
        int error = errno;
        char holder[32] = "";
        ssize_t count = read(lock, holder, sizeof holder - 1);
        holder[count > 0 ? count : 0] = '\0';
        holder[strcspn(holder, "\n")] = '\0';
        close(lock);
        if (error == EWOULDBLOCK)
            return status_new(STATUS_FAILED_PRECONDITION,
                              "%s is locked: process %s already runs here", path,
                              holder[0] ? holder : "?");
        return status_from_errno(error, "cannot lock %s", path);
    }
    char text[32];
    int length = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(lock, 0) != 0 || write(lock, text, (size_t)length) != length) {
        status_t status = status_from_errno(errno, "cannot write the lock file %s", path);
        close(lock);
        return status;
    }
    *fd = lock;
    return NULL;
}

char *file_path_join(const char *a, const char *b)
{
    if (b[0] == '/' || a[0] == '\0') return mem_strdup(b);
    size_t length = strlen(a);
    return mem_printf(a[length - 1] == '/' ? "%s%s" : "%s/%s", a, b);
}

char *file_path_directory(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL) return mem_strdup(".");
    if (slash == path) return mem_strdup("/");
    return mem_strndup(path, (size_t)(slash - path));
}

bool file_name_is_plain(const char *name, const char *end)
{
    size_t length = strlen(name), end_length = strlen(end);
    if (length <= end_length || length > NAME_MAX || name[0] == '.') return false;
    for (const char *c = name; *c != '\0'; c++)
        if (*c == '/' || (unsigned char)*c < ' ' || *c == 127) return false;
    return strcmp(name + length - end_length, end) == 0;
}

char *file_path_expand_home(const char *path)
{
    const char *home = getenv("HOME");
    if (path[0] != '~' || (path[1] != '\0' && path[1] != '/') || home == NULL)
        return mem_strdup(path);
    return mem_printf("%s%s", home, path + 1);
}

const char *file_temporary_directory(void)
{
    const char *directory = getenv("TMPDIR");
    return directory != NULL && directory[0] == '/' ? directory : "/tmp";
}

status_t file_resolve_under(const char *root, const char *path, char **resolved)
{
    AUTO_FREE char *real_root = realpath(root, NULL);
    if (real_root == NULL) return status_from_errno(errno, "cannot resolve the root %s", root);
    AUTO_FREE char *joined = file_path_join(real_root, path);
    AUTO_FREE char *real = realpath(joined, NULL);
    status_t status = NULL;
    size_t length = strlen(real_root);
    if (real == NULL) {
        status = status_from_errno(errno, "cannot resolve %s", joined);
    } else if (strcmp(real_root, "/") != 0 && (strncmp(real, real_root, length) != 0 ||
                                               (real[length] != '\0' && real[length] != '/'))) {
        status = status_new(STATUS_PERMISSION_DENIED, "%s is outside the root %s", path, root);
    } else {
        *resolved = real;
        real = NULL;
    }
    return status;
}
