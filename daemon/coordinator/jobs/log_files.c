/*
 * Logs on disk; see log_files.h. A position is the number of a file and an offset in it. Files are
 * read in blocks, whole lines only, so that a reader never sees part of a line that is being
 * written.
 */
#include "coordinator/jobs/log_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#include "base/array.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

enum { FILES = 8, BLOCK = 64 << 10, OFFSET_BITS = 36, SUM_BYTES = 9 /* and a space */ };

static uint64_t place(uint64_t file, uint64_t offset)
{
    return file << OFFSET_BITS | offset;
}

static char *file_name(const char *directory, uint64_t number)
{
    return mem_printf("%s/%08llu.log", directory, (unsigned long long)number);
}

/* The number in "00000012.log"; 0 if the name is not that of a log file. */
static uint64_t number_of(const char *name)
{
    size_t digits = strspn(name, "0123456789");
    if (digits < 8 || digits > 9 || strcmp(name + digits, ".log") != 0) return 0;
    return strtoull(name, NULL, 10);
}

struct file_list {
    uint64_t *numbers; /* ascending */
    int count, capacity;
};

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static status_t list_files(const char *directory, struct file_list *list)
{
    *list = (struct file_list){0};
    DIR *open = opendir(directory);
    if (open == NULL && errno == ENOENT) return NULL;
    if (open == NULL)
        return status_new(STATUS_UNAVAILABLE, "cannot read %s: %s", directory, strerror(errno));
    for (const struct dirent *entry; errno = 0, (entry = readdir(open)) != NULL;) {
        uint64_t number = number_of(entry->d_name);
        if (number == 0) continue;
        MEM_GROW(list->numbers, list->count, list->capacity);
        list->numbers[list->count++] = number;
    }
    int error = errno;
    closedir(open);
    if (error != 0) {
        free(list->numbers);
        *list = (struct file_list){0};
        return status_new(STATUS_UNAVAILABLE, "cannot read %s: %s", directory, strerror(error));
    }
    if (list->count > 0) qsort(list->numbers, (size_t)list->count, sizeof *list->numbers, compare);
    return NULL;
}

/* ---- writing ---- */

static void add_text(struct buf *out, const char *text)
{
    for (size_t at = 0; text[at] != '\0';) {
        uint32_t character;
        int length = utf8_decode(text + at, &character);
        if (at + (size_t)length > LOG_LINE_MAX) break;
        if (length == 0 || utf8_is_control(character)) buf_add_char(out, '?');
        else buf_add(out, text + at, (size_t)length);
        at += length > 0 ? (size_t)length : 1;
    }
}

static uint32_t sum_of(const char *text, size_t size)
{
    return (uint32_t)crc32(0, (const Bytef *)text, (uInt)size);
}

static void add_line(struct buf *out, const struct log_line *line)
{
    char when[32], sum[SUM_BYTES + 1];
    size_t start = out->length;
    buf_printf(out, "%0*d%s %u ", SUM_BYTES, 0, clock_format_wall(line->time_ms, when),
               line->attempt);
    if (line->rank < 0) buf_add_text(out, "-");
    else buf_printf(out, "%d", line->rank);
    buf_printf(out, " %s ", line->level);
    add_text(out, line->text);
    char *text = out->data + start;
    snprintf(sum, sizeof sum, "%08" PRIx32 " ",
             sum_of(text + SUM_BYTES, out->length - start - SUM_BYTES));
    memcpy(text, sum, SUM_BYTES);
    buf_add_char(out, '\n');
}

static uint64_t size_of(const char *directory, uint64_t number)
{
    struct stat about;
    AUTO_FREE char *path = file_name(directory, number);
    return stat(path, &about) == 0 ? (uint64_t)about.st_size : 0;
}

static void remove_oldest(const char *directory, const struct file_list *list, uint64_t max_bytes)
{
    uint64_t total = 0;
    for (int i = list->count - 1; i >= 0; i--) {
        total += size_of(directory, list->numbers[i]);
        if (total <= max_bytes || i == list->count - 1) continue;
        AUTO_FREE char *path = file_name(directory, list->numbers[i]);
        unlink(path);
    }
}

static status_t write_error(const char *path, int error)
{
    return status_new(error == ENOSPC || error == EDQUOT || error == EFBIG
                          ? STATUS_RESOURCE_EXHAUSTED
                          : STATUS_UNAVAILABLE,
                      "cannot write %s: %s", path, strerror(error));
}

static bool ends_with_line(int fd, off_t size)
{
    char last = '\n';
    return size == 0 || pread(fd, &last, 1, size - 1) != 1 || last == '\n';
}

static status_t append_to(const char *path, struct buf *text)
{
    int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (fd < 0) return write_error(path, errno);
    struct stat about;
    status_t status = NULL;
    /* A line that a crash or a full disk cut off gets its own line end; readers see that it is damaged. */
    bool torn = fstat(fd, &about) == 0 && !ends_with_line(fd, about.st_size);
    if (torn && write(fd, "\n", 1) != 1) status = write_error(path, errno);
    size_t done = 0;
    while (status == NULL && done < text->length) {
        ssize_t count = write(fd, text->data + done, text->length - done);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) status = write_error(path, count < 0 ? errno : ENOSPC);
        else done += (size_t)count;
    }
    close(fd);
    return status;
}

status_t log_files_append(const char *directory, uint64_t max_bytes, const struct log_line *lines,
                          size_t count)
{
    struct file_list list;
    TRY(file_make_directory(directory, 0750));
    TRY(list_files(directory, &list));
    bool fresh = list.count == 0;
    uint64_t last = fresh ? 1 : list.numbers[list.count - 1];
    if (!fresh && size_of(directory, last) >= max_bytes / FILES) {
        last++;
        remove_oldest(directory, &list, max_bytes - max_bytes / FILES);
    }
    AUTO(buf_deinit) struct buf text = {0};
    for (size_t i = 0; i < count; i++) add_line(&text, &lines[i]);
    AUTO_FREE char *path = file_name(directory, last);
    status_t status = append_to(path, &text);
    free(list.numbers);
    return status;
}

/* ---- reading ---- */

/* Parses `digits` digits, which `after` must follow. */
static bool number_at(const char *text, int digits, char after, int *value)
{
    *value = 0;
    for (int i = 0; i < digits; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        *value = *value * 10 + text[i] - '0';
    }
    return text[digits] == after;
}

/* "2026-01-31T12:34:56.789Z " */
static bool parse_time(const char *text, int64_t *time_ms)
{
    struct tm parts = {0};
    int thousandths;
    if (strlen(text) < 25 || !number_at(text, 4, '-', &parts.tm_year) ||
        !number_at(text + 5, 2, '-', &parts.tm_mon) ||
        !number_at(text + 8, 2, 'T', &parts.tm_mday) ||
        !number_at(text + 11, 2, ':', &parts.tm_hour) ||
        !number_at(text + 14, 2, ':', &parts.tm_min) ||
        !number_at(text + 17, 2, '.', &parts.tm_sec) ||
        !number_at(text + 20, 3, 'Z', &thousandths) || text[24] != ' ')
        return false;
    parts.tm_year -= 1900;
    parts.tm_mon -= 1;
    *time_ms = (int64_t)timegm(&parts) * 1000 + thousandths;
    return true;
}

/* Cuts off the next word; NULL if there is none. */
static char *next_word(char **text)
{
    char *word = *text, *end = strchr(word, ' ');
    if (end == NULL || end == word) return NULL;
    *end = '\0';
    *text = end + 1;
    return word;
}

static bool is_level(const char *word)
{
    static const char *const levels[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
    for (size_t i = 0; i < COUNT_OF(levels); i++)
        if (strcmp(word, levels[i]) == 0) return true;
    return false;
}

static bool is_utf8(const char *text)
{
    uint32_t character;
    for (int length; *text != '\0'; text += length)
        if ((length = utf8_decode(text, &character)) == 0) return false;
    return true;
}

/* Past the sum of a line, if it is right; NULL if it is not. */
static char *check_sum(char *text, size_t size)
{
    char sum[SUM_BYTES + 1];
    if (size < SUM_BYTES) return NULL;
    snprintf(sum, sizeof sum, "%08" PRIx32 " ", sum_of(text + SUM_BYTES, size - SUM_BYTES));
    return memcmp(text, sum, SUM_BYTES) == 0 ? text + SUM_BYTES : NULL;
}

/* False if the text is not a whole line of a log. Changes the text, which the line then points
 * into. */
static bool parse_line(char *text, struct log_line *line)
{
    int64_t attempt, rank = -1;
    if (!parse_time(text, &line->time_ms)) return false;
    text += 25;
    const char *attempt_word = next_word(&text);
    const char *rank_word = attempt_word != NULL ? next_word(&text) : NULL;
    line->level = rank_word != NULL ? next_word(&text) : NULL;
    if (line->level == NULL || !is_level(line->level) || !is_utf8(text) ||
        !text_parse_i64(attempt_word, &attempt) || attempt < 0 ||
        attempt > UINT32_MAX)
        return false;
    if (strcmp(rank_word, "-") != 0 &&
        (!text_parse_i64(rank_word, &rank) || rank < 0 || rank > INT32_MAX))
        return false;
    line->attempt = (uint32_t)attempt;
    line->rank = (int)rank;
    line->text = text;
    return true;
}

/* Reads one line, a whole one or a damaged one; the text of the latter is `damaged`'s. */
static void read_line(char *text, size_t size, int64_t previous_ms, struct buf *damaged,
                      struct log_line *line)
{
    char *checked = memchr(text, '\0', size) == NULL ? check_sum(text, size) : NULL;
    AUTO_FREE char *copy = mem_strndup(text, size);
    line->damaged = checked == NULL || !parse_line(checked, line);
    if (!line->damaged) return;
    *line = (struct log_line){.position = line->position,
                              .time_ms = previous_ms,
                              .rank = -1,
                              .level = "ERROR",
                              .damaged = true};
    buf_clear(damaged);
    buf_add_text(damaged, "damaged line: ");
    add_text(damaged, copy);
    line->text = buf_text(damaged);
}

static bool lets_through(const struct log_filter *filter, const struct log_line *line)
{
    if (line->damaged) return true; /* it may have been any line */
    return (filter->attempt == 0 || line->attempt == filter->attempt) &&
           (!filter->one_rank || line->rank == filter->rank) && line->time_ms >= filter->since_ms;
}

/*
 * Visits the lines of one file from an offset on, as long as they are whole and `left` allows.
 * Moves the offset past the last line that was examined.
 */
static void read_block(struct log_query *query, uint64_t number, bool ended, char *block,
                       size_t size, uint64_t *offset, int *left)
{
    size_t at = 0;
    AUTO(buf_deinit) struct buf damaged = {0};
    while (*left > 0 && at < size) {
        char *end = memchr(block + at, '\n', size - at);
        if (end == NULL) break;
        *end = '\0';
        struct log_line line;
        char *text = block + at;
        at = (size_t)(end - block) + 1;
        line.position = place(number, *offset + at);
        read_line(text, (size_t)(end - text), query->time_ms, &damaged, &line);
        query->time_ms = line.time_ms;
        if (!lets_through(&query->filter, &line)) continue;
        query->visit(query->user, &line);
        (*left)--;
    }
    /* No line is as long as a block, and only the last file may end within one. */
    if (at == 0 && (size == BLOCK || (ended && size > 0)) && *left > 0) {
        struct log_line line = {.position = place(number, *offset + size)};
        block[size] = '\0';
        read_line(block, size, query->time_ms, &damaged, &line);
        query->visit(query->user, &line);
        (*left)--;
        at = size;
    }
    *offset += at;
}

/* `ended`: nothing is added to it any more. */
static status_t read_file(struct log_query *query, uint64_t number, bool ended, uint64_t *offset,
                          int *left)
{
    AUTO_FREE char *path = file_name(query->directory, number);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    status_t status = NULL;
    if (fd < 0 && errno != ENOENT)
        status = status_new(STATUS_UNAVAILABLE, "cannot read %s: %s", path, strerror(errno));
    AUTO_FREE char *block = mem_alloc(BLOCK + 1);
    while (fd >= 0 && *left > 0) {
        ssize_t size = pread(fd, block, BLOCK, (off_t)*offset);
        uint64_t before = *offset;
        if (size < 0 && errno == EINTR) continue;
        if (size < 0)
            status = status_new(STATUS_UNAVAILABLE, "cannot read %s: %s", path, strerror(errno));
        else read_block(query, number, ended, block, (size_t)size, offset, left);
        if (*offset == before) break;
    }
    if (fd >= 0) close(fd);
    return status;
}

status_t log_files_read(struct log_query *query)
{
    struct file_list list;
    TRY(list_files(query->directory, &list));
    uint64_t from = query->position >> OFFSET_BITS;
    uint64_t offset = query->position & ((UINT64_C(1) << OFFSET_BITS) - 1);
    int left = query->limit;
    status_t status = NULL;
    query->at_end = true;
    query->older_removed = list.count > 0 && list.numbers[0] > 1 && from < list.numbers[0];
    for (int i = 0; i < list.count && status == NULL; i++) {
        if (list.numbers[i] < from) continue;
        if (list.numbers[i] > from) offset = 0;
        if (left == 0) {
            query->at_end = false;
            break;
        }
        status = read_file(query, list.numbers[i], query->ended || i + 1 < list.count, &offset, &left);
        query->position = place(list.numbers[i], offset);
        if (left == 0) query->at_end = false; /* possibly; the next call finds out */
    }
    free(list.numbers);
    return status;
}

struct tail {
    uint64_t *places; /* positions before each of the last lines, a ring */
    uint64_t before;  /* the position after the previous line */
    uint32_t count, seen;
};

static void note_line(void *user, const struct log_line *line)
{
    struct tail *tail = user;
    tail->places[tail->seen++ % tail->count] = tail->before;
    tail->before = line->position;
}

status_t log_files_tail(const char *directory, const struct log_filter *filter, uint32_t count,
                        uint64_t *position)
{
    struct tail tail = {.places = mem_alloc_array(count, sizeof *tail.places), .count = count};
    struct log_query query = {.directory = directory,
                              .filter = *filter,
                              .limit = 1 << 30,
                              .visit = note_line,
                              .user = &tail};
    status_t status = log_files_read(&query);
    *position = tail.seen <= count ? 0 : tail.places[tail.seen % count];
    free(tail.places);
    return status;
}
