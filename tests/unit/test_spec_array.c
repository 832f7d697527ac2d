/* Arrays of jobs: indices, and ${index} in the values of a job file. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "spec_fixture.h"
#include "tests/testing.h"

TESTS_BELOW(.set_up = spec_set_up, .tear_down = spec_tear_down);

static void expect_indices(const char *text, const char *expected)
{
    uint32_t *indices = NULL;
    size_t count = 0;
    AUTO(buf_deinit) struct buf found = {0};
    status_t status = spec_array_indices(text, &indices, &count);
    if (status != NULL) buf_add_text(&found, status_message(status));
    for (size_t i = 0; status == NULL && i < count; i++)
        buf_printf(&found, "%s%u", i > 0 ? " " : "", indices[i]);
    ck_assert_str_eq(buf_text(&found), expected);
    if (status == NULL) free(indices);
    status_free(status);
}

#define EXPECTED "expected indices such as 1-20, 1,3,7-9 or 0-100:10, found "

TEST(indices_are_numbers_ranges_and_steps)
{
    expect_indices("5", "5");
    expect_indices("1,3,7-9", "1 3 7 8 9");
    expect_indices("0-100:25", "0 25 50 75 100");
    expect_indices("0-9:4, 20", "0 4 8 20");
    expect_indices("9,2", "9 2"); /* in the user's order */
    expect_indices("", EXPECTED "''");
    expect_indices("3-1", EXPECTED "'3-1'");
    expect_indices("1-", EXPECTED "'1-'");
    expect_indices("1,,2", EXPECTED "'1,,2'");
    expect_indices("1-5:0", EXPECTED "'1-5:0'");
    expect_indices("-1", EXPECTED "'-1'");
    expect_indices("1-20%4", EXPECTED "'1-20%4'");
    expect_indices("1-5,3", EXPECTED "'1-5,3', which has 3 twice");
    expect_indices("1234567890", EXPECTED "'1234567890'");
    expect_indices("0-999999999", "expected at most 10000 indices, found more");
}

/* What a client sends. */
static Fsdpd__V1__JobFile *pack(const char *text, const char *set)
{
    const struct spec_override override = {.text = set};
    Fsdpd__V1__JobFile *sent = NULL;
    status_t status = spec_pack_text(text, strlen(text), "job.yaml", &override, set != NULL, &sent);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    return sent;
}

static status_t print_job(void *user, uint32_t index, Fsdpd__V1__JobSpec *spec)
{
    const char *label = spec->n_labels > 0 ? spec->labels[0]->value : "-";
    ck_assert_ptr_null(spec->array);
    buf_printf(user, "%u %s %llu %g %s %s\n", index, spec->name,
               (unsigned long long)spec->train->seed, spec->optimizer->lr, label, spec->data->dir);
    return NULL;
}

static void expect_jobs(const char *text, const char *set, size_t first, size_t count,
                        const char *expected)
{
    Fsdpd__V1__JobFile *sent = pack(text, set);
    const struct spec_array_part part = {.first = first, .count = count};
    AUTO(buf_deinit) struct buf found = {0};
    status_t status = spec_array_each(sent, &part, print_job, &found);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_str_eq(buf_text(&found), expected);
    fsdpd__v1__job_file__free_unpacked(sent, NULL);
}

TEST(the_index_is_put_into_values_of_every_type)
{
    static const char sweep[] =
        "name: sweep\nmodel: {file: net.yaml}\ndata:\n  dir: d-${index}-${index}\n"
        "train: {seed: \"${index}\"}\noptimizer:\n  lr: 0.${index}\n"
        "labels: {part: \"p-${index}\"}\narray: {indices: \"1-3,7\", at_once: 2}\n";
    expect_jobs(sweep, NULL, 0, 10000,
                "1 sweep-1 1 0.1 p-1 d-1-1\n2 sweep-2 2 0.2 p-2 d-2-2\n3 sweep-3 3 0.3 p-3 d-3-3\n"
                "7 sweep-7 7 0.7 p-7 d-7-7\n");
    expect_jobs(sweep, "name=a-${index}-b", 3, 5, "7 a-7-b 7 0.7 p-7 d-7-7\n");
    expect_jobs(sweep, "train.seed=10${index}", 1, 1, "2 sweep-2 102 0.2 p-2 d-2-2\n");
    expect_jobs(sweep, "array.indices=5", 0, 1, "5 sweep-5 5 0.5 p-5 d-5-5\n");
    expect_jobs(sweep, NULL, 4, 50, "");
}

/* The record has the values of the first index, but no name and no label that depends on it. */
TEST(an_array_has_a_spec_of_its_own)
{
    static const struct {
        const char *name, *record;
    } names[] = {{"sweep", "sweep"},
                 {"a-${index}-b", "a-b"},
                 {"r${index}", "r"},
                 {"${index}", "array"}};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        AUTO_FREE char *text = mem_printf(
            "name: %s\nmodel: {file: net.yaml}\ndata: {dir: d}\ntrain:\n  seed: ${index}\n"
            "labels:\n  a: ${index}\n  b: x\narray: {indices: 4-6}\n",
            names[i].name);
        Fsdpd__V1__JobFile *sent = pack(text, NULL);
        Fsdpd__V1__JobSpec *spec = NULL;
        ck_assert_ptr_null(spec_read_sent(sent, &spec));
        ck_assert_str_eq(spec->name, names[i].record);
        ck_assert_uint_eq(spec->train->seed, 4);
        ck_assert_uint_eq(spec->n_labels, 1);
        ck_assert_str_eq(spec->labels[0]->key, "b");
        ck_assert_str_eq(spec->array->indices, "4-6");
        ck_assert_uint_eq(spec->array->at_once, 0);
        ck_assert_str_eq(spec->array->file->text, text);
        ck_assert_ptr_null(spec_validate(spec));
        spec_free(spec);
        fsdpd__v1__job_file__free_unpacked(sent, NULL);
    }
    Fsdpd__V1__JobSpec *spec = must_read(MINIMAL, NULL);
    ck_assert_ptr_null(spec->array); /* other jobs have nothing of arrays */
    spec_complete(spec);
    ck_assert_ptr_null(spec->array);
    spec_free(spec);
}

static void refused(const char *text, const char *message)
{
    Fsdpd__V1__JobFile *sent = NULL;
    status_t status = spec_pack_text(text, strlen(text), "job.yaml", NULL, 0, &sent);
    ck_assert_msg(status != NULL, "accepted");
    ck_assert_str_eq(status_message(status), message);
    status_free(status);
}

TEST(every_job_of_an_array_is_checked)
{
    refused(MINIMAL "train:\n  seed: ${index}\n  max_steps: -${index}\narray: {indices: 0-3}\n",
            "index 1: job.yaml:6: train.max_steps: expected an integer from 0 to 1000000000000, "
            "found -1");
    refused("name: an-array-whose-name-is-too-long-for-x${index}\nmodel: {file: net.yaml}\n"
            "data: {dir: d}\narray: {indices: \"9,1000\"}\n",
            "index 1000: job.yaml:1: name: expected 1 to 40 letters a-z, digits and dashes that "
            "start with a letter or digit, found 'an-array-whose-name-is-too-long-for-x1000'");
    refused(MINIMAL "array: {indices: 3-1}\n", "job.yaml:4: array.indices: " EXPECTED "'3-1'");
    refused(MINIMAL "array: {at_once: 3}\n",
            "job.yaml:4: array.at_once: belongs to array.indices, which is missing");
    refused(MINIMAL "train:\n  seed: ${index}\n",
            "job.yaml:5: train.seed: expected an integer from 0 to 9007199254740991, found "
            "'${index}'");
}

/* All model files come with the job file, each once. */
TEST(a_model_file_may_depend_on_the_index)
{
    static const char text[] = "name: m\nmodel: {file: \"net${index}.yaml\"}\ndata: {dir: d}\n"
                               "array: {indices: 1-2}\n";
    ck_assert_int_eq(system("cp net.yaml net1.yaml; cp net.yaml net2.yaml"), 0);
    Fsdpd__V1__JobFile *sent = pack(text, NULL);
    ck_assert_uint_eq(sent->n_files, 2);
    ck_assert_str_eq(sent->files[1]->key, "net2.yaml");
    fsdpd__v1__job_file__free_unpacked(sent, NULL);
}
