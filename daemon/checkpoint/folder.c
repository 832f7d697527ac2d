/* The directory of a job's checkpoints; see folder.h. */
#include "checkpoint/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/beneath.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/tree.h"

/* "step-000000000100", "step-000000000100-2" */
bool folder_parse_name(const char *name, struct folder_entry *entry)
{
    char *end;
    if (strlen(name) >= FOLDER_NAME_MAX || strncmp(name, "step-", 5) != 0) return false;
    if (strspn(name + 5, "0123456789") != 12) return false;
    *entry = (struct folder_entry){.step = strtoull(name + 5, &end, 10), .number = 1};
    strcpy(entry->name, name);
    if (*end == '\0') return true;
    size_t digits = strspn(end + 1, "0123456789");
    if (*end != '-' || digits == 0 || digits > 6 || end[1 + digits] != '\0') return false;
    entry->number = (uint32_t)strtoul(end + 1, NULL, 10);
    return entry->number > 1;
}

static int newest_first(const void *a, const void *b)
{
    const struct folder_entry *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? 1 : -1;
    return x->number < y->number ? 1 : x->number > y->number ? -1 : 0;
}

/* The directory that holds `path`, which is "DIRECTORY/NAME". */
static status_t open_parent(const char *root, const char *path, int *parent)
{
    AUTO_FREE char *above = file_path_directory(path);
    return beneath_open(root, above, true, parent);
}

static status_t open_below(const char *root, const char *path, bool make, int *fd)
{
    const char *name = strrchr(path, '/') + 1;
    int parent = -1;
    status_t status = open_parent(root, path, &parent);
    if (status != NULL) return status;
    bool made = make && mkdirat(parent, name, 0750) == 0;
    if (make && !made && errno != EEXIST) status = status_from_errno(errno, "cannot make %s", path);
    if (made && fsync(parent) != 0) status = status_from_errno(errno, "cannot sync %s", path);
    if (status == NULL) {
        *fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (*fd < 0 && (errno == ELOOP || errno == ENOTDIR)) {
            status = status_new(STATUS_FAILED_PRECONDITION,
                                "%s is in the way of the job's checkpoints: it is not a directory",
                                path);
            status_set_lacks(status, true);
        } else if (*fd < 0 && (make || errno != ENOENT))
            status = status_from_errno(errno, "cannot open %s", path);
    }
    close(parent);
    return status;
}

static status_t open_own(const char *path, bool make, int *fd)
{
    if (make) TRY(file_make_directory(path, 0750));
    *fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd >= 0 || (!make && errno == ENOENT)) return NULL;
    return status_from_errno(errno, "cannot open %s", path);
}

status_t folder_open(const char *root, const char *path, bool make, struct folder *folder)
{
    int fd = -1;
    TRY(root != NULL ? open_below(root, path, make, &fd) : open_own(path, make, &fd));
    *folder = (struct folder){.fd = fd, .path = mem_strdup(path)};
    return NULL;
}

void folder_close(struct folder *folder)
{
    if (folder->path == NULL) return;
    if (folder->fd >= 0) close(folder->fd);
    free(folder->path);
    *folder = (struct folder){.fd = -1};
}

status_t folder_enter(const struct folder *folder, const char *name, struct folder *entry)
{
    char *path = file_path_join(folder->path, name);
    int fd = -1, error = ENOENT;
    if (folder->fd >= 0) {
        fd = openat(folder->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        error = errno;
    }
    if (fd < 0) {
        status_t status = status_from_errno(error, "cannot open %s", path);
        free(path);
        return status;
    }
    *entry = (struct folder){.fd = fd, .path = path};
    return NULL;
}

status_t folder_list(const struct folder *folder, struct folder_entry **out, int *count)
{
    struct folder_entry *entries = NULL, entry;
    int found = 0, capacity = 0;
    *out = NULL;
    *count = 0;
    if (folder->fd < 0) return NULL;
    int fd = openat(folder->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd >= 0 ? fdopendir(fd) : NULL;
    if (directory == NULL) {
        status_t status = status_from_errno(errno, "cannot list %s", folder->path);
        if (fd >= 0) close(fd);
        return status;
    }
    for (struct dirent *item; errno = 0, (item = readdir(directory)) != NULL;) {
        if (!folder_parse_name(item->d_name, &entry)) continue;
        MEM_GROW(entries, found, capacity);
        entries[found++] = entry;
    }
    int error = errno;
    closedir(directory);
    if (error != 0) {
        free(entries);
        return status_from_errno(error, "cannot list %s", folder->path);
    }
    if (found > 1) qsort(entries, (size_t)found, sizeof *entries, newest_first);
    *out = entries;
    *count = found;
    return NULL;
}

status_t folder_begin(const struct folder *folder, uint32_t attempt, uint64_t number,
                      struct folder *temporary)
{
    AUTO_FREE char *name = mem_printf(UNFINISHED_WRITING "%u-%" PRIu64, attempt, number);
    status_t status = NULL;
    if (mkdirat(folder->fd, name, 0750) != 0 && errno != EEXIST) /* another rank has made it */
        status = status_from_errno(errno, "cannot make %s/%s", folder->path, name);
    if (status == NULL) status = folder_enter(folder, name, temporary);
    return status;
}

/* The next name for the step that is not taken. */
static status_t choose_name(const struct folder *folder, uint64_t step, char **name)
{
    AUTO_FREE struct folder_entry *entries = NULL;
    int count;
    TRY(folder_list(folder, &entries, &count));
    uint32_t number = 1;
    for (int i = 0; i < count; i++)
        if (entries[i].step == step && entries[i].number >= number) number = entries[i].number + 1;
    *name = number == 1 ? mem_printf("step-%012" PRIu64, step)
                        : mem_printf("step-%012" PRIu64 "-%u", step, number);
    return NULL;
}

static status_t sync_folder(const struct folder *folder)
{
    if (fsync(folder->fd) == 0) return NULL;
    return status_from_errno(errno, "cannot sync %s", folder->path);
}

static const char *name_of(const struct folder *entry)
{
    return strrchr(entry->path, '/') + 1;
}

status_t folder_commit(const struct folder *folder, const struct folder *temporary, uint64_t step,
                       char **out)
{
    char *name = NULL;
    TRY(sync_folder(temporary));
    TRY(choose_name(folder, step, &name));
    status_t status = NULL;
    if (renameat(folder->fd, name_of(temporary), folder->fd, name) != 0)
        status = status_from_errno(errno, "cannot rename %s to %s", temporary->path, name);
    if (status == NULL) status = sync_folder(folder);
    if (status == NULL) *out = name;
    else free(name);
    return status;
}

status_t folder_abandon(const struct folder *folder, const struct folder *temporary)
{
    return tree_remove_at(folder->fd, name_of(temporary), temporary->path);
}

status_t folder_remove(const struct folder *folder, const char *name)
{
    AUTO_FREE char *dotted = mem_printf(UNFINISHED_REMOVING "%s", name);
    AUTO_FREE char *path = file_path_join(folder->path, dotted);
    status_t status = NULL;
    if (renameat(folder->fd, name, folder->fd, dotted) != 0 && errno != ENOENT)
        status = status_from_errno(errno, "cannot rename %s/%s to %s", folder->path, name, dotted);
    if (status == NULL) status = tree_remove_at(folder->fd, dotted, path);
    return status;
}
