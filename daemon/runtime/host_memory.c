/*
 * Memory that this host can still give to a worker: the kernel's estimate for new workloads,
 * limited to the remainder under the control groups of this process. A group's page cache and
 * kernel caches count as its use but are reclaimed when memory is needed, so they count as
 * available here, as in the kernel's own estimate. Reads only /proc and /sys.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "runtime/device_table.h"

/* The number in a one-line file; false for "max", a missing file or anything else. */
static bool read_number(const char *directory, const char *name, uint64_t *value)
{
    AUTO_FREE char *path = file_path_join(directory, name);
    AUTO(buf_deinit) struct buf text = {0};
    status_t status = file_read(path, 4096, &text);
    char *end = NULL;
    uint64_t number = status == NULL ? strtoull(buf_text(&text), &end, 10) : 0;
    bool good = status == NULL && end != buf_text(&text);
    status_free(status);
    if (good) *value = number;
    return good;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The reclaimable part of a group's use, from its memory.stat; 0 if unreadable. */
static uint64_t reclaimable(const char *directory)
{
    static const char *const names[] = {"inactive_file", "active_file", "slab_reclaimable"};
    uint64_t sum = 0, value;
    char *path = file_path_join(directory, "memory.stat"), line[128], format[64];
    FILE *file = fopen(path, "re");
    free(path);
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        for (size_t i = 0; i < COUNT_OF(names); i++) {
            snprintf(format, sizeof format, "%s %%" SCNu64, names[i]);
            if (sscanf(line, format, &value) == 1) sum += value;
        }
    if (file != NULL) fclose(file);
    return sum;
}

static uint64_t group_available(const char *directory)
{
    uint64_t limit, used;
    if (!read_number(directory, "memory.max", &limit) ||
        !read_number(directory, "memory.current", &used))
        return UINT64_MAX;
    used -= least(used, reclaimable(directory));
    return limit > used ? limit - used : 0;
}

/* The memory left in this process's (version 2) control group and all enclosing groups. */
static uint64_t control_group_available(const char *root)
{
    uint64_t available = UINT64_MAX;
    AUTO(buf_deinit) struct buf text = {0};
    AUTO_FREE char *file = mem_printf("%s/proc/self/cgroup", root);
    status_t status = file_read(file, 64 * 1024, &text);
    const char *line = status == NULL ? strstr(buf_text(&text), "0::/") : NULL;
    status_free(status);
    if (line != NULL) {
        AUTO_FREE char *path = mem_strndup(line + 3, strcspn(line + 3, "\n"));
        for (;;) {
            AUTO_FREE char *directory = mem_printf("%s/sys/fs/cgroup%s", root, path);
            available = least(available, group_available(directory));
            char *slash = strrchr(path, '/');
            if (slash == NULL || path[1] == '\0') break;
            slash[slash == path ? 1 : 0] = '\0';
        }
    }
    return available;
}

uint64_t host_memory_available_in(const char *root)
{
    uint64_t available = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    AUTO_FREE char *path = mem_printf("%s/proc/meminfo", root);
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        char line[256];
        uint64_t kibibytes;
        while (fgets(line, sizeof line, file) != NULL)
            if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kibibytes) == 1)
                available = kibibytes * 1024;
        fclose(file);
    }
    return least(available, control_group_available(root));
}

uint64_t host_memory_available(void)
{
    return host_memory_available_in("");
}
