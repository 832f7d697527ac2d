/* Reading checkpoints; see saved.h. One file is open at a time, with its header read and checked.
 */
#include "checkpoint/saved_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "hf/safetensors.h"

enum { PIECE_BYTES = 1 << 20, HEADER_GUESS = 1 << 16 };

static void close_file(struct saved *saved)
{
    if (saved->fd >= 0) close(saved->fd);
    saved->fd = -1;
    free(saved->starts);
    saved->starts = NULL;
}

static void stop_sum(struct saved_sum *sum)
{
    if (sum->fd >= 0) close(sum->fd);
    *sum = (struct saved_sum){.rank = sum->rank, .fd = -1};
}

void saved_free(struct saved *saved)
{
    if (saved == NULL) return;
    close_file(saved);
    stop_sum(&saved->sum);
    manifest_deinit(&saved->manifest);
    free(saved->places);
    folder_close(&saved->directory);
    free(saved);
}

const struct manifest *saved_manifest(const struct saved *saved)
{
    return &saved->manifest;
}

/* What is wrong with bytes that we wrote ourselves is damage. */
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
    char *path = file_path_join(saved->directory.path, name);
    int fd = -1;
    status_t status = open_file(saved, name, path, &fd);
    if (status == NULL) {
        status = file_read_descriptor(fd, path, limit, bytes);
        close(fd);
    }
    free(path);
    return as_damage(status);
}

static status_t read_manifest(struct saved *saved, size_t limit)
{
    struct buf text = {0};
    char *path = file_path_join(saved->directory.path, MANIFEST_FILE);
    status_t status = read_file(saved, MANIFEST_FILE, limit, &text);
    if (status == NULL)
        status = manifest_read(buf_text(&text), text.length, path, &saved->manifest);
    buf_deinit(&text);
    free(path);
    return as_damage(status);
}

status_t saved_open(const struct folder *folder, const char *name, size_t limit,
                    struct saved **result)
{
    struct saved *saved = mem_alloc(sizeof *saved);
    saved->fd = saved->sum.fd = -1;
    status_t status = folder_enter(folder, name, &saved->directory);
    status = status != NULL ? as_damage(status) : read_manifest(saved, limit);
    if (status != NULL) {
        saved_free(saved);
        return status;
    }
    *result = saved;
    return NULL;
}

static status_t read_at(int fd, void *bytes, size_t size, uint64_t offset, const char *path)
{
    for (char *at = bytes; size > 0;) {
        ssize_t count = pread(fd, at, size, (off_t)offset);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return status_from_errno(errno, "cannot read %s", path);
        if (count == 0) return status_new(STATUS_DATA_LOSS, "%s is cut off", path);
        at += count;
        offset += (uint64_t)count;
        size -= (size_t)count;
    }
    return NULL;
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
    if (status != NULL) close(*fd);
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
    struct buf bytes = {0};
    status_t status = read_file(saved, MANIFEST_REPORTS_FILE, MANIFEST_REPORTS_MAX, &bytes);
    if (status == NULL && (bytes.length != file->bytes || crc32(0, (const Bytef *)buf_text(&bytes),
                                                                (uInt)bytes.length) != file->crc32))
        status = status_new(STATUS_DATA_LOSS, "%s/" MANIFEST_REPORTS_FILE " is damaged",
                            saved->directory.path);
    if (status == NULL) buf_add(out, bytes.data, bytes.length);
    buf_deinit(&bytes);
    return status;
}

/* Sums `limit` bytes more of a file; at its end the sum is compared, and the file closed. */
static status_t go_on_summing(const struct saved *saved, struct saved_sum *sum, uint64_t limit,
                              const char *path)
{
    const struct saved_file *file = &saved->manifest.files[sum->rank];
    unsigned char *piece = mem_alloc(PIECE_BYTES);
    status_t status = NULL;
    while (sum->at < file->bytes && limit > 0 && status == NULL) {
        uint64_t left = file->bytes - sum->at < limit ? file->bytes - sum->at : limit;
        size_t size = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
        status = read_at(sum->fd, piece, size, sum->at, path);
        if (status == NULL) sum->crc32 = (uint32_t)crc32(sum->crc32, piece, (uInt)size);
        sum->at += size;
        limit -= size;
    }
    free(piece);
    if (status == NULL && sum->at == file->bytes && sum->crc32 != file->crc32)
        status = status_new(STATUS_DATA_LOSS, "%s is damaged: its sum is %08x, not %08x", path,
                            sum->crc32, file->crc32);
    return status;
}

static status_t sum_file(struct saved *saved, struct saved_sum *sum, uint64_t limit, bool *done)
{
    char *path = path_of(saved, sum->rank);
    status_t status = NULL;
    if (sum->fd < 0) {
        status = open_path(saved, sum->rank, path, &sum->fd);
        if (status != NULL) sum->fd = -1;
    }
    if (status == NULL) status = go_on_summing(saved, sum, limit, path);
    free(path);
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

static status_t read_header(int fd, uint64_t size, const char *path,
                            struct safetensors_header *header)
{
    uint64_t needed = size < HEADER_GUESS ? size : HEADER_GUESS, have;
    status_t status = NULL;
    do {
        status_free(status);
        have = needed;
        needed = 0;
        void *bytes = malloc((size_t)have + 1); /* bounded by the file's size, and by the format */
        if (bytes == NULL)
            return status_new(STATUS_RESOURCE_EXHAUSTED,
                              "no memory for a header of %" PRIu64 " bytes", have);
        status = read_at(fd, bytes, (size_t)have, 0, path);
        if (status == NULL)
            status = safetensors_read_header(bytes, (size_t)have, size, header, &needed);
        free(bytes);
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
            if (found == NULL || strcmp(found->dtype, "F32") != 0 ||
                found->end - found->begin != (uint64_t)unit->shard * sizeof(float))
                return status_new(STATUS_DATA_LOSS, "%s has no %s of %" PRId64 " numbers", path,
                                  name, unit->shard);
            saved->starts[(size_t)u * width + (size_t)(slot + 1)] =
                header->data_offset + found->begin;
        }
    }
    return NULL;
}

static status_t need_file(struct saved *saved, int rank)
{
    if (saved->fd >= 0 && saved->open_rank == rank) return NULL;
    close_file(saved);
    char *path = path_of(saved, rank);
    struct safetensors_header header = {0};
    int fd = -1;
    status_t status = open_path(saved, rank, path, &fd);
    if (status == NULL) {
        saved->fd = fd;
        saved->open_rank = rank;
        status = read_header(fd, saved->manifest.files[rank].bytes, path, &header);
        if (status == NULL) {
            status = find_arrays(saved, rank, &header, path);
            safetensors_header_deinit(&header);
        }
    }
    free(path);
    if (status != NULL) close_file(saved);
    return status;
}

status_t saved_read_unit(struct saved *saved, int number, int slot, int64_t offset, int64_t count,
                         float *values)
{
    const struct saved_unit *unit = &saved->manifest.units[number];
    while (count > 0) {
        int64_t part = offset / unit->shard, within = offset % unit->shard;
        int64_t now = unit->shard - within < count ? unit->shard - within : count;
        int rank = unit->first_rank + (int)part;
        TRY(need_file(saved, rank));
        uint64_t start =
            saved->starts[(size_t)number * (MANIFEST_SLOTS_MAX + 1) + (size_t)(slot + 1)];
        char *path = path_of(saved, rank);
        status_t status = read_at(saved->fd, values, (size_t)now * sizeof *values,
                                  start + (uint64_t)within * sizeof *values, path);
        free(path);
        TRY(status);
        values += now;
        offset += now;
        count -= now;
    }
    return NULL;
}
