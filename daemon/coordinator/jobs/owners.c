/* Users who own jobs; see owners.h. */
#include "coordinator/jobs/owners.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"
#include "coordinator/jobs/jobs.h"

struct job_owner *owners_get(struct coordinator *c, const char *name)
{
    for (int i = 0; i < c->owner_count; i++)
        if (strcmp(c->owners[i]->name, name) == 0) return c->owners[i];
    struct job_owner *owner = mem_alloc(sizeof *owner);
    *owner = (struct job_owner){.name = mem_strdup(name)};
    MEM_GROW(c->owners, c->owner_count, c->owner_capacity);
    return c->owners[c->owner_count++] = owner;
}

void owners_free(struct coordinator *c)
{
    for (int i = 0; i < c->owner_count; i++) {
        free(c->owners[i]->name);
        free(c->owners[i]);
    }
    free(c->owners);
    c->owners = NULL;
    c->owner_count = c->owner_capacity = 0;
}

/* ---- what is kept ---- */

struct kept_sum {
    const char *directory;
    double bytes;
};

/* Those in a directory that the job's settings name are the user's own. */
static status_t add_checkpoint(void *user, const Fsdpd__V1__Checkpoint *checkpoint)
{
    struct kept_sum *sum = user;
    size_t length = strlen(sum->directory);
    if (strncmp(checkpoint->path, sum->directory, length) == 0 && checkpoint->path[length] == '/')
        sum->bytes += (double)checkpoint->bytes;
    return NULL;
}

double owners_kept_by(struct coordinator *c, const char *id)
{
    AUTO_FREE char *directory = coordinator_job_directory(c, id);
    AUTO_FREE char *weights = coordinator_state_dict_path(c, id);
    struct kept_sum sum = {.directory = directory};
    struct stat info;
    log_status(LOG_WARNING, "store_failed",
               store_each_checkpoint(c->store, id, add_checkpoint, &sum));
    return sum.bytes + (stat(weights, &info) == 0 ? (double)info.st_size : 0);
}

/* Whether it ended in this turn, at the end of which it is counted. */
static bool is_ending(const struct coordinator *c, const char *id)
{
    for (int i = 0; i < c->ended_count; i++)
        if (c->ended[i]->over && strcmp(c->ended[i]->message->id, id) == 0) return true;
    return false;
}

static void count_one(void *user, const char *id, const char *name)
{
    struct coordinator *c = user;
    if (!is_ending(c, id)) owners_get(c, name)->kept_bytes += owners_kept_by(c, id);
}

void owners_count_kept(struct coordinator *c)
{
    if (c->kept_counted) return;
    status_t status = store_each_owner(c->store, count_one, c);
    c->kept_counted = status == NULL;
    for (int i = 0; i < c->owner_count && status != NULL; i++) c->owners[i]->kept_bytes = 0;
    log_status(LOG_WARNING, "store_failed", status);
}

void owners_note_kept(struct coordinator *c, const job_message *job, int sign)
{
    if (c->kept_counted) owners_get(c, job->owner)->kept_bytes += sign * owners_kept_by(c, job->id);
}
