/* Files below a root; see beneath.h. */
#include "base/beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

static bool walks;

void beneath_walk_always(bool walk)
{
    walks = walk;
}

/* Where the rest of `path` begins if it is `root` or below it by its letters; NULL if it is not. */
static const char *strip_root(const char *root, const char *path)
{
    size_t length = strlen(root);
    while (length > 0 && root[length - 1] == '/') length--;
    if (strncmp(path, root, length) != 0 || (path[length] != '/' && path[length] != '\0'))
        return NULL;
    path += length;
    while (*path == '/') path++;
    return path;
}

/* "/a/c" from "/a/./b/../c", by its letters alone. */
static char *simplify(const char *path)
{
    char *out = mem_alloc(strlen(path) + 2);
    size_t length = 0;
    while (*path != '\0') {
        size_t part = strcspn(path, "/");
        if (part == 2 && strncmp(path, "..", 2) == 0) {
            while (length > 0 && out[--length] != '/') {}
        } else if (part > 0 && !(part == 1 && *path == '.')) {
            out[length++] = '/';
            memcpy(out + length, path, part);
            length += part;
        }
        path += part + (path[part] == '/');
    }
    if (length == 0) out[length++] = '/';
    out[length] = '\0';
    return out;
}

/* One component after the other, none of which may be a link. */
static int open_walking(int root, const char *relative, int flags)
{
    char *copy = mem_strdup(relative), *rest = copy;
    int at = dup(root), error = at < 0 ? errno : 0;
    while (error == 0 && rest != NULL) {
        char *name = strsep(&rest, "/");
        if (name[0] == '\0' || strcmp(name, ".") == 0) continue;
        int how = rest != NULL ? O_PATH | O_DIRECTORY | O_CLOEXEC : flags;
        int next =
            strcmp(name, "..") == 0 ? (errno = EXDEV, -1) : openat(at, name, how | O_NOFOLLOW);
        if (next < 0) error = errno;
        close(at);
        at = next;
    }
    free(copy);
    if (error == 0) return at;
    errno = error;
    return -1;
}

static int open_relative(int root, const char *relative, int flags)
{
    struct open_how how = {.flags = (unsigned)flags,
                           .resolve =
                               RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS};
    if (relative[0] == '\0') relative = ".";
    long fd = walks ? (errno = ENOSYS, -1) : syscall(SYS_openat2, root, relative, &how, sizeof how);
    /* A filter of system calls that does not know it says EPERM. */
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) return (int)fd;
    if (strcmp(relative, ".") == 0) return openat(root, ".", flags);
    return open_walking(root, relative, flags);
}

/* The path without links, or why not. Of what is outside nothing is told but that it is. */
static status_t resolve(const char *real_root, const char *root, const char *path, char **real)
{
    char *joined = file_path_join(real_root, path);
    char *found = realpath(joined, NULL);
    int error = errno;
    status_t status = NULL;
    if (found == NULL) {
        char *plain = simplify(joined);
        if (strip_root(real_root, plain) != NULL || strip_root(root, plain) != NULL)
            status = status_from_errno(error, "cannot resolve %s", joined);
        free(plain);
    }
    if (status == NULL && (found == NULL || strip_root(real_root, found) == NULL))
        status = status_new(STATUS_PERMISSION_DENIED, "%s is outside the root %s", path, root);
    if (status == NULL) *real = found;
    else free(found);
    free(joined);
    return status;
}

static status_t check_kind(int fd, const char *path, bool directory)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return status_from_errno(errno, "cannot read %s", path);
    if (directory ? S_ISDIR(info.st_mode) : S_ISREG(info.st_mode)) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s is not a %s", path,
                      directory ? "directory" : "regular file");
}

static status_t open_resolved(const char *real_root, const char *real, const char *path,
                              bool directory, int *fd)
{
    int root = open(real_root, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0) return status_from_errno(errno, "cannot open the root %s", real_root);
    /* Not blocking: a pipe under this name must not hold anybody up. */
    int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    int opened = open_relative(root, strip_root(real_root, real), flags);
    int error = errno;
    close(root);
    if (opened < 0 && (error == ELOOP || error == EXDEV || error == EAGAIN))
        return status_new(STATUS_FAILED_PRECONDITION, "%s changed while it was opened", path);
    if (opened < 0) return status_from_errno(error, "cannot open %s", path);
    status_t status = check_kind(opened, path, directory);
    if (status != NULL) close(opened);
    else *fd = opened;
    return status;
}

status_t beneath_open(const char *root, const char *path, bool directory, int *fd)
{
    if (root == NULL) root = "/";
    char *real_root = realpath(root, NULL), *real = NULL;
    if (real_root == NULL) return status_from_errno(errno, "cannot resolve the root %s", root);
    status_t status = resolve(real_root, root, path, &real);
    if (status == NULL) status = open_resolved(real_root, real, path, directory, fd);
    free(real);
    free(real_root);
    return status;
}

status_t beneath_resolve(const char *root, const char *path, char **real)
{
    if (root == NULL) root = "/";
    char *real_root = realpath(root, NULL);
    if (real_root == NULL) return status_from_errno(errno, "cannot resolve the root %s", root);
    status_t status = resolve(real_root, root, path, real);
    free(real_root);
    return status;
}

status_t beneath_read(const char *root, const char *path, size_t limit, struct buf *out)
{
    int fd = -1;
    TRY(beneath_open(root, path, false, &fd));
    status_t status = file_read_descriptor(fd, path, limit, out);
    close(fd);
    return status;
}
