/*
 * Completing a checkpoint, together; see capture.h. Ranks tell each other how their files went with
 * one gather; rank 0 then writes the manifest, renames, and tells the outcome with one broadcast.
 * So all ranks always know the same, and nobody waits for one that could not write.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/capture_internal.h"
#include "checkpoint/saved.h"

enum { TEXT_MAX = 1024 };

struct saving {
    struct capture *capture;
    const struct capture_target *target;
    struct comm *comm;
    struct lane_queue **lane;
    int64_t timeout_ms;
    struct capture_result *result;
    struct folder folder;
    struct folder temporary; /* what is being filled; no path: could not be made */
    char *name;              /* of what was completed; NULL if nothing was, or not here */
};

/* What a rank tells the others. */
struct outcome {
    uint32_t code;
    char text[TEXT_MAX];
};

/* The communicator has its own deadline, whose error says more. After a failure the lane may still
 * use what it was given: it is closed before that is freed. */
static status_t wait_lane(const struct saving *saving, status_t status)
{
    if (status == NULL) status = lane_wait(*saving->lane, 2 * saving->timeout_ms + 1000);
    if (status == NULL) return NULL;
    lane_close(*saving->lane);
    *saving->lane = NULL;
    return status;
}

static void tell(struct outcome *outcome, status_t status)
{
    memset(outcome, 0, sizeof *outcome);
    outcome->code = (uint32_t)status_code(status);
    snprintf(outcome->text, sizeof outcome->text, "%s", status_message(status));
}

/* `root`'s outcome becomes everybody's. */
static status_t share(struct saving *saving, int root, status_t *status)
{
    if (saving->comm == NULL) return NULL;
    struct outcome *outcome = mem_alloc(sizeof *outcome);
    tell(outcome, *status);
    status_t failed = wait_lane(saving, comm_broadcast(saving->comm, *saving->lane, outcome,
                                                       sizeof *outcome, root));
    if (failed == NULL) {
        outcome->text[sizeof outcome->text - 1] = '\0';
        status_free(*status);
        *status = NULL;
        if (outcome->code != STATUS_OK)
            *status = status_new((enum status_code)outcome->code, "%s", outcome->text);
    }
    free(outcome);
    return failed;
}

/* A communicator moves floats: 16 bits in each survive any of them. */
enum { BYTES_FLOATS = 4, CRC_FLOATS = 2, EACH = 1 + BYTES_FLOATS + CRC_FLOATS };

static void pack(uint64_t value, int count, float *packed)
{
    for (int i = 0; i < count; i++) packed[i] = (float)(value >> 16 * i & 0xffff);
}

static uint64_t unpack(const float *packed, int count)
{
    uint64_t value = 0;
    for (int i = 0; i < count; i++) value |= (uint64_t)packed[i] << 16 * i;
    return value;
}

/* Every rank learns of every file; *mine becomes the first failure on any rank, on all. */
static status_t gather(struct saving *saving, const struct saved_file *file, status_t *mine)
{
    struct manifest *manifest = &saving->capture->manifest;
    if (saving->comm == NULL) {
        manifest->files[0] = *file;
        return NULL;
    }
    float *own = mem_alloc_array(EACH, sizeof *own);
    float *all = mem_alloc_array((size_t)manifest->world * EACH, sizeof *all);
    own[0] = (float)status_code(*mine);
    pack(file->bytes, BYTES_FLOATS, own + 1);
    pack(file->crc32, CRC_FLOATS, own + 1 + BYTES_FLOATS);
    status_t failed =
        wait_lane(saving, comm_all_gather(saving->comm, *saving->lane, own, all, EACH));
    int culprit = -1;
    for (int r = 0; r < manifest->world && failed == NULL; r++) {
        const float *theirs = all + (size_t)r * EACH;
        manifest->files[r] =
            (struct saved_file){.bytes = unpack(theirs + 1, BYTES_FLOATS),
                                .crc32 = (uint32_t)unpack(theirs + 1 + BYTES_FLOATS, CRC_FLOATS)};
        if (theirs[0] != 0 && culprit < 0) culprit = r;
    }
    free(own);
    free(all);
    if (culprit < 0) return failed;
    if (culprit == saving->capture->rank) *mine = status_wrap(*mine, "rank %d", culprit);
    return share(saving, culprit, mine);
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
                          "rank 0 does not find what rank %d wrote in %s: the directory of "
                          "checkpoints must be one that all workers' hosts share",
                          r, saving->target->folder);
    }
    return NULL;
}

static status_t write_reports(struct saving *saving)
{
    const struct capture_target *target = saving->target;
    struct buf bytes = {0};
    if (target->pack_reports != NULL)
        target->pack_reports(target->user, capture_step(saving->capture), &bytes);
    status_t status = NULL;
    if (bytes.length > 0 && bytes.length <= MANIFEST_REPORTS_MAX) {
        status = capture_write_beside(&saving->temporary, MANIFEST_REPORTS_FILE, &bytes,
                                      &saving->capture->manifest.reports);
    }
    buf_deinit(&bytes);
    return status;
}

static status_t complete(struct saving *saving)
{
    TRY(check_files(saving));
    TRY(write_reports(saving));
    struct buf text = {0};
    struct saved_file written;
    manifest_write(&saving->capture->manifest, &text);
    status_t status = capture_write_beside(&saving->temporary, MANIFEST_FILE, &text, &written);
    buf_deinit(&text);
    if (status == NULL)
        status = folder_commit(&saving->folder, &saving->temporary, capture_step(saving->capture),
                               &saving->name);
    if (status != NULL) return status;
    saving->result->bytes = manifest_bytes(&saving->capture->manifest);
    saving->result->path = file_path_join(saving->folder.path, saving->name);
    return NULL;
}

/* Whether a checkpoint is of this run. One that cannot be read counts: it must not stay for ever.
 */
static bool is_ours(const struct folder *folder, const char *name, const char *run)
{
    struct saved *saved = NULL;
    status_t status = saved_open(folder, name, MANIFEST_MAX, &saved);
    bool ours = status != NULL || strcmp(saved_manifest(saved)->run, run) == 0;
    status_free(status);
    saved_free(saved);
    return ours;
}

/*
 * What this checkpoint supersedes goes, newest first: those of later steps, which the run could not
 * read when it went on from an earlier one and has now overtaken; an earlier one of the same step;
 * and what is too old, counted from this one. This one stays, whatever else is there. That
 * something could not be removed is no failure of this checkpoint: the next one tries again.
 */
static void prune(struct saving *saving)
{
    const char *run = saving->capture->manifest.run;
    const uint64_t step = saving->result->step;
    struct folder_entry *entries;
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
        if (!is_ours(&saving->folder, entry->name, run)) continue;
        bool again = entry->step == step || entry->step == last;
        last = entry->step;
        if (entry->step < step && !again && (keep == 0 || kept < keep)) {
            kept++;
            continue;
        }
        status = folder_remove(&saving->folder, entry->name);
        if (status == NULL && !again) result->removed[result->removed_count++] = entry->step;
        status_free(status);
    }
    free(entries);
}

static status_t save(struct saving *saving)
{
    struct capture *capture = saving->capture;
    struct saved_file file = {0};
    status_t mine = capture->failed;
    capture->failed = NULL;
    if (mine == NULL)
        mine = folder_open(saving->target->root, saving->target->folder, true, &saving->folder);
    if (mine == NULL)
        mine = folder_begin(&saving->folder, capture->manifest.attempt, saving->target->number,
                            &saving->temporary);
    if (mine == NULL) mine = capture_write(capture, &saving->temporary, &file);
    status_t broken = gather(saving, &file, &mine);
    bool root = capture->rank == 0;
    if (broken == NULL && mine == NULL) {
        if (root) mine = complete(saving);
        broken = share(saving, 0, &mine);
    }
    if (broken == NULL && mine == NULL) return NULL;
    /* The directory may not be the same one for all ranks: each removes what it sees. But as long
     * as rank 0 might be completing it, only rank 0 knows that nothing comes of it. */
    if (saving->temporary.path != NULL && (root || broken == NULL))
        status_free(folder_abandon(&saving->folder, &saving->temporary));
    return status_first(mine, broken);
}

status_t capture_save(struct capture *capture, const struct capture_target *target,
                      struct comm *comm, struct lane_queue **lane, int64_t timeout_ms,
                      struct capture_result *result)
{
    *result = (struct capture_result){.step = capture_step(capture)};
    struct saving saving = {.capture = capture,
                            .target = target,
                            .comm = comm,
                            .lane = lane,
                            .timeout_ms = timeout_ms,
                            .result = result};
    status_t status = save(&saving);
    if (status == NULL && capture->rank == 0) prune(&saving);
    folder_close(&saving.temporary);
    folder_close(&saving.folder);
    free(saving.name);
    return status;
}
