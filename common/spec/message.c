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

const struct spec_key *spec_key_find(const char *name)
{
    for (size_t i = 0; i < spec_key_count; i++)
        if (strcmp(spec_keys[i].key, name) == 0) return &spec_keys[i];
    abort();
}

bool spec_key_applies(const struct spec_key *key, const Fsdpd__V1__JobSpec *spec)
{
    if (key->with_key == NULL) return true;
    struct spec_field field = spec_field_find(spec, spec_key_find(key->with_key), false);
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
    return (number || key->type == SPEC_INDICES || key->absent) && key->fallback != NULL &&
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
        if (key->or_ranks)
            expect_range(key, key->unit != NULL ? " or a step" : " or a number of ranks", out);
        if (key->set != NULL) buf_add_text(out, ", or NAME/val_loss or NAME/accuracy");
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
    case SPEC_PHASES:
        buf_add_text(out,
                     "a list of phases, such as [{type: constant, steps: 100}, {type: cosine}]");
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

uint32_t spec_choice_ranks(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    return digits > 0 && digits < 10 && text[digits] == '\0' ? (uint32_t)strtoul(text, NULL, 10)
                                                             : 0;
}

/* A number of ranks, where the key takes one. */
static bool is_ranks(const struct spec_key *key, const char *text)
{
    uint32_t ranks = spec_choice_ranks(text);
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
    const char *what = key->type == SPEC_TYPES ? "type" : key->unit != NULL ? key->unit : "pattern";
    size_t longest = key->unit != NULL ? SPEC_TEXT_MAX : SPEC_GLOB_MAX; /* prompts */
    if (count == 0 && key->fallback == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "expected at least one %s, found none", what);
    if (count > SPEC_GLOBS_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "expected at most %d %ss, found %zu",
                          SPEC_GLOBS_MAX, what, count);
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(items[i]);
        if (length == 0 || length > longest || !is_plain(items[i]))
            return status_new(STATUS_INVALID_ARGUMENT,
                              "expected 1 to %zu characters in %s %zu, found %zu%s", longest, what,
                              i + 1, length,
                              is_plain(items[i]) ? "" : " with control characters among them");
    }
    return NULL;
}

static const char *const use_words[] = {"", "main", "others"};

const char *spec_use_word(Fsdpd__V1__OptimizerUse use)
{
    return (size_t)use < COUNT_OF(use_words) ? use_words[use] : NULL;
}

Fsdpd__V1__OptimizerUse spec_use_value(const char *word)
{
    for (size_t i = 1; i < COUNT_OF(use_words); i++)
        if (strcmp(use_words[i], word) == 0) return (Fsdpd__V1__OptimizerUse)i;
    return FSDPD__V1__OPTIMIZER_USE__OPTIMIZER_USE_UNSPECIFIED;
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
        if (group->ndim > SPEC_NDIM_MAX || spec_use_word(group->use) == NULL)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "group %zu: expected ndim up to %d and use main or others, found %u "
                              "and %d",
                              i + 1, SPEC_NDIM_MAX, group->ndim, (int)group->use);
    }
    return NULL;
}

status_t spec_check_choice_of(const char *key, const char *text)
{
    return text[0] == '\0' ? NULL : spec_check_text(spec_key_find(key), text);
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
    TRY(status_wrap(check_value(spec_key_find("precision.param_dtype"), (int)unit->param_dtype),
                    "param_dtype"));
    TRY(status_wrap(check_value(spec_key_find("precision.reduce_dtype"), (int)unit->reduce_dtype),
                    "reduce_dtype"));
    TRY(status_wrap(check_value(spec_key_find("fsdp.strategy"), (int)unit->strategy), "strategy"));
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
    case SPEC_PHASES: return spec_check_phases(spec->schedule_phases, spec->n_schedule_phases);
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

/* The texts that the model is made of, which the daemon fills in for a directory. */
static status_t check_texts(const Fsdpd__V1__ModelSpec *model, const char *name)
{
    size_t length = strlen(model->text), config = strlen(model->hf_config);
    size_t family = strlen(model->hf_family);
    bool hf = model->hf[0] != '\0';
    const char *field = NULL;
    status_t status = NULL;
    if (config > SPEC_MODEL_MAX || (config > 0) != (hf && length > 0)) {
        field = "hf_config";
        status = status_new(STATUS_INVALID_ARGUMENT,
                            "expected the config.json that %s.text is of, found %zu bytes", name,
                            config);
    } else if (family > SPEC_MODEL_MAX || (family > 0 && config == 0)) {
        field = "hf_family";
        status = status_new(STATUS_INVALID_ARGUMENT,
                            "expected the family file by which %s.text was made, found %zu bytes",
                            name, family);
    } else if ((length == 0 && !hf) || length > SPEC_MODEL_MAX) {
        field = "text";
        status = status_new(STATUS_INVALID_ARGUMENT, "expected 1 to %d bytes, found %zu",
                            SPEC_MODEL_MAX, length);
    }
    if (status == NULL) return NULL;
    AUTO_FREE char *path = mem_printf("%s.%s", name, field);
    return status_with(status_wrap(status, "%s", path), (struct status_details){.field = path});
}

/* Of a teacher there is nothing to choose but its directory. */
static status_t check_teacher(const Fsdpd__V1__ModelSpec *teacher)
{
    if (teacher == NULL) return NULL;
    Fsdpd__V1__ModelSpec rest = *teacher;
    bool hf = teacher->hf[0] != '\0';
    if (hf) rest.hf = rest.text = rest.hf_config = rest.hf_family = (char *)protobuf_c_empty_string;
    if (protobuf_c_message_get_packed_size(&rest.base) == 0)
        return hf ? check_texts(teacher, "model.teacher") : NULL;
    return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                  "model.teacher: expected its directory, hf, and no other field"),
                       (struct status_details){.field = "model.teacher"});
}

static status_t check_model(const Fsdpd__V1__ModelSpec *model)
{
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
    TRY(check_texts(model, "model"));
    return check_teacher(model->teacher);
}

status_t spec_check_keys(const Fsdpd__V1__JobSpec *spec, const char *prefix)
{
    for (size_t i = 0; i < spec_key_count; i++) {
        const struct spec_key *key = &spec_keys[i];
        if (strncmp(key->key, prefix, strlen(prefix)) != 0) continue;
        const char *field = key->field != NULL ? key->field : key->key;
        TRY(status_with(status_wrap(check_key(key, spec), "%s", key->key),
                        (struct status_details){.field = field}));
    }
    return NULL;
}

status_t spec_validate(const Fsdpd__V1__JobSpec *spec)
{
    TRY(spec_check_keys(spec, ""));
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
