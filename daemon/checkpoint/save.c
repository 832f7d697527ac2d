/*
 * Completes a checkpoint on all ranks; see capture.h. One gather shares the outcome of every rank's
 * file; rank 0 then writes the manifest, renames, and one broadcast shares the result. So all ranks
 * always have the same information, and none waits for a rank that could not write.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/agreement.h"
#include "checkpoint/capture_internal.h"
#include "checkpoint/saved.h"

struct saving {
    struct capture *capture;
    const struct capture_target *target;
    struct agreement ranks;
    struct capture_result *result;
    struct folder folder;
    struct folder temporary; /* being filled; no path: could not be created */
    char *name;              /* of what was completed; NULL if nothing was, or not here */
};

/* A rank's message about its file: its outcome, size and checksum. */
enum {
    BYTES_FLOATS = 4,
    WORD = 8, /* bytes of the sum that are packed together */
    WORD_FLOATS = WORD / 2,
    EACH = 1 + BYTES_FLOATS + DIGEST_BYTES / 2
};

static void pack_sum(const struct digest *sum, float *packed)
{
    for (size_t i = 0; i < DIGEST_BYTES / WORD; i++) {
        uint64_t word;
        memcpy(&word, sum->bytes + i * WORD, WORD);
        agreement_pack(word, WORD_FLOATS, packed + i * WORD_FLOATS);
    }
}

static void unpack_sum(const float *packed, struct digest *sum)
{
    for (size_t i = 0; i < DIGEST_BYTES / WORD; i++) {
        uint64_t word = agreement_unpack(packed + i * WORD_FLOATS, WORD_FLOATS);
        memcpy(sum->bytes + i * WORD, &word, WORD);
    }
}

/* Every rank learns of every file; *mine becomes the first failure on any rank, on all. */
static status_t gather(struct saving *saving, const struct saved_file *file, status_t *mine)
{
    struct manifest *manifest = &saving->capture->manifest;
    if (saving->ranks.comm == NULL) {
        *mine = status_wrap(*mine, "rank 0");
        manifest->files[0] = *file;
        return NULL;
    }
    AUTO_FREE float *own = mem_alloc_array(EACH, sizeof *own);
    AUTO_FREE float *all = mem_alloc_array((size_t)manifest->world * EACH, sizeof *all);
    own[0] = (float)status_code(*mine);
    agreement_pack(file->bytes, BYTES_FLOATS, own + 1);
    pack_sum(&file->sum, own + 1 + BYTES_FLOATS);
    status_t failed =
        agreement_wait(&saving->ranks,
                       comm_all_gather(saving->ranks.comm, *saving->ranks.lane, own, all, EACH));
    int culprit = -1;
    for (int r = 0; r < manifest->world && failed == NULL; r++) {
        const float *theirs = all + (size_t)r * EACH;
        manifest->files[r].bytes = agreement_unpack(theirs + 1, BYTES_FLOATS);
        unpack_sum(theirs + 1 + BYTES_FLOATS, &manifest->files[r].sum);
        if (theirs[0] != 0 && culprit < 0) culprit = r;
    }
    if (culprit < 0) return failed;
    if (culprit == saving->capture->rank) *mine = status_wrap(*mine, "rank %d", culprit);
    return agreement_share_outcome(&saving->ranks, mine, culprit);
}

/* Whether all ranks wrote to the same place. */
static status_t check_files(const struct saving *saving)
{
    const struct manifest *manifest = &saving->capture->manifest;
    for (int r = 0; r < manifest->world; r++) {
        char name[32];
        struct stat info;
        bool there = fstatat(saving->temporary.fd, manifest_file_name(r, name), &info,
                             AT_SYMLINK_NOFOLLOW) == 0;
        if (there && (uint64_t)info.st_size == manifest->files[r].bytes) continue;
        return status_new(STATUS_FAILED_PRECONDITION,
                          "rank 0 cannot find the files of rank %d in %s: all workers' hosts must "
                          "share the checkpoint directory",
                          r, saving->target->folder);
    }
    return NULL;
}

static status_t write_reports(struct saving *saving)
{
    const struct capture_target *target = saving->target;
    AUTO(buf_deinit) struct buf bytes = {0};
    if (target->pack_reports != NULL)
        target->pack_reports(target->user, capture_step(saving->capture), &bytes);
    status_t status = NULL;
    if (bytes.length > 0 && bytes.length <= MANIFEST_REPORTS_MAX) {
        status = capture_write_file(&saving->temporary, MANIFEST_REPORTS_FILE, &bytes,
                                    &saving->capture->manifest.reports);
    }
    return status;
}

static status_t write_manifest(struct saving *saving)
{
    TRY(write_reports(saving));
    AUTO(buf_deinit) struct buf text = {0};
    struct saved_file written;
    manifest_write(&saving->capture->manifest, &text);
    TRY(capture_write_file(&saving->temporary, MANIFEST_FILE, &text, &written));
    return folder_commit(&saving->folder, &saving->temporary, capture_step(saving->capture),
                         &saving->name);
}

static status_t complete(struct saving *saving)
{
    TRY(check_files(saving));
    TRY(status_wrap(write_manifest(saving), "rank 0"));
    saving->result->bytes = manifest_bytes(&saving->capture->manifest);
    saving->result->path = file_path_join(saving->folder.path, saving->name);
    return NULL;
}

/* Whether a checkpoint belongs to this run. One that cannot be read counts: it must not stay
 * without limit. *best: whether it was the run's best one when it was taken.
 */
static bool is_ours(const struct folder *folder, const char *name, const char *run, bool *best)
{
    struct saved *saved = NULL;
    status_t status = saved_open(folder, name, MANIFEST_MAX, &saved);
    bool ours = status != NULL || strcmp(saved_manifest(saved)->run, run) == 0;
    *best = status == NULL && saved_is_best(&saved_manifest(saved)->progress);
    status_free(status);
    saved_free(saved);
    return ours;
}

/*
 * Removes superseded checkpoints, newest first: those of later steps, which the run could not read
 * when it resumed from an earlier one and has now overtaken; an earlier one of the same step; and
 * those beyond the number to keep, counted from this one. This one always stays, and the best one,
 * which is the newest of those that were when they were taken. A failed removal does not fail this
 * checkpoint: the next one tries again, or, once its name is gone, the next
 * attempt.
 */
static void prune(struct saving *saving)
{
    const char *run = saving->capture->manifest.run;
    const struct saved_progress *progress = &saving->capture->manifest.progress;
    const uint64_t step = saving->result->step;
    bool keeps_best = progress->best.known && !saved_is_best(progress), best;
    AUTO_FREE struct folder_entry *entries = NULL;
    int count;
    uint32_t kept = 1, keep = saving->target->keep;
    status_t status = folder_list(&saving->folder, &entries, &count);
    if (status != NULL) {
        status_free(status);
        return;
    }
    struct capture_result *result = saving->result;
    result->removed = mem_alloc_array((size_t)count + 1, sizeof *result->removed);
    uint64_t last = step; /* that is ours: what follows of the same step has been replaced */
    for (int i = 0; i < count; i++) {
        const struct folder_entry *entry = &entries[i];
        if (strcmp(entry->name, saving->name) == 0) continue;
        if (!is_ours(&saving->folder, entry->name, run, &best)) continue;
        bool again = entry->step == step || entry->step == last;
        last = entry->step;
        bool earlier = entry->step < step && !again;
        if (earlier && (keep == 0 || kept < keep || (best && keeps_best))) {
            kept++;
            keeps_best = keeps_best && !best;
            continue;
        }
        status_free(folder_remove(&saving->folder, entry->name));
        bool gone = faccessat(saving->folder.fd, entry->name, F_OK, AT_SYMLINK_NOFOLLOW) != 0;
        if (gone && !again) result->removed[result->removed_count++] = entry->step;
    }
}

static status_t save(struct saving *saving)
{
    struct capture *capture = saving->capture;
    struct saved_file file = {0};
    status_t mine = capture_failure(capture);
    if (mine == NULL)
        mine = folder_open(saving->target->root, saving->target->folder, true, &saving->folder);
    if (mine == NULL)
        mine = folder_begin(&saving->folder, capture->manifest.attempt, saving->target->number,
                            &saving->temporary);
    if (mine == NULL) mine = capture_write(capture, &saving->temporary, &file);
    saving->result->copied = capture_drop_arrays(capture);
    status_t broken = gather(saving, &file, &mine);
    bool root = capture->rank == 0, completed = false;
    if (broken == NULL && mine == NULL) {
        if (root) mine = complete(saving);
        completed = root && mine == NULL;
        broken = agreement_share_outcome(&saving->ranks, &mine, 0);
    }
    if (broken == NULL && mine == NULL) return NULL;
    if (completed) { /* it is on the disk, whatever became of the others */
        saving->result->unshared = true;
        status_free(broken);
        return NULL;
    }
    /* The directory may differ between ranks: each removes what it sees. But while rank 0 might be
     * completing it, only rank 0 knows that it was abandoned. */
    if (saving->temporary.path != NULL && (root || broken == NULL))
        status_free(folder_abandon(&saving->folder, &saving->temporary));
    return status_first(mine, broken);
}

status_t capture_save(struct capture *capture, const struct capture_target *target,
                      struct comm *comm, struct lane_queue **lane, int64_t timeout_ms,
                      struct capture_result *result)
{
    MUST(capture->arrays != NULL); /* not saved before */
    const struct saved_progress *progress = &capture->manifest.progress;
    *result = (struct capture_result){.step = progress->step,
                                      .is_best = saved_is_best(progress),
                                      .best = progress->best.best};
    struct saving saving = {.capture = capture,
                            .target = target,
                            .ranks = {comm, lane, timeout_ms},
                            .result = result};
    status_t status = save(&saving);
    if (status == NULL && capture->rank == 0) prune(&saving);
    folder_close(&saving.temporary);
    folder_close(&saving.folder);
    free(saving.name);
    return status;
}
