/* Logs on the disk: written lines are read back, filters, places, limits, files torn by a crash. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "coordinator/jobs/log_files.h"
#include "tests/testing.h"

enum { LIMIT = 1 << 20 };
static char *directory;

static void make_directory(void)
{
    char path[] = "/tmp/fsdpd-log-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(path));
    directory = mem_printf("%s/job/log", path);
}

static void remove_directory(void)
{
    char *command =
        mem_printf("rm -rf %.*s", (int)(strlen(directory) - strlen("/job/log")), directory);
    ck_assert_int_eq(system(command), 0);
    free(command);
    free(directory);
}

static void must(status_t status)
{
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

static void add(uint64_t limit, int64_t time_ms, uint32_t attempt, int rank, const char *text)
{
    const struct log_line line = {
        .time_ms = time_ms, .attempt = attempt, .rank = rank, .level = "INFO", .text = text};
    must(log_files_append(directory, limit, &line, 1));
}

/* "1/0 text|1/- text|" of the lines that were read. */
struct reading {
    struct buf text;
    uint64_t position;
};

static void take(void *user, const struct log_line *line)
{
    struct reading *reading = user;
    ck_assert_uint_gt(line->position, reading->position);
    reading->position = line->position;
    buf_printf(&reading->text, "%u/", line->attempt);
    if (line->rank < 0) buf_add_char(&reading->text, '-');
    else buf_printf(&reading->text, "%d", line->rank);
    buf_printf(&reading->text, " %s|", line->text);
}

static void expect(struct log_query query, const char *words)
{
    struct reading reading = {0};
    query.directory = directory;
    query.visit = take;
    query.user = &reading;
    if (query.limit == 0) query.limit = 1000000;
    must(log_files_read(&query));
    ck_assert_str_eq(buf_text(&reading.text), words);
    buf_deinit(&reading.text);
}

TESTS_BELOW(.set_up = make_directory, .tear_down = remove_directory);

TEST(filters)
{
    expect((struct log_query){0}, ""); /* no directory: an empty log */
    add(LIMIT, 1000, 1, -1, "queued");
    add(LIMIT, 2000, 1, 0, "a b=\"c d\"");
    add(LIMIT, 3000, 1, 1, "e");
    add(LIMIT, 4000, 2, 0, "f");
    expect((struct log_query){0}, "1/- queued|1/0 a b=\"c d\"|1/1 e|2/0 f|");
    expect((struct log_query){.filter = {.attempt = 1}}, "1/- queued|1/0 a b=\"c d\"|1/1 e|");
    expect((struct log_query){.filter = {.one_rank = true}}, "1/0 a b=\"c d\"|2/0 f|");
    expect((struct log_query){.filter = {.one_rank = true, .rank = -1}}, "1/- queued|");
    expect((struct log_query){.filter = {.since_ms = 3000}}, "1/1 e|2/0 f|");
    expect((struct log_query){.limit = 2}, "1/- queued|1/0 a b=\"c d\"|");
}

TEST(times_and_texts)
{
    const int64_t time_ms = INT64_C(1769862896789);
    add(LIMIT, time_ms, 4294967295u, 4095, "x\ny\tz\x1b[31m \xff \xc3\xa9");
    struct reading reading = {0};
    struct log_query query = {.directory = directory,
                              .filter = {.since_ms = time_ms},
                              .limit = 10,
                              .visit = take,
                              .user = &reading};
    must(log_files_read(&query));
    ck_assert_str_eq(buf_text(&reading.text), "4294967295/4095 x?y?z?[31m ? \xc3\xa9|");
    ck_assert(query.at_end);
    buf_deinit(&reading.text);
    expect((struct log_query){.filter = {.since_ms = time_ms + 1}}, "");
    struct buf file = {0};
    char *path = mem_printf("%s/00000001.log", directory);
    must(file_read(path, LIMIT, &file));
    ck_assert_str_eq(buf_text(&file), "a070e771 2026-01-31T12:34:56.789Z 4294967295 4095 INFO "
                                      "x?y?z?[31m ? \xc3\xa9\n");
    buf_deinit(&file);
    free(path);
    /* A long text is truncated, and the next line is there. */
    char *text = mem_alloc(LOG_LINE_MAX + 100);
    memset(text, 'l', LOG_LINE_MAX + 99);
    add(LIMIT, time_ms, 1, 0, text);
    add(LIMIT, time_ms, 1, 0, "after");
    struct reading after = {0};
    query = (struct log_query){.directory = directory, .limit = 10, .visit = take, .user = &after};
    must(log_files_read(&query));
    ck_assert_ptr_nonnull(strstr(buf_text(&after.text), "l|1/0 after|"));
    ck_assert_uint_lt(after.text.length, LOG_LINE_MAX + 100);
    buf_deinit(&after.text);
    free(text);
}

/* A reader that continues from a place sees each line once, whatever is written meanwhile. */
TEST(places)
{
    struct reading reading = {0};
    struct log_query query = {.directory = directory, .limit = 3, .visit = take, .user = &reading};
    struct buf all = {0};
    for (int i = 0; i < 50; i++) {
        char text[16];
        snprintf(text, sizeof text, "line%d", i);
        add(1 << 12, i, 1, 0, text);
        buf_printf(&all, "1/0 line%d|", i);
        if (i % 7 == 0) must(log_files_read(&query));
    }
    do must(log_files_read(&query));
    while (!query.at_end);
    ck_assert_str_eq(buf_text(&reading.text), buf_text(&all));
    ck_assert(!query.older_removed);
    buf_deinit(&reading.text);
    buf_deinit(&all);

    uint64_t position;
    must(log_files_tail(directory, &(struct log_filter){0}, 2, &position));
    expect((struct log_query){.position = position}, "1/0 line48|1/0 line49|");
    must(log_files_tail(directory, &(struct log_filter){.since_ms = 49}, 2, &position));
    expect((struct log_query){.position = position, .filter = {.since_ms = 49}}, "1/0 line49|");
    must(log_files_tail(directory, &(struct log_filter){0}, 1000, &position));
    ck_assert_uint_eq(position, 0);
}

static uint64_t kept_bytes(void)
{
    uint64_t bytes = 0;
    for (int i = 1; i < 100000; i++) {
        struct stat about;
        char *path = mem_printf("%s/%08d.log", directory, i);
        if (stat(path, &about) == 0) bytes += (uint64_t)about.st_size;
        free(path);
    }
    return bytes;
}

/* The oldest lines go, the newest never; a reader whose lines are gone continues with the rest. */
TEST(limit)
{
    enum { SMALL = 1 << 14, COUNT = 2000 };
    struct reading reading = {0};
    struct log_query behind = {.directory = directory, .limit = 1, .visit = take, .user = &reading};
    for (int i = 0; i < COUNT; i++) {
        char text[16];
        snprintf(text, sizeof text, "line%04d", i);
        add(SMALL, i, 1, 0, text);
        if (i == 0) must(log_files_read(&behind));
    }
    ck_assert_uint_le(kept_bytes(), SMALL);
    ck_assert_uint_gt(kept_bytes(), SMALL / 2);
    behind.limit = COUNT;
    buf_clear(&reading.text);
    must(log_files_read(&behind));
    ck_assert(behind.older_removed);
    int first, lines = 0;
    ck_assert_int_eq(sscanf(buf_text(&reading.text), "1/0 line%d|", &first), 1);
    ck_assert_int_gt(first, 1);
    for (const char *c = buf_text(&reading.text); *c; c++) lines += *c == '|';
    ck_assert_int_eq(lines, COUNT - first);
    buf_deinit(&reading.text);
}

static void append_raw(const char *bytes, size_t count)
{
    char *path = mem_printf("%s/00000001.log", directory);
    int fd = open(path, O_WRONLY | O_APPEND);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, count), (ssize_t)count);
    close(fd);
    free(path);
}

/* Damaged lines are shown as such, whatever the filter, and half a line is not read before it
 * ends. */
TEST(torn)
{
    static const char *const wrong[] = {
        "",
        "nonsense",
        "2026-01-31T12:34:56.789Z",
        "2026-01-31T12:34:56.789Z 1 0 INFO",
        "2026-01-31T12:34:56.789Z x 0 INFO text",
        "2026-01-31T12:34:56.789Z 1 99999999999 INFO text",
        "2026-01-31T12:34:56.789Z -1 0 INFO text",
        "2026-01-3XT12:34:56.789Z 1 0 INFO text",
        "2026-01-31T12:34:56.789Z 1 0 INVO text",
    };
    struct buf all = {0};
    add(LIMIT, 1, 1, 0, "one");
    buf_add_text(&all, "1/0 one|");
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        append_raw(wrong[i], strlen(wrong[i]));
        append_raw("\n", 1);
        buf_printf(&all, "0/- damaged line: %s|", wrong[i]);
    }
    append_raw("a\0b\n", 4);
    append_raw("2026-01-31T12:34:56.789Z 7 0 INFO t\xe9xt\n", 39);
    append_raw("2026-01-31T12:34:56.789Z 7 0 INFO text\n", 39);
    append_raw("2026-01-31T12:34:5", 18);
    buf_add_text(&all, "0/- damaged line: a|"
                       "0/- damaged line: 2026-01-31T12:34:56.789Z 7 0 INFO t?xt|"
                       "0/- damaged line: 2026-01-31T12:34:56.789Z 7 0 INFO text|");
    expect((struct log_query){0}, buf_text(&all));
    expect((struct log_query){.filter = {.since_ms = INT64_MAX}, .limit = 2},
           "0/- damaged line: |0/- damaged line: nonsense|");
    add(LIMIT, 2, 1, 0, "two");
    buf_add_text(&all, "0/- damaged line: 2026-01-31T12:34:5|1/0 two|");
    expect((struct log_query){0}, buf_text(&all));
    char *garbage = mem_alloc(300000);
    memset(garbage, 'g', 300000);
    append_raw(garbage, 300000);
    free(garbage);
    add(LIMIT, 3, 1, 0, "three");
    struct reading reading = {0};
    struct log_query query = {.directory = directory, .limit = 100, .visit = take, .user = &reading};
    must(log_files_read(&query));
    ck_assert_int_eq(strncmp(buf_text(&reading.text), buf_text(&all), all.length), 0);
    int pieces = 0; /* four blocks without a line end, and the rest of the line */
    for (const char *text = buf_text(&reading.text) + all.length;
         strncmp(text, "0/- damaged line: ggg", 21) == 0; text = strchr(text, '|') + 1)
        pieces++;
    ck_assert_int_eq(pieces, 5);
    ck_assert_ptr_nonnull(strstr(buf_text(&reading.text), "g|1/0 three|"));
    buf_deinit(&reading.text);
    buf_deinit(&all);
}

/* One flipped bit damages one line, two that it joins, or one that it divides; all others are
 * there. FSDPD_FLIPS of them. */
TEST(flips)
{
    enum { LINES = 5 };
    const char *count = getenv("FSDPD_FLIPS");
    for (int i = 0; i < LINES; i++) add(LIMIT, 1000 + i, 1, i, "loss=0.25 text");
    char *path = mem_printf("%s/00000001.log", directory);
    struct buf file = {0};
    must(file_read(path, LIMIT, &file));
    int fd = open(path, O_WRONLY);
    uint64_t state = 1;
    for (int i = 0; i < (count != NULL ? atoi(count) : 60); i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        size_t at = (size_t)(state >> 33) % (file.length - 1); /* the last line has its end */
        char byte = (char)(file.data[at] ^ 1 << (state >> 60 & 7));
        ck_assert_int_eq(pwrite(fd, &byte, 1, (off_t)at), 1);
        struct reading reading = {0};
        struct log_query query = {
            .directory = directory, .limit = 100, .visit = take, .user = &reading};
        must(log_files_read(&query));
        int good = 0, damaged = 0;
        for (const char *text = buf_text(&reading.text); *text != '\0';
             text = strchr(text, '|') + 1) {
            good += strncmp(text, "1/", 2) == 0 && strncmp(text + 3, " loss=0.25 text|", 16) == 0;
            damaged += strncmp(text, "0/- damaged line: ", 18) == 0;
        }
        ck_assert_msg(damaged >= 1 && damaged <= 2 && good >= LINES - 2 && good < LINES,
                      "flip %d at %zu: %s", i, at, buf_text(&reading.text));
        buf_deinit(&reading.text);
        ck_assert_int_eq(pwrite(fd, file.data + at, 1, (off_t)at), 1);
    }
    close(fd);
    buf_deinit(&file);
    free(path);
}

TEST(unwritable)
{
    char *file = mem_printf("%.*s", (int)(strlen(directory) - strlen("/log")), directory);
    must(file_write_atomic(file, "x", 1, 0600)); /* at the path of the directory */
    const struct log_line line = {.level = "INFO", .text = "x"};
    status_t status = log_files_append(directory, LIMIT, &line, 1);
    ck_assert_ptr_nonnull(status);
    status_free(status);
    free(file);
}
