/* Reading files that may be gzipped; see gzip_files.h. */
#include "data/gzip_files.h"

#include <stdlib.h>
#include <zlib.h>

#include "base/mem.h"

enum { UNZIP_BUFFER = 1 << 16 };

struct unzip {
    const struct data_file *file;
    int64_t at;             /* the next of the file's own bytes */
    bool compressed, ended; /* `ended`: the last gzip member is complete */
    z_stream stream;
    unsigned char buffer[UNZIP_BUFFER];
};

/* Reads some of the file's own bytes; *count is 0 at its end. */
static status_t read_some(struct unzip *unzip, void *bytes, size_t size, size_t *count)
{
    uint64_t left = (uint64_t)(unzip->file->size - unzip->at);
    *count = left < size ? (size_t)left : size;
    if (*count > 0) TRY(data_file_read(unzip->file, bytes, *count, unzip->at));
    unzip->at += (int64_t)*count;
    return NULL;
}

static status_t refill(struct unzip *unzip)
{
    size_t count;
    TRY(read_some(unzip, unzip->buffer, sizeof unzip->buffer, &count));
    unzip->stream.next_in = unzip->buffer;
    unzip->stream.avail_in = (uInt)count;
    return NULL;
}

/* Between gzip members: the file ends here, or another member follows. */
static status_t next_member(struct unzip *unzip)
{
    if (unzip->stream.avail_in == 0) TRY(refill(unzip));
    if (unzip->stream.avail_in == 0) {
        unzip->ended = true;
        return NULL;
    }
    if (unzip->stream.next_in[0] != 0x1f)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: bytes follow the end of its gzip data",
                          unzip->file->path);
    inflateReset(&unzip->stream);
    return NULL;
}

static status_t inflate_some(struct unzip *unzip, void *bytes, size_t size, size_t *count)
{
    z_stream *stream = &unzip->stream;
    *count = 0;
    while (*count == 0 && !unzip->ended) {
        if (stream->avail_in == 0) TRY(refill(unzip));
        if (stream->avail_in == 0)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: the gzip data is cut short",
                              unzip->file->path);
        uInt room = size < 1u << 30 ? (uInt)size : 1u << 30;
        stream->next_out = bytes;
        stream->avail_out = room;
        int result = inflate(stream, Z_NO_FLUSH);
        *count = room - stream->avail_out;
        if (result == Z_STREAM_END) TRY(next_member(unzip));
        else if (result != Z_OK && result != Z_BUF_ERROR)
            return status_new(STATUS_INVALID_ARGUMENT, "%s: the gzip data is corrupt (%s)",
                              unzip->file->path, stream->msg ? stream->msg : "no reason given");
    }
    return NULL;
}

status_t unzip_read(struct unzip *unzip, void *bytes, size_t size, size_t *total)
{
    *total = 0;
    while (*total < size) {
        size_t count;
        char *to = (char *)bytes + *total;
        size_t left = size - *total;
        TRY(unzip->compressed ? inflate_some(unzip, to, left, &count)
                              : read_some(unzip, to, left, &count));
        if (count == 0) break;
        *total += count;
    }
    return NULL;
}

status_t unzip_open(const struct data_file *file, struct unzip **result)
{
    unsigned char magic[2] = {0, 0};
    if (file->size >= 2) TRY(data_file_read(file, magic, sizeof magic, 0));
    struct unzip *unzip = mem_alloc(sizeof *unzip);
    unzip->file = file;
    if (magic[0] == 0x1f && magic[1] == 0x8b) {
        if (inflateInit2(&unzip->stream, 15 + 16) != Z_OK) { /* 16: expect gzip's own header */
            free(unzip);
            return status_new(STATUS_RESOURCE_EXHAUSTED, "no memory to decompress %s", file->path);
        }
        unzip->compressed = true;
    }
    *result = unzip;
    return NULL;
}

void unzip_close(struct unzip *unzip)
{
    if (unzip == NULL) return;
    if (unzip->compressed) inflateEnd(&unzip->stream);
    free(unzip);
}

bool unzip_is_compressed(const struct unzip *unzip)
{
    return unzip->compressed;
}
