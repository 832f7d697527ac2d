/* Reading a checkpoint's weights; see checkpoint_reader.h. */
#include "coordinator/checkpoint_reader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/export.h"
#include "coordinator/checkpoint_dirs.h"

/* What one part reads to verify, so that several readers share the threads. */
enum { VERIFY_BYTES = 16 << 20, STEPS_TOLD = 16 };

struct checkpoint_reader {
    char *job, *run;
    char *directory; /* the job's own setting; NULL: fsdpd's */
    char *path;      /* of what holds the checkpoints */
    char **roots;    /* that `directory` may be below */
    int root_count;
    uint64_t step; /* asked for; 0: the newest */
    status_t none;

    struct export *export; /* NULL: not open */
    bool verified;
    char *name; /* of its directory in `path` */
    Fsdpd__V1__Checkpoint found;
};

struct checkpoint_reader *checkpoint_reader_new(const struct coordinator *c, const job_message *job,
                                                uint64_t step, status_t none)
{
    struct checkpoint_reader *reader = mem_alloc(sizeof *reader);
    const Fsdpd__V1__CheckpointSpec *spec = job->spec->checkpoint;
    bool own = spec == NULL || spec->directory[0] == '\0';
    reader->job = mem_strdup(job->id);
    reader->run = checkpoint_dirs_run(job);
    reader->step = step;
    reader->none = none;
    fsdpd__v1__checkpoint__init(&reader->found);
    if (own) {
        reader->path = coordinator_job_path(c, job->id, "checkpoints");
        return reader;
    }
    reader->directory = mem_strdup(spec->directory);
    reader->path = mem_printf("%s/%s", spec->directory, reader->run);
    reader->root_count = c->options.data_root_count;
    reader->roots = mem_alloc_array((size_t)reader->root_count + 1, sizeof *reader->roots);
    for (int i = 0; i < reader->root_count; i++)
        reader->roots[i] = mem_strdup(c->options.data_roots[i]);
    return reader;
}

void checkpoint_reader_free(struct checkpoint_reader *reader)
{
    if (reader == NULL) return;
    export_free(reader->export);
    for (int i = 0; i < reader->root_count; i++) free(reader->roots[i]);
    free(reader->roots);
    if (reader->name != NULL) free(reader->found.path);
    free(reader->name);
    free(reader->job);
    free(reader->run);
    free(reader->directory);
    free(reader->path);
    status_free(reader->none);
    free(reader);
}

const Fsdpd__V1__Checkpoint *checkpoint_reader_found(const struct checkpoint_reader *reader)
{
    return reader->export != NULL ? &reader->found : NULL;
}

uint64_t checkpoint_reader_bytes(const struct checkpoint_reader *reader)
{
    return reader->export != NULL ? export_bytes(reader->export) : 0;
}

/* A directory of the job's own setting is below one of the data roots, if this host has it. */
static status_t open_folder(const struct checkpoint_reader *reader, struct folder *folder)
{
    if (reader->directory == NULL) return folder_open(NULL, reader->path, false, folder);
    status_t status = NULL;
    for (int i = 0; i < reader->root_count; i++) {
        status_free(status);
        status = folder_open(reader->roots[i], reader->path, false, folder);
        if (status == NULL) return NULL;
    }
    status_t wrapped = status_new(STATUS_FAILED_PRECONDITION,
                                  "the checkpoints of job %s are in its checkpoint.directory %s, "
                                  "which fsdpd's host does not have below a data root: %s",
                                  reader->job, reader->directory,
                                  status != NULL ? status_message(status) : "it has none");
    status_free(status);
    return wrapped;
}

/* Whether `entry` may be what is looked for; *saved is then open, or *damage says why not. */
static bool try_entry(const struct checkpoint_reader *reader, const struct folder *folder,
                      const struct folder_entry *entry, struct saved **saved, status_t *damage)
{
    *damage = saved_open(folder, entry->name, EXPORT_MANIFEST_MAX, saved);
    if (*damage != NULL) return true; /* it might be ours */
    if (strcmp(saved_manifest(*saved)->run, reader->run) == 0) return true;
    saved_free(*saved); /* another job's of the same name, in a directory that is shared */
    *saved = NULL;
    return false;
}

/* "4, 8, 12": other checkpoints that could be asked for. */
static char *list_steps(const struct folder_entry *entries, int count, uint64_t but)
{
    struct buf text = {0};
    int told = 0;
    for (int i = count - 1; i >= 0 && told < STEPS_TOLD; i--) {
        if (entries[i].step == but || (i + 1 < count && entries[i].step == entries[i + 1].step))
            continue;
        buf_printf(&text, "%s%" PRIu64, told++ > 0 ? ", " : "", entries[i].step);
    }
    return buf_take(&text);
}

static status_t with_steps(status_t status, const struct folder_entry *entries, int count,
                           uint64_t but)
{
    char *steps = list_steps(entries, count, but);
    if (status != NULL && steps[0] != '\0') {
        status_t longer = status_new(status_code(status), "%s; there are checkpoints of step %s",
                                     status_message(status), steps);
        status_free(status);
        status = longer;
    }
    free(steps);
    return status;
}

static void note_found(struct checkpoint_reader *reader, const struct folder_entry *entry)
{
    const struct manifest *manifest = export_manifest(reader->export);
    reader->name = mem_strdup(entry->name);
    reader->found.path = file_path_join(reader->path, entry->name);
    reader->found.step = manifest->progress.step;
    reader->found.bytes = manifest_bytes(manifest);
    reader->found.world = (uint32_t)manifest->world;
    reader->found.time_ms = manifest->time_ms;
    reader->found.attempt = manifest->attempt;
}

/* Newest first. What is damaged is not passed over: weights of another step than one thinks are
 * worse than none. */
static status_t choose(struct checkpoint_reader *reader, const struct folder *folder,
                       const struct folder_entry *entries, int count)
{
    bool any = false;
    for (int i = 0; i < count; i++) {
        struct saved *saved = NULL;
        status_t damage = NULL;
        if (reader->step != 0 && entries[i].step != reader->step) {
            any = true;
            continue;
        }
        if (!try_entry(reader, folder, &entries[i], &saved, &damage)) continue;
        status_t status = damage;
        if (status == NULL) status = export_new(saved, &reader->export);
        if (status == NULL) note_found(reader, &entries[i]);
        return with_steps(status, entries, count, entries[i].step);
    }
    if (!any) return status_copy(reader->none);
    return with_steps(status_new(STATUS_NOT_FOUND, "job %s has no checkpoint of step %" PRIu64,
                                 reader->job, reader->step),
                      entries, count, reader->step);
}

static status_t find(struct checkpoint_reader *reader)
{
    struct folder folder;
    struct folder_entry *entries;
    int count;
    TRY(open_folder(reader, &folder));
    status_t status = folder_list(&folder, &entries, &count);
    if (status == NULL) {
        status = choose(reader, &folder, entries, count);
        free(entries);
    }
    folder_close(&folder);
    return status;
}

/* What is not there any more is not damaged: a newer one took its place, or the job was removed. */
static status_t explain(const struct checkpoint_reader *reader, status_t status)
{
    struct folder folder, entry;
    if (status_code(status) != STATUS_DATA_LOSS) return status;
    status_t gone = open_folder(reader, &folder);
    if (gone == NULL) {
        gone = folder_enter(&folder, reader->name, &entry);
        if (gone == NULL) folder_close(&entry);
        folder_close(&folder);
    }
    bool removed = status_code(gone) == STATUS_NOT_FOUND;
    status_free(gone);
    if (!removed) return status;
    status_free(status);
    return status_new(STATUS_ABORTED,
                      "the checkpoint of step %" PRIu64 " of job %s was removed while it was read",
                      reader->found.step, reader->job);
}

status_t checkpoint_reader_work(struct checkpoint_reader *reader, void *chunk, size_t size,
                                size_t *count)
{
    *count = 0;
    if (reader->export == NULL) return find(reader);
    status_t status = reader->verified
                          ? export_read(reader->export, chunk, size, count)
                          : export_verify(reader->export, VERIFY_BYTES, &reader->verified);
    return explain(reader, status);
}
