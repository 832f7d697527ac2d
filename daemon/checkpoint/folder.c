/* The directory of a job's checkpoints; see folder.h. */
#include "checkpoint/folder.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/tree.h"
#include "base/unfinished.h"

/* "step-000000000100", "step-000000000100-2" */
static bool parse_name(const char *name, struct folder_entry *entry)
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

status_t folder_list(const char *folder, struct folder_entry **out, int *count)
{
    struct folder_entry *entries = NULL, entry;
    int found = 0, capacity = 0;
    DIR *directory = opendir(folder);
    if (directory == NULL && errno != ENOENT)
        return status_from_errno(errno, "cannot list %s", folder);
    for (struct dirent *item; directory != NULL && (item = readdir(directory)) != NULL;) {
        if (!parse_name(item->d_name, &entry)) continue;
        MEM_GROW(entries, found, capacity);
        entries[found++] = entry;
    }
    if (directory != NULL) closedir(directory);
    if (found > 1) qsort(entries, (size_t)found, sizeof *entries, newest_first);
    *out = entries;
    *count = found;
    return NULL;
}

status_t folder_begin(const char *folder, uint32_t attempt, uint64_t number, char **temporary)
{
    TRY(file_make_directory(folder, 0750));
    char *path = mem_printf("%s/" UNFINISHED_WRITING "%u-%" PRIu64, folder, attempt, number);
    if (mkdir(path, 0750) != 0 && errno != EEXIST) {
        status_t status = status_from_errno(errno, "cannot make %s", path);
        free(path);
        return status;
    }
    *temporary = path;
    return NULL;
}

/* The next name for the step that is not taken. */
static status_t choose_name(const char *folder, uint64_t step, char **name)
{
    struct folder_entry *entries;
    int count;
    TRY(folder_list(folder, &entries, &count));
    uint32_t number = 1;
    for (int i = 0; i < count; i++)
        if (entries[i].step == step && entries[i].number >= number) number = entries[i].number + 1;
    free(entries);
    *name = number == 1 ? mem_printf("step-%012" PRIu64, step)
                        : mem_printf("step-%012" PRIu64 "-%u", step, number);
    return NULL;
}

status_t folder_commit(const char *folder, const char *temporary, uint64_t step, char **out)
{
    char *name = NULL;
    TRY(tree_sync_directory(temporary));
    TRY(choose_name(folder, step, &name));
    char *path = file_path_join(folder, name);
    status_t status = NULL;
    if (rename(temporary, path) != 0)
        status = status_from_errno(errno, "cannot rename %s to %s", temporary, path);
    if (status == NULL) status = tree_sync_directory(folder);
    free(path);
    if (status == NULL) *out = name;
    else free(name);
    return status;
}

status_t folder_remove(const char *folder, const char *name)
{
    char *path = file_path_join(folder, name);
    char *dotted = mem_printf("%s/" UNFINISHED_REMOVING "%s", folder, name);
    status_t status = NULL;
    if (rename(path, dotted) != 0 && errno != ENOENT)
        status = status_from_errno(errno, "cannot rename %s to %s", path, dotted);
    if (status == NULL) status = tree_remove(dotted);
    free(dotted);
    free(path);
    return status;
}
