/*
 * Memory and processors of this process; see host.h. A control group's page cache and kernel
 * caches count as its use but are reclaimed when memory is needed, so they count as available here,
 * as in the kernel's own estimate. Files of version 2 come first, then those of version 1.
 */
#include "base/host.h"

#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/switches.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The reclaimable part of a group's use, from its memory.stat; 0 if unreadable. In version 1, plain
 * names are without the groups below. */
static uint64_t reclaimable(const char *directory, bool is_v1)
{
    static const char *const names[2][3] = {{"inactive_file", "active_file", "slab_reclaimable"},
                                            {"total_inactive_file", "total_active_file", "-"}};
    uint64_t sum = 0, value;
    char *path = file_path_join(directory, "memory.stat"), line[128], format[64];
    FILE *file = fopen(path, "re");
    free(path);
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        for (size_t i = 0; i < COUNT_OF(names[0]); i++) {
            snprintf(format, sizeof format, "%s %%" SCNu64, names[is_v1][i]);
            if (sscanf(line, format, &value) == 1) sum += value;
        }
    if (file != NULL) fclose(file);
    return sum;
}

/* A group's limit, and what is used of it. */
static uint64_t group_limit(const char *directory, uint64_t *used)
{
    uint64_t limit = UINT64_MAX, high;
    bool is_v1 = cgroup_read(directory, "memory.usage_in_bytes", used);
    if (!is_v1 && !cgroup_read(directory, "memory.current", used)) return UINT64_MAX;
    cgroup_read(directory, is_v1 ? "memory.limit_in_bytes" : "memory.max", &limit);
    if (!is_v1 && cgroup_read(directory, "memory.high", &high)) limit = least(limit, high);
    *used -= least(*used, reclaimable(directory, is_v1));
    return limit;
}

/* The least limit, and the least that is left of one. */
static uint64_t groups_limit(uint64_t *available)
{
    AUTO(cgroups_deinit) struct cgroups groups = {0};
    uint64_t limit = UINT64_MAX, used = 0;
    *available = UINT64_MAX;
    cgroups_find("memory", &groups);
    for (int i = 0; i < groups.count; i++) {
        uint64_t one = group_limit(groups.directories[i], &used);
        if (one == UINT64_MAX) continue;
        limit = least(limit, one);
        *available = least(*available, one - least(one, used));
    }
    return limit;
}

/* A figure of /proc/meminfo; what the C library says of the whole if it cannot be read. */
static uint64_t read_meminfo(const char *key)
{
    uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    AUTO_FREE char *path = cgroup_host_path("/proc/meminfo");
    AUTO_FREE char *format = mem_printf("%s: %%" SCNu64 " kB", key);
    FILE *file = fopen(path, "re");
    char line[256];
    uint64_t kibibytes;
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, format, &kibibytes) == 1) bytes = kibibytes * 1024;
    if (file != NULL) fclose(file);
    return bytes;
}

uint64_t host_memory_available(void)
{
    uint64_t available;
    groups_limit(&available);
    return least(read_meminfo("MemAvailable"), available);
}

uint64_t host_memory_most(void)
{
    uint64_t available;
    return least(groups_limit(&available), read_meminfo("MemTotal"));
}

/* The processors that a group's quota is worth; UINT64_MAX: all. */
static uint64_t group_processors(const char *directory)
{
    AUTO(buf_deinit) struct buf text = {0};
    AUTO_FREE char *path = file_path_join(directory, "cpu.max");
    uint64_t quota = 0, period = 0;
    status_t status = file_read(path, 4096, &text);
    if (status == NULL) sscanf(buf_text(&text), "%" SCNu64 " %" SCNu64, &quota, &period);
    else if (!cgroup_read(directory, "cpu.cfs_quota_us", &quota) ||
             !cgroup_read(directory, "cpu.cfs_period_us", &period))
        quota = 0;
    status_free(status);
    return quota > 0 && period > 0 ? (quota + period - 1) / period : UINT64_MAX;
}

int host_processors(void)
{
    AUTO(cgroups_deinit) struct cgroups groups = {0};
    cpu_set_t set;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t count = online > 0 ? (uint64_t)online : 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) count = (uint64_t)CPU_COUNT(&set);
    cgroups_find("cpu", &groups);
    for (int i = 0; i < groups.count; i++)
        count = least(count, group_processors(groups.directories[i]));
    return (int)count;
}

/* ---- host ---- */

char *host_name(char name[static HOST_NAME_SIZE])
{
    memset(name, 0, HOST_NAME_SIZE);
    if (gethostname(name, HOST_NAME_SIZE - 1) != 0 || name[0] == '\0') strcpy(name, "localhost");
    for (unsigned char *c = (unsigned char *)name; *c != '\0'; c++)
        if (*c <= ' ' || *c >= 0x7f || *c == '/') *c = '-';
    return name;
}

char *host_processor(void)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256], *name = NULL;
    while (file != NULL && name == NULL && fgets(line, sizeof line, file) != NULL) {
        char *colon = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (colon == NULL) continue;
        colon[strcspn(colon, "\n")] = '\0';
        name = mem_strdup(colon + 1 + strspn(colon + 1, " "));
    }
    if (file != NULL) fclose(file);
    char *text = mem_printf("%s, %d processors", name != NULL ? name : "unknown processor",
                            host_processors());
    free(name);
    return text;
}

/* ---- resident ---- */

void resident_reset_peak(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (write(fd, "5", 1) != 1) { /* the peak stays that of the process's life */
    }
    close(fd);
}

uint64_t resident_peak_bytes(void)
{
    uint64_t kibibytes = 0;
    char line[256];
    FILE *file = fopen("/proc/self/status", "re");
    if (file == NULL) return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmHWM: %" SCNu64, &kibibytes) == 1) break;
    fclose(file);
    return kibibytes * 1024;
}

void resident_return_freed(void)
{
    /* Fixed, these do not grow with what is freed. */
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
    mallopt(M_TRIM_THRESHOLD, 256 << 10);
}

/* ---- cgroup ---- */

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
