/* Profiles: the built-in ones, files as documented, and every error in either. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "planning/profile.h"
#include "tests/testing.h"

static void expect(status_t status)
{
    ck_assert_msg(status == NULL, "%s", status_message(status));
}

TEST(names)
{
    static const struct {
        const char *text, *name;
        int world;
    } cases[] = {{"cpu", "cpu", 0},           {"cpux2", "cpu", 2},   {"h200", "h200", 0},
                 {"h200x4096", "h200", 4096}, {"a100x8", "a100", 8}, {"t4x4", "t4", 4},
                 {"h100x1", "h100", 1}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct profile profile;
        expect(profile_find(cases[i].text, &profile));
        ck_assert_str_eq(profile.name, cases[i].name);
        ck_assert_int_eq(profile.world, cases[i].world);
        ck_assert(profile.here == (strcmp(cases[i].name, "cpu") == 0));
        ck_assert(profile.here || profile.memory_bytes > UINT64_C(15000000000));
        ck_assert(profile.peak_flops_f32 > profile.rates.flops_f32);
        ck_assert(profile.peak_flops_bf16 > profile.rates.flops_bf16);
        ck_assert(profile.rates.inside.bandwidth >= profile.rates.between.bandwidth);
    }
    struct profile h200;
    expect(profile_find("h200x8", &h200));
    ck_assert_double_eq_tol(h200.rates.flops_f32, 67e12 * 0.6, 1);
    ck_assert_int_eq(h200.rates.devices_per_host, 8);
    ck_assert_ptr_null(profile_name(99));
    ck_assert_str_eq(profile_name(0), "cpu");
}

/* Names as in NVIDIA's driver; NULL: unknown. */
TEST(models)
{
    static const struct {
        const char *model, *name;
    } cases[] = {
        {"NVIDIA H100 80GB HBM3", "h100"}, {"NVIDIA H100 PCIe", "h100"}, {"NVIDIA H200", "h200"},
        {"NVIDIA A100-SXM4-80GB", "a100"}, {"Tesla T4", "t4"},           {"T400 4GB", NULL},
        {"NVIDIA GH200 480GB", NULL},      {"NVIDIA cpu", NULL},         {"", NULL}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct profile profile;
        bool found = profile_of_model(cases[i].model, &profile);
        ck_assert_msg(found == (cases[i].name != NULL), "%s", cases[i].model);
        if (found) ck_assert_str_eq(profile.name, cases[i].name);
    }
}

static const struct {
    const char *text, *word, *word2;
} bad_names[] = {
    {"h20", "h20", "did you mean h200?"},
    {"h200x", "h200x", "h200"},
    {"h200x0", "h200x0", "1 to 4096"},
    {"h200x4097", "h200x4097", "1 to 4096"},
    {"h200x99999999999999999999", "h200x9", "1 to 4096"},
    {"h200x-1", "h200x-1", "unknown profile"},
    {"x8", "x8", "unknown profile"},
    {"8", "8", "unknown profile"},
    {"", "unknown profile", "cpu"},
    {"something-else-entirely", "something-else-entirely", "h200x8"},
};

LOOP_TEST(names_that_are_refused, 0, COUNT_OF(bad_names))
{
    struct profile profile = {.world = 77};
    status_t status = profile_find(bad_names[_i].text, &profile);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    ck_assert_msg(strstr(status_message(status), bad_names[_i].word) != NULL, "%s",
                  status_message(status));
    ck_assert_msg(strstr(status_message(status), bad_names[_i].word2) != NULL, "%s",
                  status_message(status));
    ck_assert_int_eq(profile.world, 77);
    status_free(status);
}

TEST(files)
{
    struct profile profile;
    static const char minimal[] = "memory: 16e9\nflops: {f32: 1e12}\nmemory_bandwidth: 1e11\n"
                                  "link: {bandwidth: 1e10}\n";
    expect(profile_parse(minimal, strlen(minimal), "p.yaml", &profile));
    ck_assert_str_eq(profile.name, "profile");
    ck_assert_int_eq(profile.world, 0);
    ck_assert(!profile.here);
    ck_assert_uint_eq(profile.memory_bytes, UINT64_C(16000000000));
    ck_assert_double_eq(profile.rates.flops_bf16, 1e12);
    ck_assert_double_eq(profile.rates.between.bandwidth, 1e10);
    ck_assert_double_eq(profile.rates.inside.latency, 0);
    ck_assert_double_eq(profile.rates.batch.bandwidth, 1e11);
    ck_assert_double_eq(profile.rates.host_bandwidth, 1e11);
    ck_assert_int_eq(profile.rates.devices_per_host, 4096);

    static const char like[] = "like: a100\nworld: 16\nmemory: 40e9\nlink: {latency: 1e-3}\n"
                               "efficiency: 0.5\n";
    expect(profile_parse(like, strlen(like), "p.yaml", &profile));
    ck_assert_str_eq(profile.name, "a100");
    ck_assert_int_eq(profile.world, 16);
    ck_assert_uint_eq(profile.memory_bytes, UINT64_C(40000000000));
    ck_assert_double_eq(profile.rates.flops_f32, 19.5e12 * 0.5);
    ck_assert_double_eq(profile.rates.inside.latency, 1e-3);
    ck_assert_double_eq(profile.rates.inside.bandwidth, 300e9);
    ck_assert_double_eq(profile.rates.between.bandwidth, 25e9);
    ck_assert_double_eq(profile.rates.host_bandwidth, 50e9);

    /* the host's memory keeps its speed: the efficiency is the device's */
    static const char host[] = "like: h200\nhost_memory_bandwidth: 120e9\nefficiency: 0.5\n";
    expect(profile_parse(host, strlen(host), "p.yaml", &profile));
    ck_assert_double_eq(profile.rates.host_bandwidth, 120e9);
    ck_assert_double_eq(profile.rates.memory_bandwidth, 4.8e12 * 0.5);
    ck_assert_double_eq(profile.rates.batch.bandwidth, 50e9);
}

/* The example of docs/profiles.md: the lines after "in YAML" that start with four spaces. */
TEST(documented_example)
{
    const char *root = getenv("srcdir");
    char *path = file_path_join(root != NULL ? root : ".", "docs/profiles.md");
    struct buf text = {0}, example = {0};
    expect(file_read(path, 1 << 20, &text));
    const char *line = strstr(buf_text(&text), "in YAML");
    ck_assert_ptr_nonnull(line);
    for (; (line = strchr(line, '\n')) != NULL;) {
        line++;
        if (strncmp(line, "    ", 4) == 0) buf_add(&example, line + 4, strcspn(line, "\n") - 3);
        else if (example.length > 0) break;
    }
    struct profile profile;
    expect(profile_parse(buf_text(&example), example.length, "docs/profiles.md", &profile));
    ck_assert_str_eq(profile.name, "my-cluster");
    ck_assert_int_eq(profile.world, 64);
    ck_assert_int_eq(profile.rates.devices_per_host, 4);
    ck_assert_double_eq(profile.rates.flops_bf16, 181e12 * 0.5);
    ck_assert_double_eq(profile.rates.batch.bandwidth, 20e9);
    ck_assert_double_eq(profile.rates.host_bandwidth, 40e9);
    /* and every built-in profile is in its table */
    for (int i = 0; profile_name(i) != NULL; i++) {
        char *cell = mem_printf("| `%s` |", profile_name(i));
        ck_assert_msg(strstr(buf_text(&text), cell) != NULL, "%s is not documented", cell);
        free(cell);
    }
    buf_deinit(&example);
    buf_deinit(&text);
    free(path);
}

static const char MEASURED[] =
    "memory: 16e9\nflops: {f32: 1e12}\nmemory_bandwidth: 1e11\nlink: {bandwidth: 1e9}\n"
    "tables:\n  threads: 2\n  processors: 8\n"
    "  f32:\n    linear: [[1, 1e9, 1e6, 2e-3], [1, 1e12, 1e9, 1]]\n"
    "    all_gather: [[2, 2, 1e6, 4e-3], [4, 4, 1e6, 9e-3]]\n"
    "    optimizer adamw: [[1, 0, 1e8, 1e-3]]\n    step: [[1, 0, 0, 3e-4]]\n"
    "  bf16: {linear: [[1, 1e9, 1e6, 1e-3]]}\n";

static double measured(const struct profile *profile, struct plan_work work)
{
    work.seconds = plan_work_seconds(&work, &profile->rates);
    return plan_tables_seconds(profile->tables, &work);
}

#define CLOSE(a, b) ck_assert_double_eq_tol(a, b, 1e-3 * (b))

TEST(tables_give_what_was_measured_and_correct_the_rates_nearby)
{
    struct profile profile;
    expect(profile_parse(MEASURED, strlen(MEASURED), "p.yaml", &profile));
    ck_assert_ptr_eq(profile.rates.tables, profile.tables);
    struct plan_work linear = {.row = OP_LINEAR, .ranks = 1, .amount = 1e9, .bytes = 1e6};
    CLOSE(measured(&profile, linear), 2e-3);
    linear.half = true;
    CLOSE(measured(&profile, linear), 1e-3);
    linear.half = false;
    linear.amount = 1.01e9; /* as much longer as it is larger */
    CLOSE(measured(&profile, linear), 2.02e-3);
    linear.amount = 1e15; /* beyond all samples: at the rate of the nearest */
    ck_assert_double_gt(measured(&profile, linear), 1e3);
    struct plan_work gather = {.row = PLAN_ROW_INSTRUCTION + INSTRUCTION_ALL_GATHER,
                               .ranks = 4,
                               .amount = 4,
                               .bytes = 1e6};
    CLOSE(measured(&profile, gather), 9e-3);
    struct plan_work step = {.row = PLAN_ROW_STEP, .ranks = 1};
    CLOSE(measured(&profile, step), 3e-4);
    struct plan_work unknown = {.row = OP_DROPOUT, .ranks = 1, .bytes = 1e9};
    ck_assert_double_eq(measured(&profile, unknown), 1e-2); /* the rates' */
    profile_deinit(&profile);
    ck_assert_ptr_null(profile.rates.tables);
}

TEST(a_printed_profile_is_the_same_profile)
{
    struct profile first, second;
    struct buf one = {0}, two = {0};
    expect(profile_parse(MEASURED, strlen(MEASURED), "p.yaml", &first));
    profile_print(&first, &one);
    expect(profile_parse(buf_text(&one), one.length, "printed.yaml", &second));
    profile_print(&second, &two);
    ck_assert_str_eq(buf_text(&one), buf_text(&two));
    ck_assert_int_eq(second.tables->threads, 2);
    ck_assert_int_eq(second.tables->processors, 8);
    ck_assert_int_eq(second.tables->rows[OP_LINEAR][0].count, 2);
    profile_deinit(&first);
    profile_deinit(&second);
    buf_deinit(&one);
    buf_deinit(&two);
}

#define GOOD "memory: 16e9\nflops: {f32: 1e12}\nmemory_bandwidth: 1e11\n"
static const struct {
    const char *text, *place, *word;
} bad_files[] = {
    {"", "p.yaml", "empty"},
    {"- a\n", "p.yaml:1", "expected"},
    {"a: [b\n", "p.yaml:", ""},
    {GOOD, "p.yaml:", "link"},
    {GOOD "link: {}\n", "p.yaml:4", "bandwidth"},
    {GOOD "link: 1e9\n", "p.yaml:4", "link"},
    {GOOD "link: {bandwidth: 0}\n", "p.yaml:4", "bandwidth"},
    {GOOD "link: {bandwidth: -1}\n", "p.yaml:4", "bandwidth"},
    {GOOD "link: {bandwidth: nan}\n", "p.yaml:4", "nan"},
    {GOOD "link: {bandwidth: 1e9, latency: -1}\n", "p.yaml:4", "latency"},
    {GOOD "link: {bandwidth: 1e9, latency: 1e9}\n", "p.yaml:4", "latency"},
    {GOOD "link: {bandwith: 1e9}\n", "p.yaml:4", "bandwidth"},
    {GOOD "link: {bandwidth: 1e9}\ncolour: red\n", "p.yaml:5", "colour"},
    {GOOD "link: {bandwidth: 1e9}\nworld: 0\n", "p.yaml:5", "world"},
    {GOOD "link: {bandwidth: 1e9}\nworld: 4097\n", "p.yaml:5", "4096"},
    {GOOD "link: {bandwidth: 1e9}\nworld: 2.5\n", "p.yaml:5", "2.5"},
    {GOOD "link: {bandwidth: 1e9}\nefficiency: 0\n", "p.yaml:5", "efficiency"},
    {GOOD "link: {bandwidth: 1e9}\nefficiency: 1.1\n", "p.yaml:5", "efficiency"},
    {GOOD "link: {bandwidth: 1e9}\ndevices_per_host: 0\n", "p.yaml:5", "devices_per_host"},
    {GOOD "link: {bandwidth: 1e9}\nop_latency: 11\n", "p.yaml:5", "op_latency"},
    {GOOD "link: {bandwidth: 1e9}\nhost_link: {}\nnetwork: 3\n", "p.yaml:6", "network"},
    {GOOD "link: {bandwidth: 1e9}\nname: \"a\\tb\"\n", "p.yaml:5", "printable"},
    {GOOD "link: {bandwidth: 1e9}\nname: 12345678901234567890123456789012345678901\n", "p.yaml:5",
     "40"},
    {GOOD "link: {bandwidth: 1e9}\nmemory: 1e9\n", "p.yaml:5", "memory"},
    {"memory: 16 GB\n", "p.yaml:1", "16 GB"},
    {"memory: 1e3\n", "p.yaml:1", "memory"},
    {"memory: 1e300\n", "p.yaml:1", "memory"},
    {"memory: 1e9\n", "p.yaml", "flops"},
    {"memory: 1e9\nflops: {bf16: 1e12}\nlink: {bandwidth: 1e9}\n", "p.yaml:2", "f32"},
    {"memory: 1e9\nflops: {f64: 1e12}\nlink: {bandwidth: 1e9}\n", "p.yaml:2", "f64"},
    {"memory: 1e9\nflops: 1e12\nlink: {bandwidth: 1e9}\n", "p.yaml:2", "flops"},
    {"memory: 1e9\nflops: {f32: 1e12}\nlink: {bandwidth: 1e9}\n", "p.yaml", "memory_bandwidth"},
    {"like: h2000\n", "p.yaml:1", "h200"},
    {"like: [h200]\n", "p.yaml:1", "like"},
    {"like: h200\nmemory:\n", "p.yaml:2", "memory"},
    {"like: h200\nhost_memory_bandwidth: 0\n", "p.yaml:2", "host_memory_bandwidth"},
    {"like: h200\nhost_memory_bandwidth: 999\n", "p.yaml:2", "host_memory_bandwidth"},
    {"like: h200\nhost_memory_bandwidth: -40e9\n", "p.yaml:2", "host_memory_bandwidth"},
    {"like: h200\nhost_memory_bandwidth: 1e19\n", "p.yaml:2", "host_memory_bandwidth"},
    {"like: h200\nhost_memory_bandwidth: nan\n", "p.yaml:2", "host_memory_bandwidth"},
    {"like: h200\nhost_memory_bandwidth: 40 GB/s\n", "p.yaml:2", "40 GB/s"},
    {"like: h200\nhost_memory_bandwidth: [40e9]\n", "p.yaml:2", "host_memory_bandwidth"},
    {"like: h200\nhost_memory_bandwidth:\n", "p.yaml:2", "host_memory_bandwidth"},
    {"like: h200\nhost_memory_bandwith: 40e9\n", "p.yaml:2", "host_memory_bandwidth"},
    {"like: h200\ntables: 3\n", "p.yaml:2", "samples"},
    {"like: h200\ntables: {f64: {}}\n", "p.yaml:2", "f64"},
    {"like: h200\ntables: {threads: 0}\n", "p.yaml:2", "threads"},
    {"like: h200\ntables: {f32: {matrix: []}}\n", "p.yaml:2", "no such op"},
    {"like: h200\ntables: {f32: {linear: 3}}\n", "p.yaml:2", "a list"},
    {"like: h200\ntables: {f32: {linear: [[1, 2, 3]]}}\n", "p.yaml:2", "found 3"},
    {"like: h200\ntables: {f32: {linear: [[1, 2, 3, 0]]}}\n", "p.yaml:2", "linear"},
    {"like: h200\ntables: {f32: {linear: [[1, 2, 3, 4], [0, 2, 3, 4]]}}\n", "p.yaml:2",
     "linear[1]"},
};

LOOP_TEST(files_that_are_refused, 0, COUNT_OF(bad_files))
{
    struct profile profile = {.world = 77};
    const char *text = bad_files[_i].text;
    status_t status = profile_parse(text, strlen(text), "p.yaml", &profile);
    ck_assert_msg(status_code(status) == STATUS_INVALID_ARGUMENT, "%s: accepted", text);
    const char *message = status_message(status);
    ck_assert_msg(strncmp(message, bad_files[_i].place, strlen(bad_files[_i].place)) == 0, "%s",
                  message);
    ck_assert_msg(strstr(message, bad_files[_i].word) != NULL, "%s", message);
    ck_assert_int_eq(profile.world, 77);
    status_free(status);
}

TEST(files_that_cannot_be_read)
{
    struct profile profile;
    status_t status = profile_find("./no-such-profile.yaml", &profile);
    ck_assert_int_eq(status_code(status), STATUS_NOT_FOUND);
    status_free(status);
    char *large = mem_printf("/tmp/fsdpd-profile-%d.yaml", (int)getpid());
    char *text = mem_alloc(PROFILE_FILE_MAX + 2);
    memset(text, '#', PROFILE_FILE_MAX + 1);
    expect(file_write_atomic(large, text, PROFILE_FILE_MAX + 1, 0600));
    status = profile_find(large, &profile);
    remove(large);
    ck_assert_int_eq(status_code(status), STATUS_INVALID_ARGUMENT);
    status_free(status);
    free(text);
    free(large);
}
