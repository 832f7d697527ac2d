/* The command line of fsdpd. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "options.h"

static char directory[32];
static struct options options;

static void set_up(void)
{
    strcpy(directory, "/tmp/fsdpd-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    setenv("XDG_STATE_HOME", "/home/u/state", 1);
}

static void tear_down(void)
{
    options_deinit(&options);
    char *command = mem_printf("rm -r %s", directory);
    ck_assert_int_eq(system(command), 0);
    free(command);
}

#define PARSE(...)                                                                                 \
    options_parse(&options, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),         \
                  (char **)(const char *[]){__VA_ARGS__, NULL})

static void ok(status_t status)
{
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

static void refused(status_t status, const char *words)
{
    ck_assert_msg(status_code(status) == STATUS_INVALID_ARGUMENT ||
                      status_code(status) == STATUS_NOT_FOUND,
                  "%s", status_message(status));
    ck_assert_msg(strstr(status_message(status), words) != NULL, "\"%s\" lacks \"%s\"",
                  status_message(status), words);
    status_free(status);
    options_deinit(&options);
}

START_TEST(test_roles_and_flags)
{
    ok(PARSE("fsdpd", "--workers", "cpu:3", "--state-dir", directory, "--runtime-dir=run",
             "--data-root", directory, "--data-root", "/", "--listen", "localhost:1",
             "--insecure-tcp", "--threads=2", "--log-level", "debug"));
    ck_assert_int_eq(options.role, ROLE_BOTH);
    ck_assert_int_eq(options.coordinator.local_workers, 3);
    ck_assert_str_eq(options.coordinator.runtime_dir, "run");
    ck_assert_int_eq(options.coordinator.data_root_count, 2);
    ck_assert_str_eq(options.coordinator.data_roots[0], directory);
    ck_assert_int_eq(options.coordinator.worker_threads, 2);
    ck_assert(options.coordinator.insecure_tcp);
    ck_assert_str_eq(options.coordinator.listen[0], "localhost:1");
    ck_assert_int_eq(options.log_level, LOG_DEBUG);
    options_deinit(&options);

    ok(PARSE("fsdpd", "--state-dir", directory));
    ck_assert_int_eq(options.coordinator.local_workers, 2);
    char *data = mem_printf("%s/data", directory);
    ck_assert_str_eq(options.coordinator.data_roots[0], data); /* was made */
    ck_assert_int_eq(access(data, W_OK), 0);
    free(data);
    ck_assert_str_eq(options.coordinator.runtime_dir,
                     geteuid() == 0 ? "/run/fsdpd" : "/run/user/7/fsdpd");
    options_deinit(&options);

    ok(PARSE("fsdpd", "coordinator", "--state-dir", directory));
    ck_assert_int_eq(options.role, ROLE_COORDINATOR);
    ck_assert_int_eq(options.coordinator.local_workers, 0);
    options_deinit(&options);

    ok(PARSE("fsdpd", "worker", "--device", "cpu", "--coordinator", "unix:/x", "--id", "a/cpu:1",
             "--supervised", "--threads", "1", "--data-root", directory));
    ck_assert_int_eq(options.role, ROLE_WORKER);
    ck_assert_str_eq(options.worker.coordinator, "unix:/x");
    ck_assert_str_eq(options.worker.id, "a/cpu:1");
    ck_assert(options.worker.supervised);
    ck_assert_int_eq(options.worker.threads, 1);
    ck_assert_str_eq(options.worker.data_roots[0], directory);
    options_deinit(&options);

    ok(PARSE("fsdpd", "worker"));
    ck_assert_str_eq(options.worker.coordinator, geteuid() == 0
                                                     ? "unix:/run/fsdpd/fsdpd.sock"
                                                     : "unix:/run/user/7/fsdpd/fsdpd.sock");
    ck_assert_int_eq(options.worker.data_root_count, 0);
}
END_TEST

START_TEST(test_mistakes)
{
    refused(PARSE("fsdpd", "wroker"), "did you mean worker");
    refused(PARSE("fsdpd", "--worker", "cpu:1"), "did you mean --workers");
    refused(PARSE("fsdpd", "worker", "--workers", "cpu:1"), "--workers does not belong");
    refused(PARSE("fsdpd", "--workers"), "--workers needs a value");
    refused(PARSE("fsdpd", "--workers", "gpu:1"), "gpu:1");
    refused(PARSE("fsdpd", "--workers", "cpu:0"), "cpu:0");
    refused(PARSE("fsdpd", "--workers", "cpu:-1"), "cpu:-1");
    refused(PARSE("fsdpd", "--workers", "cpu:2x"), "cpu:2x");
    refused(PARSE("fsdpd", "--workers", "cpu:99999999999999999999"), "cpu:N");
    refused(PARSE("fsdpd", "--workers", "cpu"), "cpu:N");
    refused(PARSE("fsdpd", "--threads", "0"), "--threads");
    refused(PARSE("fsdpd", "--log-level", "loud"), "loud");
    refused(PARSE("fsdpd", "--insecure-tcp=yes"), "--insecure-tcp takes no value");
    refused(PARSE("fsdpd", "--data-root", "/nonexistent/data"), "--data-root");
    refused(PARSE("fsdpd", "--runtime-dir", ""), "--runtime-dir");
    refused(PARSE("fsdpd", "worker", "--device", "toaster"), "toaster");
    refused(PARSE("fsdpd", "worker", "more"), "more");
}
END_TEST

START_TEST(test_help)
{
    ok(PARSE("fsdpd", "worker", "-h"));
    ck_assert(options.help);
    options_deinit(&options);
    ok(PARSE("fsdpd", "--version"));
    ck_assert(options.version);
    struct buf text = {0};
    options_describe(ROLE_BOTH, &text);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "--workers cpu:N"));
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "fsdpd worker"));
    buf_clear(&text);
    options_describe(ROLE_WORKER, &text);
    ck_assert_ptr_null(strstr(buf_text(&text), "--workers"));
    ck_assert_ptr_null(strstr(buf_text(&text), "--supervised"));
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "--coordinator ADDRESS"));
    for (const char *line = buf_text(&text); *line; line += strcspn(line, "\n") + 1)
        ck_assert_uint_le(strcspn(line, "\n"), 90);
    buf_deinit(&text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("options");
    TCase *tests = tcase_create("options");
    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, test_roles_and_flags);
    tcase_add_test(tests, test_mistakes);
    tcase_add_test(tests, test_help);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? 1 : 0;
}
