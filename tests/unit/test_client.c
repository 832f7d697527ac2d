/* client: the pure parts. Command line, exit codes, JSON, tables, progress, reports, and the
 * documents that describe them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "client/client.h"
#include "client/exit.h"
#include "client/job_table.h"
#include "client/progress.h"
#include "client/report.h"
#include "print/fold.h"
#include "print/json.h"
#include "proto/message.h"
#include "spec/metric_table.h"
#include "tests/testing.h"

/* ---- the command line ---- */

static status_t parse(const char *line, const struct verb **verb, struct verb_options *options)
{
    static char words[256];
    char *list[16];
    int count = 0;
    snprintf(words, sizeof words, "%s", line);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) list[count++] = word;
    *verb = NULL;
    return options_parse(count, list, verb, options);
}

TEST(good_options)
{
    const struct verb *verb;
    struct verb_options options;
    status_t status = parse("--address unix:a submit job.yaml --set a=b -w --set=c=d --timeout 2.5 "
                            "-o json --id x",
                            &verb, &options);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_str_eq(verb->name, "submit");
    ck_assert_str_eq(options.address, "unix:a");
    ck_assert_str_eq(options.arguments[0], "job.yaml");
    ck_assert_int_eq(options.set_count, 2);
    ck_assert_str_eq(options.sets[0].text, "a=b");
    ck_assert_str_eq(options.sets[1].text, "c=d");
    ck_assert(options.wait && !options.verbose && !options.help);
    ck_assert_int_eq(options.format, FORMAT_JSON);
    ck_assert_int_eq(options.timeout_ms, 2500);
    ck_assert_str_eq(options.id, "x");
    options_deinit(&options);

    /* For pull, -o is the file, and --format stays. */
    status = parse("pull job -ofile --format=json", &verb, &options);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_str_eq(options.file, "file");
    ck_assert_int_eq(options.format, FORMAT_JSON);
    ck_assert_int_eq(options.timeout_ms, 60000);
    options_deinit(&options);
    status = parse("pull -o - -- --odd", &verb, &options);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_str_eq(options.file, "-");
    ck_assert_str_eq(options.arguments[0], "--odd");
    options_deinit(&options);
    /* In the printed units, and in others' spelling. */
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"100000", 100000}, {"100kB", 100000},    {"100KB", 100000},   {"7MB", 7000000},
                 {"7GB", 7000000000}, {"7KiB", 7 << 10}, {"7MiB", 7 << 20}, {"7GiB", 7ULL << 30}};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        char line[80];
        snprintf(line, sizeof line, "pull job --max-shard-size %s", sizes[i].text);
        status = parse(line, &verb, &options);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        ck_assert_uint_eq(options.max_shard_bytes, sizes[i].bytes);
        options_deinit(&options);
    }
    status = parse("submit --help", &verb, &options);
    ck_assert_msg(status == NULL && options.help, "%s", status_message(status));
    options_deinit(&options);
    status = parse("help", &verb, &options);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    options_deinit(&options);
    status = parse("", &verb, &options);
    ck_assert(status == NULL && verb == NULL);
    options_deinit(&options);
}

static const struct {
    const char *line, *message;
} bad_lines[] = {
    {"sbmit job.yaml", "unknown verb 'sbmit'; did you mean submit?"},
    {"delete a", "unknown verb 'delete'; did you mean cancel or forget?"},
    {"ls", "unknown verb 'ls'; did you mean list?"},
    {"xyzzy", "unknown verb 'xyzzy'; fsdpctl --help lists them"},
    {"submit", "submit: expected FILE; fsdpctl submit --help says more"},
    {"wrap show", "wrap: expected show|set JOB; fsdpctl wrap --help says more"},
    {"submit a b", "submit: expected FILE, found 'b' too"},
    {"list a", "list: expected no arguments, found 'a' too"},
    {"list --formt json", "unknown option --formt; did you mean --format?"},
    {"list --dump", "unknown option --dump"},
    {"list --epochs", "unknown option --epochs"},
    {"submit f --epochs=3", "unknown option --epochs; job keys are set with --set train.epochs=3"},
    {"submit f --batch-size 32",
     "unknown option --batch-size; job keys are set with --set train.batch_size=VALUE"},
    {"submit f --seed 1", "unknown option --seed; job keys are set with --set train.seed=VALUE"},
    {"list -x", "unknown option -x"},
    {"submit f --wait=1", "--wait takes no value"},
    {"list -o yaml", "-o: expected table or json, found 'yaml'"},
    {"list --timeout", "--timeout: expected SECONDS after it, found nothing"},
    {"list --timeout=-1", "--timeout: expected seconds from 0 (no limit) to 1000000, found '-1'"},
    {"list --timeout soon",
     "--timeout: expected seconds from 0 (no limit) to 1000000, found 'soon'"},
    {"submit f --id=",
     "--id: expected a job's id, 1 to 64 of a-z, 0-9 and -, not beginning with -, "
     "found ''"},
    {"submit f --id=Foo", "--id: expected a job's id, 1 to 64 of a-z, 0-9 and -, not beginning "
                          "with -, found 'Foo'"},
    {"submit f --after=", "--after: expected a job's id, 1 to 64 of a-z, 0-9 and -, not beginning "
                          "with -, found ''"},
    {"submit f --after=a,", "--after: expected a job's id, 1 to 64 of a-z, 0-9 and -, not "
                            "beginning with -, found ''"},
    {"submit f --after-any=a,,b", "--after-any: expected a job's id, 1 to 64 of a-z, 0-9 and -, "
                                  "not beginning with -, found ''"},
    {"submit f --start-by=", "--start-by: expected a duration such as 2h, or a time, found ''"},
    {"submit f --finish-by=", "--finish-by: expected a duration such as 2h, or a time, found ''"},
    {"submit f --label=\xff=1", "--label: KEY=VALUE is not valid UTF-8"},
    {"list --state=", "--state: expected QUEUED, STARTING, RUNNING, PAUSED, SUCCEEDED, FAILED, "
                      "CANCELLED, active or over, found ''"},
    {"list --name=", "--name: expected a pattern, found ''"},
    {"list --user=", "--user: expected a user, found ''"},
    {"show \xff", "show: JOB is not valid UTF-8"},
};

LOOP_TEST(bad_options, 0, COUNT_OF(bad_lines))
{
    const struct verb *verb;
    struct verb_options options;
    status_t status = parse(bad_lines[_i].line, &verb, &options);
    ck_assert_str_eq(status_message(status), bad_lines[_i].message);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    status_free(status);
    options_deinit(&options);
}

TEST(help)
{
    struct buf text = {0};
    options_help(NULL, &text);
    for (int i = 0; i < verb_count; i++) {
        ck_assert_ptr_nonnull(strstr(buf_text(&text), verbs[i].about));
        ck_assert_int_le((int)strlen(verbs[i].about), 58); /* one line */
        int words = verbs[i].arguments[0] != '\0';
        for (const char *c = verbs[i].arguments; *c; c++) words += *c == ' ';
        ck_assert_int_eq(words, verbs[i].argument_count);
        ck_assert_ptr_nonnull(strstr(verbs[i].examples, verbs[i].name));
        if (i > 0) ck_assert_int_ge(verbs[i].group, verbs[i - 1].group);
        struct buf one = {0};
        options_help(&verbs[i], &one);
        for (const char *at = buf_text(&one); *at != '\0'; at += strspn(at, "\n")) {
            ck_assert_msg(strcspn(at, "\n") <= 80, "%s: %.100s", verbs[i].name, at);
            at += strcspn(at, "\n");
        }
        buf_deinit(&one);
    }
    buf_clear(&text);
    options_help(verb_find("pull"), &text);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "usage: fsdpctl pull JOB [OPTION...]\n"));
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "-o, --output FILE"));
    ck_assert_ptr_null(strstr(buf_text(&text), "--output FORMAT"));
    ck_assert_ptr_null(strstr(buf_text(&text), "--tls-ca")); /* fsdpctl --help has them */
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "such as --format json and"));
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "\nExamples:\n    fsdpctl pull mnist-1 -o "));
    buf_clear(&text);
    ck_assert(options_completion("bash", &text));
    FILE *shell = popen("bash -n 2>&1", "w");
    ck_assert_ptr_nonnull(shell);
    fputs(buf_text(&text), shell);
    ck_assert_int_eq(pclose(shell), 0);
    buf_deinit(&text);
}

static void find_in(const struct buf *text, const char *path, const char *what)
{
    ck_assert_msg(strstr(buf_text(text), what) != NULL, "%s says nothing about %s", path, what);
}

/* The manual covers every verb, option and exit code. */
TEST(documentation)
{
    struct buf text = {0};
    char *path = file_path_join(getenv("srcdir") ? getenv("srcdir") : ".", "docs/fsdpctl.md");
    status_t status = file_read(path, 1 << 20, &text);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    char what[128];
    for (int i = 0; i < verb_count; i++) {
        snprintf(what, sizeof what, "\n## fsdpctl %s%s%s", verbs[i].name,
                 verbs[i].arguments[0] ? " " : "", verbs[i].arguments);
        find_in(&text, path, what);
        for (const struct verb_option *row = verbs[i].options; row && row->name; row++) {
            snprintf(what, sizeof what, "--%s", row->name);
            find_in(&text, path, what);
        }
    }
    for (const struct verb_option *row = options_global; row->name; row++) {
        snprintf(what, sizeof what, "--%s", row->name);
        find_in(&text, path, what);
    }
    for (int code = 0; code <= EXIT_DOES_NOT_FIT; code++) {
        snprintf(what, sizeof what, "\n| %d |", code);
        find_in(&text, path, what);
    }
    free(path);
    buf_deinit(&text);
}

TEST(exit_codes)
{
    static const int expected[] = {
        [STATUS_OK] = 0,
        [STATUS_CANCELLED] = 1,
        [STATUS_UNKNOWN] = 1,
        [STATUS_INVALID_ARGUMENT] = 1,
        [STATUS_DEADLINE_EXCEEDED] = 7,
        [STATUS_NOT_FOUND] = 5,
        [STATUS_ALREADY_EXISTS] = 6,
        [STATUS_PERMISSION_DENIED] = 4,
        [STATUS_RESOURCE_EXHAUSTED] = 10,
        [STATUS_FAILED_PRECONDITION] = 6,
        [STATUS_ABORTED] = 6,
        [STATUS_OUT_OF_RANGE] = 1,
        [STATUS_UNIMPLEMENTED] = 1,
        [STATUS_INTERNAL] = 1,
        [STATUS_UNAVAILABLE] = 3,
        [STATUS_DATA_LOSS] = 1,
        [STATUS_UNAUTHENTICATED] = 4,
    };
    for (int code = 0; code <= STATUS_UNAUTHENTICATED; code++) {
        status_t status = code ? status_new((enum status_code)code, "x") : NULL;
        ck_assert_msg(exit_from_status(status) == expected[code], "%s",
                      status_code_name((enum status_code)code));
        status_free(status);
    }
    /* fsdpd did answer */
    status_t status = status_new(STATUS_UNAVAILABLE, "the store cannot be written");
    status_set_answer(status, true);
    ck_assert_int_eq(exit_from_status(status), 1);
    status = status_wrap(status, "mnist-1");
    ck_assert_int_eq(exit_from_status(status), 1);
    status_free(status);
    ck_assert_int_eq(exit_from_state(FSDPD__V1__JOB_STATE__JOB_STATE_SUCCEEDED), 0);
    ck_assert_int_eq(exit_from_state(FSDPD__V1__JOB_STATE__JOB_STATE_FAILED), 8);
    ck_assert_int_eq(exit_from_state(FSDPD__V1__JOB_STATE__JOB_STATE_CANCELLED), 9);
    ck_assert_int_eq(exit_from_state(FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING), 1);
}

TEST(addresses)
{
    char *address;
    setenv("FSDPD_ADDRESS", "unix:from-environment", 1);
    address = session_address("unix:given");
    ck_assert_str_eq(address, "unix:given");
    free(address);
    address = session_address(NULL);
    ck_assert_str_eq(address, "unix:from-environment");
    free(address);
    setenv("FSDPD_ADDRESS", "", 1);
    setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
    address = session_address(NULL);
    ck_assert_str_eq(address, "unix:/run/fsdpd/fsdpd.sock");
    free(address);
}

/* ---- JSON ---- */

static void expect_json(const ProtobufCMessage *message, const char *expected)
{
    struct buf text = {0};
    json_add_message(&text, message, -1);
    ck_assert_str_eq(buf_text(&text), expected);
    buf_deinit(&text);
}

TEST(json_values)
{
    Fsdpd__V1__Worker worker = FSDPD__V1__WORKER__INIT;
    worker.id = (char *)"a\"b\\\n\t\x01\x1b[31m";
    worker.device = (char *)"\xc3\xa9\xff\xe2\x80\xae\xc2\x9b";
    worker.rank = -1;
    worker.memory_bytes = UINT64_MAX;
    Google__Protobuf__Timestamp attached = GOOGLE__PROTOBUF__TIMESTAMP__INIT;
    attached.seconds = 1769862896;
    attached.nanos = 789654321;
    worker.attach_time = &attached;
    worker.pid = INT64_MIN;
    worker.restarts = UINT32_MAX;
    expect_json(&worker.base,
                "{\"id\":\"a\\\"b\\\\\\n\\t\\u0001\\u001b[31m\","
                "\"device\":\"\xc3\xa9\\ufffd\\u202e\\u009b\",\"state\":null,\"job\":\"\","
                "\"rank\":-1,\"memory_bytes\":18446744073709551615,"
                "\"attach_time\":\"2026-01-31T12:34:56.789Z\",\"pid\":-9223372036854775808,"
                "\"version\":\"\","
                "\"restarts\":4294967295,\"host\":\"\",\"drained\":false,\"drained_by\":\"\","
                "\"drain_time\":null,"
                "\"shares_device\":false,\"unreachable\":[]}");

    Fsdpd__V1__PullStateDictResponse chunk = FSDPD__V1__PULL_STATE_DICT_RESPONSE__INIT;
    uint8_t bytes[] = {0, 255, 16, 'a'};
    chunk.data.data = bytes;
    static const char *const encoded[] = {"", "AA==", "AP8=", "AP8Q", "AP8QYQ=="};
    for (size_t length = 0; length <= 4; length++) {
        char expected[64];
        chunk.data.len = length;
        snprintf(expected, sizeof expected,
                 "{\"data\":\"%s\",\"total_size\":0,\"step\":0,"
                 "\"checkpoint\":null}",
                 encoded[length]);
        expect_json(&chunk.base, expected);
    }
    expect_json(NULL, "null");
}

/* Figures of a test that did not run are omitted; others appear even if they are 0. */
TEST(json_metrics)
{
    Fsdpd__V1__EpochEnd epoch = FSDPD__V1__EPOCH_END__INIT;
    epoch.epoch = 1;
    epoch.train_loss = NAN;
    expect_json(&epoch.base, "{\"epoch\":1,\"train_loss\":null,\"seconds\":0,"
                             "\"step\":0,\"epochs_done\":0,\"scores\":null}");
    epoch.train_loss = 0.1;
    metric_set(&epoch.base, "test_loss", 1e-9);
    metric_set(&epoch.base, "accuracy", 0);
    expect_json(&epoch.base, "{\"epoch\":1,\"train_loss\":0.1,\"test_loss\":1e-09,\"accuracy\":0,"
                             "\"seconds\":0,\"step\":0,\"epochs_done\":0,\"scores\":null}");
    Fsdpd__V1__Metrics metrics = FSDPD__V1__METRICS__INIT;
    struct buf text = {0};
    json_add_message(&text, &metrics.base, -1);
    ck_assert_ptr_null(strstr(buf_text(&text), "\"accuracy\""));
    metric_set(&metrics.base, "test_loss", 0);
    metric_set(&metrics.base, "accuracy", 0);
    buf_clear(&text);
    json_add_message(&text, &metrics.base, -1);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "\"test_loss\":0,\"accuracy\":0,"));
    ck_assert_ptr_null(strstr(buf_text(&text), "\"mfu\""));
    ck_assert_ptr_null(strstr(buf_text(&text), "\"val_loss\""));
    metric_set(&metrics.base, "accuracy", NAN);
    metric_set(&metrics.base, "mfu", 0);
    metric_set(&metrics.base, "val_loss", 1.5);
    metric_set(&metrics.base, "val_step", 0);
    buf_clear(&text);
    json_add_message(&text, &metrics.base, -1);
    ck_assert_ptr_null(strstr(buf_text(&text), "\"accuracy\""));
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "\"mfu\":0,\"val_loss\":1.5,"
                                                  "\"val_step\":0,"));
    buf_deinit(&text);
}

/* A time before 1970 has nanoseconds that count forward, and what no clock shows is absent. */
TEST(times_in_messages)
{
    static const int64_t cases[] = {1, 999, 1000, INT64_C(1796112000250), -1, -1500};
    Google__Protobuf__Timestamp time;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ck_assert_ptr_eq(message_time(&time, cases[i]), &time);
        ck_assert_int_eq(message_time_ms(&time), cases[i]);
        ck_assert(time.nanos >= 0 && time.nanos < 1000000000);
    }
    ck_assert_ptr_null(message_time(&time, 0));
    ck_assert_int_eq(message_time_ms(NULL), 0);
    time.seconds = INT64_MAX;
    ck_assert_int_eq(message_time_ms(&time), 0);
    time.seconds = INT64_MIN;
    ck_assert_int_eq(message_time_ms(&time), 0);
}

TEST(json_parts)
{
    /* A oneof prints only the member that is set; enums print by name, or by number if the name is
     * from a newer API. */
    Fsdpd__V1__JobEvent event = FSDPD__V1__JOB_EVENT__INIT;
    event.sequence = 3;
    expect_json(&event.base, "{\"sequence\":3,\"steps\":0,\"attempt\":0,\"time\":null}");
    Fsdpd__V1__StateChange change = FSDPD__V1__STATE_CHANGE__INIT;
    change.state = FSDPD__V1__JOB_STATE__JOB_STATE_RUNNING;
    event.event_case = FSDPD__V1__JOB_EVENT__EVENT_STATE;
    event.state = &change;
    expect_json(&event.base,
                "{\"sequence\":3,\"state\":{\"state\":\"RUNNING\",\"reason\":null,\"attempt\":0,"
                "\"by\":\"\",\"step\":0,\"diagnosis\":null},\"steps\":0,\"attempt\":0,"
                "\"time\":null}");
    change.state = (Fsdpd__V1__JobState)99;
    expect_json(
        &change.base,
        "{\"state\":99,\"reason\":null,\"attempt\":0,\"by\":\"\",\"step\":0,\"diagnosis\":null}");

    Fsdpd__V1__Unit unit = FSDPD__V1__UNIT__INIT;
    char *modules[] = {(char *)"a", (char *)"b"};
    unit.name = (char *)"u";
    unit.n_modules = 2;
    unit.modules = modules;
    const ProtobufCMessage *list[] = {&unit.base};
    struct buf text = {0};
    json_add_messages(&text, list, 1, 0);
    ck_assert_str_eq(buf_text(&text), "[\n"
                                      "  {\n"
                                      "    \"name\": \"u\",\n"
                                      "    \"modules\": [\n"
                                      "      \"a\",\n"
                                      "      \"b\"\n"
                                      "    ],\n"
                                      "    \"parameters\": 0,\n"
                                      "    \"padded\": 0,\n"
                                      "    \"shard_bytes\": 0\n"
                                      "  }\n"
                                      "]");
    buf_clear(&text);
    json_add_messages(&text, NULL, 0, 0);
    ck_assert_str_eq(buf_text(&text), "[]");
    buf_deinit(&text);
}

/* ---- text ---- */

TEST(clean_text)
{
    static const struct {
        const char *text, *lines, *line;
    } cases[] = {
        {"plain", "plain", "plain"},
        {"a\nb\tc", "a\nb\tc", "a b c"},
        {"\x1b[2J\r\x7f", "?[2J??", "?[2J??"},
        {"caf\xc3\xa9 \xf0\x9f\x99\x82", "caf\xc3\xa9 \xf0\x9f\x99\x82",
         "caf\xc3\xa9 \xf0\x9f\x99\x82"},
        {"\xc3", "?", "?"},
        {"\xe2\x80", "??", "??"},
        {"\xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80", "?? ??? ????", "?? ??? ????"},
        {"\xc2\x9b"
         "31m \xe2\x80\xae",
         "?31m ?", "?31m ?"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf text = {0};
        output_clean(&text, cases[i].text, true);
        ck_assert_str_eq(buf_text(&text), cases[i].lines);
        buf_clear(&text);
        output_clean(&text, cases[i].text, false);
        ck_assert_str_eq(buf_text(&text), cases[i].line);
        buf_deinit(&text);
    }
}

/* Only fsdpctl's own colours and line ends reach a terminal. */
TEST(guard)
{
    struct buf text = {0};
    buf_add_text(&text, "a\033[31mb\r\n\tc \xc2\x9b"
                        "31m \xc2\x80\xc2\x9f \x9b \x07\x7f \xc2\xa0\xc3\xa9");
    output_guard(&text);
    ck_assert_str_eq(buf_text(&text), "a\033[31mb\r\n\tc ??31m ???? ? ?? \xc2\xa0\xc3\xa9");
    buf_deinit(&text);
}

TEST(tables)
{
    static const struct table_column columns[] = {{.title = "NAME"},
                                                  {.title = "N", .right = true},
                                                  {.title = "WHY"}};
    struct table table = {.columns = columns, .column_count = 3};
    table_add(&table, "caf\xc3\xa9");
    table_add_count(&table, 1234567);
    table_add(&table, "because it is so");
    table_add(&table, "longer\nname");
    table_addf(&table, "%d", 7);
    table_add(&table, "");
    struct buf text = {0};
    table_print(&table, 0, 0, &text);
    ck_assert_str_eq(buf_text(&text), "NAME                 N  WHY\n"
                                      "caf\xc3\xa9         1,234,567  because it is so\n"
                                      "longer name          7\n");
    buf_clear(&text);
    table_print(&table, 34, 2, &text);
    ck_assert_str_eq(buf_text(&text), "  NAME                 N  WHY\n"
                                      "  caf\xc3\xa9         1,234,567  becau...\n"
                                      "  longer name          7\n");
    buf_clear(&text);
    table_print(&table, 20, 0, &text); /* no room at all: no failure */
    ck_assert_ptr_null(strstr(buf_text(&text), "because"));
    table_deinit(&table);
    buf_clear(&text);
    table_print(&table, 0, 0, &text);
    ck_assert_str_eq(buf_text(&text), "NAME  N  WHY\n");
    buf_deinit(&text);
}

static void expect_table(struct table *table, int width, const char *expected)
{
    struct buf text = {0};
    table_print(table, width, 1, &text);
    ck_assert_str_eq(buf_text(&text), expected);
    buf_deinit(&text);
}

/* Columns without a figure, and those with no room, are left out; the last one stays whole. */
TEST(tables_fit)
{
    static const struct table_column columns[] = {
        {.title = "NAME"},
        {.title = "NEVER", .optional = true},
        {.title = "LESS", .right = true, .drop = 1},
        {.title = "LEAST", .drop = 2},
        {.title = "WHY"},
    };
    static const char *const cells[] = {"a", "-", "1", "x", "it waits for two of four workers",
                                        "b", "",  "2", "y", "no"};
    struct table table = {.columns = columns, .column_count = 5, .whole = true};
    for (size_t i = 0; i < COUNT_OF(cells); i++) table_add(&table, cells[i]);
    expect_table(&table, 80,
                 " NAME  LESS  LEAST  WHY\n"
                 " a        1  x      it waits for two of four workers\n"
                 " b        2  y      no\n");
    expect_table(&table, 45,
                 " NAME  LESS  LEAST  WHY\n"
                 " a        1  x      it waits for two of four\n"
                 "                    workers\n"
                 " b        2  y      no\n");
    expect_table(&table, 41,
                 " NAME  LESS  WHY\n"
                 " a        1  it waits for two of four\n"
                 "             workers\n"
                 " b        2  no\n");
    expect_table(&table, 30,
                 " NAME  WHY\n"
                 " a     it waits for two of\n"
                 "       four workers\n"
                 " b     no\n");
    table_style(&table, STYLE_GREEN);
    expect_table(&table, 34,
                 " NAME  WHY\n"
                 " a     it waits for two of four\n"
                 "       workers\n"
                 " b     \033[32mno\033[0m\n");
    table_deinit(&table);
}

TEST(ages)
{
    char text[32];
    int64_t now = 1000000000000;
    ck_assert_str_eq(output_age(0, now, text), "-");
    ck_assert_str_eq(output_age(now - 59999, now, text), "59s");
    ck_assert_str_eq(output_age(now - 60000, now, text), "1m");
    ck_assert_str_eq(output_age(now - 7200000, now, text), "2h");
    ck_assert_str_eq(output_age(now - 48LL * 3600000, now, text), "2d");
    ck_assert_str_eq(output_age(now + 5000, now, text), "0s"); /* clocks differ */
}

static void expect_fold(const char *const *names, size_t count, const char *expected)
{
    struct buf text = {0};
    for (size_t i = 1; i < count; i++) ck_assert(fold_is_same(names[0], names[i]));
    fold_add(&text, names, count);
    ck_assert_str_eq(buf_text(&text), expected);
    buf_deinit(&text);
}

TEST(folds)
{
    expect_fold((const char *[]){"h.0", "h.1", "h.2", "h.5", "h.10"}, 5, "h.[0-2,5,10]");
    expect_fold((const char *[]){"h.3.ln_1 ... h.3.c", "h.2.ln_1 ... h.2.c"}, 2,
                "h.[3-2].ln_1 ... h.[3-2].c");
    expect_fold((const char *[]){"a.1.b.0", "a.1.b.1"}, 2, "a.1.b.[0-1]");
    expect_fold((const char *[]){"9", "10"}, 2, "[9-10]");
    expect_fold((const char *[]){"alone.7"}, 1, "alone.7");
    ck_assert(!fold_is_same("fc1", "fc2")); /* a word, not a number */
    ck_assert(!fold_is_same("h.1", "h.1.x"));
    ck_assert(!fold_is_same("h.1", "h.x"));
    ck_assert(!fold_is_same("h.12345678901", "h.12345678902"));
    ck_assert_int_eq(fold_difference("a.1.b.0", "a.1.b.1"), 1);
    ck_assert_int_eq(fold_difference("a.1.b.0", "a.2.b.1"), -1);
    ck_assert_int_eq(fold_difference("a.1", "a.1"), -1);
}

/* ---- progress ---- */

static const struct progress halfway = {
    .has_loss = true,
    .step = 412,
    .steps = 824,
    .epochs = 10,
    .epoch = 4.5,
    .loss = 0.23411,
    .samples_per_second = 5812.4,
    .seconds_left = 125,
};

static void expect_bar(const struct progress *progress, int width, const char *expected)
{
    struct buf text = {0};
    progress_bar(progress, width, false, &text);
    ck_assert_str_eq(buf_text(&text), expected);
    ck_assert_int_lt((int)text.length, width);
    buf_deinit(&text);
}

TEST(bars)
{
    expect_bar(&halfway, 120,
               "[===================>                  ]  412/824  epoch 5/10  loss 0.2341  5,812 "
               "samples/s  2m05s left");
    expect_bar(&halfway, 80,
               "[=======>      ]  412/824  epoch 5/10  loss 0.2341  5,812 samples/s  2m05s left");
    expect_bar(&halfway, 40, "412/824  loss 0.2341  2m05s left");
    expect_bar(&halfway, 24, "412/824  loss 0.2341");
    expect_bar(&halfway, 20, "[====>   ]  412/824");
    for (int width = 20; width < 200; width++) {
        struct buf text = {0};
        progress_bar(&halfway, width, false, &text);
        ck_assert_int_lt((int)text.length, width);
        ck_assert_ptr_nonnull(strstr(buf_text(&text), "412/824"));
        buf_deinit(&text);
    }
    struct progress start = {.steps = 100};
    expect_bar(&start, 60, "[>                                     ]  0/100");
    struct progress end = {.step = 100, .steps = 100, .epoch = 3, .epochs = 3, .has_loss = true};
    expect_bar(&end, 50, "[==============]  100/100  epoch 3/3  loss 0.0000");
    struct progress unknown = {.step = 7, .loss = NAN, .has_loss = true, .samples_per_second = NAN};
    expect_bar(&unknown, 60, "7  loss -");
    /* Resumed: no step was reported since. */
    struct progress beyond = {.step = 9, .steps = 3}; /* from a faulty daemon */
    expect_bar(&beyond, 40, "[================================]  9/3");
}

TEST(colours)
{
    struct buf text = {0};
    progress_bar(&halfway, 120, true, &text);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "[\033[32m="));
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "\033[0m]"));
    buf_deinit(&text);
}

TEST(lines)
{
    struct buf text = {0};
    progress_plain(&halfway, &text);
    ck_assert_str_eq(buf_text(&text),
                     "step 412/824  epoch 5/10  loss 0.2341  5,812 samples/s  2m05s left");
    buf_clear(&text);
    struct progress tokens = halfway;
    tokens.epochs = 0;
    tokens.tokens_per_second = 64000;
    tokens.validated = true;
    tokens.val_loss = 1.8765;
    progress_plain(&tokens, &text);
    ck_assert_str_eq(buf_text(&text), "step 412/824  loss 0.2341  64,000 tokens/s  2m05s left  val "
                                      "loss 1.8765");
    Fsdpd__V1__Validation validation = FSDPD__V1__VALIDATION__INIT;
    validation.step = 250;
    validation.epoch = 0.1934;
    validation.loss = 2.46809;
    buf_clear(&text);
    progress_validation(&validation, 2000, &text);
    progress_validation(&validation, 0, &text);
    ck_assert_str_eq(buf_text(&text), "step 250/2000: validation loss 2.4681 (epoch 0.193)\n"
                                      "step 250: validation loss 2.4681 (epoch 0.193)\n");
    buf_clear(&text);
    progress_bytes(2400000, 4800000, 0.5, 80, false, &text);
    ck_assert_str_eq(buf_text(&text), "[===================>                  ]  2.40 MB of 4.80 "
                                      "MB  4.80 MB/s");
    buf_clear(&text);
    progress_bytes(0, 4800000, 0, 20, false, &text);
    ck_assert_int_lt((int)text.length, 20);

    Fsdpd__V1__EpochEnd epoch = FSDPD__V1__EPOCH_END__INIT;
    epoch.epoch = 1;
    epoch.train_loss = 0.23411;
    buf_clear(&text);
    progress_epoch(&epoch, &text);
    ck_assert_str_eq(buf_text(&text), "Train Epoch: 1 \tLoss: 0.2341\n");
    metric_set(&epoch.base, "test_loss", 0.0573);
    metric_set(&epoch.base, "correct", 9812);
    metric_set(&epoch.base, "test_samples", 10000);
    metric_set(&epoch.base, "accuracy", 0.9812);
    buf_clear(&text);
    progress_epoch(&epoch, &text);
    ck_assert_str_eq(buf_text(&text),
                     "Train Epoch: 1 \tLoss: 0.2341\n"
                     "Test set: Average loss: 0.0573, Accuracy: 9812/10000 (98.12%)\n");
    Fsdpd__V1__Scores scores = FSDPD__V1__SCORES__INIT;
    scores._f1_case = FSDPD__V1__SCORES___F1_F1;
    scores.f1 = 0.98046;
    epoch.scores = &scores;
    buf_clear(&text);
    progress_epoch(&epoch, &text);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "9812/10000 (98.12%), F1 0.9805\n"));
    buf_clear(&text);
    epoch = (Fsdpd__V1__EpochEnd)FSDPD__V1__EPOCH_END__INIT;
    epoch.epoch = 1;
    epoch.train_loss = NAN; /* means of nothing */
    metric_set_mean(&epoch.base, "test_loss", NAN);
    metric_set_mean(&epoch.base, "accuracy", NAN);
    progress_epoch(&epoch, &text);
    ck_assert_str_eq(buf_text(&text), "Train Epoch: 1 \tLoss: -\n"
                                      "Test set: Average loss: -, Accuracy: 0/0 (-)\n");
    buf_deinit(&text);
}

/* ---- reports ---- */

TEST(reports)
{
    Fsdpd__V1__Unit fc1 = FSDPD__V1__UNIT__INIT, root = FSDPD__V1__UNIT__INIT;
    char *fc1_modules[] = {(char *)"fc1"}, *root_modules[] = {(char *)""};
    fc1.name = (char *)"fc1";
    fc1.n_modules = 1;
    fc1.modules = fc1_modules;
    fc1.parameters = fc1.padded = 1179776;
    fc1.shard_bytes = 2359552;
    root.name = (char *)"(root)";
    root.n_modules = 1;
    root.modules = root_modules;
    root.parameters = 20106;
    root.padded = 20112;
    root.shard_bytes = 40224;
    Fsdpd__V1__Unit *units[] = {&fc1, &root};
    struct buf text = {0};
    report_units(units, 2, 0, &text);
    ck_assert_str_eq(buf_text(&text),
                     "UNIT    PARAMETERS     PADDED    BYTES  SHARD BYTES  MODULES\n"
                     "fc1      1,179,776  1,179,776  4.72 MB      2.36 MB  fc1\n"
                     "(root)      20,106     20,112  80.4 kB      40.2 kB  (root)\n");

    Fsdpd__V1__MemoryClass parameters = FSDPD__V1__MEMORY_CLASS__INIT;
    parameters.name = (char *)"parameters";
    parameters.bytes = 2400000;
    Fsdpd__V1__MemoryClass *memory[] = {&parameters};
    Fsdpd__V1__Collective gather = FSDPD__V1__COLLECTIVE__INIT;
    gather.kind = (char *)"all_gather";
    gather.count = 4;
    gather.bytes = 4800000;
    Fsdpd__V1__Collective *collectives[] = {&gather};
    Fsdpd__V1__Plan plan = FSDPD__V1__PLAN__INIT;
    plan.world = 2;
    plan.strategy = FSDPD__V1__STRATEGY__STRATEGY_FULL_SHARD;
    plan.parameters = 1199882;
    plan.n_memory = 1;
    plan.memory = memory;
    plan.peak_bytes = 2400000;
    plan.peak_at = (char *)"conv2d_backward conv2";
    plan.communicated_bytes = 4800000;
    plan.n_collectives = 1;
    plan.collectives = collectives;
    buf_clear(&text);
    report_memory(&plan, &text);
    ck_assert_str_eq(buf_text(&text), "1,199,882 parameters, full_shard over 2 workers\n"
                                      "\n"
                                      "MEMORY PER RANK    BYTES\n"
                                      "parameters       2.40 MB\n"
                                      "peak             2.40 MB\n"
                                      "The peak is at conv2d_backward conv2.\n"
                                      "Sent per rank and step: 4.80 MB (4 all_gather 4.80 MB)\n");

    Fsdpd__V1__Reason reason = FSDPD__V1__REASON__INIT;
    reason.message = (char *)"waiting for 2 workers\x1b[0m";
    Fsdpd__V1__Job job = FSDPD__V1__JOB__INIT;
    job.id = (char *)"mnist-1";
    job.state = FSDPD__V1__JOB_STATE__JOB_STATE_QUEUED;
    job.reason = &reason;
    Google__Protobuf__Timestamp submitted;
    job.submit_time = message_time(&submitted, 1000);
    Fsdpd__V1__Job *jobs[] = {&job};
    struct job_table plain = {.view = {.now_ms = 61000}};
    buf_clear(&text);
    job_table_print(&plain, jobs, 1, &text);
    ck_assert_str_eq(buf_text(&text),
                     "JOB      STATE   STEP  LOSS  WORKERS  AGE  REASON\n"
                     "mnist-1  QUEUED     -     -        0   1m  waiting for 2 workers?[0m\n");
    job.owner = (char *)"alice";
    job.priority = -5;
    buf_clear(&text);
    job_table_print(&plain, jobs, 1, &text);
    ck_assert_str_eq(buf_text(&text),
                     "JOB      USER   PRIORITY  STATE   STEP  LOSS  WORKERS  AGE  REASON\n"
                     "mnist-1  alice        -5  QUEUED     -     -        0   1m  waiting for 2 "
                     "workers?[0m\n");
    /* The columns before the first job are the same as with it. */
    buf_clear(&text);
    job_table_print(&plain, NULL, 0, &text);
    ck_assert_str_eq(buf_text(&text), "JOB  USER  STATE  STEP  LOSS  WORKERS  AGE  REASON\n");
    /* Omit everything optional: the report still works. */
    buf_clear(&text);
    struct view narrow = {.now_ms = 61000, .width = 80};
    report_job(&job, &narrow, &text);
    ck_assert_ptr_nonnull(strstr(buf_text(&text), "reason      waiting for 2 workers?[0m\n"));
    buf_deinit(&text);
}
