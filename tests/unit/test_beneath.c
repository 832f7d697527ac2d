/* Files below a root: which may be opened, which may not, and what a race cannot change. */
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/beneath.h"
#include "base/file.h"
#include "base/mem.h"
#include "tests/testing.h"

static char top[64]; /* top/root is the root, top/outside is not */
static char *root;

static char *in_top(const char *name)
{
    return mem_printf("%s/%s", top, name);
}

static void put_text(const char *name, const char *text)
{
    char *path = in_top(name);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
    free(path);
}

static void put_directory(const char *name)
{
    char *path = in_top(name);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    free(path);
}

static void put_link(const char *target, const char *name)
{
    char *path = in_top(name);
    ck_assert_int_eq(symlink(target, path), 0);
    free(path);
}

static void set_up(void)
{
    strcpy(top, "/tmp/fsdpd-beneath-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(top));
    root = in_top("root");
    put_directory("root");
    put_directory("root/data");
    put_directory("outside");
    put_text("root/data/file", "inside");
    put_text("outside/file", "secret");
    put_link("data", "root/relative");
    put_link("../data/file", "root/data/twice");
    put_link("../outside", "root/out");
    put_link("../../outside/file", "root/data/out");
    put_link("/proc/self/root", "root/magic");
    put_link("loop", "root/loop");
    put_link("nowhere", "root/dangling");
    put_link("../outside/missing", "root/gone");
    put_link("loop", "outside/loop");
    put_link("../outside/../root/data/file", "root/back");
    put_link("../missing/../root/data/file", "root/never");
    put_link("root", "alias");
    char *alias = in_top("alias/data/file"), *by_alias = in_top("root/by_alias");
    ck_assert_int_eq(symlink(alias, by_alias), 0);
    free(by_alias);
    free(alias);
    char *absolute = in_top("root/absolute"), *target = in_top("root/data");
    ck_assert_int_eq(symlink(target, absolute), 0);
    free(absolute);
    free(target);
    char *pipe = in_top("root/pipe");
    ck_assert_int_eq(mkfifo(pipe, 0644), 0);
    free(pipe);
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info, (void)kind, (void)ftw;
    return remove(path);
}

static void tear_down(void)
{
    beneath_walk_always(false);
    ck_assert_int_eq(nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    free(root);
}

static const struct {
    const char *path; /* %: the directory above the root */
    enum status_code code;
    bool directory;
} cases[] = {
    {"data/file", STATUS_OK, false},
    {"%/root/data/file", STATUS_OK, false},
    {"./data/../data//file", STATUS_OK, false},
    {"relative/file", STATUS_OK, false},
    {"absolute/file", STATUS_OK, false}, /* a link may be absolute, if it stays inside */
    {"data/twice", STATUS_OK, false},
    {"data", STATUS_OK, true},
    {"relative", STATUS_OK, true},
    {"", STATUS_OK, true},
    {".", STATUS_OK, true},
    {"%/root", STATUS_OK, true},
    {"data/file", STATUS_INVALID_ARGUMENT, true},
    {"data", STATUS_INVALID_ARGUMENT, false},
    {"pipe", STATUS_INVALID_ARGUMENT, false},
    {"data/missing", STATUS_NOT_FOUND, false},
    {"dangling", STATUS_NOT_FOUND, false},
    {"../outside/file", STATUS_PERMISSION_DENIED, false},
    {"data/../../outside/file", STATUS_PERMISSION_DENIED, false},
    {"out/file", STATUS_PERMISSION_DENIED, false},
    {"out", STATUS_PERMISSION_DENIED, true},
    {"data/out", STATUS_PERMISSION_DENIED, false},
    {"magic/etc/passwd", STATUS_PERMISSION_DENIED, false},
    {"%/outside/file", STATUS_PERMISSION_DENIED, false},
    {"%/rootless", STATUS_PERMISSION_DENIED, false},
    {"/etc/passwd", STATUS_PERMISSION_DENIED, false},
    /* Errors reveal nothing about the outside, not even what exists. */
    {"/nonexistent/x", STATUS_PERMISSION_DENIED, false},
    {"../nonexistent", STATUS_PERMISSION_DENIED, false},
    {"/", STATUS_PERMISSION_DENIED, true},
    {"out/missing", STATUS_PERMISSION_DENIED, false},
    {"out/file/x", STATUS_PERMISSION_DENIED, false},
    {"out/loop", STATUS_PERMISSION_DENIED, false},
    {"gone", STATUS_PERMISSION_DENIED, false},
    {"gone/x", STATUS_PERMISSION_DENIED, false},
    {"magic/nonexistent", STATUS_PERMISSION_DENIED, false},
    {"%/outside/missing", STATUS_PERMISSION_DENIED, false},
    /* Leaving the root and returning is refused, too. */
    {"../outside/../root/data/file", STATUS_PERMISSION_DENIED, false},
    {"../missing/../root/data/file", STATUS_PERMISSION_DENIED, false},
    {"%/outside/../root/data/file", STATUS_PERMISSION_DENIED, false},
    {"%/missing/../root/data/file", STATUS_PERMISSION_DENIED, false},
    {"back", STATUS_PERMISSION_DENIED, false},
    {"never", STATUS_PERMISSION_DENIED, false},
    /* Another name of the root is as good as its own. */
    {"%/alias/data/file", STATUS_OK, false},
    {"%/alias/relative", STATUS_OK, true},
    {"%/alias/data/missing", STATUS_NOT_FOUND, false},
    {"%/alias/../outside/file", STATUS_PERMISSION_DENIED, false},
    {"%/root/../root/data/file", STATUS_PERMISSION_DENIED, false},
    {"by_alias", STATUS_OK, false},
    {"data/..", STATUS_OK, true},
    {"data/", STATUS_OK, true},
    {"data/file/", STATUS_NOT_FOUND, false},
    {"data/file/x", STATUS_NOT_FOUND, false},
    {"data/missing/x", STATUS_NOT_FOUND, false},
    {"data/missing/../file", STATUS_NOT_FOUND, false},
    {"loop", STATUS_INVALID_ARGUMENT, false},
};

enum { CASES = COUNT_OF(cases) };

static char *case_path(const char *path)
{
    return path[0] == '%' ? mem_printf("%s%s", top, path + 1) : mem_strdup(path);
}

TESTS_BELOW(.timeout = 30, .set_up = set_up, .tear_down = tear_down);

LOOP_TEST(what_may_be_opened, 0, 2 * CASES)
{
    beneath_walk_always(_i >= CASES);
    const int i = _i % CASES;
    char *path = case_path(cases[i].path);
    int fd = -7;
    status_t status = beneath_open(root, path, cases[i].directory, &fd);
    ck_assert_msg(status_code(status) == cases[i].code, "%s: %s", path, status_message(status));
    if (status == NULL) {
        ck_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        ck_assert_int_eq(close(fd), 0);
    } else {
        ck_assert_int_eq(fd, -7);
    }
    status_free(status);
    free(path);
}

TEST(what_is_read)
{
    struct buf text = {0};
    ck_assert_ptr_null(beneath_read(root, "relative/file", 6, &text));
    ck_assert_str_eq(buf_text(&text), "inside");
    status_t status = beneath_read(root, "relative/file", 5, &text);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    status_free(status);
    /* Without a root every path is allowed. */
    char *outside = in_top("outside/file");
    ck_assert_ptr_null(beneath_read(NULL, outside, 6, &text));
    ck_assert_str_eq(buf_text(&text), "secret");
    free(outside);
    buf_deinit(&text);
}

/* A process that may change the tree exchanges a directory with a link, over and over. */
static atomic_bool stop;

static void *exchange(void *unused)
{
    (void)unused;
    char *real = in_top("root/data"), *link = in_top("root/out");
    char *kept = in_top("root/kept");
    while (!stop) {
        /* data is the directory, then a link to the outside, then the directory again */
        if (rename(real, kept) == 0 && rename(link, real) == 0) rename(real, link);
        rename(kept, real);
    }
    free(kept);
    free(link);
    free(real);
    return NULL;
}

LOOP_TEST(a_race_opens_nothing_outside, 0, 2)
{
    beneath_walk_always(_i == 1);
    pthread_t thread;
    stop = false;
    ck_assert_int_eq(pthread_create(&thread, NULL, exchange, NULL), 0);
    int opened = 0, refused = 0;
    for (int i = 0; i < 20000 && (i < 3000 || opened == 0 || refused == 0); i++) {
        struct buf text = {0};
        status_t status = beneath_read(root, "data/file", 100, &text);
        if (status == NULL) ck_assert_str_eq(buf_text(&text), "inside");
        opened += status == NULL;
        refused += status != NULL;
        status_free(status);
        buf_deinit(&text);
    }
    stop = true;
    pthread_join(thread, NULL);
    ck_assert_int_gt(opened, 0);
    ck_assert_int_gt(refused, 0);
}
