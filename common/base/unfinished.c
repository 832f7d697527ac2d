/* Directories that were cut off; see unfinished.h. */
#include "base/unfinished.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/tree.h"

static bool begins_with(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

status_t unfinished_sweep(const char *path)
{
    DIR *directory = opendir(path);
    if (directory == NULL)
        return errno == ENOENT ? NULL : status_from_errno(errno, "cannot list %s", path);
    status_t status = NULL;
    for (struct dirent *item; (item = readdir(directory)) != NULL;) {
        if (!begins_with(item->d_name, UNFINISHED_WRITING) &&
            !begins_with(item->d_name, UNFINISHED_REMOVING))
            continue;
        char *entry = file_path_join(path, item->d_name);
        status = status_first(status, tree_remove(entry));
        free(entry);
    }
    closedir(directory);
    return status;
}
