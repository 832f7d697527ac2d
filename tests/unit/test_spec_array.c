/* Arrays of jobs: indices, and ${index} in the values of a job file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "proto/message.h"
#include "spec_fixture.h"
#include "tests/testing.h"

TESTS_BELOW(.timeout = 60, .set_up = spec_set_up, .tear_down = spec_tear_down);

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

/* ---- sweeps ---- */

#define OBJECTIVE "objectives: [{metric: val_loss}]\n"
#define JOB                                                                                        \
    "trainJobTemplate:\n  name: tune\n  model: {file: net.yaml}\n  data: {dir: d}\n"               \
    "  train: {seed: \"${seed}\"}\n  optimizer:\n    lr: ${lr}\n"
#define SEED "  - {name: seed, searchSpace: {uniform: {min: 3, max: 5, type: int}}}\n"
#define RATES "  - {name: lr, searchSpace: {categorical: {choices: [0.5, 1e-2]}}}\n"

TEST(a_grid_has_each_point_once_and_the_last_parameter_changes_first)
{
    static const char grid[] =
        OBJECTIVE "searchAlgorithm: {grid: {}}\nparameters:\n" SEED RATES JOB;
    expect_jobs(grid, NULL, 0, 10000,
                "1 tune-1 3 0.5 - d\n2 tune-2 3 0.01 - d\n3 tune-3 4 0.5 - d\n4 tune-4 4 0.01 - d\n"
                "5 tune-5 5 0.5 - d\n6 tune-6 5 0.01 - d\n");
    expect_jobs(grid, "data.dir=d-${lr}-${index}", 1, 1, "2 tune-2 3 0.01 - d-1e-2-2\n");
    expect_jobs(grid, "array.indices=4", 0, 9, "4 tune-4 4 0.01 - d\n");
}

/* ---- what is drawn ---- */

enum { TRIALS = 400 };

struct drawn {
    double values[TRIALS][2];
    size_t count;
    char first[2][32]; /* of the first trial, as texts */
};

static status_t take_drawn(void *user, uint32_t index, Fsdpd__V1__JobSpec *spec)
{
    struct drawn *drawn = user;
    ck_assert_uint_eq(index, drawn->count + 1);
    ck_assert_uint_eq(spec->of_array->n_values, 2);
    ck_assert_str_eq(spec->of_array->values[1]->key, "lr");
    for (int i = 0; i < 2; i++) {
        const char *text = spec->of_array->values[i]->value;
        drawn->values[drawn->count][i] = strtod(text, NULL);
        if (drawn->count == 0) snprintf(drawn->first[i], sizeof drawn->first[i], "%s", text);
    }
    ck_assert_double_eq(drawn->values[drawn->count][1], spec->optimizer->lr);
    ck_assert_double_eq(drawn->values[drawn->count][0], (double)spec->train->seed);
    drawn->count++;
    return NULL;
}

static void draw(int seed, const char *space, struct drawn *drawn)
{
    AUTO_FREE char *text =
        mem_printf(OBJECTIVE "searchAlgorithm: {random: {seed: %d}}\nnumTrials: %d\n"
                             "parameters:\n" SEED "  - {name: lr, searchSpace: {%s}}\n" JOB,
                   seed, TRIALS, space);
    Fsdpd__V1__JobFile *sent = pack(text, NULL);
    const struct spec_array_part all = {.count = SPEC_ARRAY_MAX};
    *drawn = (struct drawn){0};
    status_t status = spec_array_each(sent, &all, take_drawn, drawn);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_uint_eq(drawn->count, TRIALS);
    fsdpd__v1__job_file__free_unpacked(sent, NULL);
}

static size_t count_below(const struct drawn *drawn, int parameter, double bound)
{
    size_t count = 0;
    for (size_t i = 0; i < drawn->count; i++) count += drawn->values[i][parameter] < bound;
    return count;
}

static void expect_share(size_t count, double share)
{
    ck_assert_double_eq_tol((double)count / TRIALS, share, 0.075); /* three standard deviations */
}

TEST(values_are_drawn_from_their_spaces_and_by_the_seed)
{
    static struct drawn log, again, other, even;
    draw(7, "logUniform: {min: 1.0e-4, max: 1.0}", &log);
    expect_share(count_below(&log, 1, 1e-3), 0.25);
    expect_share(count_below(&log, 1, 1e-2), 0.5);
    ck_assert_uint_eq(count_below(&log, 1, 1e-4), 0);
    for (int value = 3; value <= 5; value++)
        expect_share(count_below(&log, 0, value + 1) - count_below(&log, 0, value), 1.0 / 3);
    ck_assert_str_eq(log.first[0], "4"); /* those of other versions, too */
    ck_assert_str_eq(log.first[1], "0.144686");
    draw(7, "logUniform: {min: 1.0e-4, max: 1.0}", &again);
    ck_assert_mem_eq(&log, &again, sizeof log);
    draw(8, "logUniform: {min: 1.0e-4, max: 1.0}", &other);
    ck_assert_mem_ne(&log, &other, sizeof log);
    draw(7, "uniform: {min: 0.1234567, max: 0.3}", &even);
    expect_share(count_below(&even, 1, (0.1234567 + 0.3) / 2), 0.5);
    ck_assert_uint_eq(count_below(&even, 1, 0.1234567), 0);
    ck_assert_uint_eq(count_below(&even, 1, 0.3000001), TRIALS);
}

/* The record says how the values are drawn; the job file may be another, which is sent along. */
TEST(a_sweep_is_an_array_and_its_job_file_may_be_another)
{
    static const char job[] = "name: other\nmodel: {file: net.yaml}\ndata: {dir: d}\n"
                              "optimizer: {lr: \"${lr}\"}\n";
    static const char sweep[] =
        "objectives: [{metric: accuracy, direction: maximize}]\n"
        "parameters:\n" RATES "numTrials: 3\nparallelTrials: 2\ntrainJobTemplate: other.yaml\n";
    FILE *file = fopen("other.yaml", "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(job, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    Fsdpd__V1__JobFile *sent = pack(sweep, NULL);
    ck_assert_int_eq(remove("other.yaml"), 0);
    Fsdpd__V1__JobSpec *spec = NULL;
    ck_assert_ptr_null(spec_read_sent(sent, &spec));
    ck_assert_str_eq(spec->name, "other");
    ck_assert_str_eq(spec->array->indices, "1-3");
    ck_assert_uint_eq(spec->array->at_once, 2);
    ck_assert_str_eq(spec->array->sweep->metric, "accuracy");
    ck_assert_str_eq(spec->array->sweep->direction, "maximize");
    ck_assert_str_eq(spec->array->sweep->algorithm, "random");
    ck_assert_str_eq(spec->array->sweep->parameters[0]->choices[1], "1e-2");
    ck_assert_ptr_null(spec_validate(spec));
    spec->train->evaluate = false;
    status_t unmeasured = spec_validate(spec);
    ck_assert_str_eq(status_message(unmeasured),
                     "train.evaluate: expected true, as evaluations measure the objective of the "
                     "sweep, accuracy");
    status_free(unmeasured);
    free(spec->array->sweep->metric); /* a metric of steps */
    spec->array->sweep->metric = mem_strdup("loss");
    ck_assert_ptr_null(spec_validate(spec));
    spec_free(spec);
    status_t placed = spec_place(sent, status_new(STATUS_NOT_FOUND, "data.dir: there is none"));
    ck_assert_str_eq(status_message(placed), "other.yaml:3: data.dir: there is none");
    status_free(placed);
    message_free(sent->files[--sent->n_files]); /* without it */
    status_t status = spec_read_sent(sent, &spec);
    ck_assert_str_eq(status_message(status),
                     "job.yaml:6: key 'trainJobTemplate': expected the text of other.yaml among "
                     "the files sent, found none");
    status_free(status);
    message_free(sent);
}

TEST(a_sweep_is_refused_with_its_place)
{
#define PARAMETERS "parameters:\n" SEED RATES
    refused("objectives: [{metric: val_los}]\n" PARAMETERS "numTrials: 2\n" JOB,
            "job.yaml:1: key 'objectives[0].metric': expected a metric of docs/monitoring.md, such "
            "as val_loss, found val_los");
    refused("objectives: [{metric: loss, direction: down}]\n" PARAMETERS "numTrials: 2\n" JOB,
            "job.yaml:1: key 'objectives[0].direction': expected 'minimize' or "
            "'maximize', found 'down'");
    refused(OBJECTIVE "parameters: []\nnumTrials: 2\n" JOB,
            "job.yaml:2: key 'parameters': expected 1 to 64 parameters, found 0");
    refused(OBJECTIVE PARAMETERS JOB,
            "job.yaml:1: numTrials: is missing; expected an integer from 1 to 10000");
    refused(OBJECTIVE "searchAlgorithm: {grid: {}}\nnumTrials: 7\n" PARAMETERS JOB,
            "job.yaml:3: key 'numTrials': expected an integer from 1 to 6, found '7'");
    refused(OBJECTIVE "searchAlgorithm: {grid: {}}\nparameters:\n"
                      "  - {name: lr, searchSpace: {uniform: {min: 1, max: 2}}}\n" JOB,
            "job.yaml:4: key 'parameters[0].searchSpace': a grid needs categorical values or a "
            "range of type int");
    refused(OBJECTIVE "searchAlgorithm: {bayes: {}}\n" PARAMETERS JOB,
            "job.yaml:2: unknown key 'searchAlgorithm.bayes'; the keys here are random, grid");
    refused(OBJECTIVE PARAMETERS "  - {name: lr, searchSpace: {uniform: {min: 1, max: 2}}}\n" JOB,
            "job.yaml:5: key 'parameters[2].name': expected each name once, found lr twice");
    refused(OBJECTIVE PARAMETERS
            "  - {name: index, searchSpace: {uniform: {min: 1, max: 2}}}\n" JOB,
            "job.yaml:5: key 'parameters[2].name': expected 1 to 40 letters, digits and _.- other "
            "than index, found index");
    refused(OBJECTIVE PARAMETERS "  - {name: x, searchSpace: {logUniform: {min: 0, max: 2}}}\n" JOB,
            "job.yaml:5: key 'parameters[2].searchSpace.logUniform.min': expected a number above 0 "
            "for logUniform, found 0");
    refused(OBJECTIVE PARAMETERS "  - {name: x, searchSpace: {uniform: {min: 3, max: 2}}}\n" JOB,
            "job.yaml:5: key 'parameters[2].searchSpace.uniform.max': expected at least min, 3, "
            "found 2");
    refused(OBJECTIVE PARAMETERS
            "  - {name: x, searchSpace: {uniform: {min: 0.5, max: 2, type: int}}}\n" JOB,
            "job.yaml:5: key 'parameters[2].searchSpace.uniform.min': expected an integer, found "
            "0.5");
    refused(OBJECTIVE PARAMETERS
            "  - {name: x, searchSpace: {categorical: {choices: [\"${lr}\"]}}}\n" JOB,
            "job.yaml:5: key 'parameters[2].searchSpace.categorical.choices[0]': expected a value "
            "without ${");
    refused(
        OBJECTIVE PARAMETERS
        "  - {name: x, searchSpace: {uniform: {min: 1, max: 2}}}\nnumTrials: 2\n" JOB,
        "job.yaml:5: key 'parameters[2]': expected ${x} in a value of the job file, found none");
    refused(OBJECTIVE PARAMETERS "numTrials: 2\n" JOB "  array: {indices: 1-2}\n",
            "job.yaml:13: key 'trainJobTemplate.array': a sweep is an array itself; remove this");
    refused(OBJECTIVE "parameters:\n" SEED "  - {name: lr, searchSpace: {uniform: {min: -1, max: "
                      "-1}}}\nnumTrials: 2\n" JOB,
            "job.yaml:12: optimizer.lr: expected a number from 0 to 1000000, found -1");
    refused(OBJECTIVE PARAMETERS "numTrials: 2\n", "job.yaml:1: key 'trainJobTemplate' is missing");
    refused(OBJECTIVE PARAMETERS "numTrials: 2\ntrainJobTemplate: none.yaml\n",
            "job.yaml:6: key 'trainJobTemplate': cannot open none.yaml: No such file or directory");
    /* A file of comments, which 10000 trials read: of 1 GiB together, and of more. */
    for (size_t more = 0; more < 2; more++) {
        size_t length = SPEC_ARRAY_BYTES_MAX / 10000 + more;
        AUTO_FREE char *text = mem_alloc(length);
        memset(text, '#', length);
        status_t status = file_write_atomic("large.yaml", text, length, 0644);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        refused(OBJECTIVE PARAMETERS "numTrials: 10000\ntrainJobTemplate: large.yaml\n",
                more > 0
                    ? "job.yaml:6: key 'trainJobTemplate': expected at most 1073741824 bytes of "
                      "job file for all trials together"
                    : "large.yaml:1: the file is empty");
    }
}
