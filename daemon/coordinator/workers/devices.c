/* Known devices; see planner.h. On the loop's thread. */
#include "coordinator/workers/planner.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "coordinator/workers/kept_profiles.h"

enum {
    KINDS_MAX = 4,
    JOBS_READ = 64, /* the newest, in search of a worker's plan */
};

struct known_device {
    char kind[16];
    char profile[48];
    uint64_t memory_bytes;
};

/* The last one first, one of each kind. */
struct known_devices {
    struct known_device devices[KINDS_MAX];
    int count;
    bool read; /* the store's jobs */
};

static struct known_devices *get(struct coordinator *c)
{
    if (c->known_devices == NULL) {
        c->known_devices = mem_alloc(sizeof *c->known_devices);
        *c->known_devices = (struct known_devices){0};
    }
    return c->known_devices;
}

/* The place of the kind's device; the count if there is none. */
static int find(const struct known_devices *known, const char *kind)
{
    int at = 0;
    while (at < known->count && kind[0] != '\0' && strcmp(known->devices[at].kind, kind) != 0) at++;
    return at;
}

/* Inserts the plan's device at `to`, in place of the one that is at `from`. */
static void put(struct known_devices *known, int from, int to, const char *kind,
                const Fsdpd__V1__Plan *plan)
{
    struct known_device device = {.memory_bytes = plan->device_memory_bytes};
    if (from == KINDS_MAX || kind[0] == '\0' || strlen(kind) >= sizeof device.kind) return;
    if (plan->device[0] == '\0' || strlen(plan->device) >= sizeof device.profile) return;
    strcpy(device.kind, kind);
    strcpy(device.profile, plan->device);
    if (from == known->count) known->count++;
    memmove(&known->devices[to + 1], &known->devices[to], (size_t)(from - to) * sizeof device);
    known->devices[to] = device;
}

void devices_note(struct coordinator *c, const char *kind, const Fsdpd__V1__Plan *plan)
{
    struct known_devices *known = get(c);
    put(known, find(known, kind), 0, kind, plan);
}

struct devices_reading {
    struct coordinator *c;
    int left;
};

/* The newest job comes first; what was noted since the start is newer. */
static bool read_job(void *user, const char *id)
{
    struct devices_reading *reading = user;
    struct known_devices *known = reading->c->known_devices;
    job_message *job = NULL;
    status_free(store_get_job(reading->c->store, id, &job)); /* a damaged one: the next */
    if (job != NULL && job->plan != NULL && !job->plan->offline &&
        find(known, job->spec->device) == known->count)
        put(known, known->count, known->count, job->spec->device, job->plan);
    message_free(job);
    return --reading->left > 0;
}

static void read_store(struct coordinator *c)
{
    struct known_devices *known = get(c);
    if (known->read || c->store == NULL) return;
    known->read = true;
    status_free(
        store_each_id(c->store, read_job, &(struct devices_reading){.c = c, .left = JOBS_READ}));
}

const char *devices_find(struct coordinator *c, const char *kind, struct offline_devices *devices)
{
    const struct coordinator_options *options = &c->options;
    *devices = (struct offline_devices){.profile = options->profile};
    if (options->profile != NULL && (kind[0] == '\0' || strcmp(kind, options->profile_kind) == 0))
        return "the configured profile";
    read_store(c);
    const struct known_devices *known = get(c);
    int at = find(known, kind);
    const struct known_device *device = at < known->count ? &known->devices[at] : NULL;
    const struct kept_profile *kept = kept_profiles_newest(c, device != NULL ? device->kind : kind);
    devices->memory_bytes = device != NULL ? device->memory_bytes : 0;
    if (kept != NULL) {
        devices->profile = kept->path;
        return "the newest profile that was measured";
    }
    devices->profile = device != NULL ? device->profile : NULL;
    return device != NULL ? "the device of the last worker that planned a job" : "";
}

void devices_free(struct coordinator *c)
{
    free(c->known_devices);
    c->known_devices = NULL;
}
