/* The mark beside the store, and the verification of the log; see store_mark.h. */
#include "coordinator/store/store_mark.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/file.h"
#include "base/mem.h"

/* The record is text of a fixed size, so that it can be written in place and people can read it. */
#define RECORD                                                                                     \
    "fsdpd-mark-1 changes=%010u copied=%010u copying=%d frames=%010u salt=%08x%08x sum=%08x%08x"
#define RECORD_CRC " crc=%08x\n"
enum { RECORD_MAX = 512, LOG_HEADER = 32, PAGE_MIN = 512, PAGE_MAX = 65536 };

status_t store_damaged(const char *path, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    status_t why = status_new_v(STATUS_DATA_LOSS, format, args);
    va_end(args);
    AUTO_FREE char *directory = file_path_directory(path);
    status_t status =
        status_new(STATUS_DATA_LOSS,
                   "%s is damaged (%s)" STORE_DAMAGED_ADVICE "Restore a backup (fsdpd restore "
                   "FILE), or move the store (%s, -wal, -mark) and %s/jobs away to start without "
                   "jobs",
                   path, status_message(why), path, directory);
    status_free(why);
    return status;
}

/* ---- the mark ---- */

static char *mark_path(const char *path)
{
    return mem_printf("%s-mark", path);
}

static uint32_t crc_of(const char *text)
{
    return (uint32_t)crc32(0, (const uint8_t *)text, (unsigned)strlen(text));
}

static char *format_record(const struct store_mark *mark)
{
    AUTO_FREE char *body =
        mem_printf(RECORD, mark->changes, mark->copied, mark->copying, mark->log.frames,
                   mark->log.salt[0], mark->log.salt[1], mark->log.sum[0], mark->log.sum[1]);
    return mem_printf("%s" RECORD_CRC, body, crc_of(body));
}

/* A record is valid if writing the parsed values gives the same text. */
static bool parse_record(const char *text, struct store_mark *mark)
{
    int copying = 0;
    *mark = (struct store_mark){0};
    if (sscanf(text, RECORD, &mark->changes, &mark->copied, &copying, &mark->log.frames,
               &mark->log.salt[0], &mark->log.salt[1], &mark->log.sum[0], &mark->log.sum[1]) != 8)
        return false;
    mark->copying = copying != 0;
    AUTO_FREE char *again = format_record(mark);
    return strcmp(text, again) == 0;
}

status_t mark_read(const char *path, struct store_mark *mark)
{
    AUTO_FREE char *name = mark_path(path);
    AUTO(buf_deinit) struct buf text = {0};
    status_t status = file_read(name, RECORD_MAX, &text);
    if (status_code(status) == STATUS_INVALID_ARGUMENT ||
        (status == NULL && !parse_record(buf_text(&text), mark))) {
        status_free(status);
        status = status_new(STATUS_DATA_LOSS, "%s is damaged", name);
    }
    return status;
}

status_t mark_replace(const char *path, const struct store_mark *mark)
{
    AUTO_FREE char *name = mark_path(path), *text = format_record(mark);
    return file_write_atomic(name, text, strlen(text), 0640);
}

status_t mark_open(const char *path, int *fd)
{
    AUTO_FREE char *name = mark_path(path);
    *fd = open(name, O_RDWR | O_CLOEXEC);
    return *fd < 0 ? status_from_errno(errno, "cannot open %s", name) : NULL;
}

status_t mark_write(int fd, const struct store_mark *mark, bool sync)
{
    AUTO_FREE char *text = format_record(mark);
    size_t size = strlen(text);
    status_t status = NULL;
    ssize_t written = pwrite(fd, text, size, 0);
    if (written != (ssize_t)size || (sync && fdatasync(fd) != 0))
        status = status_from_errno(written < 0 || written == (ssize_t)size ? errno : EIO,
                                   "cannot write the store's mark");
    return status;
}

/* ---- the log ---- */

/* The result of a walk through a log. */
struct log_walk {
    bool there, header;    /* has bytes; begins with a header whose checksum is correct */
    struct log_place last; /* the last of the wanted frames whose checksum is correct */
};

static uint32_t big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* SQLite's checksum over words in the byte order that the log's header names. */
static void add_words(uint32_t sum[2], const uint8_t *bytes, size_t size, bool big)
{
    uint32_t a = sum[0], b = sum[1];
    for (size_t i = 0; i + 8 <= size; i += 8) {
        uint32_t first = big_endian(bytes + i), second = big_endian(bytes + i + 4);
        a += (big ? first : __builtin_bswap32(first)) + b;
        b += (big ? second : __builtin_bswap32(second)) + a;
    }
    sum[0] = a;
    sum[1] = b;
}

static bool sum_is(const uint32_t sum[2], const uint8_t *bytes)
{
    return sum[0] == big_endian(bytes) && sum[1] == big_endian(bytes + 4);
}

int64_t log_frame_offset(uint32_t frame, int page_size)
{
    return LOG_HEADER + (int64_t)(frame - 1) * (LOG_FRAME_HEADER + page_size);
}

struct log_place log_place_of(uint32_t frame, const uint8_t header[LOG_FRAME_HEADER])
{
    return (struct log_place){.frames = frame,
                              .salt = {big_endian(header + 8), big_endian(header + 12)},
                              .sum = {big_endian(header + 16), big_endian(header + 20)}};
}

/* A frame: the page's number, the size of the store, the salt, the checksum; then the page. */
static void walk_frames(FILE *file, const uint8_t header[LOG_HEADER], uint32_t page_size,
                        uint32_t wanted, struct log_walk *walk)
{
    bool big = (header[3] & 1) != 0;
    uint32_t sum[2] = {big_endian(header + 24), big_endian(header + 28)};
    AUTO_FREE uint8_t *frame = mem_alloc(LOG_FRAME_HEADER + page_size);
    walk->last = (struct log_place){.salt = {big_endian(header + 16), big_endian(header + 20)}};
    while (walk->last.frames < wanted && fread(frame, LOG_FRAME_HEADER + page_size, 1, file) == 1) {
        add_words(sum, frame, 8, big);
        add_words(sum, frame + LOG_FRAME_HEADER, page_size, big);
        if (memcmp(frame + 8, header + 16, 8) != 0 || !sum_is(sum, frame + 16)) break;
        walk->last = log_place_of(walk->last.frames + 1, frame);
    }
}

/* Walks through the log of the store as SQLite does when it opens it, up to `wanted` frames. */
static status_t walk_log(const char *path, uint32_t wanted, struct log_walk *walk)
{
    *walk = (struct log_walk){0};
    FILE *file = fopen(path, "re");
    if (file == NULL && errno == ENOENT) return NULL;
    if (file == NULL) return status_from_errno(errno, "cannot open %s", path);
    uint8_t header[LOG_HEADER];
    uint32_t sum[2] = {0};
    size_t size = fread(header, 1, sizeof header, file);
    walk->there = size > 0;
    if (size == sizeof header) {
        uint32_t page_size = big_endian(header + 8);
        add_words(sum, header, 24, (header[3] & 1) != 0);
        walk->header = (big_endian(header) & ~1u) == 0x377f0682 && sum_is(sum, header + 24) &&
                       page_size >= PAGE_MIN && page_size <= PAGE_MAX;
        if (walk->header) walk_frames(file, header, page_size, wanted, walk);
    }
    status_t status = ferror(file) ? status_from_errno(errno, "cannot read %s", path) : NULL;
    fclose(file);
    return status;
}

static status_t verify_log(const char *path, const char *log, const struct store_mark *mark)
{
    struct log_walk walk;
    const struct log_place *place = &mark->log;
    TRY(walk_log(log, place->frames, &walk));
    if (!walk.there)
        return mark->copying ? store_damaged(path, "its log %s is missing", log) : NULL;
    if (!walk.header) return store_damaged(path, "the header of its log %s is damaged", log);
    if (walk.last.salt[0] == place->salt[0] + 1)
        return NULL; /* restarted: the old log was copied */
    if (memcmp(walk.last.salt, place->salt, sizeof place->salt) != 0)
        return store_damaged(path,
                             "its log %s does not match: it was written before or after this store",
                             log);
    if (walk.last.frames < place->frames)
        return store_damaged(path, "its log %s is damaged at frame %u; %u frames were acknowledged",
                             log, walk.last.frames + 1, place->frames);
    if (memcmp(walk.last.sum, place->sum, sizeof place->sum) != 0)
        return store_damaged(path, "its log %s has other changes than those acknowledged", log);
    return NULL;
}

status_t mark_verify(const char *path, const struct store_mark *mark, uint32_t changes,
                     uint32_t copied)
{
    status_t status = NULL;
    if (mark->log.frames > 0) {
        AUTO_FREE char *log = mem_printf("%s-wal", path);
        status = verify_log(path, log, mark);
    }
    TRY(status);
    if (changes < mark->changes)
        return store_damaged(path, "%u acknowledged changes are missing: it has %u of %u",
                             mark->changes - changes, changes, mark->changes);
    if (copied < mark->copied || copied > changes)
        return store_damaged(path, "it does not match its log: it has change %u, not %u", copied,
                             mark->copied);
    return NULL;
}

/* ---- a missing store ---- */

static bool has_bytes(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && info.st_size > 0;
}

static status_t has_entries(const char *path, bool *any)
{
    DIR *directory = opendir(path);
    *any = false;
    if (directory == NULL && errno == ENOENT) return NULL;
    if (directory == NULL) return status_from_errno(errno, "cannot list %s", path);
    for (struct dirent *entry; errno = 0, !*any && (entry = readdir(directory)) != NULL;)
        *any = strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    status_t status = errno != 0 ? status_from_errno(errno, "cannot list %s", path) : NULL;
    closedir(directory);
    return status;
}

status_t mark_find_store(const char *path)
{
    if (has_bytes(path)) return NULL;
    const char *how = access(path, F_OK) == 0 ? "empty" : "missing";
    AUTO_FREE char *directory = file_path_directory(path),
                   *jobs = file_path_join(directory, "jobs");
    AUTO_FREE char *log = mem_printf("%s-wal", path);
    struct store_mark mark = {0};
    bool jobs_there = false;
    TRY(has_entries(jobs, &jobs_there));
    status_t read = mark_read(path, &mark), status = NULL;
    if (has_bytes(log)) status = store_damaged(path, "it is %s, but there is its log %s", how, log);
    else if (status_code(read) == STATUS_DATA_LOSS || mark.changes > 0)
        status = store_damaged(path, "it is %s, but its mark has %u acknowledged changes", how,
                               mark.changes);
    else if (jobs_there)
        status = store_damaged(path, "it is %s, but there are jobs in %s", how, jobs);
    status_free(read);
    return status;
}
