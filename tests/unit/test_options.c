/* The command line of fsdpd. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "option_table.h"
#include "options.h"
#include "roles.h"
#include "tests/testing.h"

static char directory[32];
static struct options options;

static void set_up(void)
{
    strcpy(directory, "/tmp/fsdpd-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
    setenv("XDG_STATE_HOME", "/home/u/state", 1);
    setenv("FSDPD_CONFIG", "", 1); /* none, whatever this machine has */
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

TESTS_BELOW(.set_up = set_up, .tear_down = tear_down);

TEST(roles_and_flags)
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
    ck_assert_int_eq(access(data, F_OK), -1); /* parsing creates nothing */
    ok(options_prepare(&options));
    ck_assert_str_eq(options.coordinator.data_roots[0], data); /* was created */
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

    static const char *const roles[] = {"backup", "restore"};
    for (int i = 0; i < 2; i++) {
        ok(PARSE("fsdpd", roles[i], "/mnt/store.sqlite"));
        ck_assert_int_eq(options.role, i == 0 ? ROLE_BACKUP : ROLE_RESTORE);
        ck_assert_str_eq(options.store_file, "/mnt/store.sqlite");
        options_deinit(&options);
        refused(PARSE("fsdpd", roles[i], "/mnt/store.sqlite", "more"), "unexpected argument: more");
    }

    ok(PARSE("fsdpd", "worker"));
    ck_assert_str_eq(options.worker.coordinator, geteuid() == 0
                                                     ? "unix:/run/fsdpd/fsdpd.sock"
                                                     : "unix:/run/user/7/fsdpd/fsdpd.sock");
    ck_assert_int_eq(options.worker.data_root_count, 0);
}

TEST(no_local_workers)
{
    ok(PARSE("fsdpd", "--workers", "none", "--state-dir", directory));
    ck_assert_int_eq(options.coordinator.local_workers, 0);
}

TEST(mistakes)
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
    refused(PARSE("fsdpd", "plan", "job.yaml", "--memory", "8388608TiB"),
            "bytes above 0"); /* 2^63 */
}

TEST(tokens_of_one_job)
{
    ok(PARSE("fsdpd", "token", "issue", "--job", "gpt2-1", "--hours", "8"));
    ck_assert_str_eq(options.token.job, "gpt2-1");
    ck_assert_int_eq(options.token.hours, 8);
    ck_assert_int_eq(options.token.word_count, 1);
    options_deinit(&options);
    ok(PARSE("fsdpd", "token", "issue", "ann", "--role", "observer"));
    ck_assert_str_eq(options.token.role, "observer");
    options_deinit(&options);
    refused(PARSE("fsdpd", "token", "issue", "--hours", "8"), "token issue: expected NAME");
    refused(PARSE("fsdpd", "token", "issue", "ann", "--days", "1", "--hours", "2"),
            "expected --days or --hours");
    refused(PARSE("fsdpd", "token", "list", "--job", "gpt2-1"), "--hours belong to issue");
}

TEST(help)
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
    ck_assert_ptr_nonnull(strstr(buf_text(&text),
                                 "another role:\ncoordinator, worker, plan, config, "
                                 "backup, restore, scrub,\ncert, devices, calibrate, token\n"));
    buf_clear(&text);
    options_describe(ROLE_WORKER, &text);
    ck_assert_ptr_null(strstr(buf_text(&text), "--workers"));
    ck_assert_ptr_null(strstr(buf_text(&text), "--supervised"));
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "--coordinator ADDRESS"));
    for (const char *line = buf_text(&text); *line; line += strcspn(line, "\n") + 1)
        ck_assert_uint_le(strcspn(line, "\n"), 90);
    buf_deinit(&text);
}

/* ---- fsdpd.yaml ---- */

static char *write_file(const char *text)
{
    char *path = mem_printf("%s/fsdpd.yaml", directory);
    ok(file_write_atomic(path, text, strlen(text), 0600));
    return path;
}

TEST(file)
{
    char *text = mem_printf(
        "workers: cpu:5\nthreads: 3\ndata_roots: [/, %s]\nlog_level: error\n"
        "listen: unix:/tmp/a\ninsecure_tcp: true\n"
        "limits: {watchers: 7, silence_seconds: 2.5, retry_seconds: 0.3}\nlimits.jobs_active: 9\n"
        "worker: {id: \"n7/cpu\", device: }\n",
        directory);
    char *path = write_file(text);
    ok(PARSE("fsdpd", "--config", path));
    ck_assert_str_eq(options.config_file, path);
    ck_assert_int_eq(options.coordinator.local_workers, 5);
    ck_assert_int_eq(options.coordinator.worker_threads, 3);
    ck_assert_int_eq(options.coordinator.data_root_count, 2);
    ck_assert_str_eq(options.coordinator.data_roots[1], directory);
    ck_assert_int_eq(options.log_level, LOG_ERROR);
    ck_assert_str_eq(options.coordinator.log_level, "error");
    ck_assert_str_eq(options.coordinator.listen[0], "unix:/tmp/a");
    ck_assert(options.coordinator.insecure_tcp);
    ck_assert_int_eq(options.coordinator.limits.watchers, 7);
    ck_assert_int_eq(options.coordinator.limits.silence_ms, 2500);
    ck_assert_int_eq(options.coordinator.limits.jobs_active, 9);
    ck_assert_int_eq(options.coordinator.limits.plan_ms, 60000);
    ck_assert_int_eq(options.coordinator.limits.retry_ms, 300);
    ck_assert_int_eq(options.coordinator.limits.retry_max_ms, 60000);
    ck_assert_ptr_null(options.worker.id); /* of another role */
    options_deinit(&options);

    setenv("FSDPD_CONFIG", path, 1);
    ok(PARSE("fsdpd", "worker"));
    ck_assert_str_eq(options.worker.id, "n7/cpu");
    ck_assert_str_eq(options.worker.device, "cpu"); /* no value: as if it were absent */
    ck_assert_int_eq(options.worker.threads, 3);
    options_deinit(&options);
    ok(PARSE("fsdpd", "worker", "--supervised")); /* its coordinator sends it all settings */
    ck_assert_ptr_null(options.worker.id);
    ck_assert_ptr_null(options.config_file);
    options_deinit(&options);
    ok(PARSE("fsdpd", "--config="));
    ck_assert_ptr_null(options.config_file);
    ck_assert_int_eq(options.coordinator.local_workers, 2);
    options_deinit(&options);

    /* Flag, then environment, then file; a list as a whole. */
    setenv("FSDPD_THREADS", "4", 1);
    setenv("FSDPD_WORKERS", "cpu:6", 1);
    setenv("FSDPD_DATA_ROOTS", "[/usr, /tmp]", 1);
    setenv("FSDPD_LIMITS_WATCHERS", "8", 1);
    ok(PARSE("fsdpd", "--workers", "cpu:7", "--workers", "cpu:8", "--data-root", "/"));
    ck_assert_int_eq(options.coordinator.local_workers, 8);
    ck_assert_int_eq(options.coordinator.worker_threads, 4);
    ck_assert_int_eq(options.coordinator.data_root_count, 1);
    ck_assert_int_eq(options.coordinator.limits.watchers, 8);
    options_deinit(&options);
    ok(PARSE("fsdpd"));
    ck_assert_int_eq(options.coordinator.data_root_count, 2);
    ck_assert_str_eq(options.coordinator.data_roots[0], "/usr");
    options_deinit(&options);
    setenv("FSDPD_THREADS", "many", 1);
    refused(PARSE("fsdpd"), "FSDPD_THREADS: expected an integer from 1 to 1024, found 'many'");
    free(path);
    free(text);
}

static const struct {
    const char *text, *words;
} bad_files[] = {
    {"\nlog_levle: debug\n", ":2: log_levle: unknown key; did you mean log_level?"},
    {"limits:\n  watcher: 1\n", ":2: limits.watcher: unknown key; did you mean limits.watchers?"},
    {"watchers: 1\n", "did you mean limits.watchers?"},
    /* A larger size than a request's could never be submitted. */
    {"limits.spec_bytes: 7340033\n",
     ":1: limits.spec_bytes: expected an integer from 4096 to 7340032"},
    {"zzzzzz: 1\n", "fsdpd config dump lists all"},
    {"log_level: loud\n", ":1: log_level: expected debug, info, warning or error, found 'loud'"},
    {"log_level: inf\n", "did you mean info?"},
    {"threads: 0\n", ":1: threads: expected an integer from 1 to 1024, found '0'"},
    {"threads: '2'\n", "expected a value without quotes"},
    {"threads: [1]\n", "expected one value, found a list"},
    {"threads: 1.5\n", "found '1.5'"},
    {"data_roots: data\n", "expected an absolute path"},
    {"data_roots: [/, {a: b}]\n", "expected a list of texts, found a mapping"},
    {"data_roots: /nonexistent/data\n", ":1: data_roots: "},
    {"insecure_tcp: yes\n", "expected true or false"},
    {"listen: [localhost]\n", "expected unix:/path or host:port"},
    {"workers: gpu:1\n", "expected cpu:N"},
    {"limits: 3\n", ":1: limits: expected a mapping of keys"},
    {"limits.silence_seconds: 1\n", ":1: limits.silence_seconds: expected at least two heartbeats"},
    {"threads: 1\nthreads: 2\n", ":2: "},
    {"limits: {watchers: 1}\nlimits.watchers: 2\n", ":2: limits.watchers: is set twice"},
    {"- 1\n", ":1: expected a mapping"},
    {"a: [\n", ":2: "},
    {"notify: [a]\n", ":1: key 'notify': expected names with a command or a url"},
    {"notify:\n  Ops: {command: [/a]}\n", ":2: notify: expected a name of 1 to 40"},
    {"notify:\n  a: {command: [mail]}\n",
     ":2: key 'notify.a.command': expected the program's absolute"},
    {"notify:\n  a: {command: /bin/x}\n",
     ":2: key 'notify.a.command': expected the program and its"},
    {"notify:\n  a: {command: [/a], url: https://b}\n", "found both"},
    {"notify:\n  a: {url: http://b, secret_file: /s}\n",
     "expected an address that begins with https://"},
    {"notify:\n  a: {url: https://b}\n", "secret_file"},
    {"notify:\n  a: {url: https://b, secret_file: s}\n", "expected an absolute path"},
    {"notify:\n  a: {urll: https://b}\n", "did you mean"},
    {"worker: {device: toaster}\n",
     ":1: worker.device: expected cpu or cuda:N"}, /* of another role */
};

LOOP_TEST(bad_files, 0, COUNT_OF(bad_files))
{
    char *path = write_file(bad_files[_i].text);
    refused(PARSE("fsdpd", "--config", path), bad_files[_i].words);
    refused(PARSE("fsdpd", "config", "check", path), path);
    free(path);
}

TEST(all_mistakes)
{
    char *path = write_file("thread: 1\nlog_level: x\nlimits:\n  watchers: -1\n");
    status_t status = PARSE("fsdpd", "config", "check", path);
    const char *message = status_message(status);
    ck_assert_ptr_nonnull(strstr(message, "fsdpd.yaml:1: thread: "));
    ck_assert_ptr_nonnull(strstr(message, "fsdpd.yaml:2: log_level: "));
    ck_assert_ptr_nonnull(strstr(message, "fsdpd.yaml:4: limits.watchers: "));
    status_free(status);
    options_deinit(&options);
    refused(PARSE("fsdpd", "--config", "/nonexistent/fsdpd.yaml"), "/nonexistent/fsdpd.yaml");
    refused(PARSE("fsdpd", "config"), "expected check or dump");
    refused(PARSE("fsdpd", "config", "dmup"), "did you mean dump");
    refused(PARSE("fsdpd", "config", "check", path, "more"), "more");
    free(path);
}

TEST(empty_files)
{
    static const char *const texts[] = {"", "\n\n", "# nothing\n  # at all", "---\n", "limits:\n"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        char *path = write_file(texts[i]);
        ok(PARSE("fsdpd", "config", "check", path));
        options_deinit(&options);
        free(path);
    }
}

/* The output of dump can be read again, with the same result. */
TEST(dump)
{
    char *path = write_file("limits.watchers: 7\nlisten: []\nworker.id: \"a b#\"\n"
                            "notify: {n: {command: [/x, 'a \"b']}, "
                            "w: {url: https://a, secret_file: /s}}\n");
    setenv("FSDPD_LOG_LEVEL", "debug", 1);
    ok(PARSE("fsdpd", "config", "dump", path, "--threads", "2", "--data-root", directory));
    ck_assert(options.dump);
    struct buf first = {0}, second = {0}, json = {0};
    config_describe(&options, false, &first);
    config_describe(&options, true, &json);
    char *wanted[] = {
        mem_printf("  watchers: 7                           # %s:1\n", path),
        mem_strdup("log_level: debug                        # FSDPD_LOG_LEVEL\n"),
        mem_strdup("threads: 2                              # --threads\n"),
        mem_strdup("  jobs_active: 1000                     # default\n"),
        mem_strdup("  id: \"a b#\" "),
        mem_strdup("notify: {n: {command: [\"/x\", \"a \\\"b\"]}, "
                   "w: {url: \"https://a\", secret_file: \"/s\"}} "),
        mem_printf("data_roots: [%s] ", directory),
        mem_printf("listen: []                              # %s:2\n", path),
    };
    for (size_t i = 0; i < COUNT_OF(wanted); i++) {
        ck_assert_msg(strstr(buf_text(&first), wanted[i]) != NULL, "no \"%s\" in\n%s", wanted[i],
                      buf_text(&first));
        free(wanted[i]);
    }
    ck_assert_ptr_nonnull(strstr(buf_text(&json), "\"key\": \"limits.watchers\""));
    options_deinit(&options);
    ok(PARSE("fsdpd", "--config", path));
    ck_assert_int_eq(options.coordinator.notify_count, 2);
    ck_assert_str_eq(options.coordinator.notify[0].command[1], "a \"b");
    ck_assert_ptr_null(options.coordinator.notify[0].command[2]);
    ck_assert_str_eq(options.coordinator.notify[1].secret_file, "/s");
    options_deinit(&options);
    unsetenv("FSDPD_LOG_LEVEL");
    free(path);
    path = write_file(buf_text(&first));
    ok(PARSE("fsdpd", "config", "dump", path));
    config_describe(&options, false, &second);
    const char *a = buf_text(&first), *b = buf_text(&second);
    while (*a && *b) { /* except for the sources of the values */
        ck_assert_msg(strncmp(a, b, strcspn(a, "#")) == 0, "%.80s\n%.80s", a, b);
        a += strcspn(a, "\n") + 1;
        b += strcspn(b, "\n") + 1;
    }
    ck_assert(*a == *b);
    buf_deinit(&first);
    buf_deinit(&second);
    buf_deinit(&json);
    free(path);
}

/* Whatever the paths, also that of the file, which comments name. */
TEST(dump_of_strange_paths)
{
    char *path = mem_printf("%s/strange\nthreads: 9\xc2\x85.yaml", directory), *again;
    static const char text[] = "state_dir: \"/a\\x85b\\u2028:\"\nworker.id: \"x #y: \"\n";
    ok(file_write_atomic(path, text, sizeof text - 1, 0600));
    ok(PARSE("fsdpd", "config", "dump", path));
    struct buf first = {0}, value = {0};
    config_describe(&options, false, &first);
    options_deinit(&options);
    again = write_file(buf_text(&first));
    ok(PARSE("fsdpd", "config", "dump", again));
    ck_assert_str_eq(options.coordinator.state_dir, "/a\xc2\x85"
                                                    "b\u2028:");
    ck_assert_str_eq(options.worker.id, "x #y: ");
    option_describe_value(&options, option_find_key("threads", ROLE_CONFIG), &value);
    ck_assert_ptr_null(strchr(buf_text(&value), '9'));
    buf_deinit(&first);
    buf_deinit(&value);
    free(path);
    free(again);
}

TEST(differences)
{
    struct options before, after;
    char *path = write_file("log_level: info\n");
    char *arguments[] = {(char *)"fsdpd", (char *)"--config", path, NULL};
    ok(options_parse(&before, 3, arguments));
    free(write_file("log_level: debug\nthreads: 3\nlimits.watchers: 9\nlimits.jobs_active: 1000\n"
                    "worker.id: other\n"));
    ok(options_parse(&after, 3, arguments));
    struct buf text = {0};
    options_differences(&before, &after, true, &text);
    ck_assert_str_eq(buf_text(&text), "log_level, limits.watchers");
    buf_clear(&text);
    options_differences(&before, &after, false, &text);
    ck_assert_str_eq(buf_text(&text), "threads");
    buf_deinit(&text);
    options_deinit(&before);
    options_deinit(&after);
    free(path);
}

static void read_source(const char *name, struct buf *text)
{
    char *path = file_path_join(getenv("srcdir"), name);
    ok(file_read(path, 1 << 20, text));
    free(path);
}

static bool is_same_flag(const struct option_row *a, const struct option_row *b)
{
    if (b->flag == NULL || strcmp(a->flag, b->flag) != 0) return false;
    if (a->argument == NULL || b->argument == NULL) return a->argument == b->argument;
    return strcmp(a->argument, b->argument) == 0;
}

/* The line in docs/fsdpd.md of a flag with its argument lists its roles. */
static void check_roles(const struct option_row *row, const char *found)
{
    static const char *const names[] = {"fsdpd",  "coordinator", "worker",    "plan", "config", "backup",
                                        "restore", "scrub", "cert", "devices", "calibrate", "token"};
    unsigned roles = 0;
    struct buf expected = {0};
    for (int i = 0; i < option_row_count; i++)
        if (is_same_flag(row, &option_rows[i])) roles |= option_rows[i].roles;
    for (int i = 0; i < (int)COUNT_OF(names) && roles != FOR_ALL; i++)
        if ((roles & (1u << i)) != 0)
            buf_printf(&expected, "%s`%s`", expected.length > 0 ? ", " : "", names[i]);
    if (roles == FOR_ALL) buf_add_text(&expected, "all");
    const char *rest = strstr(found, " | ");
    ck_assert_ptr_nonnull(rest);
    ck_assert_msg(strncmp(rest + 3, buf_text(&expected), expected.length) == 0 &&
                      strncmp(rest + 3 + expected.length, " | ", 3) == 0,
                  "docs/fsdpd.md: %s is of: %s", row->flag, buf_text(&expected));
    buf_deinit(&expected);
}

/* docs/configuration.md has every key with its type and default, and nothing else. */
TEST(documentation)
{
    struct buf text = {0}, manual = {0};
    read_source("docs/configuration.md", &text);
    read_source("docs/fsdpd.md", &manual);
    int keys = 0, rows = 0;
    ok(PARSE("fsdpd"));
    for (int i = 0; i < option_row_count; i++) {
        const struct option_row *row = &option_rows[i];
        if (row->flag != NULL && row->help != NULL) {
            char *flag =
                mem_printf("`%s%s%s", row->flag, row->argument ? " " : "`",
                           row->argument && !strchr(row->argument, '|') ? row->argument : "");
            const char *found = strstr(buf_text(&manual), flag);
            ck_assert_msg(found != NULL, "docs/fsdpd.md lacks %s", flag);
            check_roles(row, found);
            free(flag);
        }
        if (row->key == NULL || option_is_repeated(row)) continue;
        keys++;
        struct buf line = {0}, value = {0};
        buf_printf(&line, "\n| `%s` | ", row->key);
        option_describe_type(row, &line);
        option_describe_value(&options, row, &value);
        bool found_out = row->fallback == NULL && row->kind != OPTION_SWITCH &&
                         strncmp(row->key, "limits.", 7) != 0;
        if (found_out) buf_add_text(&line, " | none | ");
        else buf_printf(&line, " | `%s` | ", buf_text(&value));
        buf_printf(&line, "%s | ", row->reload ? "yes" : "no");
        ck_assert_msg(strstr(buf_text(&text), buf_text(&line)) != NULL,
                      "docs/configuration.md has no line like this:%s", buf_text(&line));
        buf_deinit(&line);
        buf_deinit(&value);
    }
    for (const char *at = buf_text(&text); (at = strstr(at, "\n| `")) != NULL; at++) rows++;
    ck_assert_int_eq(rows, keys);
    buf_deinit(&text);
    buf_deinit(&manual);
}

/* The example is empty, valid once it is uncommented, and has every key. */
TEST(example)
{
    struct buf text = {0}, all = {0};
    read_source("examples/fsdpd.yaml", &text);
    char *path = write_file(buf_text(&text));
    ok(PARSE("fsdpd", "config", "check", path));
    options_deinit(&options);
    free(path);
    for (const char *line = buf_text(&text); *line; line += strcspn(line, "\n") + 1)
        if (line[0] == '#' && (line[1] != ' ' || line[2] == ' ') &&
            strncmp(line, "#data_roots", 11) != 0)
            buf_printf(&all, "%.*s\n", (int)strcspn(line, "\n") - 1, line + 1);
    buf_add_text(&all, "data_roots: [/]\n");
    path = write_file(buf_text(&all));
    ok(PARSE("fsdpd", "config", "check", path));
    for (int i = 0; i < option_row_count; i++)
        if (option_rows[i].key != NULL && !option_is_repeated(&option_rows[i]))
            ck_assert_msg(options.values[i].source == SOURCE_FILE, "the example lacks %s",
                          option_rows[i].key);
    buf_deinit(&text);
    buf_deinit(&all);
    free(path);
}
