/* Removal of directory trees; see tree.h. */
#include "base/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

enum { DEPTH_MAX = 64 };

/* Takes ownership of `fd`, a directory. */
static status_t empty(int fd, const char *path, int depth)
{
    DIR *directory = fdopendir(fd);
    if (directory == NULL) {
        status_t status = status_from_errno(errno, "cannot list %s", path);
        close(fd);
        return status;
    }
    status_t status = NULL;
    for (struct dirent *item; (item = readdir(directory)) != NULL;) {
        const char *name = item->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        if (unlinkat(dirfd(directory), name, 0) == 0 || errno == ENOENT) continue;
        if (errno != EISDIR && errno != EPERM) {
            status =
                status_first(status, status_from_errno(errno, "cannot remove %s/%s", path, name));
            continue;
        }
        int below = openat(dirfd(directory), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (below < 0 || depth == 0) {
            status = status_first(status, status_from_errno(below < 0 ? errno : ELOOP,
                                                            "cannot remove %s/%s", path, name));
            if (below >= 0) close(below);
            continue;
        }
        status = status_first(status, empty(below, path, depth - 1));
        if (unlinkat(dirfd(directory), name, AT_REMOVEDIR) != 0 && errno != ENOENT)
            status =
                status_first(status, status_from_errno(errno, "cannot remove %s/%s", path, name));
    }
    closedir(directory);
    return status;
}

status_t tree_remove_at(int parent, const char *name, const char *path)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return NULL;
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        return unlinkat(parent, name, 0) == 0 || errno == ENOENT
                   ? NULL
                   : status_from_errno(errno, "cannot remove %s", path);
    if (fd < 0) return status_from_errno(errno, "cannot open %s", path);
    status_t status = empty(fd, path, DEPTH_MAX);
    if (unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        status = status_first(status, status_from_errno(errno, "cannot remove %s", path));
    return status;
}

status_t tree_remove(const char *path)
{
    return tree_remove_at(AT_FDCWD, path, path);
}

/* ---- unfinished ---- */

static bool begins_with(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

status_t unfinished_sweep_at(int fd, const char *path)
{
    int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = own >= 0 ? fdopendir(own) : NULL;
    if (directory == NULL) {
        status_t failed = status_from_errno(errno, "cannot list %s", path);
        if (own >= 0) close(own);
        return failed;
    }
    status_t status = NULL;
    for (struct dirent *item; errno = 0, (item = readdir(directory)) != NULL;) {
        if (!begins_with(item->d_name, UNFINISHED_WRITING) &&
            !begins_with(item->d_name, UNFINISHED_REMOVING))
            continue;
        AUTO_FREE char *entry = file_path_join(path, item->d_name);
        status = status_first(status, tree_remove_at(own, item->d_name, entry));
    }
    if (errno != 0) status = status_first(status, status_from_errno(errno, "cannot list %s", path));
    closedir(directory);
    return status;
}

status_t unfinished_sweep(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? NULL : status_from_errno(errno, "cannot list %s", path);
    status_t status = unfinished_sweep_at(fd, path);
    close(fd);
    return status;
}
