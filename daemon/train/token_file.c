/* Files of token ids; see token_file.h. An open file is immutable: any thread may read it. */
#include "train/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/beneath.h"
#include "base/mem.h"

enum { LLMC_HEADER = 256 * 4 };

/* What llm.c's headers start with. */
static const struct llmc_kind {
    uint32_t magic, version;
    int width;
} llmc_kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

static uint32_t little_endian(const unsigned char *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static int64_t token_at(const struct token_file *file, int64_t place)
{
    const unsigned char *at = file->data + place * file->width;
    if (file->width == 1) return at[0];
    return file->width == 2 ? (int64_t)(at[0] | at[1] << 8) : (int64_t)little_endian(at);
}

static const struct llmc_kind *llmc_kind_find(const struct token_file *file)
{
    if (file->mapped_bytes < 4) return NULL;
    uint32_t magic = little_endian(file->mapping);
    for (size_t i = 0; i < sizeof llmc_kinds / sizeof llmc_kinds[0]; i++)
        if (llmc_kinds[i].magic == magic) return &llmc_kinds[i];
    return NULL;
}

static status_t read_llmc_header(struct token_file *file)
{
    const struct llmc_kind *kind = llmc_kind_find(file);
    const unsigned char *header = file->mapping;
    if (file->mapped_bytes < LLMC_HEADER)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: cut short: the header of llm.c takes %d bytes, there are %zu",
                          file->path, LLMC_HEADER, file->mapped_bytes);
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
    uint64_t expected = LLMC_HEADER + (uint64_t)count * (uint64_t)kind->width;
    if (file->mapped_bytes != expected)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %s: its header promises %u tokens of %d bytes, which make a file of "
                          "%" PRIu64 " bytes; it has %zu",
                          file->path, file->mapped_bytes < expected ? "cut short" : "too long",
                          count, kind->width, expected, file->mapped_bytes);
    file->width = kind->width;
    file->data = header + LLMC_HEADER;
    file->count = count;
    return NULL;
}

static status_t find_tokens(struct token_file *file, enum token_encoding encoding)
{
    if (encoding == TOKENS_LLMC || (encoding == TOKENS_AUTO && llmc_kind_find(file) != NULL)) {
        TRY(read_llmc_header(file));
    } else {
        file->width = encoding == TOKENS_BYTES ? 1 : encoding == TOKENS_UINT32 ? 4 : 2;
        if (file->mapped_bytes % (size_t)file->width != 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: %zu bytes are no whole number of tokens of %d bytes%s",
                              file->path, file->mapped_bytes, file->width,
                              encoding == TOKENS_AUTO
                                  ? " (a text needs data.format: text; llm.c's files have a header)"
                                  : "");
        file->data = file->mapping;
        file->count = (int64_t)(file->mapped_bytes / (size_t)file->width);
    }
    if (file->count > 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "%s has no tokens", file->path);
}

static status_t map(int fd, struct token_file *file)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return status_from_errno(errno, "cannot read %s", file->path);
    if (info.st_size == 0) return status_new(STATUS_INVALID_ARGUMENT, "%s is empty", file->path);
    void *mapping = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) return status_from_errno(errno, "cannot map %s", file->path);
    file->mapping = mapping;
    file->mapped_bytes = (size_t)info.st_size;
    return NULL;
}

status_t token_file_open(const char *root, const char *path, enum token_encoding encoding,
                         struct token_file *file)
{
    int fd = -1;
    TRY(beneath_open(root, path, false, &fd));
    struct token_file opened = {.path = mem_strdup(path)};
    status_t status = map(fd, &opened);
    close(fd);
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
    if (file->mapping != NULL) munmap(file->mapping, file->mapped_bytes);
    free(file->path);
    *file = (struct token_file){0};
}

/* The first id in the range that is too large; -1 if none is. */
static int64_t find_too_large(const struct token_file *file, int64_t first, int64_t count,
                              int64_t vocabulary)
{
    if (file->width < 4 && vocabulary >= (int64_t)1 << 8 * file->width) return -1;
    for (int64_t i = first; i < first + count; i++)
        if (token_at(file, i) >= vocabulary) return i;
    return -1;
}

status_t token_file_check(const struct token_file *file, int64_t first, int64_t count,
                          int64_t vocabulary)
{
    int64_t place = find_too_large(file, first, count, vocabulary);
    if (place < 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "%s: token %" PRId64 " (byte %" PRId64 ") is %" PRId64
                      ", but the model's vocabulary has the ids 0 to %" PRId64,
                      file->path, place,
                      (int64_t)(file->data - (const unsigned char *)file->mapping) +
                          place * file->width,
                      token_at(file, place), vocabulary - 1);
}

status_t token_file_read(const struct token_file *file, int64_t first, int64_t count,
                         int64_t vocabulary, int32_t *ids)
{
    TRY(token_file_check(file, first, count, vocabulary));
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)token_at(file, first + i);
    return NULL;
}
