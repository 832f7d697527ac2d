/*
 * The JobSpec message by the table of keys: finds a key's field through the descriptors generated
 * by protoc-c, reads it, sets it, checks it. Pure functions, any thread.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "proto/message.h"
#include "spec/internal.h"
#include "spec/queue.h"
#include "spec/time.h"

struct spec_field spec_field_find(const Fsdpd__V1__JobSpec *spec, const struct spec_key *key,
                                  bool make)
{
    const char *path = key->field ? key->field : key->key;
    const ProtobufCMessageDescriptor *descriptor = spec->base.descriptor;
    char *message = (char *)spec;
    for (;;) {
        size_t length = strcspn(path, ".");
        AUTO_FREE char *name = mem_strndup(path, length);
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name(descriptor, name);
        char *member = message ? message + field->offset : NULL;
        if (path[length] == '\0') return (struct spec_field){field, member};
        descriptor = field->descriptor;
        char **slot = (char **)(void *)member;
        if (make && *slot == NULL) {
            *slot = mem_alloc(descriptor->sizeof_message);
            protobuf_c_message_init(descriptor, *slot);
        }
        message = slot ? *slot : NULL;
        path += length + 1;
    }
}

double spec_field_number(struct spec_field field)
{
    switch (field.descriptor->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_ENUM: return *(const int32_t *)field.member;
    case PROTOBUF_C_TYPE_UINT32: return *(const uint32_t *)field.member;
    case PROTOBUF_C_TYPE_UINT64: return (double)*(const uint64_t *)field.member;
    case PROTOBUF_C_TYPE_DOUBLE: return *(const double *)field.member;
    case PROTOBUF_C_TYPE_BOOL: return *(const protobuf_c_boolean *)field.member != 0;
    default: abort(); /* a test rejects such rows of the table */
    }
}

static size_t *field_count(struct spec_field field)
{
    char *message = (char *)field.member - field.descriptor->offset;
    return (size_t *)(void *)(message + field.descriptor->quantifier_offset);
}

/* Of an optional field, which is a oneof in C: the number of its member that is given. */
static uint32_t *field_case(struct spec_field field)
{
    char *message = (char *)field.member - field.descriptor->offset;
    return (uint32_t *)(void *)(message + field.descriptor->quantifier_offset);
}

static bool is_optional(struct spec_field field)
{
    return (field.descriptor->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
}

bool spec_field_is_given(struct spec_field field)
{
    if (field.member == NULL) return false;
    if (is_optional(field)) return *field_case(field) == field.descriptor->id;
    if (field.descriptor->label == PROTOBUF_C_LABEL_REPEATED) return *field_count(field) > 0;
    if (field.descriptor->type == PROTOBUF_C_TYPE_ENUM) return spec_field_number(field) != 0;
    return spec_field_text(field)[0] != '\0';
}

void spec_field_set_number(struct spec_field field, double value)
{
    if (is_optional(field)) *field_case(field) = field.descriptor->id;
    switch (field.descriptor->type) {
    case PROTOBUF_C_TYPE_INT32: *(int32_t *)field.member = (int32_t)value; break;
    case PROTOBUF_C_TYPE_UINT32: *(uint32_t *)field.member = (uint32_t)value; break;
    case PROTOBUF_C_TYPE_UINT64: *(uint64_t *)field.member = (uint64_t)value; break;
    case PROTOBUF_C_TYPE_DOUBLE: *(double *)field.member = value; break;
    case PROTOBUF_C_TYPE_BOOL: *(protobuf_c_boolean *)field.member = value != 0; break;
    default: abort();
    }
}

const char *spec_field_text(struct spec_field field)
{
    if (field.descriptor->type == PROTOBUF_C_TYPE_ENUM) {
        const char *word = spec_word(field.descriptor->descriptor, *(const int *)field.member);
        return word ? word : "";
    }
    const char *text = *(char *const *)field.member;
    return text ? text : "";
}

void spec_field_set_text(struct spec_field field, const char *text)
{
    if (field.descriptor->type == PROTOBUF_C_TYPE_ENUM) {
        *(int *)field.member = spec_word_value(field.descriptor->descriptor, text);
        return;
    }
    char **slot = field.member;
    if (*slot != (const char *)protobuf_c_empty_string) free(*slot);
    *slot = mem_strdup(text);
}

char **spec_field_texts(struct spec_field field, size_t *count)
{
    if (count != NULL) *count = *field_count(field);
    return *(char ***)field.member;
}

void *const *spec_field_messages(struct spec_field field, size_t *count)
{
    *count = *field_count(field);
    return *(void *const **)field.member;
}

void spec_field_add_message(struct spec_field field, void *message)
{
    void ***items = field.member;
    size_t *count = field_count(field);
    *items = mem_resize_array(*items, *count + 1, sizeof **items);
    (*items)[(*count)++] = message;
}

void spec_field_add_text(struct spec_field field, const char *text)
{
    spec_field_add_message(field, mem_strdup(text));
}

static const struct spec_key *key_find(const char *name)
{
    for (size_t i = 0; i < spec_key_count; i++)
        if (strcmp(spec_keys[i].key, name) == 0) return &spec_keys[i];
    abort();
}

bool spec_key_applies(const struct spec_key *key, const Fsdpd__V1__JobSpec *spec)
{
    if (key->with_key == NULL) return true;
    struct spec_field field = spec_field_find(spec, key_find(key->with_key), false);
    if (field.member == NULL) return false;
    if (key->with_values[0] == NULL) return spec_field_is_given(field);
    const char *found = spec_field_text(field);
    for (int i = 0; i < SPEC_WITH_MAX && key->with_values[i] != NULL; i++)
        if (strcmp(found, key->with_values[i]) == 0) return true;
    return false;
}

bool spec_key_stays_absent(const struct spec_key *key)
{
    bool number = key->type == SPEC_INTEGER || key->type == SPEC_NUMBER;
    return (number || key->type == SPEC_INDICES) && key->fallback != NULL &&
           key->fallback[0] == '\0';
}

char *spec_key_place(const struct spec_key *key)
{
    const char *values[16];
    size_t count = 0;
    for (size_t i = 0; i < spec_key_count; i++) {
        const struct spec_key *row = &spec_keys[i];
        if (strcmp(row->key, key->key) != 0) continue;
        for (int v = 0; v < SPEC_WITH_MAX && row->with_values[v] != NULL; v++)
            if (count < COUNT_OF(values)) values[count++] = row->with_values[v];
    }
    struct buf text = {0};
    buf_printf(&text, "%s%s", key->with_key, count > 0 ? " " : "");
    for (size_t i = 0; i < count; i++)
        buf_printf(&text, "%s%s", i == 0 ? "" : i + 1 < count ? ", " : " or ", values[i]);
    return buf_take(&text);
}

char *spec_format_number(double value, char text[static 32])
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    /* 64 rather than 6e+01, as long as the zeros are readable. */
    if (value == floor(value) && fabs(value) < 1e16) snprintf(text, 32, "%.0f", value);
    return text;
}

static void expect_range(const struct spec_key *key, const char *what, struct buf *out)
{
    char min[32], max[32];
    buf_printf(out, "%s from %s to %s", what, spec_format_number(key->min, min),
               spec_format_number(key->max, max));
}

static void add_choices(const struct spec_key *key, const char *before_last, struct buf *out)
{
    for (int i = 0; i < SPEC_CHOICES_MAX && key->choices[i] != NULL; i++) {
        bool last = i + 1 == SPEC_CHOICES_MAX || key->choices[i + 1] == NULL;
        buf_printf(out, "%s%s", i == 0 ? "" : last ? before_last : ", ", key->choices[i]);
    }
}

void spec_key_expected(const struct spec_key *key, struct buf *out)
{
    switch (key->type) {
    case SPEC_WORDS:
        buf_add_text(out, "a list of ");
        add_choices(key, " and ", out);
        break;
    case SPEC_NAME:
        buf_printf(out, "1 to %d letters a-z, digits and dashes that start with a letter or digit",
                   SPEC_NAME_MAX);
        break;
    case SPEC_TEXT: buf_add_text(out, "a path"); break;
    case SPEC_MODEL: buf_add_text(out, "the path of a model file"); break;
    case SPEC_CHOICE:
        add_choices(key, key->or_ranks ? ", " : " or ", out);
        if (key->or_ranks) expect_range(key, " or a number of ranks", out);
        if (key->of_set) buf_add_text(out, ", or NAME/val_loss or NAME/accuracy");
        break;
    case SPEC_INTEGER: expect_range(key, "an integer", out); break;
    case SPEC_NUMBER: expect_range(key, "a number", out); break;
    case SPEC_BOOLEAN: buf_add_text(out, "true or false"); break;
    case SPEC_UNITS:
        buf_add_text(out, "a list of modules or lists of modules, such as [fc1, [conv1, conv2]]");
        break;
    case SPEC_GROUPS:
        buf_add_text(out, "a list of groups, such as [{match: '*.bias', weight_decay: 0}]");
        break;
    case SPEC_SOURCES:
        buf_add_text(out, "a list of dataset directories, such as [{path: chat, weight: 2}]");
        break;
    case SPEC_HELD_OUT:
        buf_add_text(out, "a list of held-out sets, such as [{name: code, path: code.bin}]");
        break;
    case SPEC_GLOBS: buf_add_text(out, "a list of patterns of modules, such as [layers.*]"); break;
    case SPEC_TYPES: buf_add_text(out, "a list of module types, such as [Block, Linear]"); break;
    case SPEC_JOBS: buf_add_text(out, "a job's id or a list of them, such as [mnist-1]"); break;
    case SPEC_INDICES: buf_add_text(out, "indices such as 1-20, 1,3,7-9 or 0-100:10"); break;
    case SPEC_TIME:
        buf_add_text(out, "a duration such as 2h30m, or a time such as 2026-12-01T08:00:00Z");
        break;
    case SPEC_LABELS: buf_add_text(out, "a mapping of texts, such as {team: vision}"); break;
    case SPEC_ARGUMENTS: buf_add_text(out, "a mapping of values, such as {width: 256}"); break;
    case SPEC_RULES: buf_add_text(out, "numbers by module, such as {q_proj: 16}"); break;
    }
}

static status_t unexpected(const struct spec_key *key, const char *format, ...) FSDPD_PRINTF(2, 3);

static status_t unexpected(const struct spec_key *key, const char *format, ...)
{
    AUTO(buf_deinit) struct buf expected = {0};
    spec_key_expected(key, &expected);
    va_list args;
    va_start(args, format);
    status_t found = status_new_v(STATUS_INVALID_ARGUMENT, format, args);
    va_end(args);
    status_t status = status_new(STATUS_INVALID_ARGUMENT, "expected %s, found %s",
                                 buf_text(&expected), status_message(found));
    status_free(found);
    return status;
}

status_t spec_check_number(const struct spec_key *key, double value, const char *found)
{
    char text[32];
    if (found == NULL) found = spec_format_number(value, text);
    /* Written so that NaN fails too. */
    if (!(value >= key->min && value <= key->max)) return unexpected(key, "%s", found);
    if (key->type == SPEC_INTEGER && value != floor(value)) return unexpected(key, "%s", found);
    return NULL;
}

static bool is_plain(const char *text)
{
    for (const char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 127) return false;
    return true;
}

/* The number of ranks in a choice, if its key allows one; 0 for a word. */
static uint32_t choice_ranks(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    return digits > 0 && digits < 10 && text[digits] == '\0' ? (uint32_t)strtoul(text, NULL, 10)
                                                             : 0;
}

/* A number of ranks, where the key takes one. */
static bool is_ranks(const struct spec_key *key, const char *text)
{
    uint32_t ranks = choice_ranks(text);
    return key->or_ranks && ranks >= key->min && ranks <= key->max;
}

static bool is_word(const struct spec_key *key, const char *text)
{
    for (int i = 0; i < SPEC_CHOICES_MAX && key->choices[i] != NULL; i++)
        if (strcmp(text, key->choices[i]) == 0) return true;
    return false;
}

status_t spec_check_text(const struct spec_key *key, const char *text)
{
    size_t length = strlen(text);
    if (length > SPEC_TEXT_MAX) return unexpected(key, "%zu characters", length);
    if (!is_plain(text)) return unexpected(key, "text with control characters");
    switch (key->type) {
    case SPEC_NAME:
        if (length == 0 && key->fallback != NULL) return NULL;
        if (length == 0 || length > SPEC_NAME_MAX || text[0] == '-' ||
            strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") != length)
            return unexpected(key, "'%s'", text);
        return NULL;
    case SPEC_CHOICE:
        if (length == 0 && key->fallback != NULL && key->fallback[0] == '\0') return NULL;
        if (is_word(key, text)) return NULL;
        if (is_ranks(key, text)) return NULL;
        return unexpected(key, "'%s'", text);
    case SPEC_INDICES: {
        uint32_t *indices = NULL;
        size_t count;
        status_t status = length == 0 ? NULL : spec_array_indices(text, &indices, &count);
        free(indices);
        return status;
    }
    case SPEC_TIME: {
        bool is_duration;
        int64_t milliseconds;
        return length == 0 ? NULL : spec_parse_time(text, &is_duration, &milliseconds);
    }
    default: {
        bool may_be_empty = key->fallback != NULL && key->fallback[0] == '\0';
        return length == 0 && !may_be_empty ? unexpected(key, "nothing") : NULL;
    }
    }
}

status_t spec_check_path(const char *path)
{
    size_t length = strlen(path);
    if (length >= 1 && length <= SPEC_TEXT_MAX && is_plain(path)) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "expected 1 to %d characters, found %zu%s",
                      SPEC_TEXT_MAX, length,
                      is_plain(path) ? "" : " with control characters among them");
}

status_t spec_check_list(const struct spec_key *key, char *const *items, size_t count)
{
    for (size_t i = 0; key->type == SPEC_WORDS && i < count; i++)
        if (!is_word(key, items[i])) return unexpected(key, "'%.*s'", SPEC_GLOB_MAX, items[i]);
    const char *what = key->type == SPEC_TYPES ? "type" : "pattern";
    if (count == 0 && key->fallback == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "expected at least one %s, found none", what);
    if (count > SPEC_GLOBS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "expected at most %d %ss, found %zu",
                          SPEC_GLOBS_MAX, what, count);
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(items[i]);
        if (length == 0 || length > SPEC_GLOB_MAX || !is_plain(items[i]))
            return status_new(STATUS_INVALID_ARGUMENT,
                              "expected 1 to %d characters in %s %zu, found %zu%s", SPEC_GLOB_MAX,
                              what, i + 1, length,
                              is_plain(items[i]) ? "" : " with control characters among them");
    }
    return NULL;
}

status_t spec_check_groups(Fsdpd__V1__OptimizerGroup *const *groups, size_t count)
{
    if (count > SPEC_GLOBS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "expected at most %d groups, found %zu",
                          SPEC_GLOBS_MAX, count);
    for (size_t i = 0; i < count; i++) {
        const Fsdpd__V1__OptimizerGroup *group = groups[i];
        size_t length = strlen(group->match);
        if (length == 0 || length > SPEC_GLOB_MAX || !is_plain(group->match))
            return status_new(STATUS_INVALID_ARGUMENT,
                              "group %zu: match: expected a pattern of 1 to %d characters, found "
                              "%zu%s",
                              i + 1, SPEC_GLOB_MAX, length,
                              is_plain(group->match) ? "" : " with control characters among them");
        struct {
            const char *name;
            double value;
        } numbers[] = {{"weight_decay", group->weight_decay}, {"lr_scale", group->lr_scale}};
        for (int k = 0; k < 2; k++)
            if (!(numbers[k].value >= 0 && numbers[k].value <= 1e6))
                return status_new(STATUS_INVALID_ARGUMENT,
                                  "group %zu: %s: expected a number from 0 to 1000000, found %g",
                                  i + 1, numbers[k].name, numbers[k].value);
    }
    return NULL;
}

status_t spec_check_choice_of(const char *key, const char *text)
{
    return text[0] == '\0' ? NULL : spec_check_text(key_find(key), text);
}

/* A value of an enum that this version does not know; 0 is none. */
static status_t check_value(const struct spec_key *key, int value)
{
    if (value == 0 || spec_word(key->values, value) != NULL) return NULL;
    return unexpected(key, "%d", value);
}

/* A unit's own settings. */
static status_t check_unit_settings(const Fsdpd__V1__WrapUnit *unit)
{
    TRY(status_wrap(check_value(key_find("precision.param_dtype"), (int)unit->param_dtype),
                    "param_dtype"));
    TRY(status_wrap(check_value(key_find("precision.reduce_dtype"), (int)unit->reduce_dtype),
                    "reduce_dtype"));
    TRY(status_wrap(check_value(key_find("fsdp.strategy"), (int)unit->strategy), "strategy"));
    TRY(status_wrap(spec_check_choice_of("fsdp.reshard_after_forward", unit->reshard_after_forward),
                    "reshard_after_forward"));
    bool hybrid = unit->strategy == FSDPD__V1__STRATEGY__STRATEGY_HYBRID_SHARD;
    const char *strategy = spec_word(&fsdpd__v1__strategy__descriptor, (int)unit->strategy);
    if (hybrid && (unit->shard_size < 1 || unit->shard_size > SPEC_WORKERS_MAX))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "shard_size: hybrid_shard needs an integer from 1 to %d, found %u",
                          SPEC_WORKERS_MAX, unit->shard_size);
    if (!hybrid && unit->shard_size != 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "shard_size: belongs to the strategy hybrid_shard, but here it is %s",
                          strategy != NULL ? strategy : "the job's");
    return NULL;
}

status_t spec_check_units(Fsdpd__V1__WrapUnit *const *units, size_t count)
{
    size_t total = 0;
    if (count == 0)
        return status_new(STATUS_INVALID_ARGUMENT, "expected at least one unit, found none; use "
                                                   "fsdp.wrap.policy: none for no units");
    for (size_t i = 0; i < count; i++) {
        if (units[i]->n_modules == 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "expected at least one module in unit %zu, found none", i + 1);
        TRY(status_wrap(check_unit_settings(units[i]), "unit %zu", i + 1));
        total += units[i]->n_modules;
        if (total > SPEC_MODULES_MAX)
            return status_new(STATUS_INVALID_ARGUMENT, "expected at most %d modules, found more",
                              SPEC_MODULES_MAX);
        for (size_t j = 0; j < units[i]->n_modules; j++) {
            const char *module = units[i]->modules[j];
            size_t length = strlen(module);
            if (length == 0 || length > SPEC_MODULE_MAX || !is_plain(module))
                return status_new(STATUS_INVALID_ARGUMENT,
                                  "expected a module's path of 1 to %d characters as module %zu of "
                                  "unit %zu, found %zu characters%s",
                                  SPEC_MODULE_MAX, j + 1, i + 1, length,
                                  is_plain(module) ? "" : " with control characters among them");
        }
    }
    return NULL;
}

static status_t check_token_training(const Fsdpd__V1__TrainSpec *train)
{
    if (train->epochs == 0 && train->max_steps == 0)
        return status_with(
            status_new(
                STATUS_INVALID_ARGUMENT,
                "train.max_steps: is missing; it or train.epochs must limit training on tokens"),
            (struct status_details){.field = "train.max_steps"});
    if (train->batch_tokens > 0 && train->accumulation_steps > 1)
        return status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "train.accumulation_steps: train.batch_tokens (%llu) says how many there "
                       "are; expected 1, found %u",
                       (unsigned long long)train->batch_tokens, train->accumulation_steps),
            (struct status_details){.field = "train.accumulation_steps"});
    return NULL;
}

/* A global batch says how many samples a step has: no other key may. */
static status_t check_global_batch(const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__TrainSpec *train = spec->train;
    unsigned long long global = train->global_batch;
    if (global == 0) return NULL;
    struct status_details details = {.field = "train.global_batch"};
    if (train->batch_tokens > 0)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "train.global_batch: expected no train.batch_tokens beside "
                                      "it, found %llu",
                                      (unsigned long long)train->batch_tokens),
                           details);
    if (train->accumulation_steps > 1)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "train.global_batch: it (%llu) and train.batch_size say how "
                                      "many train.accumulation_steps there are; expected 1, found "
                                      "%u",
                                      global, train->accumulation_steps),
                           details);
    if (global < spec->workers)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "train.global_batch: expected at least a sample for each of "
                                      "%u workers, found %llu",
                                      spec->workers, global),
                           details);
    return NULL;
}

/* The most numbers of workers: each has a plan. */
enum { ELASTIC_WORLDS_MAX = 64 };

static bool makes_copies(Fsdpd__V1__Strategy strategy)
{
    return strategy == FSDPD__V1__STRATEGY__STRATEGY_NO_SHARD ||
           strategy == FSDPD__V1__STRATEGY__STRATEGY_HYBRID_SHARD;
}

/* Other workers only have copies where a strategy makes them. */
static status_t check_redundancy(const Fsdpd__V1__JobSpec *spec, bool elastic)
{
    Fsdpd__V1__Redundancy kind = spec->elastic->redundancy;
    const struct status_details details = {.field = "elastic.redundancy"};
    if (kind <= FSDPD__V1__REDUNDANCY__REDUNDANCY_NONE) return NULL;
    if (!elastic)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "elastic.redundancy: needs elastic.min_workers and "
                                      "elastic.max_workers"),
                           details);
    if (kind != FSDPD__V1__REDUNDANCY__REDUNDANCY_REPLICA) return NULL;
    if (!makes_copies(spec->fsdp->strategy))
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "elastic.redundancy: replica needs fsdp.strategy no_shard or "
                                      "hybrid_shard, as other strategies keep one copy; expected "
                                      "mirror or parity"),
                           details);
    for (size_t i = 0; i < spec->fsdp->wrap->n_units; i++) {
        Fsdpd__V1__Strategy own = spec->fsdp->wrap->units[i]->strategy;
        if (own == FSDPD__V1__STRATEGY__STRATEGY_UNSPECIFIED || makes_copies(own)) continue;
        return status_with(
            status_new(
                STATUS_INVALID_ARGUMENT,
                "elastic.redundancy: replica needs no_shard or hybrid_shard, but unit %zu of "
                "fsdp.wrap.units has %s, which keeps one copy; expected mirror or parity",
                i + 1, spec_word(&fsdpd__v1__strategy__descriptor, (int)own)),
            details);
    }
    return NULL;
}

static status_t check_elastic(const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__ElasticSpec *elastic = spec->elastic;
    if (elastic == NULL) return NULL;
    if (elastic->min_workers == 0 && elastic->max_workers == 0)
        return check_redundancy(spec, false);
    uint32_t least = elastic->min_workers, most = elastic->max_workers;
    struct status_details details = {.field = "elastic.min_workers"};
    if (least < 1 || most < least || most - least >= ELASTIC_WORLDS_MAX)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "elastic: expected min_workers of at least 1 and at most %d "
                                      "numbers of workers up to max_workers, found %u to %u",
                                      ELASTIC_WORLDS_MAX, least, most),
                           details);
    if (spec->workers < least || spec->workers > most)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "workers: expected elastic.min_workers (%u) to "
                                      "elastic.max_workers (%u), found %u",
                                      least, most, spec->workers),
                           (struct status_details){.field = "workers"});
    if (spec->train->global_batch < most)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "elastic: expected a train.global_batch of at least a sample "
                                      "for each of %u workers, found %llu",
                                      most, (unsigned long long)spec->train->global_batch),
                           (struct status_details){.field = "train.global_batch"});
    return check_redundancy(spec, true);
}

/* Smaller groups must evenly divide the group that something is sharded over. */
static status_t check_resharding(const Fsdpd__V1__JobSpec *spec, Fsdpd__V1__Strategy strategy,
                                 uint32_t shard_size, const char *reshard)
{
    uint32_t ranks = choice_ranks(reshard);
    if (ranks <= 1) return NULL;
    if (strategy == FSDPD__V1__STRATEGY__STRATEGY_NO_SHARD)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "expected true or false, as no_shard gathers nothing that could be "
                          "resharded; found %u ranks",
                          ranks);
    bool hybrid = strategy == FSDPD__V1__STRATEGY__STRATEGY_HYBRID_SHARD;
    uint32_t sharded = hybrid ? shard_size : spec->workers;
    if (sharded % ranks == 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT, "expected a divisor of %s (%u), found %u ranks",
                      hybrid ? "shard_size" : "workers", sharded, ranks);
}

/* One directory, or several with weights. */
bool spec_has_images(const Fsdpd__V1__DataSpec *data)
{
    return data->format == FSDPD__V1__DATA_FORMAT__DATA_FORMAT_IDX ||
           data->format == FSDPD__V1__DATA_FORMAT__DATA_FORMAT_IMAGES;
}

static status_t check_dataset(const Fsdpd__V1__DataSpec *data)
{
    if ((data->path[0] != '\0') != (data->n_sources > 0)) return NULL;
    return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                  data->n_sources > 0
                                      ? "data.sources: expected no data.path beside it"
                                      : "data.path: is missing"),
                       (struct status_details){.field = data->n_sources > 0 ? "data.sources"
                                                                            : "data.path"});
}

/* With fsdp.auto, both settings are replaced. */
static status_t check_recompute(const Fsdpd__V1__FsdpSpec *fsdp)
{
    if (fsdp->recompute != FSDPD__V1__RECOMPUTE__RECOMPUTE_CHEAP || fsdp->choose ||
        fsdp->n_activation_checkpointing > 0)
        return NULL;
    return status_with(
        status_new(STATUS_INVALID_ARGUMENT,
                   "fsdp.recompute: cheap: expected modules in fsdp.activation_checkpointing, such "
                   "as [layers.*]: without them, nothing is computed again"),
        (struct status_details){.field = "fsdp.recompute"});
}

/* It needs evaluations, and several. */
static status_t check_early_stop(const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__TrainSpec *train = spec->train;
    if (train->early_stop == NULL || train->early_stop->patience == 0) return NULL;
    const char *name = train->early_stop->set;
    const Fsdpd__V1__HeldOutSet *set = spec_find_held_out(spec->data, name);
    if (name[0] != '\0' && set == NULL)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "train.early_stop.metric: data.validation has no set '%s'",
                                      name),
                           (struct status_details){.field = "train.early_stop.metric"});
    uint64_t interval = set != NULL ? set->every_steps : train->evaluate_interval;
    const char *needs =
        !train->evaluate ? "train.evaluate: true"
        : !spec_has_images(spec->data) && interval == 0
            ? set != NULL ? "every_steps above 0 of its set" : "a train.evaluate_interval above 0"
            : NULL;
    if (needs == NULL) return NULL;
    return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                  "train.early_stop: expected %s, as it compares evaluations",
                                  needs),
                       (struct status_details){.field = "train.early_stop.patience"});
}

static status_t refuse_dpo(const char *key, const char *why)
{
    return status_with(status_new(STATUS_INVALID_ARGUMENT, "%s: data.objective: dpo %s", key, why),
                       (struct status_details){.field = key});
}

/* Pairs are rows of a dataset, and the reference is the model without its adapter. */
static status_t check_dpo(const Fsdpd__V1__JobSpec *spec)
{
    const Fsdpd__V1__DataSpec *data = spec->data;
    const Fsdpd__V1__ModelSpec *model = spec->model;
    if (data->objective != FSDPD__V1__OBJECTIVE__OBJECTIVE_DPO) return NULL;
    if (data->format != FSDPD__V1__DATA_FORMAT__DATA_FORMAT_DATASET)
        return refuse_dpo("data.format", "learns from pairs, which only a dataset has");
    if (data->windows != FSDPD__V1__WINDOW_KIND__WINDOW_KIND_DOCUMENT)
        return refuse_dpo("data.windows", "takes each document whole: expected document");
    if (model->adapter[0] == '\0' && (model->lora == NULL || model->lora->rank == 0))
        return refuse_dpo("model.lora", "compares the model with itself without its adapter: "
                                        "expected model.lora or model.adapter");
    if (spec->dpo != NULL && spec->dpo->label_smoothing > 0 &&
        spec->dpo->loss != FSDPD__V1__DPO_LOSS__DPO_LOSS_SIGMOID)
        return refuse_dpo("dpo.label_smoothing", "smooths labels with dpo.loss: sigmoid only");
    return NULL;
}

status_t spec_check_together(const Fsdpd__V1__JobSpec *spec)
{
    TRY(check_early_stop(spec));
    TRY(check_dpo(spec));
    if (spec->data->n_validation > 0 && !spec->train->evaluate)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "data.validation: expected train.evaluate: true, as "
                                      "evaluations read it"),
                           (struct status_details){.field = "data.validation"});
    if (spec->data->format == FSDPD__V1__DATA_FORMAT__DATA_FORMAT_DATASET)
        TRY(check_dataset(spec->data));
    if (!spec_has_images(spec->data)) TRY(check_token_training(spec->train));
    TRY(check_elastic(spec));
    TRY(check_global_batch(spec));
    const Fsdpd__V1__OptimizerSpec *optimizer = spec->optimizer;
    if (optimizer->nesterov && (optimizer->momentum <= 0 || optimizer->dampening != 0))
        return status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "optimizer.nesterov: expected a momentum above 0 and no dampening with it, "
                       "found momentum %g and dampening %g",
                       optimizer->momentum, optimizer->dampening),
            (struct status_details){.field = "optimizer.nesterov"});
    const Fsdpd__V1__ScheduleSpec *schedule = spec->schedule;
    if (schedule->total_steps > 0 && schedule->total_steps <= schedule->warmup_steps)
        return status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "schedule.total_steps: expected more than schedule.warmup_steps, which "
                       "are part of them: %llu, found %llu",
                       (unsigned long long)schedule->warmup_steps,
                       (unsigned long long)schedule->total_steps),
            (struct status_details){.field = "schedule.total_steps"});
    if (spec->fsdp->shard_size > 0 && spec->workers % spec->fsdp->shard_size != 0)
        return status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "fsdp.shard_size: expected a divisor of workers (%u), found %u",
                       spec->workers, spec->fsdp->shard_size),
            (struct status_details){.field = "fsdp.shard_size"});
    TRY(status_with(status_wrap(check_resharding(spec, spec->fsdp->strategy, spec->fsdp->shard_size,
                                                 spec->fsdp->reshard_after_forward),
                                "fsdp.reshard_after_forward"),
                    (struct status_details){.field = "fsdp.reshard_after_forward"}));
    TRY(check_recompute(spec->fsdp));
    const Fsdpd__V1__WrapSpec *wrap = spec->fsdp->wrap;
    for (size_t i = 0; i < wrap->n_units; i++) {
        const Fsdpd__V1__WrapUnit *unit = wrap->units[i];
        if (unit->shard_size > 0 && spec->workers % unit->shard_size != 0)
            return status_with(
                status_new(
                    STATUS_INVALID_ARGUMENT,
                    "fsdp.wrap.units: unit %zu: shard_size: expected a divisor of workers (%u), "
                    "found %u",
                    i + 1, spec->workers, unit->shard_size),
                (struct status_details){.field = "fsdp.wrap.units"});
        bool own = unit->strategy != FSDPD__V1__STRATEGY__STRATEGY_UNSPECIFIED;
        TRY(status_with(
            status_wrap(check_resharding(spec, own ? unit->strategy : spec->fsdp->strategy,
                                         own ? unit->shard_size : spec->fsdp->shard_size,
                                         unit->reshard_after_forward),
                        "fsdp.wrap.units: unit %zu: reshard_after_forward", i + 1),
            (struct status_details){.field = "fsdp.wrap.units"}));
    }
    return NULL;
}

static bool is_unset(struct spec_field field)
{
    if (field.descriptor->label == PROTOBUF_C_LABEL_REPEATED) return *field_count(field) == 0;
    if (field.descriptor->type == PROTOBUF_C_TYPE_STRING) return spec_field_text(field)[0] == '\0';
    return spec_field_number(field) == 0;
}

static status_t check_field(const struct spec_key *key, const Fsdpd__V1__JobSpec *spec,
                            struct spec_field field)
{
    size_t count;
    switch (key->type) {
    case SPEC_GLOBS:
    case SPEC_WORDS:
    case SPEC_TYPES: {
        char *const *items = spec_field_texts(field, &count);
        return spec_check_list(key, items, count);
    }
    case SPEC_GROUPS: return spec_check_groups(spec->optimizer->groups, spec->optimizer->n_groups);
    case SPEC_SOURCES: return spec_check_sources(spec->data->sources, spec->data->n_sources);
    case SPEC_HELD_OUT: return spec_check_held_out(spec->data);
    case SPEC_LABELS: return spec_check_labels(spec->labels, spec->n_labels);
    case SPEC_ARGUMENTS: return spec_check_arguments(spec->model->args, spec->model->n_args);
    case SPEC_RULES: return spec_check_rules(key, field);
    case SPEC_JOBS: {
        char *const *jobs = spec_field_texts(field, &count);
        return spec_check_jobs(jobs, count);
    }
    case SPEC_UNITS: return spec_check_units(spec->fsdp->wrap->units, spec->fsdp->wrap->n_units);
    case SPEC_INTEGER:
    case SPEC_NUMBER: return spec_check_number(key, spec_field_number(field), NULL);
    case SPEC_BOOLEAN: return NULL;
    default:
        if (key->values != NULL) TRY(check_value(key, *(const int *)field.member));
        return spec_check_text(key, spec_field_text(field));
    }
}

/* Whether another row of the same key belongs to this spec. */
static bool applies_otherwise(const struct spec_key *key, const Fsdpd__V1__JobSpec *spec)
{
    for (size_t i = 0; i < spec_key_count; i++)
        if (strcmp(spec_keys[i].key, key->key) == 0 && spec_key_applies(&spec_keys[i], spec))
            return true;
    return false;
}

static status_t is_missing(const struct spec_key *key)
{
    AUTO(buf_deinit) struct buf expected = {0};
    spec_key_expected(key, &expected);
    return status_new(STATUS_INVALID_ARGUMENT, "is missing; expected %s", buf_text(&expected));
}

static status_t check_key(const struct spec_key *key, const Fsdpd__V1__JobSpec *spec)
{
    struct spec_field field = spec_field_find(spec, key, false);
    bool given = field.member != NULL && (!is_optional(field) || spec_field_is_given(field));
    bool may_be_absent = key->fallback != NULL && key->fallback[0] == '\0';
    if (spec_key_applies(key, spec))
        return given ? check_field(key, spec, field) : may_be_absent ? NULL : is_missing(key);
    if (!given || applies_otherwise(key, spec) || is_unset(field)) return NULL;
    AUTO_FREE char *place = spec_key_place(key);
    return status_new(STATUS_INVALID_ARGUMENT, "belongs to %s only", place);
}

static status_t check_model(const Fsdpd__V1__ModelSpec *model)
{
    size_t length = strlen(model->text), config = strlen(model->hf_config);
    bool file = model->file_name[0] != '\0', hf = model->hf[0] != '\0';
    if (file == hf)
        return status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "model: expected exactly one of model.file and model.hf, found %s",
                       file ? "both" : "neither"),
            (struct status_details){.field = "model.hf"});
    if (hf && model->n_args > 0)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "model.args: belongs to model.file, not to model.hf"),
                           (struct status_details){.field = "model.args"});
    if (!hf && model->head[0] != '\0')
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "model.head: belongs to model.hf, not to model.file"),
                           (struct status_details){.field = "model.head"});
    if (!hf && model->n_freeze > 0)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "model.freeze: belongs to model.hf; a model file has a key "
                                      "freeze of its own"),
                           (struct status_details){.field = "model.freeze"});
    if (!hf && model->weights[0] == '\0' && model->n_ignore > 0)
        return status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "model.ignore: belongs to weights, of model.hf or model.weights"),
            (struct status_details){.field = "model.ignore"});
    if (config > SPEC_MODEL_MAX || (config > 0) != (hf && length > 0))
        return status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "model.hf_config: expected the config.json that model.text is of, found "
                       "%zu bytes",
                       config),
            (struct status_details){.field = "model.hf_config"});
    if (strlen(model->hf_family) > SPEC_MODEL_MAX || (model->hf_family[0] != '\0' && config == 0))
        return status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "model.hf_family: expected the family file by which model.text was made, "
                       "found %zu bytes",
                       strlen(model->hf_family)),
            (struct status_details){.field = "model.hf_family"});
    if ((length == 0 && file) || length > SPEC_MODEL_MAX)
        return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                      "model.text: expected 1 to %d bytes, found %zu",
                                      SPEC_MODEL_MAX, length),
                           (struct status_details){.field = "model.text"});
    return NULL;
}

status_t spec_validate(const Fsdpd__V1__JobSpec *spec)
{
    for (size_t i = 0; i < spec_key_count; i++) {
        const struct spec_key *key = &spec_keys[i];
        const char *field = key->field != NULL ? key->field : key->key;
        TRY(status_with(status_wrap(check_key(key, spec), "%s", key->key),
                        (struct status_details){.field = field}));
    }
    TRY(check_model(spec->model));
    return spec_check_together(spec);
}

Fsdpd__V1__JobSpec *spec_copy(const Fsdpd__V1__JobSpec *spec)
{
    return message_copy(spec);
}

void spec_free(Fsdpd__V1__JobSpec *spec)
{
    message_free(spec);
}
