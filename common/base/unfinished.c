/* Directories left unfinished; see unfinished.h. */
#include "base/unfinished.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/tree.h"

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
