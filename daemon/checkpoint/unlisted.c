/* Complete checkpoints without a report; see unlisted.h. */
#include "checkpoint/unlisted.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/saved.h"

static bool is_listed(const char *name, const char *const *listed, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(listed[i], name) == 0) return true;
    return false;
}

static void add(const struct folder *folder, const char *name, const char *run,
                struct unlisted *unlisted)
{
    struct saved *saved = NULL;
    status_t status = saved_open(folder, name, MANIFEST_MAX, &saved);
    if (status == NULL) status = saved_check_run(saved, run);
    if (status == NULL) {
        const struct manifest *manifest = saved_manifest(saved);
        unlisted->found[unlisted->count++] =
            (struct unlisted_checkpoint){.path = file_path_join(folder->path, name),
                                         .step = manifest->progress.step,
                                         .bytes = manifest_bytes(manifest),
                                         .attempt = manifest->attempt,
                                         .world = (uint32_t)manifest->world,
                                         .time_ms = manifest->time_ms,
                                         .is_best = saved_is_best(&manifest->progress),
                                         .best = manifest->progress.best.best};
    }
    status_free(status);
    saved_free(saved);
}

static bool has_step(const struct folder_entry *entries, int count, uint64_t step)
{
    for (int i = 0; i < count; i++)
        if (entries[i].step == step) return true;
    return false;
}

static void find_removed(const struct folder_entry *entries, int count, const char *const *listed,
                         size_t listed_count, struct unlisted *unlisted)
{
    unlisted->removed = mem_alloc_array(listed_count, sizeof *unlisted->removed);
    for (size_t i = 0; i < listed_count; i++) {
        struct folder_entry entry;
        if (folder_parse_name(listed[i], &entry) && !has_step(entries, count, entry.step))
            unlisted->removed[unlisted->removed_count++] = entry.step;
    }
}

status_t unlisted_find(const struct folder *folder, const char *run, const char *const *listed,
                       size_t listed_count, struct unlisted *unlisted)
{
    AUTO_FREE struct folder_entry *entries = NULL;
    int count;
    *unlisted = (struct unlisted){0};
    TRY(folder_list(folder, &entries, &count));
    if (count > 0) unlisted->found = mem_alloc_array((size_t)count, sizeof *unlisted->found);
    for (int i = count - 1; i >= 0; i--) {
        bool replaced = i > 0 && entries[i - 1].step == entries[i].step;
        if (!replaced && !is_listed(entries[i].name, listed, listed_count))
            add(folder, entries[i].name, run, unlisted);
    }
    if (unlisted->count > 0 && listed_count > 0)
        find_removed(entries, count, listed, listed_count, unlisted);
    return NULL;
}

void unlisted_deinit(struct unlisted *unlisted)
{
    for (int i = 0; i < unlisted->count; i++) free(unlisted->found[i].path);
    free(unlisted->found);
    free(unlisted->removed);
    *unlisted = (struct unlisted){0};
}
