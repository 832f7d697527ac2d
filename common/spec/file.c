/*
 * Job files: from YAML, overrides and defaults to a complete JobSpec. First the document's tree is
 * matched with the table of keys, which rejects unknown keys; then every row takes its value. Types
 * are read before the keys that depend on them.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "proto/message.h"
#include "spec/internal.h"
#include "yaml/yaml.h"

struct file_reader {
    const char *file;
    const Fsdpd__V1__JobFile *sent; /* by a client; NULL: the files are this machine's */
    const struct yamldoc_node *
        *given; /* by row; NULL: not given. Rows of one key share the node. */
    Fsdpd__V1__JobSpec *spec;
};

static bool is_override(const struct yamldoc_node *node)
{
    return node->line == 0;
}

static size_t row_of(const char *name)
{
    for (size_t i = 0; i < spec_key_count; i++)
        if (strcmp(spec_keys[i].key, name) == 0) return i;
    abort();
}

static status_t unknown_key(const struct yamldoc_node *node, const char *path)
{
    char shown[72];
    struct yamldoc_node at_key = *node;
    at_key.line = node->key_line ? node->key_line : node->line;
    AUTO_FREE char *hint = spec_hint_key(path, node->kind == YAMLDOC_MAPPING);
    status_t status =
        yamldoc_error(&at_key, "%s: unknown key%s", yamldoc_excerpt(path, shown), hint);
    return status_with(status, (struct status_details){.field = path});
}

static bool is_section(const char *path)
{
    size_t length = strlen(path);
    for (size_t i = 0; i < spec_key_count; i++)
        if (strncmp(spec_keys[i].key, path, length) == 0 && spec_keys[i].key[length] == '.')
            return true;
    return false;
}

/* The key without which the others of the section mean nothing, as model.lora.rank; NULL if the
 * section has none. */
static const char *first_of_section(const char *path)
{
    size_t length = strlen(path);
    const char *first = NULL, *named = NULL;
    for (size_t i = 0; i < spec_key_count; i++) {
        const struct spec_key *key = &spec_keys[i];
        if (strncmp(key->key, path, length) != 0 || key->key[length] != '.') continue;
        if (key->with_key == NULL && first != NULL) return NULL;
        if (key->with_key == NULL) first = key->key;
        else if (key->with_values[0] == NULL) named = key->with_key;
    }
    return first != NULL && named != NULL && strcmp(first, named) == 0 ? first : NULL;
}

static bool take_node(struct file_reader *reader, const char *path, const struct yamldoc_node *node)
{
    bool known = false;
    for (size_t i = 0; i < spec_key_count; i++) {
        if (strcmp(spec_keys[i].key, path) != 0) continue;
        reader->given[i] = node;
        known = true;
    }
    return known;
}

static char *describe_node(const struct yamldoc_node *node)
{
    char text[72];
    if (yamldoc_is_null(node)) return mem_strdup("nothing");
    if (node->kind == YAMLDOC_SEQUENCE) return mem_strdup("a list");
    if (node->kind == YAMLDOC_MAPPING) return mem_strdup("a mapping");
    return mem_printf("%s'%s'", node->quoted ? "the text " : "", yamldoc_excerpt(node->text, text));
}

static status_t apply_mapping(struct file_reader *reader, const struct yamldoc_node *mapping,
                              const char *prefix)
{
    for (int i = 0; i < mapping->item_count; i++) {
        const struct yamldoc_node *item = mapping->items[i];
        AUTO_FREE char *path =
            prefix[0] ? mem_printf("%s.%s", prefix, item->key) : mem_strdup(item->key);
        status_t status = NULL;
        if (item->kind == YAMLDOC_MAPPING && is_section(path)) { /* model.weights: {job: ...} */
            const char *first = item->item_count == 0 ? first_of_section(path) : NULL;
            if (first != NULL)
                status = status_with(yamldoc_error(item, "%s: is empty; expected %s", path, first),
                                     (struct status_details){.field = first});
            else status = apply_mapping(reader, item, path);
        } else if (take_node(reader, path, item)) {
        } else if (!is_section(path)) {
            status = unknown_key(item, path);
        } else if (!yamldoc_is_null(item)) { /* "train:" with nothing below it sets nothing */
            AUTO_FREE char *found = describe_node(item);
            AUTO_FREE char *hint =
                spec_hint_value(path, item->kind == YAMLDOC_SCALAR ? item->text : "");
            status = yamldoc_error(item, "%s: expected a mapping of keys, found %s%s", path, found,
                                   hint);
        }
        TRY(status);
    }
    return NULL;
}

static status_t unexpected_node(const struct spec_key *key, const struct yamldoc_node *node)
{
    AUTO(buf_deinit) struct buf expected = {0};
    spec_key_expected(key, &expected);
    AUTO_FREE char *found = describe_node(node);
    return status_new(STATUS_INVALID_ARGUMENT, "expected %s, found %s", buf_text(&expected), found);
}

status_t spec_expect_mappings(const struct spec_key *key, const struct yamldoc_node *node)
{
    bool list = node->kind == YAMLDOC_SEQUENCE;
    for (int i = 0; list && i < node->item_count; i++)
        list = node->items[i]->kind == YAMLDOC_MAPPING;
    return list ? NULL : unexpected_node(key, node);
}

static bool is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Whether the key names a directory, or else a file, on the workers' hosts. */
static bool is_data_path(const struct file_reader *reader, const char *key, bool *directory)
{
    const Fsdpd__V1__DataSpec *data = reader->spec->data; /* NULL before its first key */
    bool path = strcmp(key, "data.path") == 0;
    bool dataset =
        path && data != NULL && data->format == FSDPD__V1__DATA_FORMAT__DATA_FORMAT_DATASET;
    *directory = strcmp(key, "data.dir") == 0 || strcmp(key, "model.hf") == 0 ||
                 strcmp(key, "model.teacher.hf") == 0 || strcmp(key, "model.adapter") == 0 ||
                 strcmp(key, "checkpoint.directory") == 0 || dataset;
    return *directory || path || strcmp(key, "data.validation_path") == 0 ||
           strcmp(key, "model.weights") == 0;
}

/* data.dir and similar keys: see spec_read_file. */
static char *resolve_text(const struct file_reader *reader, const struct spec_key *key,
                          const struct yamldoc_node *node)
{
    char *path = spec_expand_home(reader->sent, node->text);
    bool directory;
    if (reader->sent != NULL || !is_data_path(reader, key->key, &directory) || !is_override(node) ||
        path[0] == '/' || access(path, F_OK) != 0 || is_directory(path) != directory)
        return path;
    char *absolute = realpath(path, NULL);
    if (absolute == NULL) return path;
    free(path);
    return absolute;
}

static status_t read_text(struct file_reader *reader, const struct spec_key *key,
                          const struct yamldoc_node *node, struct spec_field field)
{
    bool empty_is_fine = key->fallback != NULL && key->fallback[0] == '\0';
    if (node->kind != YAMLDOC_SCALAR || (yamldoc_is_null(node) && !empty_is_fine))
        return unexpected_node(key, node);
    AUTO_FREE char *text =
        key->type == SPEC_TEXT ? resolve_text(reader, key, node) : mem_strdup(node->text);
    if (key->set != NULL) {
        const struct spec_key set = {.key = key->set};
        spec_take_set(text, spec_field_find(reader->spec, &set, true));
    }
    status_t status = spec_check_text(key, text);
    if (status == NULL) spec_field_set_text(field, text);
    if (status == NULL && key->type == SPEC_MODEL)
        status = spec_read_model(reader->file, reader->sent, node, reader->spec->model);
    return status;
}

/* Accept "1e8" as an integer. */
static status_t read_number(const struct spec_key *key, const struct yamldoc_node *node,
                            struct spec_field field)
{
    double value;
    if (node->kind != YAMLDOC_SCALAR || node->quoted || !text_parse_f64(node->text, &value))
        return unexpected_node(key, node);
    char found[72];
    TRY(spec_check_number(key, value, yamldoc_excerpt(node->text, found)));
    spec_field_set_number(field, value);
    return NULL;
}

static status_t read_boolean(const struct spec_key *key, const struct yamldoc_node *node,
                             struct spec_field field)
{
    bool plain = node->kind == YAMLDOC_SCALAR && !node->quoted;
    bool is_true = plain && strcmp(node->text, "true") == 0;
    if (!is_true && !(plain && strcmp(node->text, "false") == 0)) return unexpected_node(key, node);
    spec_field_set_number(field, is_true);
    return NULL;
}

static bool is_module(const struct yamldoc_node *node)
{
    return node->kind == YAMLDOC_SCALAR && !yamldoc_is_null(node);
}

/* A module's path, or a list of them. */
static bool is_modules(const struct yamldoc_node *node)
{
    if (node->kind != YAMLDOC_SEQUENCE) return is_module(node);
    for (int i = 0; i < node->item_count; i++)
        if (!is_module(node->items[i])) return false;
    return true;
}

static bool is_units(const struct yamldoc_node *node)
{
    if (node->kind != YAMLDOC_SEQUENCE) return false;
    for (int i = 0; i < node->item_count; i++)
        if (node->items[i]->kind != YAMLDOC_MAPPING && !is_modules(node->items[i])) return false;
    return true;
}

static void read_modules(const struct yamldoc_node *node, Fsdpd__V1__WrapUnit *unit)
{
    bool alone = node->kind == YAMLDOC_SCALAR;
    int count = alone ? 1 : node->item_count;
    unit->modules = mem_alloc_array((size_t)count + 1, sizeof *unit->modules);
    for (int j = 0; j < count; j++)
        unit->modules[unit->n_modules++] = mem_strdup(alone ? node->text : node->items[j]->text);
}

static const char *const unit_keys[] = {"modules",     "strategy",
                                        "shard_size",  "reshard_after_forward",
                                        "param_dtype", "reduce_dtype",
                                        "cpu_offload"};

static status_t refuse_unit_key(const char *key)
{
    /* The key's name elsewhere. */
    static const char *const other[][2] = {{"precision", "param_dtype"},
                                           {"mixed_precision", "param_dtype"},
                                           {"offload", "cpu_offload"}};
    const char *nearest = text_nearest(key, unit_keys, COUNT_OF(unit_keys));
    for (size_t k = 0; k < COUNT_OF(other); k++)
        if (strcmp(key, other[k][0]) == 0) nearest = other[k][1];
    char shown[72];
    return status_new(STATUS_INVALID_ARGUMENT, "%s: unknown key%s%s%s", yamldoc_excerpt(key, shown),
                      nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

/* A unit's own setting, with the choices of the job's key of that name. */
static status_t read_unit_choice(const struct yamldoc_node *item, const char *key,
                                 struct spec_field field)
{
    if (item->kind != YAMLDOC_SCALAR || yamldoc_is_null(item))
        return status_new(STATUS_INVALID_ARGUMENT, "expected a word, found %s",
                          item->kind == YAMLDOC_SCALAR ? "nothing" : "a list or mapping");
    TRY(spec_check_choice_of(key, item->text));
    spec_field_set_text(field, item->text);
    return NULL;
}

static status_t read_unit_key(const struct yamldoc_node *item, Fsdpd__V1__WrapUnit *unit)
{
    static const char *const choices[] = {"fsdp.strategy", "fsdp.reshard_after_forward",
                                          "precision.param_dtype", "precision.reduce_dtype"};
    double size;
    if (strcmp(item->key, "modules") == 0) {
        if (!is_modules(item))
            return status_new(STATUS_INVALID_ARGUMENT, "expected a module or a list of modules");
        read_modules(item, unit);
        return NULL;
    }
    const ProtobufCFieldDescriptor *descriptor =
        protobuf_c_message_descriptor_get_field_by_name(unit->base.descriptor, item->key);
    struct spec_field field = {descriptor, (char *)unit + descriptor->offset};
    for (size_t k = 0; k < COUNT_OF(choices); k++)
        if (strcmp(item->key, spec_last_word(choices[k])) == 0)
            return read_unit_choice(item, choices[k], field);
    if (strcmp(item->key, "cpu_offload") == 0)
        return read_boolean(&spec_keys[row_of("fsdp.cpu_offload")], item, field);
    if (item->kind != YAMLDOC_SCALAR || item->quoted || !text_parse_f64(item->text, &size) ||
        !(size >= 1 && size <= SPEC_WORKERS_MAX) || size != (double)(uint32_t)size)
        return status_new(STATUS_INVALID_ARGUMENT, "expected an integer from 1 to %d",
                          SPEC_WORKERS_MAX);
    unit->shard_size = (uint32_t)size;
    return NULL;
}

static bool is_unit_key(const char *key)
{
    for (size_t k = 0; k < COUNT_OF(unit_keys); k++)
        if (strcmp(key, unit_keys[k]) == 0) return true;
    return false;
}

/* Modules, or a mapping of them and of the unit's own settings. */
static status_t read_unit(const struct yamldoc_node *node, Fsdpd__V1__WrapUnit *unit)
{
    if (node->kind != YAMLDOC_MAPPING) {
        read_modules(node, unit);
        return NULL;
    }
    for (int i = 0; i < node->item_count; i++) {
        const struct yamldoc_node *item = node->items[i];
        if (!is_unit_key(item->key)) return refuse_unit_key(item->key);
        TRY(status_wrap(read_unit_key(item, unit), "%s", item->key));
    }
    return NULL;
}

static status_t read_units(struct file_reader *reader, const struct spec_key *key,
                           const struct yamldoc_node *node)
{
    if (!is_units(node)) return unexpected_node(key, node);
    Fsdpd__V1__WrapSpec *wrap = reader->spec->fsdp->wrap;
    wrap->units = mem_alloc_array((size_t)node->item_count + 1, sizeof *wrap->units);
    for (int i = 0; i < node->item_count; i++) {
        Fsdpd__V1__WrapUnit *unit = MESSAGE_NEW(unit, fsdpd__v1__wrap_unit__init);
        wrap->units[wrap->n_units++] = unit;
        TRY(status_wrap(read_unit(node->items[i], unit), "unit %d", i + 1));
    }
    return spec_check_units(wrap->units, wrap->n_units);
}

static status_t read_list(const struct spec_key *key, const struct yamldoc_node *node,
                          struct spec_field field)
{
    bool list = node->kind == YAMLDOC_SEQUENCE;
    for (int i = 0; list && i < node->item_count; i++) list = is_module(node->items[i]);
    if (!list) return unexpected_node(key, node);
    for (int i = 0; i < node->item_count; i++) spec_field_add_text(field, node->items[i]->text);
    size_t count;
    char *const *items = spec_field_texts(field, &count);
    return spec_check_list(key, items, count);
}

/* A group's settings. Those that it leaves out come from the optimizer, which may not be read yet.
 */
static status_t read_group(const struct yamldoc_node *node, Fsdpd__V1__OptimizerGroup *group)
{
    for (int i = 0; i < node->item_count; i++) {
        const struct yamldoc_node *item = node->items[i];
        char text[72];
        bool scalar = is_module(item);
        if (strcmp(item->key, "match") == 0) {
            if (!scalar) return status_new(STATUS_INVALID_ARGUMENT, "match: expected a pattern");
            if (group->match != protobuf_c_empty_string) free(group->match);
            group->match = mem_strdup(item->text);
            continue;
        }
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field_by_name(group->base.descriptor, item->key);
        double number;
        if (field == NULL)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "%s: unknown key; expected match, weight_decay, lr_scale, use or "
                              "ndim",
                              yamldoc_excerpt(item->key, text));
        struct spec_field member = {field, (char *)group + field->offset};
        if (field->type == PROTOBUF_C_TYPE_ENUM) {
            if (scalar) group->use = spec_use_value(item->text);
            if (group->use == 0)
                return status_new(STATUS_INVALID_ARGUMENT, "%s: expected main or others%s%s",
                                  item->key, scalar ? ", found " : "",
                                  scalar ? yamldoc_excerpt(item->text, text) : "");
            continue;
        }
        if (!scalar || item->quoted || !text_parse_f64(item->text, &number) || isnan(number))
            return status_new(STATUS_INVALID_ARGUMENT, "%s: expected a number%s%s", item->key,
                              scalar ? ", found " : "",
                              scalar ? yamldoc_excerpt(item->text, text) : "");
        if (field->type == PROTOBUF_C_TYPE_UINT32 && !(number >= 1 && number <= SPEC_NDIM_MAX))
            return status_new(STATUS_INVALID_ARGUMENT, "%s: expected 1 to %d, found %s", item->key,
                              SPEC_NDIM_MAX, yamldoc_excerpt(item->text, text));
        spec_field_set_number(member, number);
    }
    return NULL;
}

static status_t read_groups(struct file_reader *reader, const struct spec_key *key,
                            const struct yamldoc_node *node)
{
    TRY(spec_expect_mappings(key, node));
    Fsdpd__V1__OptimizerSpec *optimizer = reader->spec->optimizer;
    optimizer->groups = mem_alloc_array((size_t)node->item_count + 1, sizeof *optimizer->groups);
    for (int i = 0; i < node->item_count; i++) {
        Fsdpd__V1__OptimizerGroup *group = MESSAGE_NEW(group, fsdpd__v1__optimizer_group__init);
        optimizer->groups[optimizer->n_groups++] = group;
        TRY(status_wrap(read_group(node->items[i], group), "group %d", i + 1));
    }
    return NULL;
}

static status_t read_value(struct file_reader *reader, const struct spec_key *key,
                           const struct yamldoc_node *node)
{
    struct spec_field field = spec_field_find(reader->spec, key, true);
    switch (key->type) {
    case SPEC_INTEGER:
    case SPEC_NUMBER: return read_number(key, node, field);
    case SPEC_BOOLEAN: return read_boolean(key, node, field);
    case SPEC_UNITS: return read_units(reader, key, node);
    case SPEC_GROUPS: return read_groups(reader, key, node);
    case SPEC_SOURCES: return spec_read_sources(key, node, reader->sent, reader->spec->data);
    case SPEC_HELD_OUT: return spec_read_held_out(key, node, reader->sent, reader->spec->data);
    case SPEC_JOBS: return spec_read_jobs(node, field);
    case SPEC_LABELS: return spec_read_labels(node, reader->spec);
    case SPEC_ARGUMENTS: return spec_read_arguments(node, reader->spec->model);
    case SPEC_PHASES: return spec_read_phases(key, node, reader->spec);
    case SPEC_RULES: return spec_read_rules(key, node, field);
    case SPEC_GLOBS:
    case SPEC_WORDS:
    case SPEC_TYPES: return read_list(key, node, field);
    default: return read_text(reader, key, node, field);
    }
}

/* Whether some row for this key belongs to the spec as its types now stand. */
static bool key_has_place(const struct file_reader *reader, const char *name)
{
    for (size_t i = 0; i < spec_key_count; i++)
        if (strcmp(spec_keys[i].key, name) == 0 && spec_key_applies(&spec_keys[i], reader->spec))
            return true;
    return false;
}

/* A key of another type. If the file has it and the command line selects the type, ignore it. */
static status_t refuse_misplaced(const struct file_reader *reader, const struct spec_key *key,
                                 const struct yamldoc_node *node)
{
    const struct yamldoc_node *chosen = reader->given[row_of(key->with_key)];
    if (!is_override(node) && chosen != NULL && is_override(chosen)) return NULL;
    struct spec_field field =
        spec_field_find(reader->spec, &spec_keys[row_of(key->with_key)], false);
    AUTO_FREE char *place = spec_key_place(key);
    bool missing = key->with_values[0] == NULL;
    status_t status = yamldoc_error(node, "%s: belongs to %s, %s%s", key->key, place,
                                    missing ? "which is missing" : "but here it is ",
                                    missing ? "" : spec_field_text(field));
    return status_with(status, (struct status_details){.field = key->key});
}

static status_t read_row(struct file_reader *reader, size_t row)
{
    const struct spec_key *key = &spec_keys[row];
    const struct yamldoc_node *node = reader->given[row];
    if (!spec_key_applies(key, reader->spec)) {
        if (node == NULL || key_has_place(reader, key->key)) return NULL;
        return refuse_misplaced(reader, key, node);
    }
    if (node != NULL) {
        status_t status = status_wrap(read_value(reader, key, node), "%s", key->key);
        if (status == NULL) return NULL;
        status_t placed = yamldoc_error(node, "%s", status_message(status));
        /* A model file that cannot be read is not an error in the text that names it. */
        if (key->type == SPEC_MODEL && status_code(status) != STATUS_INVALID_ARGUMENT) {
            status_t unread = status_new(status_code(status), "%s", status_message(placed));
            status_free(placed);
            placed = unread;
        }
        status_free(status);
        return status_with(placed, (struct status_details){.field = key->key});
    }
    if (spec_key_stays_absent(key)) return NULL;
    if (key->fallback != NULL) {
        spec_field_set_default(spec_field_find(reader->spec, key, true), key);
        return NULL;
    }
    AUTO(buf_deinit) struct buf expected = {0};
    spec_key_expected(key, &expected);
    status_t status = status_new(STATUS_INVALID_ARGUMENT, "%s: %s: is missing; expected %s",
                                 reader->file, key->key, buf_text(&expected));
    return status_with(status, (struct status_details){.field = key->key});
}

/* After everything is read. */
static status_t complete_groups(struct file_reader *reader)
{
    Fsdpd__V1__OptimizerSpec *optimizer = reader->spec->optimizer;
    spec_complete_groups(optimizer);
    spec_complete_held_out(reader->spec);
    spec_complete_base(reader->spec);
    status_t status = spec_check_groups(optimizer->groups, optimizer->n_groups);
    if (status == NULL) return NULL;
    status_t placed = yamldoc_error(reader->given[row_of("optimizer.groups")],
                                    "optimizer.groups: %s", status_message(status));
    status_free(status);
    return status_with(placed, (struct status_details){.field = "optimizer.groups"});
}

/* The model is a file or a directory; the command line's choice replaces the file's. */
static status_t choose_model(struct file_reader *reader)
{
    const struct yamldoc_node **file = &reader->given[row_of("model.file")];
    const struct yamldoc_node **hf = &reader->given[row_of("model.hf")];
    if (*file != NULL && yamldoc_is_null(*file)) *file = NULL;
    if (*hf != NULL && yamldoc_is_null(*hf)) *hf = NULL;
    if (*file != NULL && *hf != NULL && is_override(*file) != is_override(*hf))
        *(is_override(*file) ? hf : file) = NULL;
    if (*file != NULL && *hf != NULL)
        return status_with(
            yamldoc_error(*hf,
                          "model: expected exactly one of model.file and model.hf, found both"),
            (struct status_details){.field = "model.hf"});
    if (*file == NULL && *hf == NULL)
        return status_with(
            status_new(STATUS_INVALID_ARGUMENT,
                       "%s: model.file: is missing; expected the path of a model file, or "
                       "model.hf",
                       reader->file),
            (struct status_details){.field = "model.file"});
    return NULL;
}

static status_t read_rows(struct file_reader *reader)
{
    TRY(choose_model(reader));
    for (size_t i = 0; i < spec_key_count; i++)
        if (spec_keys[i].with_key == NULL) TRY(read_row(reader, i));
    for (size_t i = 0; i < spec_key_count; i++)
        if (spec_keys[i].with_key != NULL) TRY(read_row(reader, i));
    TRY(complete_groups(reader));
    return status_wrap(spec_check_together(reader->spec), "%s", reader->file);
}

static status_t apply_override(struct yamldoc *document, const struct spec_override *override)
{
    const char *text = override->text, *equals = strchr(text, '=');
    if (equals == NULL || equals == text)
        return status_new(STATUS_INVALID_ARGUMENT, "--set %s: expected KEY=VALUE", text);
    AUTO_FREE char *key = mem_strndup(text, (size_t)(equals - text));
    AUTO_FREE char *origin =
        override->origin ? mem_strdup(override->origin) : mem_printf("--set %s", text);
    return yamldoc_set(document, key, equals + 1, origin);
}

/* A job file has no key "modules", and a model file little else. */
static bool is_model_file(const struct yamldoc_node *root)
{
    return yamldoc_get(root, "modules") && yamldoc_get(root, "forward") &&
           !yamldoc_get(root, "model");
}

static status_t check_document(const struct spec_source *source, struct yamldoc *document)
{
    if (is_model_file(document->root))
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: this is a model file; submit a job file that names it: "
                          "model: {file: %s}",
                          source->file, source->file);
    if (document->root->kind != YAMLDOC_MAPPING)
        return yamldoc_error(document->root,
                             "expected a mapping of keys, as docs/job-file.md has it");
    for (int i = 0; i < source->override_count; i++)
        TRY(apply_override(document, &source->overrides[i]));
    return NULL;
}

status_t spec_open(const struct spec_source *source, struct yamldoc **out,
                   Fsdpd__V1__SweepSpec **sweep)
{
    struct yamldoc *document;
    *sweep = NULL;
    TRY(yamldoc_parse(source->text, source->length, source->file, &document));
    status_t status = spec_is_sweep(document) ? spec_open_sweep(source, &document, sweep) : NULL;
    if (status == NULL) status = check_document(source, document);
    if (status == NULL) {
        *out = document;
        return NULL;
    }
    message_free(*sweep);
    yamldoc_free(document);
    return status;
}

status_t spec_read_tree(const struct spec_source *source, const struct yamldoc *document,
                        Fsdpd__V1__JobSpec **spec)
{
    struct file_reader reader = {
        .file = document->root->file, /* that of a sweep's job file */
        .sent = source->sent,
        .given = mem_alloc_array(spec_key_count, sizeof *reader.given),
        .spec = mem_alloc(sizeof *reader.spec),
    };
    fsdpd__v1__job_spec__init(reader.spec);
    status_t status = apply_mapping(&reader, document->root, "");
    if (status == NULL) status = read_rows(&reader);
    free(reader.given);
    if (status != NULL) spec_free(reader.spec);
    else *spec = reader.spec;
    return status;
}

status_t spec_read_source(const struct spec_source *source, Fsdpd__V1__JobSpec **spec)
{
    struct yamldoc *document;
    Fsdpd__V1__SweepSpec *sweep;
    TRY(spec_open(source, &document, &sweep));
    status_t status = spec_is_array(document) ? spec_read_array(source, document, sweep, spec)
                                              : spec_read_tree(source, document, spec);
    message_free(sweep);
    yamldoc_free(document);
    return status;
}

status_t spec_read_text(const char *text, size_t length, const char *file,
                        const struct spec_override *overrides, int count, Fsdpd__V1__JobSpec **spec)
{
    return spec_read_source(&(struct spec_source){text, length, file, NULL, overrides, count},
                            spec);
}

status_t spec_read_file(const char *path, const struct spec_override *overrides, int count,
                        Fsdpd__V1__JobSpec **spec)
{
    AUTO(buf_deinit) struct buf text = {0};
    TRY(file_read(path, SPEC_FILE_MAX, &text));
    return spec_read_text(buf_text(&text), text.length, path, overrides, count, spec);
}

static status_t read_wrap_rows(struct file_reader *reader)
{
    for (int dependent = 0; dependent < 2; dependent++)
        for (size_t i = 0; i < spec_key_count; i++) {
            bool wrap = strncmp(spec_keys[i].key, "fsdp.wrap.", strlen("fsdp.wrap.")) == 0;
            if (wrap && (spec_keys[i].with_key != NULL) == (dependent == 1))
                TRY(read_row(reader, i));
        }
    return NULL;
}

status_t spec_read_wrap(const char *what, const struct spec_setting *settings, int count,
                        Fsdpd__V1__WrapSpec **wrap)
{
    struct yamldoc *document;
    TRY(yamldoc_parse("{}", 2, what, &document));
    status_t status = NULL;
    for (int i = 0; i < count && status == NULL; i++)
        status = yamldoc_set(document, settings[i].key, settings[i].value, settings[i].origin);
    struct file_reader reader = {.file = what,
                                 .given = mem_alloc_array(spec_key_count, sizeof *reader.given),
                                 .spec = mem_alloc(sizeof *reader.spec)};
    fsdpd__v1__job_spec__init(reader.spec);
    if (status == NULL) status = apply_mapping(&reader, document->root, "");
    if (status == NULL) status = read_wrap_rows(&reader);
    if (status == NULL) {
        *wrap = reader.spec->fsdp->wrap;
        reader.spec->fsdp->wrap = NULL;
    }
    free(reader.given);
    spec_free(reader.spec);
    yamldoc_free(document);
    return status;
}
