/* Logs: lines on stderr, entries in the journal. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "tests/testing.h"

static char directory[32];

static void set_up(void)
{
    strcpy(directory, "/tmp/fsdpd-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void tear_down(void)
{
    char *command = mem_printf("rm -r %s", directory);
    ck_assert_int_eq(system(command), 0);
    free(command);
}

/* Redirects stderr to a file; returns its path. */
static char *catch_stderr(void)
{
    char *path = file_path_join(directory, "stderr");
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    ck_assert_int_ge(dup2(fd, STDERR_FILENO), 0);
    close(fd);
    return path;
}

static char *read_all(const char *path)
{
    struct buf text = {0};
    status_t status = file_read(path, 1 << 20, &text);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    return buf_take(&text);
}

TESTS_BELOW(.set_up = set_up, .tear_down = tear_down);

/* A terminal that shows the log obeys no control characters in a value; é stays é. */
TEST(quoted_controls)
{
    static const struct {
        const char *text, *quoted;
    } cases[] = {
        {"plain", "plain"},
        {"", "\"\""},
        {"caf\xc3\xa9", "caf\xc3\xa9"},
        {"\xc2\x9b"
         "31m",
         "\"\\xc2\\x9b31m\""},
        {"\xc2\x80 \xc2\x9f", "\"\\xc2\\x80 \\xc2\\x9f\""},
        {"\x9b", "\"\\x9b\""},
        {"\x1b[2J\x7f", "\"\\x1b[2J\\x7f\""},
        {"\xe2\x80\xae", "\"\\xe2\\x80\\xae\""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char *quoted = log_quote(cases[i].text);
        ck_assert_str_eq(quoted, cases[i].quoted);
        free(quoted);
    }
}

TEST(lines)
{
    char *path = catch_stderr();
    log_set_context("worker=a/cpu:1");
    log_event(LOG_DEBUG, "too_quiet", "a=1");
    log_event(LOG_WARNING, "loud", "a=%d", 2);
    log_event(LOG_INFO, "bare", "%s", "");
    char *text = read_all(path);
    ck_assert_ptr_nonnull(strstr(text, "Z WARNING loud worker=a/cpu:1 a=2\n"));
    ck_assert_ptr_nonnull(strstr(text, "Z INFO bare worker=a/cpu:1\n"));
    ck_assert_ptr_null(strstr(text, "too_quiet"));
    free(text);
    free(path);
}

static int bind_journal(char **path)
{
    *path = file_path_join(directory, "journal");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, *path);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    struct timeval patience = {.tv_sec = 5};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

TEST(entries)
{
    char *path = NULL, entry[4096], *errors = catch_stderr();
    int fd = bind_journal(&path);
    log_use_journal(path);
    char *quoted = log_quote("say \"a=b\"\tor \\ not");
    log_event(LOG_ERROR, "job_state", "job=mnist-1 message=%s code=7", quoted);
    free(quoted);
    ssize_t size = recv(fd, entry, sizeof entry - 1, 0);
    ck_assert_int_gt(size, 0);
    entry[size] = '\0';
    ck_assert_str_eq(
        entry, "MESSAGE=job_state job=mnist-1 message=\"say \\\"a=b\\\"\\x09or \\\\ not\" code=7\n"
               "PRIORITY=3\nSYSLOG_IDENTIFIER=fsdpd\nFSDPD_EVENT=job_state\n"
               "FSDPD_JOB=mnist-1\nFSDPD_MESSAGE=say \"a=b\"\tor \\ not\nFSDPD_CODE=7\n");
    char *text = read_all(errors);
    ck_assert_str_eq(text, ""); /* not twice */
    free(text);
    /* The journal is gone: the line is not lost. */
    close(fd);
    unlink(path);
    log_event(LOG_INFO, "after", "a=1");
    text = read_all(errors);
    ck_assert_ptr_nonnull(strstr(text, "INFO after a=1\n"));
    free(text);
    free(path);
    free(errors);
}

TEST(values_with_line_ends)
{
    struct buf out = {0};
    char *quoted = log_quote("one\ntwo");
    char *fields = mem_printf("text=%s broken = x=\"open stray", quoted);
    journal_format(&out, 6, "event", fields);
    static const char value[] = "FSDPD_TEXT\n\7\0\0\0\0\0\0\0one\ntwo\n";
    ck_assert_ptr_nonnull(memmem(out.data, out.length, value, sizeof value - 1));
    ck_assert_ptr_nonnull(memmem(out.data, out.length, "FSDPD_X=open stray\n", 19));
    ck_assert_ptr_null(memmem(out.data, out.length, "FSDPD_BROKEN", 12));
    free(fields);
    free(quoted);
    buf_deinit(&out);
}

TEST(stream)
{
    char *path = catch_stderr();
    struct stat info;
    ck_assert_int_eq(fstat(STDERR_FILENO, &info), 0);
    unsetenv("JOURNAL_STREAM");
    ck_assert(!journal_has_stderr());
    char *name =
        mem_printf("%llu:%llu", (unsigned long long)info.st_dev, (unsigned long long)info.st_ino);
    setenv("JOURNAL_STREAM", name, 1);
    ck_assert(journal_has_stderr());
    setenv("JOURNAL_STREAM", "1:2", 1);
    ck_assert(!journal_has_stderr());
    setenv("JOURNAL_STREAM", "nonsense", 1);
    ck_assert(!journal_has_stderr());
    free(name);
    free(path);
}

static void note_line(void *user, enum log_level level, const char *event, const char *fields)
{
    buf_printf(user, "%s %s %s|", log_level_name(level), event, fields);
}

/* A tap gets exactly the logged lines, without the process's own fields. */
TEST(tap)
{
    struct buf heard = {0};
    log_set_context("worker=x");
    log_event(LOG_INFO, "before", "%s", "");
    log_set_tap(note_line, &heard);
    log_event(LOG_INFO, "joined", "world=%d", 2);
    log_event(LOG_WARNING, "alone", "%s", "");
    log_event(LOG_DEBUG, "hidden", "%s", "");
    log_set_tap(NULL, NULL);
    log_event(LOG_INFO, "after", "%s", "");
    ck_assert_str_eq(buf_text(&heard), "INFO joined world=2|WARNING alone |");
    buf_deinit(&heard);
}
