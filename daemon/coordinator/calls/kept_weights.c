/* The kept state_dict; see kept_weights.h. */
#include "coordinator/calls/kept_weights.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/state_sums.h"

#define SUMS_MAX ((size_t)1 << 30)

struct kept_weights {
    char *path;
    struct store_weights weights;
    int fd; /* -1: not open */
    uint64_t bytes, at;
    struct buf sums;
    size_t line; /* of the next block in `sums` */
};

struct kept_weights *kept_weights_new(const char *path, const struct store_weights *weights)
{
    struct kept_weights *kept = mem_alloc(sizeof *kept);
    *kept = (struct kept_weights){.path = mem_strdup(path), .weights = *weights, .fd = -1};
    return kept;
}

void kept_weights_free(struct kept_weights *kept)
{
    if (kept == NULL) return;
    if (kept->fd >= 0) close(kept->fd);
    buf_deinit(&kept->sums);
    free(kept->path);
    free(kept);
}

uint64_t kept_weights_bytes(const struct kept_weights *kept)
{
    return kept->bytes;
}

/* Reads the sums, and compares them with the store's and the file's size with theirs. */
static status_t read_sums(struct kept_weights *kept)
{
    AUTO_FREE char *path = mem_printf("%s.sums", kept->path);
    status_t status = file_read(path, SUMS_MAX, &kept->sums);
    if (status_code(status) == STATUS_NOT_FOUND) {
        status_free(status);
        return status_new(STATUS_DATA_LOSS, "%s is missing, so that the weights cannot be proved",
                          path);
    }
    TRY(status);
    struct digest digest;
    digest_of(kept->sums.data, kept->sums.length, &digest);
    if (memcmp(digest.bytes, kept->weights.sums, DIGEST_BYTES) != 0)
        return status_new(STATUS_DATA_LOSS,
                          "%s is damaged: its SHA-256 is not that of the store, so that the "
                          "weights cannot be proved",
                          path);
    uint64_t total = 0;
    struct state_block block;
    for (size_t line = 0; state_sums_next(&kept->sums, &line, &block);) total += block.bytes;
    if (total == kept->bytes) return NULL;
    return status_new(STATUS_DATA_LOSS, "%s has %" PRIu64 " bytes, %" PRIu64 " were kept",
                      kept->path, kept->bytes, total);
}

static status_t open_files(struct kept_weights *kept)
{
    int fd = open(kept->path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        status_t status = status_from_errno(errno, "cannot open the kept state_dict %s", kept->path);
        if (fd >= 0) close(fd);
        return status;
    }
    kept->fd = fd;
    kept->bytes = (uint64_t)info.st_size;
    if (kept->bytes == 0) return status_new(STATUS_DATA_LOSS, "%s is empty", kept->path);
    return kept->weights.proved ? read_sums(kept) : NULL;
}

static status_t read_bytes(struct kept_weights *kept, uint8_t *to, size_t size)
{
    status_t status = file_read_at(kept->fd, kept->path, to, size, kept->at, STATUS_DATA_LOSS);
    if (!status_lacks(status)) return status;
    status_t lost = status_new(STATUS_DATA_LOSS, "%s", status_message(status)); /* by the disk */
    status_free(status);
    return lost;
}

static status_t check_block(const struct kept_weights *kept, const struct state_block *block,
                            const uint8_t *bytes)
{
    struct digest digest;
    digest_of(bytes, (size_t)block->bytes, &digest);
    if (digest_equal(&digest, &block->digest)) return NULL;
    bool header = strcmp(block->name, STATE_SUMS_HEADER) == 0;
    return status_new(STATUS_DATA_LOSS,
                      "%s is damaged: %s%s%s, between bytes %" PRIu64 " and %" PRIu64, kept->path,
                      header ? "its header" : "the tensor \"", header ? "" : block->name,
                      header ? "" : "\"", kept->at, kept->at + block->bytes);
}

/* As many whole blocks as fit. */
static status_t read_blocks(struct kept_weights *kept, uint8_t *chunk, size_t size, size_t *count)
{
    struct state_block block;
    for (size_t line = kept->line;
         state_sums_next(&kept->sums, &line, &block) && block.bytes <= size - *count;
         kept->line = line) {
        TRY(read_bytes(kept, chunk + *count, (size_t)block.bytes));
        TRY(check_block(kept, &block, chunk + *count));
        kept->at += block.bytes;
        *count += (size_t)block.bytes;
    }
    return NULL;
}

status_t kept_weights_work(struct kept_weights *kept, void *chunk, size_t size, size_t *count)
{
    *count = 0;
    if (kept->fd < 0) return open_files(kept);
    if (kept->weights.proved) return read_blocks(kept, chunk, size, count);
    uint64_t left = kept->bytes - kept->at;
    size_t now = left < size ? (size_t)left : size;
    TRY(read_bytes(kept, chunk, now));
    kept->at += now;
    *count = now;
    return NULL;
}

/* ---- replacement ---- */

#define PREVIOUS ".previous"

void kept_weights_set_aside(const char *path)
{
    AUTO_FREE char *sums = mem_printf("%s.sums", path), *previous = mem_printf("%s" PREVIOUS, path);
    AUTO_FREE char *previous_sums = mem_printf("%s" PREVIOUS, sums);
    unlink(previous_sums);
    unlink(previous);
    if (link(path, previous) != 0 || link(sums, previous_sums) != 0) unlink(previous);
}

void kept_weights_settle(const char *path, const struct store_weights *recorded)
{
    AUTO_FREE char *sums = mem_printf("%s.sums", path), *previous = mem_printf("%s" PREVIOUS, path);
    AUTO_FREE char *previous_sums = mem_printf("%s" PREVIOUS, sums);
    AUTO(buf_deinit) struct buf text = {0};
    struct digest digest = {0};
    if (access(previous_sums, F_OK) == 0) {
        status_t status = file_read(sums, SUMS_MAX, &text);
        if (status != NULL && status_code(status) != STATUS_NOT_FOUND) {
            log_status(LOG_WARNING, "weights_not_settled", status); /* at the next start */
            return;
        }
        status_free(status);
        digest_of(text.data, text.length, &digest);
        bool replaced = memcmp(digest.bytes, recorded->sums, DIGEST_BYTES) == 0;
        /* The sums last: as long as they are there, this is done again. */
        if (!replaced && (rename(previous, path) != 0 && errno != ENOENT)) return;
        if (!replaced && rename(previous_sums, sums) != 0) return;
        unlink(previous_sums);
    }
    unlink(previous);
}
