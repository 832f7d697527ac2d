/*
 * The control groups of this process, of version 1 and 2, as its /proc/self/cgroup and
 * /proc/self/mountinfo place them. With FSDPD_HOST_ROOT, which is for tests, /proc and /sys are
 * those below that directory.
 */
#ifndef FSDPD_BASE_CGROUP_H
#define FSDPD_BASE_CGROUP_H

#include <stdbool.h>
#include <stdint.h>

/* Directories: the process's group, then each enclosing one that is visible here. */
struct cgroups {
    char **directories;
    int count, capacity;
};

/* The path of a file of /proc or /sys; the caller frees it. */
char *cgroup_host_path(const char *path);

/* The groups that have the controller ("memory", "cpu") or may have it; free them. */
void cgroups_find(const char *controller, struct cgroups *groups);
void cgroups_deinit(struct cgroups *groups);

/* The number at the start of a file of the directory; false if there is none ("max", no file). */
bool cgroup_read(const char *directory, const char *name, uint64_t *value);

#endif
