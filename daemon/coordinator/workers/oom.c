/* The kernel's counters of OOM kills; see supervisor.h. */
#include "coordinator/workers/supervisor.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/host.h"
#include "base/mem.h"
#include "base/text.h"

enum { POLL_MS = 1000, EXPLAINS_MS = 60000, FILE_MAX = 1 << 20 };

struct counter {
    char *path;        /* NULL: this system has none */
    int64_t value;     /* last value read; -1: none yet */
    int64_t unclaimed; /* kills that do not explain any worker's end yet */
    int64_t seen_at;   /* when the last kill was counted */
};

struct oom_watch {
    struct counter cgroup, system;
    int64_t polled_at;
};

/* The number that follows `key` at the start of a line; -1 if there is none. */
static int64_t read_count(const char *path, const char *key)
{
    AUTO(buf_deinit) struct buf text = {0};
    int64_t count = -1;
    status_t status = file_read(path, FILE_MAX, &text);
    if (status == NULL) {
        char *copy = mem_strdup(buf_text(&text)), *rest = copy;
        size_t length = strlen(key);
        for (char *line = strsep(&rest, "\n"); line != NULL; line = strsep(&rest, "\n"))
            if (strncmp(line, key, length) == 0 && !text_parse_i64(line + length, &count))
                count = -1;
        free(copy);
    }
    status_free(status);
    return count;
}

/* The file of fsdpd's cgroup (v2); NULL if there is none. The root cgroup has no such file. */
static char *find_cgroup_events(void)
{
    AUTO(cgroups_deinit) struct cgroups groups = {0};
    cgroups_find("memory", &groups);
    return groups.count > 0 ? file_path_join(groups.directories[0], "memory.events") : NULL;
}

static void poll_counter(struct counter *counter, int64_t now)
{
    if (counter->path == NULL) return;
    int64_t value = read_count(counter->path, "oom_kill ");
    if (counter->value >= 0 && value > counter->value) {
        counter->unclaimed += value - counter->value;
        counter->seen_at = now;
    }
    if (value >= 0) counter->value = value;
    if (counter->unclaimed > 0 && now - counter->seen_at > EXPLAINS_MS) counter->unclaimed = 0;
}

static void poll_all(struct oom_watch *watch, int64_t now)
{
    watch->polled_at = now;
    poll_counter(&watch->cgroup, now);
    poll_counter(&watch->system, now);
}

struct oom_watch *oom_watch_new(const struct coordinator_options *options)
{
    struct oom_watch *watch = mem_alloc(sizeof *watch);
    const char *cgroup = options->cgroup_events, *system = options->vmstat;
    watch->cgroup.path = cgroup != NULL ? mem_strdup(cgroup) : find_cgroup_events();
    watch->system.path = mem_strdup(system != NULL ? system : "/proc/vmstat");
    watch->cgroup.value = watch->system.value = -1;
    poll_all(watch, coordinator_now());
    return watch;
}

void oom_watch_free(struct oom_watch *watch)
{
    if (watch == NULL) return;
    free(watch->cgroup.path);
    free(watch->system.path);
    free(watch);
}

void oom_watch_tick(struct oom_watch *watch, int64_t now)
{
    if (now - watch->polled_at >= POLL_MS) poll_all(watch, now);
}

static bool claim(struct counter *counter)
{
    if (counter->unclaimed == 0) return false;
    counter->unclaimed--;
    return true;
}

enum oom_verdict oom_watch_claim(struct oom_watch *watch, int64_t now)
{
    poll_all(watch, now);
    bool system = claim(&watch->system); /* it counts the cgroup's kills, too */
    if (claim(&watch->cgroup)) return OOM_CERTAIN;
    return system ? OOM_LIKELY : OOM_NO;
}
