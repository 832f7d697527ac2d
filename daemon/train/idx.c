/*
 * The idx format; see idx.h. A `source` is an open file that gives its bytes decompressed; it lives
 * for one call on one thread.
 */
#include "train/idx.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/beneath.h"
#include "base/file.h"
#include "base/mem.h"
#include "train/generator.h"

enum { SOURCE_BUFFER = 1 << 16, MAX_DIMS = 3 };

/* Deflate's best ratio: what claims to be larger than this cannot be in the file. */
enum { GZIP_MAX_RATIO = 1032 };

struct source {
    char *path;
    int fd;
    uint64_t file_bytes;
    bool compressed, ended; /* `ended`: the last gzip member is complete */
    z_stream stream;
    unsigned char buffer[SOURCE_BUFFER];
};

struct idx_kind {
    const char *what;
    uint32_t magic;
    int dim_count;
};
static const struct idx_kind images_kind = {"images", 0x00000803, 3};
static const struct idx_kind labels_kind = {"labels", 0x00000801, 1};

void dataset_deinit(struct dataset *dataset)
{
    free(dataset->images);
    free(dataset->labels);
    *dataset = (struct dataset){0};
}

static void source_deinit(struct source *source)
{
    if (source->compressed) inflateEnd(&source->stream);
    if (source->fd >= 0) close(source->fd);
    free(source->path);
}

/* One read of the file's own bytes; *count is 0 at its end. */
static status_t read_some(struct source *source, void *bytes, size_t size, size_t *count)
{
    for (;;) {
        ssize_t got = read(source->fd, bytes, size);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return status_from_errno(errno, "cannot read %s", source->path);
        *count = (size_t)got;
        return NULL;
    }
}

static status_t refill(struct source *source)
{
    size_t count;
    TRY(read_some(source, source->buffer, sizeof source->buffer, &count));
    source->stream.next_in = source->buffer;
    source->stream.avail_in = (uInt)count;
    return NULL;
}

/* Between gzip members: the file ends here, or another member follows. */
static status_t next_member(struct source *source)
{
    if (source->stream.avail_in == 0) TRY(refill(source));
    if (source->stream.avail_in == 0) {
        source->ended = true;
        return NULL;
    }
    if (source->stream.next_in[0] != 0x1f)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: bytes follow the end of its gzip data",
                          source->path);
    inflateReset(&source->stream);
    return NULL;
}

static status_t inflate_some(struct source *source, void *bytes, size_t size, size_t *count)
{
    z_stream *stream = &source->stream;
    *count = 0;
    while (*count == 0 && !source->ended) {
        if (stream->avail_in == 0) TRY(refill(source));
        if (stream->avail_in == 0)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: the gzip data is cut short",
                              source->path);
        uInt room = size < 1u << 30 ? (uInt)size : 1u << 30;
        stream->next_out = bytes;
        stream->avail_out = room;
        int result = inflate(stream, Z_NO_FLUSH);
        *count = room - stream->avail_out;
        if (result == Z_STREAM_END) TRY(next_member(source));
        else if (result != Z_OK && result != Z_BUF_ERROR)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: the gzip data is corrupt (%s)",
                              source->path, stream->msg ? stream->msg : "no reason given");
    }
    return NULL;
}

/* Reads until `size` bytes are there or the source ends. */
static status_t source_read(struct source *source, void *bytes, size_t size, size_t *total)
{
    *total = 0;
    while (*total < size) {
        size_t count;
        char *to = (char *)bytes + *total;
        size_t left = size - *total;
        TRY(source->compressed ? inflate_some(source, to, left, &count)
                               : read_some(source, to, left, &count));
        if (count == 0) break;
        *total += count;
    }
    return NULL;
}

static status_t prepare(struct source *source)
{
    struct stat info;
    if (fstat(source->fd, &info) != 0)
        return status_from_errno(errno, "cannot read %s", source->path);
    source->file_bytes = (uint64_t)info.st_size;
    unsigned char magic[2];
    ssize_t count = pread(source->fd, magic, 2, 0);
    if (count < 0) return status_from_errno(errno, "cannot read %s", source->path);
    if (count < 2 || magic[0] != 0x1f || magic[1] != 0x8b) return NULL;
    if (inflateInit2(&source->stream, 15 + 16) != Z_OK) /* 16: expect gzip's own header */
        return status_new(STATUS_RESOURCE_EXHAUSTED, "no memory to decompress %s", source->path);
    source->compressed = true;
    return NULL;
}

static status_t source_open(const char *root, const char *directory, const char *name,
                            struct source **result)
{
    char *path = file_path_join(directory, name);
    int fd = -1;
    status_t status = beneath_open(root, path, false, &fd);
    if (status_code(status) == STATUS_NOT_FOUND) {
        free(path);
        path = mem_printf("%s/%s.gz", directory, name);
        status_free(status);
        status = beneath_open(root, path, false, &fd);
        if (status_code(status) == STATUS_NOT_FOUND) {
            status_free(status);
            status =
                status_new(STATUS_NOT_FOUND, "%s has neither %s nor %s.gz", directory, name, name);
        }
    }
    if (status != NULL) {
        free(path);
        return status;
    }
    struct source *source = mem_alloc(sizeof *source);
    source->path = path;
    source->fd = fd;
    status = prepare(source);
    if (status != NULL) {
        source_deinit(source);
        free(source);
        return status;
    }
    *result = source;
    return NULL;
}

static uint32_t big_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* The dimensions, and how many bytes of data they promise; checked against the file's size. */
static status_t read_header(struct source *source, const struct idx_kind *kind,
                            uint32_t dims[static MAX_DIMS], uint64_t *data_bytes)
{
    unsigned char header[4 + 4 * MAX_DIMS];
    size_t size = 4 + 4 * (size_t)kind->dim_count, count;
    TRY(source_read(source, header, size, &count));
    if (count >= 4 && big_endian(header) != kind->magic)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: an idx file of %s starts with 0x%08x, this one with 0x%08x",
                          source->path, kind->what, kind->magic, big_endian(header));
    if (count < size)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: cut short: its header takes %zu bytes, there are %zu", source->path,
                          size, count);
    uint64_t total = 1;
    for (int i = 0; i < kind->dim_count; i++) {
        dims[i] = big_endian(header + 4 + 4 * i);
        if (dims[i] == 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: dimension %d of its header is 0: there are no %s", source->path,
                              i, kind->what);
        if (total > IDX_MAX_BYTES / dims[i])
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: its header promises more than the %" PRIu64
                              " bytes that fit in memory here",
                              source->path, (uint64_t)IDX_MAX_BYTES);
        total *= dims[i];
    }
    if (dims[0] >= PERMUTATION_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %u %s: at most %u are possible",
                          source->path, dims[0], kind->what, PERMUTATION_MAX - 1);
    if (!source->compressed && source->file_bytes != size + total)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: %s: its header promises %" PRIu64 " bytes, the file has %" PRIu64,
                          source->path,
                          source->file_bytes < size + total ? "cut short" : "too long",
                          size + total, source->file_bytes);
    if (source->compressed && (size + total) / GZIP_MAX_RATIO > source->file_bytes)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: its header promises %" PRIu64
                          " bytes, which cannot come out of a gzip file of %" PRIu64,
                          source->path, size + total, source->file_bytes);
    *data_bytes = total;
    return NULL;
}

static status_t read_data(struct source *source, uint64_t bytes, uint8_t **result)
{
    uint8_t *data = malloc(bytes);
    if (data == NULL)
        return status_new(STATUS_RESOURCE_EXHAUSTED, "%s: no memory for its %" PRIu64 " bytes",
                          source->path, bytes);
    size_t count = 0, more = 0;
    unsigned char extra;
    status_t status = source_read(source, data, bytes, &count);
    if (status == NULL && count < bytes)
        status = status_new(STATUS_INVALID_ARGUMENT,
                            "%s: cut short: its header promises %" PRIu64 " bytes, there are %zu",
                            source->path, bytes, count);
    /* Asking for one byte more also makes zlib check the sum at the end. */
    if (status == NULL) status = source_read(source, &extra, 1, &more);
    if (status == NULL && more != 0)
        status = status_new(STATUS_INVALID_ARGUMENT,
                            "%s: too long: bytes follow the %" PRIu64 " that its header promises",
                            source->path, bytes);
    if (status != NULL) {
        free(data);
        return status;
    }
    *result = data;
    return NULL;
}

static status_t read_file(const char *root, const char *directory, const char *name,
                          const struct idx_kind *kind, bool header_only,
                          uint32_t dims[static MAX_DIMS], char **path, uint8_t **data)
{
    struct source *source = NULL;
    TRY(source_open(root, directory, name, &source));
    uint64_t bytes = 0;
    status_t status = read_header(source, kind, dims, &bytes);
    if (status == NULL && !header_only) status = read_data(source, bytes, data);
    if (status == NULL) {
        *path = source->path;
        source->path = NULL;
    }
    source_deinit(source);
    free(source);
    return status;
}

static status_t check_labels(const char *path, const uint8_t *labels, int64_t count,
                             int64_t class_count)
{
    for (int64_t i = 0; i < count; i++)
        if (labels[i] >= class_count)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: label %" PRId64
                              " is %d, but the model's classes are 0 to %" PRId64,
                              path, i, labels[i], class_count - 1);
    return NULL;
}

static status_t read_both(const char *root, const char *directory, const char *prefix,
                          int64_t class_count, bool headers_only, struct dataset *dataset,
                          char **images_path, char **labels_path)
{
    char name[64];
    uint32_t images[MAX_DIMS], labels[MAX_DIMS];
    snprintf(name, sizeof name, "%s-images-idx3-ubyte", prefix);
    TRY(read_file(root, directory, name, &images_kind, headers_only, images, images_path,
                  &dataset->images));
    snprintf(name, sizeof name, "%s-labels-idx1-ubyte", prefix);
    TRY(read_file(root, directory, name, &labels_kind, headers_only, labels, labels_path,
                  &dataset->labels));
    if (images[0] != labels[0])
        return status_new(STATUS_INVALID_ARGUMENT, "%s has %u images but %s has %u labels",
                          *images_path, images[0], *labels_path, labels[0]);
    dataset->count = images[0];
    dataset->height = images[1];
    dataset->width = images[2];
    if (headers_only) return NULL;
    return check_labels(*labels_path, dataset->labels, dataset->count, class_count);
}

status_t idx_read_dataset(const char *root, const char *directory, enum idx_split split,
                          int64_t class_count, bool headers_only, struct dataset *dataset)
{
    struct dataset read = {0};
    char *images_path = NULL, *labels_path = NULL;
    status_t status = read_both(root, directory, split == IDX_TRAIN ? "train" : "t10k", class_count,
                                headers_only, &read, &images_path, &labels_path);
    free(images_path);
    free(labels_path);
    if (status != NULL) {
        dataset_deinit(&read);
        return status;
    }
    *dataset = read;
    return NULL;
}
