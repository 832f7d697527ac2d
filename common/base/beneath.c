/* Files below a root; see beneath.h. */
#include "base/beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

enum { LINKS_MAX = 40 };

static bool walks;

void beneath_walk_always(bool walk)
{
    walks = walk;
}

/* If `path` lexically is `root` or lies below it, returns its remainder; otherwise NULL. */
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

/* Opens one component after the other; none may be a link. */
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
    /* A system call filter that does not know openat2 returns EPERM. */
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) return (int)fd;
    if (strcmp(relative, ".") == 0) return openat(root, ".", flags);
    return open_walking(root, relative, flags);
}

/* Follows the beginning of an absolute path until it is below the root; returns where the remainder
 * begins, or NULL if it never gets there. ".." is refused on the way: whether it succeeds would
 * reveal what exists outside. */
static char *enter(const char *real_root, const char *path, const char **rest)
{
    for (size_t end = 0;;) {
        end += strspn(path + end, "/");
        size_t part = strcspn(path + end, "/");
        if (part == 0 || (part == 2 && strncmp(path + end, "..", 2) == 0)) return NULL;
        end += part;
        char *prefix = mem_strndup(path, end), *found = realpath(prefix, NULL);
        free(prefix);
        if (found == NULL) return NULL;
        *rest = path + end;
        if (strip_root(real_root, found) != NULL) return found;
        free(found);
    }
}

/* Walks from one component to the next; every place visited is below the root. */
struct walk {
    const char *real_root;
    const char *path; /* the path as given, for errors */
    char *at;         /* the place reached, without links */
    char *rest;       /* what remains to be walked */
    int links;
};

/* Continues with `path`, absolute or not, followed by what remains. False: it leads outside. */
static bool lead(struct walk *walk, const char *path)
{
    AUTO_FREE char *whole = mem_printf("%s%s", path, walk->rest);
    const char *rest = whole;
    if (path[0] == '/') {
        free(walk->at);
        walk->at = enter(walk->real_root, whole, &rest);
    }
    free(walk->rest);
    walk->rest = mem_strdup(rest);
    return walk->at != NULL;
}

static bool go_back(struct walk *walk)
{
    if (strcmp(walk->at, walk->real_root) == 0) return false;
    *strrchr(walk->at, '/') = '\0';
    return true;
}

/* Enters `name`, or what the link leads to. */
static status_t go_to(struct walk *walk, const char *name, bool *outside)
{
    char *next = mem_printf("%s/%s", walk->at, name), target[PATH_MAX];
    struct stat info;
    ssize_t length = 0;
    int error = lstat(next, &info) != 0 ? errno : 0;
    bool link = error == 0 && S_ISLNK(info.st_mode);
    if (link && walk->links++ == LINKS_MAX) error = ELOOP;
    else if (link && (length = readlink(next, target, sizeof target - 1)) < 0) error = errno;
    else if (error == 0 && !link && walk->rest[0] != '\0' && !S_ISDIR(info.st_mode))
        error = ENOTDIR;
    status_t status = NULL;
    if (error && strcmp(next, walk->path) == 0)
        status = status_from_errno(error, "cannot resolve %s", next);
    else if (error) /* an intermediate component, or a link's target */
        status = status_from_errno(error, "cannot resolve %s: %s", walk->path, next);
    if (status == NULL && link) {
        target[length] = '\0';
        *outside = !lead(walk, target);
    } else if (status == NULL) {
        free(walk->at);
        walk->at = next;
        return NULL;
    }
    free(next);
    return status;
}

/*
 * Resolves the path without links. realpath is no alternative: a caller must learn nothing about
 * what is outside, not even what shows only by leaving the root and coming back. So the walk ends
 * where it would leave the root.
 */
static status_t resolve(const char *real_root, const char *root, const char *path, char **real)
{
    AUTO_FREE char *joined = file_path_join(real_root, path);
    if (strcmp(real_root, "/") == 0) { /* everything is inside */
        *real = realpath(joined, NULL);
        return *real == NULL ? status_from_errno(errno, "cannot resolve %s", joined) : NULL;
    }
    struct walk walk = {real_root, joined, mem_strdup(real_root), mem_strdup(""), 0};
    bool outside = !lead(&walk, path);
    status_t status = NULL;
    while (status == NULL && !outside && walk.rest[0] != '\0') {
        size_t begin = strspn(walk.rest, "/"), part = strcspn(walk.rest + begin, "/");
        AUTO_FREE char *name = mem_strndup(walk.rest + begin, part);
        memmove(walk.rest, walk.rest + begin + part, strlen(walk.rest + begin + part) + 1);
        if (strcmp(name, "..") == 0) outside = !go_back(&walk);
        else if (part > 0 && strcmp(name, ".") != 0) status = go_to(&walk, name, &outside);
    }
    if (status == NULL && outside)
        status = status_new(STATUS_PERMISSION_DENIED, "%s is outside the root %s", path, root);
    if (status == NULL) *real = walk.at;
    else free(walk.at);
    free(walk.rest);
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
    /* O_NONBLOCK: a FIFO under this name must not block the open. */
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
    AUTO_FREE char *real_root = realpath(root, NULL), *real = NULL;
    if (real_root == NULL) return status_from_errno(errno, "cannot resolve the root %s", root);
    TRY(resolve(real_root, root, path, &real));
    return open_resolved(real_root, real, path, directory, fd);
}

status_t beneath_resolve(const char *root, const char *path, char **real)
{
    if (root == NULL) root = "/";
    AUTO_FREE char *real_root = realpath(root, NULL);
    if (real_root == NULL) return status_from_errno(errno, "cannot resolve the root %s", root);
    return resolve(real_root, root, path, real);
}

status_t beneath_read(const char *root, const char *path, size_t limit, struct buf *out)
{
    int fd = -1;
    TRY(beneath_open(root, path, false, &fd));
    status_t status = file_read_descriptor(fd, path, limit, out);
    close(fd);
    return status;
}
