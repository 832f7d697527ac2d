/* config.json, read as a family file says, and the model file that it becomes; see hf.h. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"
#include "hf/family.h"

enum { FOUND_MAX = 60, LIST_MAX = 4096, LITERALS = 3 };

/*
 * A configuration that is being read: the values of the family's keys so far, behind true, false
 * and null. The first mistake is kept in `status`; from then on nothing more is looked at.
 */
struct config {
    const struct hf_family *family;
    const char *file;
    json_t *root;
    status_t status;
    const char **names;
    struct constant *values;
    struct environment environment;
    const char **labels;     /* by key: the path that it was found under, for messages */
    struct constant **lists; /* by key: elements of one that is a list */
};

FSDPD_PRINTF(4, 5)
static void refuse(struct config *config, enum status_code code, const char *label,
                   const char *format, ...)
{
    if (config->status != NULL) return;
    va_list args;
    va_start(args, format);
    status_t status = status_new_v(code, format, args);
    va_end(args);
    config->status = status_wrap(status, "%s: %s", config->file, label);
}

/* The value of a key, as JSON, cut where it is long. */
static void format_found(const json_t *value, char text[static FOUND_MAX + 4])
{
    size_t length = json_dumpb(value, text, FOUND_MAX, JSON_ENCODE_ANY | JSON_COMPACT);
    if (length <= FOUND_MAX) {
        text[length] = '\0';
        return;
    }
    static const char *const words[] = {[JSON_OBJECT] = "an object",
                                        [JSON_ARRAY] = "an array",
                                        [JSON_STRING] = "a long text",
                                        [JSON_INTEGER] = "an integer",
                                        [JSON_REAL] = "a number"};
    snprintf(text, FOUND_MAX, "%s", words[json_typeof(value)]);
}

static void refuse_value(struct config *config, const char *label, const json_t *value,
                         const char *expected)
{
    char found[FOUND_MAX + 4];
    format_found(value, found);
    refuse(config, STATUS_INVALID_ARGUMENT, label, "expected %s, found %s", expected, found);
}

/* ---- Expressions of the family ---- */

static bool evaluate(struct config *config, const struct family_expression *expression,
                     struct constant *value)
{
    if (config->status != NULL) return false;
    status_t status = constant_evaluate(expression->expression, &config->environment, value);
    if (status == NULL) return true;
    char *path = yamldoc_path(expression->node);
    config->status = status_wrap(status, "%s:%d: key '%s'", expression->node->file,
                                 expression->node->line, path);
    free(path);
    return false;
}

static bool holds(struct config *config, const struct family_expression *expression)
{
    struct constant value;
    if (!evaluate(config, expression, &value)) return false;
    if (value.kind == CONSTANT_BOOLEAN) return value.integer != 0;
    config->status = yamldoc_key_error(expression->node, "a condition is True or False");
    return false;
}

static double bound_of(struct config *config, const struct family_expression *bound,
                       double otherwise)
{
    struct constant value;
    if (bound->expression == NULL || !evaluate(config, bound, &value)) return otherwise;
    if (value.kind == CONSTANT_INTEGER) return (double)value.integer;
    return value.kind == CONSTANT_REAL ? value.real : otherwise;
}

/* A value in a message: as constant_format, a text without its quotes. */
static void add_value(struct buf *out, const struct constant *value)
{
    char text[64];
    if (value->kind == CONSTANT_TEXT) buf_printf(out, "%.60s", value->text);
    else buf_add_text(out, constant_format(value, text));
}

/* A family's sentence, with the values of {names} in it. */
static char *fill_in(const struct config *config, const char *text)
{
    struct buf out = {0};
    while (*text != '\0') {
        size_t length = strcspn(text, "{");
        buf_add(&out, text, length);
        text += length;
        const char *end = strchr(text, '}');
        if (*text == '\0' || end == NULL) break;
        char *name = mem_strndup(text + 1, (size_t)(end - text) - 1);
        const struct constant *value = environment_find(&config->environment, name);
        if (value != NULL) add_value(&out, value);
        free(name);
        text = end + 1;
    }
    return buf_take(&out);
}

/* ---- Keys ---- */

/* The value at "rope_scaling.factor"; NULL if it is missing or null. *inside is whether the object
 * that would hold it exists. */
static json_t *find(struct config *config, const char *path, bool *inside)
{
    json_t *at = config->root;
    char *copy = mem_strdup(path), *rest = NULL;
    *inside = true;
    for (char *part = strtok_r(copy, ".", &rest); part != NULL && at != NULL;) {
        at = json_object_get(at, part);
        if (json_is_null(at)) at = NULL;
        size_t length = (size_t)(part - copy) + strlen(part);
        part = strtok_r(NULL, ".", &rest);
        if (part == NULL) break;
        *inside = at != NULL;
        if (at == NULL || json_is_object(at)) continue;
        char *label = mem_strndup(path, length);
        refuse_value(config, label, at, "an object");
        free(label);
        at = NULL;
    }
    free(copy);
    return at;
}

/* Of several objects that may hold a key, only the first that exists is searched. */
static json_t *find_key(struct config *config, const struct family_key *key, const char **label)
{
    const char *object = NULL;
    int count = key->paths != NULL ? family_text_count(key->paths) : 1;
    *label = NULL;
    for (int i = 0; i < count; i++) {
        const char *path = key->paths != NULL ? family_text(key->paths, i) : key->name;
        const char *dot = strrchr(path, '.');
        size_t length = dot != NULL ? (size_t)(dot - path) : 0;
        bool inside, nested = length > 0;
        if (nested && object != NULL && strncmp(object, path, length + 1) != 0) continue;
        json_t *value = find(config, path, &inside);
        if (nested && inside) object = path;
        if (value == NULL && (!inside || *label != NULL)) continue;
        *label = path;
        if (value != NULL) return value;
    }
    if (*label == NULL) *label = family_text(key->paths, 0);
    return NULL;
}

static bool scalar_of(const json_t *json, struct constant *value)
{
    if (json_is_integer(json))
        *value = (struct constant){.kind = CONSTANT_INTEGER, .integer = json_integer_value(json)};
    else if (json_is_boolean(json))
        *value = (struct constant){.kind = CONSTANT_BOOLEAN, .integer = json_is_true(json)};
    else if (json_is_string(json))
        *value = (struct constant){.kind = CONSTANT_TEXT, .text = json_string_value(json)};
    else return false;
    return true;
}

/* The value of the key that is read now: a list, whose elements the caller sets. */
static struct constant *new_list(struct config *config, int index, size_t count)
{
    struct constant *items = mem_alloc_array(count + 1, sizeof *items);
    config->lists[index] = items;
    config->values[config->environment.count] =
        (struct constant){.kind = CONSTANT_LIST, .integer = (int64_t)count, .items = items};
    return items;
}

/* Whether a list has the length that its family asks for; if not, that is in `length`. */
static bool has_length(struct config *config, const struct family_key *key, size_t count,
                       struct constant *length)
{
    return key->length.expression == NULL || !evaluate(config, &key->length, length) ||
           (length->kind == CONSTANT_INTEGER && length->integer == (int64_t)count);
}

static void read_list(struct config *config, int index, const json_t *json, const char *label)
{
    const struct family_key *key = &config->family->keys[index];
    size_t count = json_array_size(json);
    if (!json_is_array(json) || count > LIST_MAX) {
        refuse_value(config, label, json, "an array");
        return;
    }
    struct constant *items = new_list(config, index, count), length;
    for (size_t i = 0; i < count; i++)
        if (!scalar_of(json_array_get(json, i), &items[i]))
            refuse_value(config, label, json_array_get(json, i), "a text, an integer or a boolean");
    if (!has_length(config, key, count, &length)) {
        char expected[80], text[64];
        snprintf(expected, sizeof expected, "an array of %s elements",
                 constant_format(&length, text));
        refuse_value(config, label, json, expected);
    }
}

/* The elements of a list that stands as the value of a missing key. */
static void take_list(struct config *config, int index, const char *label)
{
    const struct family_key *key = &config->family->keys[index];
    const struct expression *list = key->standard.expression;
    struct constant *items = new_list(config, index, (size_t)list->item_count), length;
    for (int i = 0; i < list->item_count; i++) {
        struct family_expression item = {.node = key->standard.node, .expression = list->items[i]};
        evaluate(config, &item, &items[i]);
    }
    char text[64];
    if (!has_length(config, key, (size_t)list->item_count, &length))
        refuse(config, STATUS_INVALID_ARGUMENT, label,
               "is missing; expected an array of %s elements, and its default has %d",
               constant_format(&length, text), list->item_count);
}

static void read_integer(struct config *config, const struct family_key *key, const json_t *json,
                         const char *label, struct constant *value)
{
    double low = key->type == FAMILY_SIZE ? 1 : bound_of(config, &key->from, INT32_MIN);
    double high = bound_of(config, &key->to, INT32_MAX);
    double number = (double)json_integer_value(json);
    char expected[80];
    snprintf(expected, sizeof expected, "an integer from %.0f to %.0f", low, high);
    if (!json_is_integer(json) || !(number >= low && number <= high))
        refuse_value(config, label, json, expected);
    *value = (struct constant){.kind = CONSTANT_INTEGER, .integer = json_integer_value(json)};
}

static void read_number(struct config *config, const struct family_key *key, const json_t *json,
                        const char *label, struct constant *value)
{
    bool probability = key->type == FAMILY_PROBABILITY;
    double low = probability ? 0 : bound_of(config, &key->from, -1e30);
    double high = probability ? 1 : bound_of(config, &key->to, 1e30);
    double number = json_number_value(json);
    char expected[80];
    snprintf(expected, sizeof expected, "a number from %g to %g", low, high);
    if (!json_is_number(json) || !(number >= low && number <= high))
        refuse_value(config, label, json, expected);
    if (probability && number == 1) refuse_value(config, label, json, "a number below 1");
    *value = (struct constant){.kind = CONSTANT_REAL, .real = number};
}

static void read_value(struct config *config, int index, const json_t *json, const char *label)
{
    const struct family_key *key = &config->family->keys[index];
    struct constant *value = &config->values[config->environment.count];
    switch (key->type) {
    case FAMILY_SIZE:
    case FAMILY_INTEGER: read_integer(config, key, json, label, value); return;
    case FAMILY_NUMBER:
    case FAMILY_PROBABILITY: read_number(config, key, json, label, value); return;
    case FAMILY_BOOLEAN:
        if (!json_is_boolean(json)) refuse_value(config, label, json, "true or false");
        break;
    case FAMILY_TEXT:
        if (!json_is_string(json)) refuse_value(config, label, json, "a text");
        break;
    case FAMILY_LIST: read_list(config, index, json, label); return;
    case FAMILY_COUNT:
        if (!json_is_object(json) || json_object_size(json) == 0)
            refuse_value(config, label, json, "an object with entries");
        *value =
            (struct constant){.kind = CONSTANT_INTEGER, .integer = (int64_t)json_object_size(json)};
        return;
    }
    if (config->status == NULL) scalar_of(json, value);
}

/* The value of a missing key. */
static void take_default(struct config *config, int index, const char *label)
{
    const struct family_key *key = &config->family->keys[index];
    struct constant *value = &config->values[config->environment.count];
    if (key->needed.expression != NULL && holds(config, &key->needed)) {
        char *why = key->why != NULL ? fill_in(config, key->why) : NULL;
        refuse(config, STATUS_INVALID_ARGUMENT, label, "is missing%s%s", why ? "; " : "",
               why ? why : "");
        free(why);
    }
    *value = (struct constant){.kind = CONSTANT_NONE};
    if (key->type == FAMILY_TEXT && key->text != NULL)
        *value = (struct constant){.kind = CONSTANT_TEXT, .text = key->text};
    const struct expression *standard = key->standard.expression;
    if (standard != NULL && standard->kind == EXPRESSION_LIST) take_list(config, index, label);
    else if (standard != NULL) evaluate(config, &key->standard, value);
}

static bool is_supported_value(const struct constant *value, const struct yamldoc_node *word)
{
    int64_t integer;
    double real;
    switch (value->kind) {
    case CONSTANT_NONE: return yamldoc_is_null(word);
    case CONSTANT_BOOLEAN: return strcmp(word->text, value->integer ? "true" : "false") == 0;
    case CONSTANT_INTEGER: return text_parse_i64(word->text, &integer) && integer == value->integer;
    case CONSTANT_REAL: return text_parse_f64(word->text, &real) && real == value->real;
    case CONSTANT_TEXT: return strcmp(word->text, value->text) == 0;
    case CONSTANT_PAIR:
    case CONSTANT_LIST: break;
    }
    return false;
}

static void check_supported(struct config *config, const struct family_key *key,
                            const struct constant *value, const char *label)
{
    if (config->status != NULL || key->supported == NULL) return;
    int count = key->supported->item_count;
    for (int i = 0; i < count; i++)
        if (is_supported_value(value, key->supported->items[i])) return;
    struct buf text = {0};
    if (value->kind == CONSTANT_TEXT) buf_printf(&text, "'%.60s'", value->text);
    else if (value->kind == CONSTANT_BOOLEAN)
        buf_add_text(&text, value->integer ? "true" : "false");
    else add_value(&text, value);
    buf_add_text(&text, " is not supported; ");
    for (int i = 0; i < count; i++)
        buf_printf(&text, "%s%s",
                   i == 0          ? ""
                   : i + 1 < count ? ", "
                                   : " and ",
                   key->supported->items[i]->text);
    buf_add_text(&text, count == 1 ? " is" : " are");
    if (key->why != NULL) buf_printf(&text, ": %s", key->why);
    refuse(config, STATUS_UNIMPLEMENTED, label, "%s", buf_text(&text));
    buf_deinit(&text);
}

static void read_key(struct config *config, int index)
{
    const struct family_key *key = &config->family->keys[index];
    struct environment *environment = &config->environment;
    struct constant *value = &config->values[environment->count];
    const json_t *json = find_key(config, key, &config->labels[index]);
    const char *label = config->labels[index];
    if (config->status != NULL) return;
    *value = (struct constant){.kind = CONSTANT_NONE};
    bool null = key->null && json_is_null(json_object_get(config->root, key->name));
    if (json != NULL) read_value(config, index, json, label);
    else if (!null) take_default(config, index, label);
    if (value->kind == CONSTANT_LIST)
        for (int64_t i = 0; i < value->integer; i++)
            check_supported(config, key, &value->items[i], label);
    else if (json != NULL || key->text != NULL || key->standard.expression != NULL)
        check_supported(config, key, value, label);
    config->names[environment->count++] = key->name;
}

static void check(struct config *config, const struct family_check *check)
{
    if (holds(config, &check->that) || config->status != NULL) return;
    struct buf found = {0};
    add_value(&found, &config->values[LITERALS + check->key]);
    char *expected = fill_in(config, check->expected);
    refuse(config, STATUS_INVALID_ARGUMENT, config->labels[check->key], "expected %s, found %s",
           expected, buf_text(&found));
    buf_deinit(&found);
    free(expected);
}

/* ---- The whole ---- */

static void refuse_architecture(struct config *config, const char *name)
{
    const struct hf_family *family = config->family;
    struct buf known = {0};
    buf_add_text(&known, family->architecture);
    for (int i = 0; i < family->head_count; i++)
        if (strcmp(family->heads[i].architecture, family->architecture) != 0)
            buf_printf(&known, "%s%s", i + 1 < family->head_count ? ", " : " and ",
                       family->heads[i].architecture);
    refuse(config, STATUS_UNIMPLEMENTED, "architectures", "'%.60s' is not supported; of %s, %s %s",
           name, family->name, buf_text(&known), family->head_count > 0 ? "are" : "is");
    buf_deinit(&known);
}

static void check_architectures(struct config *config)
{
    const struct hf_family *family = config->family;
    const json_t *list = json_object_get(config->root, "architectures"), *item;
    size_t index;
    if (list == NULL || json_is_null(list)) return;
    if (!json_is_array(list)) refuse_value(config, "architectures", list, "an array of texts");
    json_array_foreach((json_t *)list, index, item)
    {
        if (!json_is_string(item)) {
            refuse_value(config, "architectures", item, "an array of texts");
            return;
        }
        const char *name = json_string_value(item);
        if (strcmp(name, family->architecture) == 0 || family_has_text(family->also, name))
            continue;
        refuse_architecture(config, name);
    }
}

/* Features that no supported architecture has. */
static void check_common(struct config *config)
{
    static const char *const flags[] = {"is_encoder_decoder", "add_cross_attention", "is_decoder"};
    for (size_t i = 0; i < COUNT_OF(flags); i++) {
        const json_t *value = json_object_get(config->root, flags[i]);
        if (value == NULL || json_is_null(value) || json_is_false(value)) continue;
        if (!json_is_true(value)) refuse_value(config, flags[i], value, "true or false");
        refuse(config, STATUS_UNIMPLEMENTED, flags[i], "true is not supported");
    }
    const json_t *quantized = json_object_get(config->root, "quantization_config");
    if (quantized != NULL && !json_is_null(quantized))
        refuse(config, STATUS_UNIMPLEMENTED, "quantization_config",
               "quantized weights are not supported");
    const json_t *pruned = json_object_get(config->root, "pruned_heads");
    if (json_object_size(pruned) > 0 || json_array_size(pruned) > 0)
        refuse(config, STATUS_UNIMPLEMENTED, "pruned_heads", "pruned heads are not supported");
}

static status_t load(const char *json, size_t length, const char *file, json_t **root)
{
    if (length > HF_CONFIG_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %zu bytes, at most %d are possible", file,
                          length, HF_CONFIG_MAX);
    json_error_t error;
    *root = json_loadb(json, length, JSON_REJECT_DUPLICATES, &error);
    if (*root == NULL)
        return status_new(STATUS_INVALID_ARGUMENT, "%s:%d: not JSON: %s", file, error.line,
                          error.text);
    if (json_is_object(*root)) return NULL;
    json_decref(*root);
    return status_new(STATUS_INVALID_ARGUMENT, "%s: expected a JSON object", file);
}

status_t hf_config_type(const char *json, size_t length, const char *file, char **model_type)
{
    json_t *root;
    TRY(load(json, length, file, &root));
    struct config config = {.file = file, .root = root};
    const json_t *value = json_object_get(root, "model_type");
    if (value == NULL || json_is_null(value))
        refuse(&config, STATUS_INVALID_ARGUMENT, "model_type", "is missing");
    else if (!json_is_string(value)) refuse_value(&config, "model_type", value, "a text");
    if (config.status == NULL) *model_type = mem_strdup(json_string_value(value));
    json_decref(root);
    return config.status;
}

status_t hf_config_architecture(const char *json, size_t length, const char *file,
                                char **architecture)
{
    json_t *root;
    TRY(load(json, length, file, &root));
    const json_t *first = json_array_get(json_object_get(root, "architectures"), 0);
    *architecture = json_is_string(first) ? mem_strdup(json_string_value(first)) : NULL;
    json_decref(root);
    return NULL;
}

static void check_type(struct config *config)
{
    const json_t *value = json_object_get(config->root, "model_type");
    const char *name = json_string_value(value);
    if (name == NULL || !family_has_text(config->family->model_types, name))
        refuse(config, STATUS_UNIMPLEMENTED, "model_type", "'%.60s' is not of the family %s",
               name != NULL ? name : "", config->family->name);
}

static status_t config_open(struct config *config, const struct hf_family *family, const char *json,
                            size_t length, const char *file)
{
    static const char *const literals[LITERALS] = {"true", "false", "null"};
    size_t count = (size_t)family->key_count;
    *config = (struct config){.family = family, .file = file};
    TRY(load(json, length, file, &config->root));
    config->names = mem_alloc_array(count + LITERALS, sizeof *config->names);
    config->values = mem_alloc_array(count + LITERALS, sizeof *config->values);
    config->labels = mem_alloc_array(count + 1, sizeof *config->labels);
    config->lists = mem_alloc_array(count + 1, sizeof *config->lists);
    for (int i = 0; i < LITERALS; i++) config->names[i] = literals[i];
    config->values[0] = (struct constant){.kind = CONSTANT_BOOLEAN, .integer = true};
    config->values[1] = (struct constant){.kind = CONSTANT_BOOLEAN};
    config->environment =
        (struct environment){.names = config->names, .values = config->values, .count = LITERALS};
    check_type(config);
    check_architectures(config);
    check_common(config);
    return NULL;
}

static void config_close(struct config *config)
{
    for (int i = 0; i < config->family->key_count && config->lists != NULL; i++)
        free(config->lists[i]);
    free(config->lists);
    free(config->labels);
    free(config->values);
    free(config->names);
    json_decref(config->root);
}

static void add_argument(struct buf *out, const struct constant *value)
{
    char text[64];
    if (value->kind == CONSTANT_LIST) {
        buf_add_char(out, '[');
        for (int64_t i = 0; i < value->integer; i++) {
            if (i > 0) buf_add_text(out, ", ");
            add_argument(out, &value->items[i]);
        }
        buf_add_char(out, ']');
    } else if (value->kind == CONSTANT_TEXT) {
        json_t *json = json_string(value->text);
        char *quoted = json_dumps(json, JSON_ENCODE_ANY);
        buf_add_text(out, quoted);
        free(quoted);
        json_decref(json);
    } else {
        buf_add_text(out, constant_format(value, text));
    }
}

static void write_model(const struct config *config, struct hf_model *model)
{
    struct buf out = {0};
    buf_printf(&out, "%s\nargs:\n", config->family->model);
    for (int i = 0; i < config->family->key_count; i++) {
        buf_printf(&out, "  %s: ", config->family->keys[i].name);
        add_argument(&out, &config->values[LITERALS + i]);
        buf_add_char(&out, '\n');
    }
    model->text = buf_take(&out);
}

status_t hf_config_to_model(const struct hf_family *family, const char *json, size_t length,
                            const char *file, struct hf_model *model)
{
    struct config config;
    TRY(config_open(&config, family, json, length, file));
    struct hf_model made = {0};
    for (int i = 0; i < family->key_count && config.status == NULL; i++) read_key(&config, i);
    for (int i = 0; i < family->check_count && config.status == NULL; i++)
        check(&config, &family->checks[i]);
    for (int i = 0; i < family->left_out_count && config.status == NULL; i++)
        made.left_out[i] = holds(&config, &family->left_out[i].when);
    if (config.status == NULL) write_model(&config, &made);
    if (config.status == NULL) *model = made;
    config_close(&config);
    return config.status;
}

void hf_model_deinit(struct hf_model *model)
{
    free(model->text);
    *model = (struct hf_model){0};
}

/* Whether all numbers below `value` survive in 15 digits, which look like what a person wrote. */
static bool is_short(json_t *value)
{
    const char *key;
    json_t *item;
    size_t index;
    char text[32];
    if (json_is_real(value)) {
        snprintf(text, sizeof text, "%.15g", json_real_value(value));
        return strtod(text, NULL) == json_real_value(value);
    }
    json_object_foreach(value, key, item) if (!is_short(item)) return false;
    json_array_foreach(value, index, item) if (!is_short(item)) return false;
    return true;
}

static void write_export(struct config *config, const char *dtype, struct buf *out)
{
    json_object_set_new(config->root, "architectures",
                        json_pack("[s]", config->family->architecture));
    /* newer versions of transformers write "dtype"; all of them read "torch_dtype" */
    bool newer = json_object_get(config->root, "dtype") != NULL;
    json_object_del(config->root, newer ? "torch_dtype" : "dtype");
    json_object_set_new(config->root, newer ? "dtype" : "torch_dtype", json_string(dtype));
    size_t digits = is_short(config->root) ? 15 : 17;
    char *text = json_dumps(config->root, JSON_INDENT(2) | JSON_REAL_PRECISION(digits));
    buf_add_text(out, text);
    buf_add_char(out, '\n');
    free(text);
}

status_t hf_config_export(const struct hf_family *family, const char *json, size_t length,
                          const char *dtype, struct buf *out)
{
    struct config config;
    TRY(config_open(&config, family, json, length, "config.json"));
    if (config.status == NULL) write_export(&config, dtype, out);
    config_close(&config);
    return config.status;
}
