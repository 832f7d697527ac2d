/* Reading a checkpoint's weights; see checkpoint_reader.h. */
#include "coordinator/calls/checkpoint_reader.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/export.h"
#include "coordinator/jobs/checkpoint_place.h"
#include "proto/message.h"

enum { STEPS_LISTED = 16 };

struct checkpoint_reader {
    char *job, *run;
    char *directory; /* the job's own setting; NULL: fsdpd's */
    char *path;      /* of the directory that holds the checkpoints */
    char **roots;    /* allowed parents of `directory` */
    int root_count;
    uint64_t step; /* requested; 0: the newest */
    bool average;  /* of its weights, in their place */
    status_t none;

    struct export *export; /* NULL: not open */
    bool verified;
    bool passes;    /* over damaged ones */
    uint64_t below, passed; /* steps of the last one that was tried, and passed over; 0: none */
    char *name; /* of its directory in `path` */
    Fsdpd__V1__Checkpoint found;
    Google__Protobuf__Timestamp found_time;
};

struct checkpoint_reader *checkpoint_reader_new(const struct coordinator *c, const job_message *job,
                                                uint64_t step, bool average, status_t none)
{
    struct checkpoint_reader *reader = mem_alloc(sizeof *reader);
    const Fsdpd__V1__CheckpointSpec *spec = job->spec->checkpoint;
    bool own = spec == NULL || spec->directory[0] == '\0';
    reader->job = mem_strdup(job->id);
    reader->run = checkpoint_dirs_run(job);
    reader->step = step;
    reader->average = average;
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

static void close_entry(struct checkpoint_reader *reader)
{
    export_free(reader->export);
    reader->export = NULL;
    if (reader->name != NULL) free(reader->found.path);
    free(reader->name);
    reader->name = NULL;
}

void checkpoint_reader_free(struct checkpoint_reader *reader)
{
    if (reader == NULL) return;
    close_entry(reader);
    for (int i = 0; i < reader->root_count; i++) free(reader->roots[i]);
    free(reader->roots);
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

/* Opens the checkpoint directory. One that the job's own settings name must be below one of the
 * data roots, on this host. */
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

/* Lists the steps of other available checkpoints: "4, 8, 12". */
static char *list_steps(const struct folder_entry *entries, int count, uint64_t except)
{
    struct buf text = {0};
    int listed = 0;
    for (int i = count - 1; i >= 0 && listed < STEPS_LISTED; i--) {
        if (entries[i].step == except || (i + 1 < count && entries[i].step == entries[i + 1].step))
            continue;
        buf_printf(&text, "%s%" PRIu64, listed++ > 0 ? ", " : "", entries[i].step);
    }
    return buf_take(&text);
}

static status_t with_steps(status_t status, const struct folder_entry *entries, int count,
                           uint64_t except)
{
    AUTO_FREE char *steps = list_steps(entries, count, except);
    if (status != NULL && steps[0] != '\0') {
        status_t longer = status_new(status_code(status), "%s; available checkpoints: step %s",
                                     status_message(status), steps);
        status_free(status);
        status = longer;
    }
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
    reader->found.time = message_time(&reader->found_time, manifest->time_ms);
    reader->found.attempt = manifest->attempt;
}

static status_t open_entry(struct checkpoint_reader *reader, const struct folder *folder,
                           const struct folder_entry *entry)
{
    struct saved *saved = NULL;
    TRY(saved_open(folder, entry->name, EXPORT_MANIFEST_MAX, &saved));
    status_t status = saved_check_run(saved, reader->run);
    if (status != NULL) {
        saved_free(saved);
        return status;
    }
    TRY(export_new(saved, reader->average, &reader->export));
    note_found(reader, entry);
    return NULL;
}

/* Newest first. A checkpoint that is damaged or belongs to another run is an error, not skipped:
 * weights of an unexpected step are worse than none. */
static status_t choose(struct checkpoint_reader *reader, const struct folder *folder,
                       const struct folder_entry *entries, int count)
{
    bool any = false;
    for (int i = 0; i < count; i++) {
        if (reader->step != 0 && entries[i].step != reader->step) {
            any = true;
            continue;
        }
        if (reader->passes) {
            if (reader->below != 0 && entries[i].step >= reader->below) continue;
            reader->below = entries[i].step;
        }
        return with_steps(open_entry(reader, folder, &entries[i]), entries, count, entries[i].step);
    }
    if (!any) return status_copy(reader->none);
    return with_steps(status_with(status_new(STATUS_NOT_FOUND,
                                             "job %s has no checkpoint of step %" PRIu64,
                                             reader->job, reader->step),
                                  (struct status_details){.reason = "CHECKPOINT_NOT_FOUND"}),
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

/* A missing checkpoint is not damaged: a newer one replaced it, or the job was removed. */
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

void checkpoint_reader_pass_damage(struct checkpoint_reader *reader)
{
    reader->passes = true;
}

bool checkpoint_reader_is_verified(const struct checkpoint_reader *reader)
{
    return reader->verified;
}

/* A checkpoint that is passed over; there may be an older one. */
static status_t pass(struct checkpoint_reader *reader, status_t status)
{
    bool none = reader->below == reader->passed;
    if (status == NULL || none) return status;
    reader->passed = reader->below;
    status_free(status);
    close_entry(reader);
    return NULL;
}

status_t checkpoint_reader_work(struct checkpoint_reader *reader, void *chunk, size_t size,
                                size_t *count)
{
    *count = 0;
    if (reader->export == NULL) return reader->passes ? pass(reader, find(reader)) : find(reader);
    status_t status = reader->verified
                          ? export_read(reader->export, chunk, size, count)
                          : export_verify(reader->export, CHECKPOINT_READER_PART, &reader->verified);
    return reader->passes ? pass(reader, status) : explain(reader, status);
}

status_t checkpoint_reader_check_reports(const struct checkpoint_reader *reader)
{
    return explain(reader, export_check_reports(reader->export));
}
