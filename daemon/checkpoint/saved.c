/* Reading checkpoints; see saved.h. One file is open at a time, with its header read and checked.
 */
#include "checkpoint/saved_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "hf/safetensors.h"

enum { HEADER_GUESS = 1 << 16 };

static void close_file(struct saved *saved)
{
    if (saved->fd >= 0) close(saved->fd);
    saved->fd = -1;
    free(saved->starts);
    saved->starts = NULL;
    saved->block_number = UINT64_MAX;
}

static void stop_sum(struct saved_sum *sum)
{
    if (sum->fd >= 0) close(sum->fd);
    free(sum->blocks);
    *sum = (struct saved_sum){.rank = sum->rank, .fd = -1};
}

void saved_free(struct saved *saved)
{
    if (saved == NULL) return;
    close_file(saved);
    stop_sum(&saved->sum);
    for (int r = 0; saved->blocks != NULL && r < saved->manifest.world; r++) free(saved->blocks[r]);
    free(saved->blocks);
    free(saved->block);
    manifest_deinit(&saved->manifest);
    free(saved->places);
    folder_close(&saved->directory);
    free(saved);
}

const struct manifest *saved_manifest(const struct saved *saved)
{
    return &saved->manifest;
}

/* Errors in bytes that we wrote ourselves are damage. */
static status_t as_damage(status_t status)
{
    enum status_code code = status_code(status);
    if (code != STATUS_INVALID_ARGUMENT && code != STATUS_NOT_FOUND && code != STATUS_OUT_OF_RANGE)
        return status;
    status_t damage = status_new(STATUS_DATA_LOSS, "%s", status_message(status));
    status_free(status);
    return damage;
}

/* Opens a file of the checkpoint for reading: no link leads out of it. */
static status_t open_file(const struct saved *saved, const char *name, const char *path, int *fd)
{
    *fd = openat(saved->directory.fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    return *fd >= 0 ? NULL : as_damage(status_from_errno(errno, "cannot open %s", path));
}

static status_t read_file(const struct saved *saved, const char *name, size_t limit,
                          struct buf *bytes)
{
    AUTO_FREE char *path = file_path_join(saved->directory.path, name);
    int fd = -1;
    status_t status = open_file(saved, name, path, &fd);
    if (status == NULL) {
        status = file_read_descriptor(fd, path, limit, bytes);
        close(fd);
    }
    return as_damage(status);
}

static status_t read_manifest(struct saved *saved, size_t limit)
{
    AUTO(buf_deinit) struct buf text = {0};
    AUTO_FREE char *path = file_path_join(saved->directory.path, MANIFEST_FILE);
    status_t status = read_file(saved, MANIFEST_FILE, limit, &text);
    if (status == NULL)
        status = manifest_read(buf_text(&text), text.length, path, &saved->manifest);
    return as_damage(status);
}

/* A directory that was renamed would take the job to another step than it says. */
static status_t check_step(const struct saved *saved, const char *name)
{
    struct folder_entry entry;
    uint64_t step = saved->manifest.progress.step;
    if (folder_parse_name(name, &entry) && entry.step == step) return NULL;
    return status_new(STATUS_DATA_LOSS,
                      "%s is not the checkpoint of that step: " MANIFEST_FILE
                      " is of step %" PRIu64,
                      saved->directory.path, step);
}

status_t saved_open(const struct folder *folder, const char *name, size_t limit,
                    struct saved **result)
{
    struct saved *saved = mem_alloc(sizeof *saved);
    saved->fd = saved->sum.fd = -1;
    saved->block_number = UINT64_MAX;
    status_t status = folder_enter(folder, name, &saved->directory);
    status = status != NULL ? as_damage(status) : read_manifest(saved, limit);
    if (status == NULL) status = check_step(saved, name);
    if (status != NULL) {
        saved_free(saved);
        return status;
    }
    saved->blocks = mem_alloc_array((size_t)saved->manifest.world, sizeof(struct digest *));
    *result = saved;
    return NULL;
}

status_t saved_check_run(const struct saved *saved, const char *run)
{
    const struct manifest *manifest = &saved->manifest;
    if (strcmp(manifest->run, run) == 0) return NULL;
    return status_new(STATUS_FAILED_PRECONDITION, "%s belongs to another run, %s of job %s",
                      saved->directory.path, manifest->run, manifest->job);
}

static status_t open_path(const struct saved *saved, int rank, const char *path, int *fd)
{
    struct stat info;
    char name[32];
    TRY(open_file(saved, manifest_file_name(rank, name), path, fd));
    status_t status = NULL;
    if (fstat(*fd, &info) != 0) status = status_from_errno(errno, "cannot stat %s", path);
    else if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size != saved->manifest.files[rank].bytes)
        status =
            status_new(STATUS_DATA_LOSS, "%s has %lld bytes, not the %" PRIu64 " of %s", path,
                       (long long)info.st_size, saved->manifest.files[rank].bytes, MANIFEST_FILE);
    if (status != NULL) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

static char *path_of(const struct saved *saved, int rank)
{
    char name[32];
    return file_path_join(saved->directory.path, manifest_file_name(rank, name));
}

status_t saved_read_reports(const struct saved *saved, struct buf *out)
{
    const struct saved_file *file = &saved->manifest.reports;
    if (file->bytes == 0) return NULL;
    AUTO(buf_deinit) struct buf bytes = {0};
    status_t status = read_file(saved, MANIFEST_REPORTS_FILE, MANIFEST_REPORTS_MAX, &bytes);
    struct digest sum;
    block_sums_of(buf_text(&bytes), bytes.length, &sum);
    if (status == NULL && (bytes.length != file->bytes || !digest_equal(&sum, &file->sum)))
        status = status_new(STATUS_DATA_LOSS, "%s/" MANIFEST_REPORTS_FILE " is damaged",
                            saved->directory.path);
    if (status == NULL) buf_add(out, bytes.data, bytes.length);
    return status;
}

static size_t block_count(const struct saved *saved, int rank)
{
    return (size_t)((saved->manifest.files[rank].bytes + BLOCK_BYTES - 1) / BLOCK_BYTES);
}

struct digest *saved_blocks(struct saved *saved, int rank, size_t *count)
{
    *count = block_count(saved, rank);
    if (saved->blocks[rank] == NULL)
        saved->blocks[rank] = mem_alloc_array(*count, sizeof(struct digest));
    return saved->blocks[rank];
}

/* Of the block that starts at `at`: the file's last one may be shorter. */
static size_t block_size(const struct saved *saved, int rank, uint64_t at)
{
    uint64_t left = saved->manifest.files[rank].bytes - at;
    return left < BLOCK_BYTES ? (size_t)left : BLOCK_BYTES;
}

/* For a file that was read completely; the checksums of its blocks are kept. */
static status_t compare_sum(struct saved *saved, struct saved_sum *sum, const char *path)
{
    const struct digest *expected = &saved->manifest.files[sum->rank].sum;
    struct digest found;
    char computed[DIGEST_DIGITS + 1], recorded[DIGEST_DIGITS + 1];
    digest_of(sum->blocks, sum->count * sizeof *sum->blocks, &found);
    if (!digest_equal(&found, expected))
        return status_new(STATUS_DATA_LOSS, "%s is damaged: its checksum is %s, not %s", path,
                          digest_format(&found, computed), digest_format(expected, recorded));
    free(saved->blocks[sum->rank]);
    saved->blocks[sum->rank] = sum->blocks;
    sum->blocks = NULL;
    return NULL;
}

/* Sums blocks of a file until `limit` bytes more are read; at its end the sum is compared. */
static status_t continue_sum(struct saved *saved, struct saved_sum *sum, uint64_t limit,
                             const char *path)
{
    const struct saved_file *file = &saved->manifest.files[sum->rank];
    unsigned char *block = mem_alloc(BLOCK_BYTES);
    status_t status = NULL;
    for (uint64_t until = limit < file->bytes - sum->at ? sum->at + limit : file->bytes;
         sum->at < until && status == NULL;) {
        size_t size = block_size(saved, sum->rank, sum->at);
        status = file_read_at(sum->fd, path, block, size, sum->at, STATUS_DATA_LOSS);
        if (status != NULL) break;
        MEM_GROW(sum->blocks, sum->count, sum->capacity);
        digest_of(block, size, &sum->blocks[sum->count++]);
        sum->at += size;
    }
    free(block);
    if (status == NULL && sum->at == file->bytes) status = compare_sum(saved, sum, path);
    return status;
}

static status_t sum_file(struct saved *saved, struct saved_sum *sum, uint64_t limit, bool *done)
{
    AUTO_FREE char *path = path_of(saved, sum->rank);
    status_t status = NULL;
    if (sum->fd < 0) status = open_path(saved, sum->rank, path, &sum->fd);
    if (status == NULL) status = continue_sum(saved, sum, limit, path);
    *done = status == NULL && sum->at == saved->manifest.files[sum->rank].bytes;
    if (*done || status != NULL) stop_sum(sum);
    return status;
}

status_t saved_verify(struct saved *saved, int rank)
{
    struct saved_sum sum = {.rank = rank, .fd = -1};
    bool done;
    return sum_file(saved, &sum, UINT64_MAX, &done);
}

status_t saved_verify_next(struct saved *saved, uint64_t bytes, bool *done)
{
    bool file_done = false;
    *done = saved->sum.rank == saved->manifest.world;
    if (*done) return NULL;
    TRY(sum_file(saved, &saved->sum, bytes, &file_done));
    saved->sum.rank += file_done;
    *done = saved->sum.rank == saved->manifest.world;
    return NULL;
}

/* The block of the open file that has this byte, as it was when the file was verified. */
static status_t need_block(struct saved *saved, uint64_t number, size_t *size, const char *path)
{
    struct digest found;
    int rank = saved->open_rank;
    uint64_t at = number * BLOCK_BYTES;
    *size = block_size(saved, rank, at);
    if (saved->block_number == number) return NULL;
    if (saved->block == NULL) saved->block = mem_alloc(BLOCK_BYTES);
    saved->block_number = UINT64_MAX;
    TRY(file_read_at(saved->fd, path, saved->block, *size, at, STATUS_DATA_LOSS));
    digest_of(saved->block, *size, &found);
    if (!digest_equal(&found, &saved->blocks[rank][number]))
        return status_new(STATUS_DATA_LOSS,
                          "%s has changed since it was verified, in the %zu bytes from byte "
                          "%" PRIu64 " on",
                          path, *size, at);
    saved->block_number = number;
    return NULL;
}

/* Of the open file; what is read lies in it. */
static status_t read_proved(struct saved *saved, void *bytes, size_t size, uint64_t offset,
                            const char *path)
{
    char *to = bytes;
    while (size > 0) {
        size_t have, within = (size_t)(offset % BLOCK_BYTES);
        TRY(need_block(saved, offset / BLOCK_BYTES, &have, path));
        size_t count = have - within < size ? have - within : size;
        memcpy(to, saved->block + within, count);
        to += count;
        offset += count;
        size -= count;
    }
    return NULL;
}

static status_t read_header(struct saved *saved, const char *path,
                            struct safetensors_header *header)
{
    uint64_t size = saved->manifest.files[saved->open_rank].bytes;
    uint64_t needed = size < HEADER_GUESS ? size : HEADER_GUESS, have;
    status_t status = NULL;
    do {
        status_free(status);
        have = needed;
        needed = 0;
        /* bounded by the file's size, and by the format */
        AUTO_FREE void *bytes = malloc((size_t)have + 1);
        if (bytes == NULL)
            return status_new(STATUS_RESOURCE_EXHAUSTED,
                              "no memory for a header of %" PRIu64 " bytes", have);
        status = read_proved(saved, bytes, (size_t)have, 0, path);
        if (status == NULL)
            status = safetensors_read_header(bytes, (size_t)have, size, header, &needed);
    } while (status_code(status) == STATUS_OUT_OF_RANGE && needed > have);
    return as_damage(status);
}

static int compare_entries(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Where each array that the manifest promises of this rank starts. */
static status_t find_arrays(struct saved *saved, int rank, struct safetensors_header *header,
                            const char *path)
{
    const struct manifest *manifest = &saved->manifest;
    if (header->count > 0) /* no order is needed any more */
        qsort(header->entries, (size_t)header->count, sizeof *header->entries, compare_entries);
    size_t width = MANIFEST_SLOTS_MAX + 1;
    saved->starts = mem_alloc_array((size_t)manifest->unit_count * width + 1, sizeof(uint64_t));
    for (int u = 0; u < manifest->unit_count; u++) {
        const struct saved_unit *unit = &manifest->units[u];
        bool here = rank >= unit->first_rank && rank < unit->first_rank + unit->shard_world;
        for (int slot = -1; slot < unit->slots && here && unit->shard > 0; slot++) {
            char name[48];
            const struct safetensors_entry wanted = {.name = manifest_tensor_name(u, slot, name)};
            const struct safetensors_entry *found =
                header->count == 0 ? NULL
                                   : bsearch(&wanted, header->entries, (size_t)header->count,
                                             sizeof *header->entries, compare_entries);
            struct slot_layout layout = slot_layout_of(&unit->layout, slot);
            int per_word;
            const char *dtype = slot_file_type(&layout, &per_word);
            uint64_t bytes = (uint64_t)layout.words * sizeof(float);
            if (found == NULL || strcmp(found->dtype, dtype) != 0 ||
                found->end - found->begin != bytes)
                return status_new(STATUS_DATA_LOSS, "%s has no %s of %" PRIu64 " bytes of %s", path,
                                  name, bytes, dtype);
            saved->starts[(size_t)u * width + (size_t)(slot + 1)] =
                header->data_offset + found->begin;
        }
    }
    return NULL;
}

static status_t open_rank(struct saved *saved, int rank, const char *path)
{
    AUTO(safetensors_header_deinit) struct safetensors_header header = {0};
    if (saved->blocks[rank] == NULL) TRY(saved_verify(saved, rank));
    TRY(open_path(saved, rank, path, &saved->fd));
    saved->open_rank = rank;
    TRY(read_header(saved, path, &header));
    return find_arrays(saved, rank, &header, path);
}

static status_t need_file(struct saved *saved, int rank, const char *path)
{
    if (saved->fd >= 0 && saved->open_rank == rank) return NULL;
    close_file(saved);
    status_t status = open_rank(saved, rank, path);
    if (status != NULL) close_file(saved);
    return status;
}

/* Of one rank's part of the array, from its element `within` on. */
static status_t read_part(struct saved *saved, int unit, int slot, int rank, int64_t within,
                          int64_t count, float *values)
{
    AUTO_FREE char *path = path_of(saved, rank);
    status_t status = need_file(saved, rank, path);
    if (status == NULL) {
        uint64_t start =
            saved->starts[(size_t)unit * (MANIFEST_SLOTS_MAX + 1) + (size_t)(slot + 1)];
        status = read_proved(saved, values, (size_t)count * sizeof *values,
                             start + (uint64_t)within * sizeof *values, path);
    }
    return status;
}

status_t saved_read_unit(struct saved *saved, int number, int slot, int64_t offset, int64_t count,
                         float *values)
{
    const struct saved_unit *unit = &saved->manifest.units[number];
    const struct slot_layout layout = slot_layout_of(&unit->layout, slot);
    while (count > 0) {
        int part = slot_part_of(&layout, offset);
        int64_t within = offset - slot_part(&layout, part);
        int64_t left = slot_part(&layout, part + 1) - offset, now = left < count ? left : count;
        TRY(read_part(saved, number, slot, unit->first_rank + part, within, now, values));
        values += now;
        offset += now;
        count -= now;
    }
    return NULL;
}
