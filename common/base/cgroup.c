/* Where the kernel keeps this process's control groups; see cgroup.h. */
#include "base/cgroup.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/switches.h"

enum { FILE_MAX = 1 << 20 };

char *cgroup_host_path(const char *path)
{
    const char *root = switch_get("FSDPD_HOST_ROOT");
    return mem_printf("%s%s", root != NULL ? root : "", path);
}

/* The file's text, empty if it cannot be read. */
static char *read_text(const char *path)
{
    AUTO(buf_deinit) struct buf text = {0};
    AUTO_FREE char *file = cgroup_host_path(path);
    status_t status = file_read(file, FILE_MAX, &text);
    char *copy = mem_strdup(status == NULL ? buf_text(&text) : "");
    status_free(status);
    return copy;
}

static const char *next_field(char **rest, const char *delimiter)
{
    const char *field = strsep(rest, delimiter);
    return field != NULL ? field : "";
}

/* Whether the list, separated by commas, has the word. */
static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *item = list; item != NULL; item = strchr(item, ',')) {
        item += *item == ',';
        if (strncmp(item, word, length) == 0 && strchr(",", item[length]) != NULL) return true;
    }
    return false;
}

/* The group's path in the hierarchy that has the controller, or, with NULL, in that of version 2.
 * A line is "4:cpu,cpuacct:/path", of version 2 "0::/path". */
static char *find_path(const char *controller)
{
    AUTO_FREE char *text = read_text("/proc/self/cgroup");
    char *rest = text, *path = NULL;
    for (char *line = strsep(&rest, "\n"); line != NULL && path == NULL;
         line = strsep(&rest, "\n")) {
        next_field(&line, ":");
        const char *controllers = next_field(&line, ":");
        bool found =
            controller != NULL ? has_word(controllers, controller) : controllers[0] == '\0';
        if (found && line != NULL && line[0] == '/') path = mem_strdup(line);
    }
    return path;
}

/* Adds the directories from `path` up to the mount point, which shows the hierarchy from `top` on:
 * in a container that is often a group in the middle, and a path that is not below it is unknown
 * here. */
static void add_groups(struct cgroups *groups, const char *mount, const char *top, const char *path)
{
    size_t length = strcmp(top, "/") == 0 ? 0 : strlen(top);
    bool below = strncmp(path, top, length) == 0 && strchr("/", path[length]) != NULL;
    AUTO_FREE char *relative = mem_strdup(below && strcmp(path, "/") != 0 ? path + length : "");
    for (char *slash = relative; slash != NULL;) {
        AUTO_FREE char *directory = mem_printf("%s%s", mount, relative);
        MEM_GROW(groups->directories, groups->count, groups->capacity);
        groups->directories[groups->count++] = cgroup_host_path(directory);
        slash = strrchr(relative, '/');
        if (slash != NULL) *slash = '\0';
    }
}

/* A line is "31 23 0:28 TOP MOUNT rw,relatime shared:1 - TYPE SOURCE rw,memory". */
static void add_mount(struct cgroups *groups, char *line, const char *controller, const char *path,
                      const char *unified_path)
{
    char *rest = strstr(line, " - ");
    if (rest == NULL) return;
    *rest = '\0';
    rest += strlen(" - ");
    for (int i = 0; i < 3; i++) next_field(&line, " ");
    const char *top = next_field(&line, " "), *mount = next_field(&line, " ");
    const char *type = next_field(&rest, " ");
    next_field(&rest, " ");
    bool has = strcmp(type, "cgroup") == 0 && rest != NULL && has_word(rest, controller);
    if (has && path != NULL) add_groups(groups, mount, top, path);
    if (strcmp(type, "cgroup2") == 0 && unified_path != NULL)
        add_groups(groups, mount, top, unified_path);
}

void cgroups_find(const char *controller, struct cgroups *groups)
{
    AUTO_FREE char *path = find_path(controller), *unified_path = find_path(NULL);
    AUTO_FREE char *text = read_text("/proc/self/mountinfo");
    char *rest = text;
    *groups = (struct cgroups){0};
    for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n"))
        add_mount(groups, line, controller, path, unified_path);
}

void cgroups_deinit(struct cgroups *groups)
{
    for (int i = 0; i < groups->count; i++) free(groups->directories[i]);
    free(groups->directories);
}

bool cgroup_read(const char *directory, const char *name, uint64_t *value)
{
    AUTO_FREE char *path = file_path_join(directory, name);
    AUTO(buf_deinit) struct buf text = {0};
    status_t status = file_read(path, FILE_MAX, &text);
    bool is_number = status == NULL && isdigit((unsigned char)buf_text(&text)[0]);
    status_free(status);
    if (is_number) *value = strtoull(buf_text(&text), NULL, 10);
    return is_number;
}
