/*
 * What this process may use of its host: the kernel's figures, and the least that any of its
 * control groups allows. Every call reads them again, since limits change.
 */
#ifndef FSDPD_BASE_HOST_H
#define FSDPD_BASE_HOST_H

#include <stdbool.h>
#include <stdint.h>

/* Memory in bytes that processes can still get without swapping: MemAvailable, or what the control
 * groups leave. */
uint64_t host_memory_available(void);

/* Memory in bytes if nothing used any: the host's, or the least limit of a control group. */
uint64_t host_memory_most(void);

/* Processors: those of this process's affinity, or the least quota of a control group, rounded up;
 * at least 1. */
int host_processors(void);

/* This host's name, as used in ids and file names, and its processor. */

enum { HOST_NAME_SIZE = 65 };

/* Writes the name to `name` and returns it: "localhost" if the host has none. Blanks, slashes and
 * non-ASCII bytes become "-". */
char *host_name(char name[static HOST_NAME_SIZE]);

/* "Intel(R) Xeon(R) Platinum 8481C CPU, 8 processors": the first one's model, and how many of
 * them this process may use. The caller frees it. */
char *host_processor(void);

/* The resident set of this process: the memory that it occupies, code and shared memory included.
 */

/* From now on, the peak is that of the time since. Without the right to do so the peak remains that
 * of the process's life. */
void resident_reset_peak(void);

uint64_t resident_peak_bytes(void); /* 0: unknown */

/* For a process whose jobs come one after the other: the allocator returns large memory to the
 * system when it is freed, whichever thread had it. Without this, glibc keeps tens of MB. Call it
 * before other threads exist. */
void resident_return_freed(void);

/*
 * The control groups of this process, of version 1 and 2, as its /proc/self/cgroup and
 * /proc/self/mountinfo place them. With FSDPD_HOST_ROOT, which is for tests, /proc and /sys are
 * those below that directory.
 */

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
