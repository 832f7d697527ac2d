/* Files of token ids; see token_file.h. An open file is immutable: any thread may read it. */
#include "train/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/beneath.h"
#include "base/mem.h"

enum {
    LLMC_HEADER = 256 * 4,
    BLOCK_BYTES = 1 << 16 /* that are read at a time; a multiple of every width */
};

/* What llm.c's headers start with. */
static const struct llmc_kind {
    uint32_t magic, version;
    int width;
} llmc_kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

static uint32_t little_endian(const unsigned char *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static int64_t token_at(const unsigned char *at, int width)
{
    if (width == 1) return at[0];
    return width == 2 ? (int64_t)(at[0] | at[1] << 8) : (int64_t)little_endian(at);
}

static status_t read_at(const struct token_file *file, void *bytes, size_t size, int64_t offset)
{
    for (char *at = bytes; size > 0;) {
        ssize_t count = pread(file->fd, at, size, (off_t)offset);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0)
            return status_from_errno(errno, "cannot read %s at byte %" PRId64, file->path, offset);
        if (count == 0)
            return status_new(STATUS_FAILED_PRECONDITION,
                              "%s was cut while it was read: it had %" PRId64
                              " bytes, and now there is none at %" PRId64,
                              file->path, file->size, offset);
        at += count;
        offset += count;
        size -= (size_t)count;
    }
    return NULL;
}

/* A file that others write to while it is read gives some rows of before, and some of after. */
static status_t need_unchanged(const struct token_file *file)
{
    struct stat info;
    if (fstat(file->fd, &info) != 0) return status_from_errno(errno, "cannot stat %s", file->path);
    if (info.st_size != file->size)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "%s changed while it was read: it had %" PRId64 " bytes, now %" PRId64,
                          file->path, file->size, (int64_t)info.st_size);
    if (info.st_mtim.tv_sec != file->changed.tv_sec ||
        info.st_mtim.tv_nsec != file->changed.tv_nsec)
        return status_new(
            STATUS_FAILED_PRECONDITION,
            "%s was written to while it was read: its time of modification is another", file->path);
    return NULL;
}

static const struct llmc_kind *llmc_kind_find(uint32_t magic)
{
    for (size_t i = 0; i < sizeof llmc_kinds / sizeof llmc_kinds[0]; i++)
        if (llmc_kinds[i].magic == magic) return &llmc_kinds[i];
    return NULL;
}

static status_t read_llmc_header(struct token_file *file)
{
    unsigned char header[12];
    if (file->size < LLMC_HEADER)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: cut short: the header of llm.c takes %d bytes, there are %" PRId64,
                          file->path, LLMC_HEADER, file->size);
    TRY(read_at(file, header, sizeof header, 0));
    const struct llmc_kind *kind = llmc_kind_find(little_endian(header));
    if (kind == NULL)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: a file of llm.c's tokens starts with %u or %u, this one with %u",
                          file->path, llmc_kinds[0].magic, llmc_kinds[1].magic,
                          little_endian(header));
    uint32_t version = little_endian(header + 4);
    if (version != kind->version)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: version %u of its format (%u) is not known; expected %u", file->path,
                          version, kind->magic, kind->version);
    uint32_t count = little_endian(header + 8);
    if (count > INT32_MAX)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its header promises %" PRId32 " tokens: there cannot be so many",
                          file->path, (int32_t)count);
    int64_t expected = LLMC_HEADER + (int64_t)count * kind->width;
    if (file->size != expected)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %s: its header promises %u tokens of %d bytes, which make a file of "
                          "%" PRId64 " bytes; it has %" PRId64,
                          file->path, file->size < expected ? "cut short" : "too long", count,
                          kind->width, expected, file->size);
    file->width = kind->width;
    file->first_byte = LLMC_HEADER;
    file->count = count;
    return NULL;
}

static status_t find_tokens(struct token_file *file, enum token_encoding encoding)
{
    unsigned char magic[4];
    bool llmc = encoding == TOKENS_LLMC;
    if (encoding == TOKENS_AUTO && file->size >= (int64_t)sizeof magic) {
        TRY(read_at(file, magic, sizeof magic, 0));
        llmc = llmc_kind_find(little_endian(magic)) != NULL;
    }
    if (llmc) {
        TRY(read_llmc_header(file));
    } else {
        file->width = encoding == TOKENS_BYTES ? 1 : encoding == TOKENS_UINT32 ? 4 : 2;
        if (file->size % file->width != 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: %" PRId64 " bytes are no whole number of tokens of %d bytes%s",
                              file->path, file->size, file->width,
                              encoding == TOKENS_AUTO
                                  ? " (a text needs data.format: text; llm.c's files have a header)"
                                  : "");
        file->count = file->size / file->width;
    }
    if (file->count > 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s has no tokens", file->path);
}

static status_t measure(struct token_file *file)
{
    struct stat info;
    if (fstat(file->fd, &info) != 0) return status_from_errno(errno, "cannot read %s", file->path);
    if (info.st_size == 0) return status_new(STATUS_INVALID_ARGUMENT, "%s is empty", file->path);
    file->size = info.st_size;
    file->changed = info.st_mtim;
    return NULL;
}

status_t token_file_open(const char *root, const char *path, enum token_encoding encoding,
                         struct token_file *file)
{
    int fd = -1;
    TRY(beneath_open(root, path, false, &fd));
    struct token_file opened = {.path = mem_strdup(path), .fd = fd};
    status_t status = measure(&opened);
    if (status == NULL) status = find_tokens(&opened, encoding);
    if (status != NULL) {
        token_file_close(&opened);
        return status;
    }
    *file = opened;
    return NULL;
}

void token_file_close(struct token_file *file)
{
    if (file->path != NULL) close(file->fd);
    free(file->path);
    *file = (struct token_file){0};
}

static status_t too_large(const struct token_file *file, int64_t place, int64_t id,
                          int64_t vocabulary)
{
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: token %" PRId64 " (byte %" PRId64 ") is %" PRId64
                      ", but the model's vocabulary has the ids 0 to %" PRId64,
                      file->path, place, file->first_byte + place * file->width, id,
                      vocabulary - 1);
}

/* `ids` NULL: they are only checked. */
static status_t read_ids(const struct token_file *file, int64_t first, int64_t count,
                         int64_t vocabulary, int32_t *ids)
{
    unsigned char bytes[BLOCK_BYTES];
    int width = file->width;
    int64_t most = BLOCK_BYTES / width;
    for (int64_t done = 0; done < count; done += most) {
        int64_t now = count - done < most ? count - done : most;
        int64_t offset = file->first_byte + (first + done) * width;
        TRY(read_at(file, bytes, (size_t)(now * width), offset));
        for (int64_t i = 0; i < now; i++) {
            int64_t id = token_at(bytes + i * width, width);
            if (id >= vocabulary) return too_large(file, first + done + i, id, vocabulary);
            if (ids != NULL) ids[done + i] = (int32_t)id;
        }
    }
    return need_unchanged(file);
}

status_t token_file_check(const struct token_file *file, int64_t first, int64_t count,
                          int64_t vocabulary)
{
    if (file->width < 4 && vocabulary >= (int64_t)1 << 8 * file->width) return NULL;
    return read_ids(file, first, count, vocabulary, NULL);
}

status_t token_file_read(const struct token_file *file, int64_t first, int64_t count,
                         int64_t vocabulary, int32_t *ids)
{
    return read_ids(file, first, count, vocabulary, ids);
}
