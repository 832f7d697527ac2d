/* common/spec: messages from the network, and the message and the documentation against the table
 * of keys. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "proto/message.h"
#include "spec/internal.h"
#include "spec/queue.h"
#include "spec_fixture.h"
#include "tests/testing.h"

#define NAME_EXPECTED                                                                              \
    "expected 1 to 40 letters a-z, digits and dashes that start with a letter or digit, found "

TESTS_BELOW(.set_up = spec_set_up, .tear_down = spec_tear_down);

/* Errors that only a message can have: missing parts, values that no file could have given. */
TEST(messages)
{
    Fsdpd__V1__JobSpec empty = FSDPD__V1__JOB_SPEC__INIT;
    expect_invalid(&empty, "name: " NAME_EXPECTED "''");

    Fsdpd__V1__JobSpec *spec = must_read(MINIMAL, NULL);
    Fsdpd__V1__TrainSpec *train = spec->train;
    spec->train = NULL;
    expect_invalid(spec, "train.epochs: is missing; expected an integer from 1 to 1000000");
    spec->train = train;
    Fsdpd__V1__WrapSpec *wrap = spec->fsdp->wrap;
    spec->fsdp->wrap = NULL;
    expect_invalid(spec, "fsdp.wrap.policy: is missing; expected auto, none, size, type, match or "
                         "units");
    spec->fsdp->wrap = wrap;

    train->epochs = UINT32_MAX;
    expect_invalid(spec, "train.epochs: expected an integer from 1 to 1000000, found 4294967295");
    train->epochs = 1;
    train->seed = UINT64_MAX;
    expect_invalid(spec, "train.seed: expected an integer from 0 to 9007199254740991, found "
                         "1.8446744073709552e+19");
    train->seed = 1;
    spec->optimizer->lr = 0.0 / 0.0;
    status_t status = spec_validate(spec);
    ck_assert_ptr_nonnull(strstr(status_message(status), "optimizer.lr: expected a number"));
    status_free(status);
    spec->optimizer->lr = 1;
    spec->optimizer->momentum = 0.9;
    spec->optimizer->_momentum_case = FSDPD__V1__OPTIMIZER_SPEC___MOMENTUM_MOMENTUM;
    expect_invalid(spec, "optimizer.momentum: belongs to optimizer.type sgd or muon only");
    spec->optimizer->momentum = 0;
    spec->fsdp->wrap->min_num_params = 5;
    spec->fsdp->wrap->_min_num_params_case = FSDPD__V1__WRAP_SPEC___MIN_NUM_PARAMS_MIN_NUM_PARAMS;
    expect_invalid(spec, "fsdp.wrap.min_num_params: belongs to fsdp.wrap.policy size only");
    spec->fsdp->wrap->min_num_params = 0;
    char *dir = spec->data->dir;
    spec->data->dir = (char *)"a\nb";
    expect_invalid(spec, "data.dir: expected a path, found text with control characters");
    char long_path[SPEC_TEXT_MAX + 2];
    memset(long_path, 'x', sizeof long_path);
    long_path[SPEC_TEXT_MAX + 1] = '\0';
    spec->data->dir = long_path;
    expect_invalid(spec, "data.dir: expected a path, found 4097 characters");
    spec->data->dir = dir;
    char *text = spec->model->text;
    spec->model->text = (char *)"";
    expect_invalid(spec, "model.text: expected 1 to 1048576 bytes, found 0");
    spec->model->text = text;
    status = spec_validate(spec);
    ck_assert_msg(status == NULL, "%s", status_message(status));

    Fsdpd__V1__JobSpec *copy = spec_copy(spec);
    spec_free(spec);
    status = spec_validate(copy);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    spec_free(copy);
}

static void expect_equal(const Fsdpd__V1__JobSpec *a, const Fsdpd__V1__JobSpec *b)
{
    size_t size = protobuf_c_message_get_packed_size(&a->base);
    ck_assert_uint_eq(size, protobuf_c_message_get_packed_size(&b->base));
    uint8_t *first = mem_alloc(size), *second = mem_alloc(size);
    protobuf_c_message_pack(&a->base, first);
    protobuf_c_message_pack(&b->base, second);
    ck_assert_int_eq(memcmp(first, second, size), 0);
    free(first);
    free(second);
}

static void set_text(Fsdpd__V1__JobSpec *spec, const char *name, const char *text)
{
    for (size_t i = 0; i < spec_key_count; i++)
        if (strcmp(spec_keys[i].key, name) == 0) {
            spec_field_set_text(spec_field_find(spec, &spec_keys[i], true), text);
            return;
        }
    ck_abort_msg("there is no key %s", name);
}

/* What a client in another language sends that knows no defaults. */
static Fsdpd__V1__JobSpec *bare_message(void)
{
    Fsdpd__V1__JobSpec *spec = mem_alloc(sizeof *spec);
    fsdpd__v1__job_spec__init(spec);
    set_text(spec, "name", "mnist");
    set_text(spec, "data.dir", "mnist");
    set_text(spec, "model.file", "");
    spec->model->text = mem_strdup("modules: {}\n");
    return spec;
}

/* A message of a name, a model and data means what the job file of these keys means; and so for
 * every type with defaults of its own. */
TEST(absent_is_the_default)
{
    static const char *const cases[][3] = {
        {"", NULL, NULL},
        {"optimizer: {type: sgd}\n", "optimizer.type", "sgd"},
        {"optimizer: {type: adam}\n", "optimizer.type", "adam"},
        {"optimizer: {type: adamw}\n", "optimizer.type", "adamw"},
        {"optimizer: {type: lion}\n", "optimizer.type", "lion"},
        {"optimizer: {type: muon}\n", "optimizer.type", "muon"},
        {"optimizer: {type: adafactor}\n", "optimizer.type", "adafactor"},
        {"schedule: {type: step}\n", "schedule.type", "step"},
        {"schedule: {type: cosine}\n", "schedule.type", "cosine"},
        {"fsdp: {wrap: {policy: size}}\n", "fsdp.wrap.policy", "size"},
        {"fsdp: {strategy: no_shard}\n", "fsdp.strategy", "no_shard"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char *text = mem_printf("%s%s", MINIMAL, cases[i][0]);
        Fsdpd__V1__JobSpec *file = must_read(text, "data.dir=mnist");
        Fsdpd__V1__JobSpec *message = bare_message();
        if (cases[i][1] != NULL) set_text(message, cases[i][1], cases[i][2]);
        spec_complete(message);
        status_t status = spec_validate(message);
        ck_assert_msg(status == NULL, "%s", status_message(status));
        ck_assert_str_eq(message->model->file_name, "model.yaml");
        free(message->model->file_name);
        message->model->file_name = mem_strdup(file->model->file_name);
        free(message->name);
        message->name = mem_strdup(file->name);
        expect_equal(file, message);
        spec_complete(message); /* has nothing to do */
        expect_equal(file, message);
        spec_free(message);
        spec_free(file);
        free(text);
    }
}

TEST(a_given_zero_is_no_default)
{
    Fsdpd__V1__JobSpec *spec = bare_message();
    spec_complete(spec);
    spec_free(spec);
    static const struct {
        const char *key, *error;
    } cases[] = {
        {"train.batch_size", "expected an integer from 1 to 1048576, found 0"},
        {"train.epochs", "expected an integer from 1 to 1000000, found 0"},
        {"optimizer.eps", "expected a number from 1e-30 to 1, found 0"},
        {"data.normalize.std", "expected a number from 1e-06 to 1000000, found 0"},
        {"workers", "expected an integer from 1 to 4096, found 0"},
        {"train.max_steps", NULL}, /* no limit */
        {"train.dropout", NULL},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct spec_key *key = spec_keys;
        while (strcmp(key->key, cases[i].key) != 0) key++;
        spec = bare_message();
        spec_field_set_number(spec_field_find(spec, key, true), 0);
        spec_complete(spec);
        ck_assert(spec_field_number(spec_field_find(spec, key, false)) == 0);
        char *expected = mem_printf("%s: %s", key->key, cases[i].error ? cases[i].error : "");
        if (cases[i].error != NULL) {
            expect_invalid(spec, expected);
        } else {
            status_t status = spec_validate(spec);
            ck_assert_msg(status == NULL, "%s", status_message(status));
        }
        free(expected);
        spec_free(spec);
    }
}

/* A daemon that has none of the client's files reads the same from what the client packs: the
 * model, paths relative to the shell, "~/", and values that look like something else. */
TEST(a_packed_file_is_the_file)
{
    ck_assert_int_eq(mkdir("digits", 0755), 0);
    ck_assert_int_eq(setenv("HOME", "/home/user", 1), 0);
    static const struct spec_override overrides[] = {
        {.text = "data.dir=digits"},
        {.text = "train.epochs=3"},
        {.text = "labels.team=\"7\"", .origin = "--label team=7"},
        {.text = "checkpoint.directory='~/saved: here'"},
    };
    Fsdpd__V1__JobSpec *here = NULL, *there = NULL;
    Fsdpd__V1__JobFile *sent = NULL;
    status_t status =
        spec_read_text(MINIMAL, strlen(MINIMAL), "job.yaml", overrides, COUNT_OF(overrides), &here);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    status =
        spec_pack_text(MINIMAL, strlen(MINIMAL), "job.yaml", overrides, COUNT_OF(overrides), &sent);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(setenv("HOME", "/root", 1), 0);
    status = spec_read_sent(sent, &there);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_str_eq(there->checkpoint->directory, "/home/user/saved: here");
    ck_assert_int_eq(there->data->dir[0], '/');
    expect_equal(here, there);
    spec_free(here);
    spec_free(there);

    /* Without the model's text, and with a name that leads to a file of the daemon's. */
    free(sent->files[0]->key);
    sent->files[0]->key = mem_strdup("/etc/passwd");
    status = spec_read_sent(sent, &there);
    ck_assert_str_eq(status_message(status),
                     "job.yaml:2: model.file: expected the text of net.yaml among the files sent "
                     "with the job file, found none");
    status_free(status);
    fsdpd__v1__job_file__free_unpacked(sent, NULL);
}

/* A required number is missing, not 0. */
TEST(a_required_number_is_missing)
{
    Fsdpd__V1__JobSpec *spec = bare_message();
    set_text(spec, "fsdp.strategy", "hybrid_shard");
    spec_complete(spec);
    expect_invalid(spec, "fsdp.shard_size: is missing; expected an integer from 1 to 4096");
    spec_free(spec);
}

TEST(parts_of_lists_have_defaults)
{
    Fsdpd__V1__JobSpec *spec = bare_message();
    set_text(spec, "optimizer.type", "adamw");
    Fsdpd__V1__OptimizerGroup *group = mem_alloc(sizeof *group);
    fsdpd__v1__optimizer_group__init(group);
    group->match = mem_strdup("*.bias");
    spec->optimizer->groups = mem_alloc_array(1, sizeof *spec->optimizer->groups);
    spec->optimizer->groups[spec->optimizer->n_groups++] = group;
    spec_complete(spec);
    ck_assert_double_eq(group->weight_decay, 0.01);
    ck_assert_double_eq(group->lr_scale, 1);
    spec_free(spec);
}

TEST(message_units)
{
    Fsdpd__V1__JobSpec *spec =
        must_read(MINIMAL "fsdp: {wrap: {policy: units, units: [a, [b, c]]}}\n", NULL);
    Fsdpd__V1__WrapUnit *second = spec->fsdp->wrap->units[1];
    ck_assert_uint_eq(second->n_modules, 2);
    ck_assert_str_eq(second->modules[1], "c");
    second->n_modules = 0;
    expect_invalid(spec, "fsdp.wrap.units: expected at least one module in unit 2, found none");
    second->n_modules = 2;
    char *module = second->modules[1];
    second->modules[1] = (char *)"";
    expect_invalid(spec, "fsdp.wrap.units: expected a module's path of 1 to 256 characters as "
                         "module 2 of unit 2, found 0 characters");
    second->modules[1] = module;
    spec_free(spec);
}

TEST(times)
{
    static const struct {
        const char *text;
        int64_t milliseconds; /* 0: refused */
        bool is_duration;
    } cases[] = {
        {"90s", 90000, true},
        {"0.5s", 500, true},
        {"2h30m", 9000000, true},
        {"1w2d3h4m5.25s", 788645250, true},
        {"3650d", INT64_C(315360000000), true},
        {"1970-01-01T00:00:01Z", 1000, false},
        {"2026-12-01T08:00:00Z", INT64_C(1796112000000), false},
        {"2026-12-01 08:00:00.25z", INT64_C(1796112000250), false},
        {"2026-12-01T09:30:00+01:30", INT64_C(1796112000000), false},
        {"2026-12-01T05:00:00.0009-03:00", INT64_C(1796112000000), false},
        {"2028-02-29T00:00:00Z", INT64_C(1835395200000), false},
        {"0s", 0, false},
        {"", 0, false},
        {"5", 0, false},
        {"-5s", 0, false},
        {"5 s", 0, false},
        {"5s2m", 0, false},
        {"5s5s", 0, false},
        {"1.5h3m", 0, false},
        {"1.s", 0, false},
        {".5s", 0, false},
        {"4000d", 0, false},
        {"99999999999999999999w", 0, false},
        {"5x", 0, false},
        {"2027-02-29T00:00:00Z", 0, false},
        {"2026-12-01", 0, false},
        {"2026-12-01T08:00:00", 0, false},
        {"2026-12-01T24:00:00Z", 0, false},
        {"2026-12-01T08:00:00+0100", 0, false},
        {"2026-12-01T08:00:00+24:00", 0, false},
        {"2026-12-01T08:00:00Zulu", 0, false},
        {"1969-12-31T23:59:59Z", 0, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int64_t milliseconds;
        bool is_duration;
        status_t status = spec_parse_time(cases[i].text, &is_duration, &milliseconds);
        if (cases[i].milliseconds == 0) {
            ck_assert_msg(status != NULL, "%s was taken", cases[i].text);
            ck_assert_ptr_nonnull(strstr(status_message(status), "expected a duration"));
            status_free(status);
            ck_assert_int_eq(spec_time_at(cases[i].text, 5), 0);
            continue;
        }
        ck_assert_msg(status == NULL, "%s: %s", cases[i].text, status_message(status));
        ck_assert_msg(milliseconds == cases[i].milliseconds, "%s: %lld", cases[i].text,
                      (long long)milliseconds);
        ck_assert_msg(is_duration == cases[i].is_duration, "%s", cases[i].text);
        ck_assert_int_eq(spec_time_at(cases[i].text, 5), milliseconds + (is_duration ? 5 : 0));
    }
}

/* As the C library counts days. */
TEST(last_days_of_all_months)
{
    static const int years[] = {2027, 2028, 2100, 2400};
    for (size_t y = 0; y < COUNT_OF(years); y++)
        for (int at = 0; at < 12 * 4; at++) {
            struct tm day = {.tm_year = years[y] - 1900, .tm_mon = at / 4, .tm_mday = 28 + at % 4};
            char text[32];
            strftime(text, sizeof text, "%Y-%m-%dT00:00:00Z", &day);
            time_t seconds = timegm(&day);
            bool is_duration, exists = day.tm_mon == at / 4; /* else it became the next month's */
            int64_t milliseconds = 0;
            status_t status = spec_parse_time(text, &is_duration, &milliseconds);
            ck_assert_msg((status == NULL) == exists, "%s", text);
            if (exists) ck_assert_int_eq(milliseconds, (int64_t)seconds * 1000);
            status_free(status);
        }
}

/* What a client other than ours may send. */
TEST(message_queue)
{
    Fsdpd__V1__JobSpec *spec = must_read(MINIMAL "labels: {b: x, a: y}\nafter: [p]\n", NULL);
    ck_assert_uint_eq(spec->n_labels, 2);
    ck_assert_str_eq(spec->labels[0]->key, "a"); /* in order, whatever the order in the file */
    char *key = spec->labels[1]->key;
    spec->labels[1]->key = (char *)"a";
    expect_invalid(spec, "labels: a appears twice");
    spec->labels[1]->key = (char *)"a\nb";
    expect_invalid(spec, "labels: expected a key of 1 to 40 letters a-z, digits, - and _ that "
                         "starts with a letter, found 'a b'");
    spec->labels[1]->key = key;
    spec->priority = -1001;
    expect_invalid(spec, "priority: expected an integer from -1000 to 1000, found -1001");
    spec->priority = 0;
    char *after = spec->after[0];
    spec->after[0] = (char *)"../x";
    expect_invalid(spec, "after: expected a job's id, 1 to 64 of a-z, 0-9 and -, not beginning "
                         "with -, found '../x'");
    spec->after[0] = after;
    Fsdpd__V1__DeadlineSpec *deadline = spec->deadline;
    spec->deadline = NULL; /* an older client's message */
    status_t status = spec_validate(spec);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    spec->deadline = deadline;
    spec_free(spec);
}

/* Every field of the message has a row, and every row a field with a compatible type. */
static void visit_fields(const ProtobufCMessageDescriptor *descriptor, const char *prefix)
{
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        char path[128];
        snprintf(path, sizeof path, "%s%s%s", prefix, prefix[0] ? "." : "", field->name);
        if (strstr(path, "_from.model") != NULL || strstr(path, "_from.step") != NULL) continue;
        bool teacher = strncmp(path, "model.teacher.", strlen("model.teacher.")) == 0;
        if (teacher && strcmp(path, "model.teacher.hf") != 0) continue; /* the daemon's */
        if (field->type == PROTOBUF_C_TYPE_MESSAGE && field->label != PROTOBUF_C_LABEL_REPEATED) {
            visit_fields(field->descriptor, path);
            continue;
        }
        if (strcmp(path, "model.text") == 0) continue;      /* the content of model.file */
        if (strcmp(path, "model.hf_config") == 0) continue; /* the daemon's */
        if (strcmp(path, "model.hf_family") == 0) continue;
        if (strncmp(path, "array.file.", 11) == 0 || strncmp(path, "of_array.", 9) == 0) continue;
        if (strncmp(path, "array.sweep.", 12) == 0) continue; /* of a sweep file */
        if (strcmp(path, "schedule.steps") == 0) continue; /* of schedule.phases */
        if (strcmp(path, "schedule.factor") == 0) continue;
        if (strcmp(path, "train.early_stop.set") == 0) continue; /* in train.early_stop.metric */
        if (strcmp(path, "checkpoint.best.set") == 0) continue;
        bool found = false;
        for (size_t k = 0; k < spec_key_count; k++) {
            const char *row = spec_keys[k].field ? spec_keys[k].field : spec_keys[k].key;
            found = found || strcmp(row, path) == 0;
        }
        ck_assert_msg(found, "the table has no row for the field %s", path);
    }
}

TEST(table_and_message)
{
    visit_fields(&fsdpd__v1__job_spec__descriptor, "");
    Fsdpd__V1__JobSpec spec = FSDPD__V1__JOB_SPEC__INIT;
    for (size_t i = 0; i < spec_key_count; i++) {
        const struct spec_key *key = &spec_keys[i];
        struct spec_field field = spec_field_find(&spec, key, false);
        ck_assert_msg(field.descriptor != NULL, "%s has no field", key->key);
        ProtobufCType type = field.descriptor->type;
        bool fits;
        switch (key->type) {
        case SPEC_INTEGER:
            fits = type == PROTOBUF_C_TYPE_UINT32 || type == PROTOBUF_C_TYPE_UINT64 ||
                   type == PROTOBUF_C_TYPE_INT32;
            ck_assert_msg(key->min >= 0 || type == PROTOBUF_C_TYPE_INT32, "%s", key->key);
            ck_assert_msg(type != PROTOBUF_C_TYPE_UINT32 || key->max <= UINT32_MAX, "%s", key->key);
            break;
        case SPEC_NUMBER: fits = type == PROTOBUF_C_TYPE_DOUBLE; break;
        case SPEC_BOOLEAN: fits = type == PROTOBUF_C_TYPE_BOOL; break;
        case SPEC_LABELS:
        case SPEC_ARGUMENTS:
        case SPEC_RULES:
        case SPEC_SOURCES:
        case SPEC_HELD_OUT:
        case SPEC_PHASES:
        case SPEC_GROUPS:
        case SPEC_UNITS: fits = type == PROTOBUF_C_TYPE_MESSAGE; break;
        case SPEC_GLOBS:
        case SPEC_WORDS:
        case SPEC_JOBS:
        case SPEC_TYPES:
            fits = type == PROTOBUF_C_TYPE_STRING &&
                   field.descriptor->label == PROTOBUF_C_LABEL_REPEATED;
            break;
        default:
            fits = key->values != NULL
                       ? type == PROTOBUF_C_TYPE_ENUM && field.descriptor->descriptor == key->values
                       : type == PROTOBUF_C_TYPE_STRING;
            break;
        }
        ck_assert_msg(fits, "%s and its field have different types", key->key);
    }
}

/* The enum's names are the words of the job file, in the same order: "LLM_C" of "llm.c". */
TEST(table_and_enums)
{
    for (size_t i = 0; i < spec_key_count; i++) {
        const struct spec_key *key = &spec_keys[i];
        if (key->values == NULL) continue;
        unsigned count = 0;
        for (; count < SPEC_CHOICES_MAX && key->choices[count] != NULL; count++) {
            const char *name = message_enum_name(key->values, (int)count + 1);
            ck_assert_msg(name != NULL, "%s: %s", key->key, key->choices[count]);
            char *word = mem_strdup(name);
            for (char *c = word; *c != '\0'; c++)
                *c = *c == '_' && strchr(".-", key->choices[count][c - word]) != NULL
                         ? key->choices[count][c - word]
                         : (char)tolower(*c);
            ck_assert_str_eq(word, key->choices[count]);
            ck_assert_str_eq(spec_word(key->values, (int)count + 1), word);
            ck_assert_int_eq(spec_word_value(key->values, word), (int)count + 1);
            free(word);
        }
        ck_assert_uint_eq(key->values->n_values, count + 1);
        ck_assert_ptr_null(spec_word(key->values, 0));
        ck_assert_ptr_null(spec_word(key->values, (int)count + 1));
        ck_assert_ptr_null(spec_word(key->values, -1));
        ck_assert_int_eq(spec_word_value(key->values, "UNSPECIFIED"), 0);
    }
    ck_assert_str_eq(spec_word(&fsdpd__v1__job_state__descriptor, 3), "RUNNING");
}

/* A value of a newer client is refused as a word of a newer job file is. */
TEST(an_unknown_value_is_refused)
{
    Fsdpd__V1__JobSpec *spec =
        must_read(MINIMAL "fsdp: {wrap: {policy: units, units: [{modules: a, strategy: no_shard, "
                          "cpu_offload: false}]}}\n",
                  NULL);
    ck_assert_int_eq(spec->fsdp->wrap->units[0]->strategy, FSDPD__V1__STRATEGY__STRATEGY_NO_SHARD);
    ck_assert_uint_ne(spec->fsdp->wrap->units[0]->_cpu_offload_case, 0);
    spec->fsdp->strategy = (Fsdpd__V1__Strategy)9;
    expect_invalid(spec, "fsdp.strategy: expected full_shard, shard_grad_op, hybrid_shard or "
                         "no_shard, found 9");
    spec->fsdp->strategy = FSDPD__V1__STRATEGY__STRATEGY_UNSPECIFIED;
    expect_invalid(spec, "fsdp.strategy: expected full_shard, shard_grad_op, hybrid_shard or "
                         "no_shard, found ''");
    spec->fsdp->strategy = FSDPD__V1__STRATEGY__STRATEGY_FULL_SHARD;
    spec->fsdp->wrap->units[0]->reduce_dtype = (Fsdpd__V1__Dtype)-3;
    expect_invalid(spec, "fsdp.wrap.units: unit 1: reduce_dtype: expected f32 or bf16, found -3");
    spec_free(spec);
}

static void describe_row(const struct spec_key *key, char *row, size_t size)
{
    static const char *const types[] = {
        [SPEC_NAME] = "name",         [SPEC_TEXT] = "path",      [SPEC_MODEL] = "path",
        [SPEC_INTEGER] = "integer",   [SPEC_NUMBER] = "number",  [SPEC_BOOLEAN] = "boolean",
        [SPEC_UNITS] = "list",        [SPEC_GLOBS] = "list",     [SPEC_TYPES] = "list",
        [SPEC_GROUPS] = "list",       [SPEC_CHOICE] = NULL,      [SPEC_JOBS] = "list of jobs",
        [SPEC_TIME] = "time",         [SPEC_LABELS] = "mapping", [SPEC_SOURCES] = "list",
        [SPEC_ARGUMENTS] = "mapping", [SPEC_RULES] = "mapping",  [SPEC_WORDS] = "list of words",
        [SPEC_INDICES] = "indices",   [SPEC_HELD_OUT] = "list",  [SPEC_PHASES] = "list",
    };
    char with[128] = "", type[192] = "", fallback[64] = "required", min[32], max[32];
    bool list = key->type == SPEC_GLOBS || key->type == SPEC_TYPES;
    if (key->with_key)
        for (int i = 0; i < SPEC_WITH_MAX && key->with_values[i] != NULL; i++) {
            size_t length = strlen(with);
            snprintf(with + length, sizeof with - length, "%s`%s`", i ? ", " : " with ",
                     key->with_values[i]);
        }
    if (key->type == SPEC_CHOICE)
        for (int i = 0; i < SPEC_CHOICES_MAX && key->choices[i] != NULL; i++) {
            size_t length = strlen(type);
            snprintf(type + length, sizeof type - length, "%s`%s`", i ? ", " : "", key->choices[i]);
        }
    else if (key->max > key->min)
        snprintf(type, sizeof type, "%s, %s to %s", types[key->type],
                 spec_format_number(key->min, min), spec_format_number(key->max, max));
    else snprintf(type, sizeof type, "%s", types[key->type]);
    if (key->or_ranks)
        snprintf(type + strlen(type), sizeof type - strlen(type), " or a %s, %s to %s",
                 key->unit != NULL ? "step" : "number of ranks", spec_format_number(key->min, min),
                 spec_format_number(key->max, max));
    if (key->fallback && key->fallback[0])
        snprintf(fallback, sizeof fallback, list ? "`[%s]`" : "`%s`", key->fallback);
    else if (key->fallback) strcpy(fallback, "none");
    snprintf(row, size, "\n| `%s`%s | %s | %s | %s |", key->key, with, type, fallback,
             key->unit ? key->unit : "-");
}

TEST(documentation)
{
    struct buf text = {0};
    char *path = file_path_join(getenv("srcdir"), "docs/job-file.md");
    status_t status = file_read(path, 1 << 20, &text);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    for (size_t i = 0; i < spec_key_count; i++) {
        char row[512];
        describe_row(&spec_keys[i], row, sizeof row);
        ck_assert_msg(strstr(buf_text(&text), row) != NULL, "%s has no line like this:%s", path,
                      row);
    }
    size_t rows = 0;
    for (const char *at = buf_text(&text); (at = strstr(at, "\n| `")) != NULL; at++) rows++;
    ck_assert_msg(rows == spec_key_count, "%zu rows for %zu keys", rows, spec_key_count);
    free(path);
    buf_deinit(&text);
}

/* What is chosen counts instead of what is asked for, and nothing else changes. */
TEST(settings_that_count)
{
    Fsdpd__V1__JobSpec *asked =
        must_read(MINIMAL "fsdp: {auto: true, tune: true, strategy: hybrid_shard, "
                          "shard_size: 1, reshard_after_forward: false, "
                          "activation_checkpointing: [a, b]}\n",
                  NULL);
    struct spec_settings with;
    ck_assert_ptr_eq(spec_settings(asked, NULL, &with), asked);

    /* Units alone, and the end of fsdp.tune. */
    Fsdpd__V1__Chosen chosen = FSDPD__V1__CHOSEN__INIT;
    Fsdpd__V1__WrapSpec wrap = FSDPD__V1__WRAP_SPEC__INIT;
    wrap.policy = FSDPD__V1__WRAP_POLICY__WRAP_POLICY_NONE;
    chosen.wrap = &wrap;
    chosen.tuned = true;
    struct buf changes = {0};
    spec_print_changes(asked, spec_settings(asked, &chosen, &with), &changes);
    ck_assert_str_eq(buf_text(&changes), "fsdp.tune: false\nfsdp.wrap.policy: none\n");
    buf_deinit(&changes);

    /* What the planner chooses, all of it; what does not belong to it goes. */
    Fsdpd__V1__ChosenSettings settings = FSDPD__V1__CHOSEN_SETTINGS__INIT;
    settings.batch_size = 16;
    settings.accumulation_steps = 4;
    settings.no_sync = true;
    settings.strategy = FSDPD__V1__STRATEGY__STRATEGY_SHARD_GRAD_OP;
    settings.backward_prefetch = FSDPD__V1__PREFETCH__PREFETCH_NONE;
    settings.gathered_limit = 3;
    char *modules[] = {(char *)"c"};
    settings.activation_checkpointing = modules;
    settings.n_activation_checkpointing = 1;
    settings.recompute = FSDPD__V1__RECOMPUTE__RECOMPUTE_CHEAP;
    settings.cpu_offload = true;
    chosen.settings = &settings;
    chosen.workers = 7;
    const Fsdpd__V1__JobSpec *counts = spec_settings(asked, &chosen, &with);
    spec_print_changes(asked, counts, &changes);
    ck_assert_str_eq(buf_text(&changes), "train.batch_size: 16\n"
                                         "train.accumulation_steps: 4\n"
                                         "train.no_sync: true\n"
                                         "fsdp.auto: false\n"
                                         "fsdp.tune: false\n"
                                         "fsdp.strategy: shard_grad_op\n"
                                         "fsdp.reshard_after_forward: \"\"\n"
                                         "fsdp.wrap.policy: none\n"
                                         "fsdp.backward_prefetch: none\n"
                                         "fsdp.gathered_limit: 3\n"
                                         "fsdp.activation_checkpointing: [c]\n"
                                         "fsdp.recompute: cheap\n"
                                         "fsdp.cpu_offload: true\n"
                                         "workers: 7\n");
    buf_deinit(&changes);
    status_t status = spec_validate(counts);
    ck_assert_msg(status == NULL, "%s", status_message(status));
    ck_assert_str_eq(counts->fsdp->reshard_after_forward, "");
    ck_assert_str_eq(asked->fsdp->reshard_after_forward, "false"); /* as it was asked for */
    ck_assert_uint_eq(asked->train->batch_size, 64);
    /* Batches that follow from the samples of a step stay as they are asked for. */
    settings.accumulation_steps = 0;
    ck_assert_uint_eq(spec_settings(asked, &chosen, &with)->train->accumulation_steps, 1);
    spec_free(asked);
}
