/*
 * Memory and processors of this process; see host_limits.h. A control group's page cache and kernel
 * caches count as its use but are reclaimed when memory is needed, so they count as available here,
 * as in the kernel's own estimate. Files of version 2 come first, then those of version 1.
 */
#include "base/host_limits.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/cgroup.h"
#include "base/file.h"
#include "base/mem.h"

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
