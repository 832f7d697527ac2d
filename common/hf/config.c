/* config.json, read as a family file says, and the model file that it becomes; see hf.h. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"
#include "hf/family.h"
#include "hf/json.h"
#include "hf/known.h"

/*
 * A configuration that is being read, with the values of the family's keys so far. The first
 * mistake is kept in `status`, with `label` before it; from then on nothing more is looked at.
 */
struct config {
    struct hf_family *family;
    const char *file;
    json_t *root, *keys; /* the file, and the object in it that has the family's keys */
    status_t status;
    const struct yamldoc_node *key; /* that is being read */
    const char *label;              /* the path that it was found under */
    bool inside;                    /* whether there is an object at this path but its last name */
    struct constant *value;
    struct environment environment; /* names and values of the keys before it */
    const char *names[FAMILY_KEYS_MAX];
    struct constant values[FAMILY_KEYS_MAX];
    struct constant *lists[FAMILY_KEYS_MAX]; /* the elements of values */
    struct expression **expressions; /* those that were read; values may borrow their texts */
    int expression_count, expression_capacity;
};

/* What JSON's words mean in expressions. */
static const struct environment literals = {
    .names = (const char *const[]){"true", "false", "null"},
    .values = (const struct constant[]){{.kind = CONSTANT_BOOLEAN, .integer = true},
                                        {.kind = CONSTANT_BOOLEAN},
                                        {.kind = CONSTANT_NONE}},
    .count = 3,
};

FSDPD_PRINTF(3, 4)
static void refuse(struct config *config, enum status_code code, const char *format, ...)
{
    if (config->status != NULL) return;
    va_list args;
    va_start(args, format);
    status_t status = status_new_v(code, format, args);
    va_end(args);
    bool outer = config->keys == config->root || config->label[0] == '/';
    config->status = status_wrap(status, "%s: %s%s%s", config->file,
                                 outer ? "" : hf_family_inside(config->family), outer ? "" : ".",
                                 config->label + (config->label[0] == '/'));
}

static void refuse_value(struct config *config, const json_t *value, const char *expected)
{
    char text[72], *found = hf_json_write(value, JSON_ENCODE_ANY | JSON_COMPACT);
    refuse(config, STATUS_INVALID_ARGUMENT, "expected %s, found %s", expected,
           yamldoc_excerpt(found, text));
    free(found);
}

/* A value in a message: a text without quotes, the words as in JSON. */
static void add_value(struct buf *out, const struct constant *value)
{
    char text[64];
    if (value->kind == CONSTANT_TEXT) buf_printf(out, "%.60s", value->text);
    else if (value->kind == CONSTANT_BOOLEAN) buf_add_text(out, value->integer ? "true" : "false");
    else if (value->kind == CONSTANT_NONE) buf_add_text(out, "null");
    else buf_add_text(out, constant_format(value, text));
}

/* Word `index` of an enumeration: "a, b and c". */
static void add_word(struct buf *out, int index, int count, const char *word)
{
    buf_printf(out, "%s%s", index == 0 ? "" : index + 1 < count ? ", " : " and ", word);
}

/* ---- Expressions of the family ---- */

/* The value of an expression; false if there is none, or for a mistake, also an earlier one. */
static bool value_of(struct config *config, const struct yamldoc_node *node, struct constant *value)
{
    if (node == NULL || config->status != NULL) return false;
    MEM_GROW(config->expressions, config->expression_count, config->expression_capacity);
    struct expression **expression = &config->expressions[config->expression_count++];
    *expression = NULL;
    config->status = family_expression(node, expression);
    if (config->status == NULL)
        config->status =
            yamldoc_wrap(constant_evaluate(*expression, &config->environment, value), node);
    return config->status == NULL;
}

static bool holds(struct config *config, const struct yamldoc_node *condition)
{
    struct constant value = {.kind = CONSTANT_BOOLEAN};
    if (value_of(config, condition, &value) && value.kind != CONSTANT_BOOLEAN)
        config->status = yamldoc_key_error(condition, "a condition is True or False");
    return config->status == NULL && value.integer != 0;
}

static double number_of(const struct constant *value, double otherwise)
{
    if (value->kind == CONSTANT_INTEGER) return (double)value->integer;
    return value->kind == CONSTANT_REAL ? value->real : otherwise;
}

/* A family's sentence, with the values of {names} in it. */
static char *fill_in(const struct config *config, const char *text)
{
    struct buf out = {0};
    const char *open, *close;
    while ((open = strchr(text, '{')) != NULL && (close = strchr(open, '}')) != NULL) {
        buf_add(&out, text, (size_t)(open - text));
        char *name = mem_strndup(open + 1, (size_t)(close - open) - 1);
        const struct constant *value = environment_find(&config->environment, name);
        if (value != NULL) add_value(&out, value);
        free(name);
        text = close + 1;
    }
    buf_add_text(&out, text);
    return buf_take(&out);
}

/* ---- Keys ---- */

/* The value at "rope_scaling.factor", or at "/name" of the whole file, which is what messages are
 * about from now on; NULL if it is missing or null. */
static json_t *find(struct config *config, const char *path)
{
    bool whole = path[0] == '/';
    json_t *object = whole ? config->root : config->keys;
    const char *dot = strrchr(path, '.');
    if (dot != NULL) {
        char *outer = mem_strndup(path, (size_t)(dot - path));
        object = find(config, outer);
        if (object != NULL && !json_is_object(object)) refuse_value(config, object, "an object");
        free(outer);
    }
    json_t *value = json_object_get(object, dot != NULL ? dot + 1 : path + whole);
    config->label = path;
    config->inside = json_object_size(object) > 0; /* an empty one is as good as none */
    return json_is_null(value) ? NULL : value;
}

/* What is at a second place of a key, and does not count. */
static void note_other(struct config *config, const char *counts, const char *path,
                       const char *object)
{
    size_t length = strcspn(counts, "."), inside = strcspn(path, ".");
    if (object != NULL && path[inside] == '.')
        hf_family_note(config->family, "%.*s counts, as in transformers, and %.*s does not: remove one",
                    (int)length, object, (int)inside, path);
    else
        hf_family_note(config->family, "%s counts, as in transformers, and %s does not: remove one",
                    counts, path);
}

/* The first place with a value. Of several objects that may hold a key, only the first that exists
 * is searched. */
static json_t *find_key(struct config *config, const struct yamldoc_node *key)
{
    const struct yamldoc_node *paths = yamldoc_get(key, "at");
    const char *object = NULL, *label = NULL;
    json_t *value = NULL;
    if (family_count(paths) == 0) return find(config, key->key);
    for (int i = 0; i < family_count(paths); i++) {
        const char *path = family_text(paths, i), *dot = strrchr(path, '.');
        size_t length = dot != NULL ? (size_t)(dot - path) + 1 : 0;
        bool other = length > 0 && object != NULL && strncmp(object, path, length) != 0;
        json_t *found = find(config, path);
        if (found != NULL && (other || value != NULL) && !json_equal(found, value))
            note_other(config, value != NULL && !other ? label : other ? object : label, path,
                       other ? object : NULL);
        if (other || value != NULL) continue;
        value = found;
        if (length > 0 && config->inside) object = path;
        if (value != NULL || (config->inside && label == NULL)) label = path;
    }
    config->label = label != NULL ? label : family_text(paths, 0);
    return value;
}

static bool scalar_of(const json_t *json, struct constant *value)
{
    if (json_is_integer(json))
        *value = (struct constant){.kind = CONSTANT_INTEGER, .integer = json_integer_value(json)};
    else if (json_is_real(json))
        *value = (struct constant){.kind = CONSTANT_REAL, .real = json_real_value(json)};
    else if (json_is_boolean(json))
        *value = (struct constant){.kind = CONSTANT_BOOLEAN, .integer = json_is_true(json)};
    else if (json_is_string(json))
        *value = (struct constant){.kind = CONSTANT_TEXT, .text = json_string_value(json)};
    else return false;
    return true;
}

/* A list of `count` elements, which the caller sets, as the value of the key. */
static struct constant *new_list(struct config *config, size_t count)
{
    struct constant *items = mem_alloc_array(count + 1, sizeof *items);
    config->lists[config->environment.count] = items;
    *config->value =
        (struct constant){.kind = CONSTANT_LIST, .integer = (int64_t)count, .items = items};
    return items;
}

static void read_list(struct config *config, const json_t *json)
{
    struct constant *items = new_list(config, json_array_size(json));
    const json_t *item;
    size_t i;
    json_array_foreach(json, i, item)
    {
        if (!scalar_of(item, &items[i]))
            refuse_value(config, item, "a text, a number or a boolean");
    }
}

/* What a family's types are in JSON. */
static const struct {
    const char *what;
    unsigned json;    /* the bits of enum json_type */
    int digits;       /* of the bounds in messages; 0: they are in none */
    double low, high; /* of a number, or of how many elements or entries there are */
} types[] = {
    [FAMILY_SIZE] = {"an integer", 1 << JSON_INTEGER, 10, 1, INT32_MAX},
    [FAMILY_INTEGER] = {"an integer", 1 << JSON_INTEGER, 10, INT32_MIN, INT32_MAX},
    [FAMILY_NUMBER] = {"a number", 1 << JSON_INTEGER | 1 << JSON_REAL, 6, -1e30, 1e30},
    [FAMILY_PROBABILITY] = {"a number", 1 << JSON_INTEGER | 1 << JSON_REAL, 6, 0, 1},
    [FAMILY_BOOLEAN] = {"true or false", 1 << JSON_TRUE | 1 << JSON_FALSE, 0, 0, 0},
    [FAMILY_TEXT] = {"a text", 1 << JSON_STRING, 0, 0, 0},
    [FAMILY_LIST] = {"an array of at most 4096 elements", 1 << JSON_ARRAY, 0, 0, 4096},
    [FAMILY_COUNT] = {"an object with entries, or their number",
                      1 << JSON_INTEGER | 1 << JSON_OBJECT, 0, 1, INT32_MAX},
    [FAMILY_ACTIVATION] = {"a text", 1 << JSON_STRING, 0, 0, 0},
};

static void read_value(struct config *config, const json_t *json)
{
    enum family_type type = family_type(config->key);
    int digits = types[type].digits;
    double low = types[type].low, high = types[type].high;
    double amount = json_number_value(json) + /* each is 0 for other types */
                    (double)(json_array_size(json) + json_object_size(json));
    struct constant bound;
    if (value_of(config, yamldoc_get(config->key, "from"), &bound)) low = number_of(&bound, low);
    if (value_of(config, yamldoc_get(config->key, "to"), &bound)) high = number_of(&bound, high);
    if ((types[type].json >> json_typeof(json) & 1) == 0 || hf_json_is_foreign(json) ||
        amount < low || amount > high) {
        char *expected = digits > 0 ? mem_printf("%s from %.*g to %.*g", types[type].what, digits,
                                                 low, digits, high)
                                    : mem_strdup(types[type].what);
        refuse_value(config, json, expected);
        free(expected);
    }
    if (type == FAMILY_PROBABILITY && amount == 1) refuse_value(config, json, "a number below 1");
    if (type == FAMILY_LIST) read_list(config, json);
    else if (type == FAMILY_NUMBER || type == FAMILY_PROBABILITY)
        *config->value = (struct constant){.kind = CONSTANT_REAL, .real = amount};
    else if (!scalar_of(json, config->value))
        *config->value = (struct constant){.kind = CONSTANT_INTEGER, .integer = (int64_t)amount};
}

/* The value of a missing key, or of null. */
static void take_default(struct config *config)
{
    const struct yamldoc_node *why = yamldoc_get(config->key, "why");
    const struct yamldoc_node *node = yamldoc_get(config->key, "default");
    enum family_type type = family_type(config->key);
    if (holds(config, yamldoc_get(config->key, "needed"))) {
        char *reason = fill_in(config, why != NULL ? why->text : "");
        refuse(config, STATUS_INVALID_ARGUMENT, "is missing%s%s", why != NULL ? "; " : "", reason);
        free(reason);
    }
    if (node != NULL && node->kind == YAMLDOC_SEQUENCE) {
        struct constant *items = new_list(config, (size_t)node->item_count);
        for (int i = 0; i < node->item_count; i++) value_of(config, node->items[i], &items[i]);
    } else if (node != NULL && (type == FAMILY_TEXT || type == FAMILY_ACTIVATION) &&
               !yamldoc_is_null(node)) {
        *config->value = (struct constant){.kind = CONSTANT_TEXT, .text = node->text};
    } else {
        value_of(config, node, config->value);
    }
}

static void check_supported(struct config *config, const struct constant *value)
{
    const struct yamldoc_node *supported = yamldoc_get(config->key, "supported");
    const struct yamldoc_node *why = yamldoc_get(config->key, "why");
    const char *quote = value->kind == CONSTANT_TEXT ? "'" : "";
    struct buf found = {0}, words = {0};
    bool known = supported == NULL;
    double number;
    add_value(&found, value);
    for (int i = 0, count = family_count(supported); i < count; i++) {
        const char *word = family_text(supported, i);
        add_word(&words, i, count, word);
        known = known || strcmp(buf_text(&found), word) == 0 ||
                (text_parse_f64(word, &number) && number_of(value, NAN) == number); /* 1 is 1.0 */
    }
    if (!known)
        refuse(config, STATUS_UNIMPLEMENTED, "%s%s%s is not supported; %s %s%s%s", quote,
               buf_text(&found), quote, buf_text(&words),
               family_count(supported) == 1 ? "is" : "are", why != NULL ? ": " : "",
               why != NULL ? why->text : "");
    buf_deinit(&found);
    buf_deinit(&words);
}

/* transformers' name of an activation becomes that of model files. */
static void take_activation(struct config *config, struct constant *value)
{
    const char *name = value->kind == CONSTANT_TEXT ? known_activation(value->text) : NULL;
    AUTO(buf_deinit) struct buf words = {0};
    for (int i = 0; known_activation_at(i) != NULL; i++)
        add_word(&words, i, known_activation_at(i + 1) != NULL ? i + 2 : i + 1,
                 known_activation_at(i));
    if (value->kind == CONSTANT_TEXT && name == NULL)
        refuse(config, STATUS_UNIMPLEMENTED, "'%.60s' is not supported; %s are", value->text,
               buf_text(&words));
    value->text = name;
}

/* `json` is NULL if the list is the default of a missing key. */
static void check_list(struct config *config, const struct constant *list, const json_t *json)
{
    struct constant length;
    char wanted[64];
    if (value_of(config, yamldoc_get(config->key, "length"), &length) &&
        (length.kind != CONSTANT_INTEGER || length.integer != list->integer))
        refuse(config, STATUS_INVALID_ARGUMENT,
               json != NULL
                   ? "expected an array of %s elements, found one of %lld"
                   : "is missing; expected an array of %s elements, and its default has %lld",
               constant_format(&length, wanted), (long long)list->integer);
    for (int64_t i = 0; i < list->integer; i++) check_supported(config, &list->items[i]);
}

static void read_key(struct config *config, const struct yamldoc_node *key)
{
    struct constant *value = config->value = &config->values[config->environment.count];
    const json_t *json = find_key(config, key);
    config->key = key;
    *value = (struct constant){.kind = CONSTANT_NONE};
    const struct yamldoc_node *null = yamldoc_get(key, "null");
    if (!json_is_null(json_object_get(config->keys, key->key))) null = NULL;
    if (json != NULL) read_value(config, json);
    else if (null == NULL) take_default(config);
    else if (!family_flag(null)) value_of(config, null, value); /* true: None */
    if (family_type(key) == FAMILY_ACTIVATION) take_activation(config, value);
    if (value->kind == CONSTANT_LIST) check_list(config, value, json);
    else if (json != NULL || yamldoc_get(key, "default") != NULL) check_supported(config, value);
    config->names[config->environment.count++] = key->key;
}

static void check(struct config *config, const struct yamldoc_node *node)
{
    if (holds(config, yamldoc_get(node, "that")) || config->status != NULL) return;
    int key = family_find_key(config->family, yamldoc_get(node, "key")->text);
    struct buf found = {0};
    add_value(&found, &config->values[key]);
    char *expected = fill_in(config, yamldoc_get(node, "expected")->text);
    find_key(config, config->family->keys[key]);
    refuse(config, STATUS_INVALID_ARGUMENT, "expected %s, found %s", expected, buf_text(&found));
    buf_deinit(&found);
    free(expected);
}

/* ---- The whole ---- */

static void check_architecture(struct config *config, const json_t *item)
{
    const struct hf_family *family = config->family;
    const char *name = json_string_value(item);
    const struct yamldoc_node *also = yamldoc_get(family->trained, "also");
    int count = family_count(family->heads) + 1;
    struct buf known = {0};
    if (name == NULL) refuse_value(config, item, "an array of texts");
    else if (strcmp(name, family->architecture) == 0 || family_has_text(also, name)) return;
    for (int i = 0; i < count; i++)
        add_word(&known, i, count, hf_family_item(family, HF_FAMILY_ARCHITECTURES, i));
    refuse(config, STATUS_UNIMPLEMENTED, "'%.60s' is not supported; of %s, %s %s", name,
           hf_family_name(family), buf_text(&known), count > 1 ? "are" : "is");
    buf_deinit(&known);
}

/* Keys that no family has, with values that would change the arithmetic. */
static void check_refused(struct config *config)
{
    const struct known_refused *key;
    json_t *value, *item;
    size_t i;
    for (int k = 0; (key = known_refused_at(k)) != NULL; k++) {
        if (family_find_key(config->family, key->name) >= 0) continue;
        AUTO_FREE char *whole = mem_printf("/%s", key->name);
        value = find(config, key->name);
        if (value == NULL) value = find(config, whole);
        if (key->kind == KNOWN_FLAG && value != NULL && !json_is_boolean(value))
            refuse_value(config, value, "true or false");
        bool refused = key->kind == KNOWN_FLAG      ? json_is_true(value)
                       : key->kind == KNOWN_ENTRIES ? json_object_size(value) + json_array_size(value) > 0
                                                    : value != NULL;
        if (key->kind == KNOWN_LAYERS) {
            refused = value != NULL && !json_is_array(value);
            json_array_foreach(value, i, item)
            {
                const char *text = json_string_value(item);
                refused = refused || text == NULL || strcmp(text, "full_attention") != 0;
            }
        }
        if (refused) refuse(config, STATUS_UNIMPLEMENTED, "%s", key->why);
    }
}

/* What every family asks for: its own architectures, and no features that none has. */
static void check_common(struct config *config)
{
    json_t *value = find(config, "/model_type"), *item;
    size_t i;
    const char *type = json_string_value(value);
    if (type == NULL || !family_has_text(yamldoc_get(config->family->root, "model_type"), type))
        refuse(config, STATUS_UNIMPLEMENTED, "'%.60s' is not of the family %s",
               type != NULL ? type : "", hf_family_name(config->family));
    value = find(config, "/architectures");
    if (value != NULL && !json_is_array(value)) refuse_value(config, value, "an array of texts");
    json_array_foreach(value, i, item) check_architecture(config, item);
    check_refused(config);
}

/* Notes the keys that nothing here knows: transformers keeps such keys, and so does an exported
 * file. `outer` is the object's path, and "/" that of the whole file around the family's keys. */
static void note_unknown(struct config *config, json_t *object, const char *outer)
{
    enum { NAMED = 20 };
    AUTO(buf_deinit) struct buf names = {0};
    const char *name;
    json_t *value;
    int count = 0;
    json_object_foreach(object, name, value)
    {
        if (value == config->keys) continue;
        bool top = outer[0] == '\0' || outer[0] == '/';
        char *path = mem_printf("%s%s%.100s", outer, top ? "" : ".", name);
        enum family_key known = family_key(config->family, path);
        if (known == FAMILY_KEY_OUTER && json_is_object(value)) note_unknown(config, value, path);
        if (known == FAMILY_KEY_UNKNOWN && ++count <= NAMED)
            buf_printf(&names, "%s%s", count > 1 ? ", " : "", path + (path[0] == '/'));
        free(path);
    }
    if (count > NAMED) buf_printf(&names, " and %d more", count - NAMED);
    if (count > 0)
        hf_family_note(config->family, "config.json has keys that are not known, and have no effect: %s",
                    buf_text(&names));
}

static status_t load(const char *json, size_t length, const char *file, json_t **root)
{
    return hf_json_load(json, length, HF_CONFIG_MAX, file, root);
}

status_t hf_config_type(const char *json, size_t length, const char *file, char **model_type)
{
    struct config config = {.file = file};
    TRY(load(json, length, file, &config.root));
    const json_t *value = find(&config, "/model_type");
    if (value == NULL) refuse(&config, STATUS_INVALID_ARGUMENT, "is missing");
    else if (!json_is_string(value)) refuse_value(&config, value, "a text");
    else *model_type = mem_strdup(json_string_value(value));
    json_decref(config.root);
    return config.status;
}

status_t hf_config_with_head(const struct hf_family *family, const char *json, size_t length,
                             const char *file, const char *head, char **changed)
{
    const struct yamldoc_node *name, *found = NULL;
    struct buf known = {0};
    json_t *root = NULL;
    for (int i = 0; i < family_count(family->heads); i++) {
        if ((name = yamldoc_get(family->heads->items[i], "name")) == NULL) continue;
        if (strcmp(name->text, head) == 0) found = family->heads->items[i];
        buf_printf(&known, "%s%s", known.length > 0 ? ", " : "", name->text);
    }
    status_t status = found != NULL
                          ? load(json, length, file, &root)
                          : status_new(STATUS_INVALID_ARGUMENT,
                                       "model.head: the family %s has no head '%.60s'; it has %s",
                                       hf_family_name(family), head,
                                       known.length > 0 ? buf_text(&known) : "none with a name");
    buf_deinit(&known);
    if (status != NULL) return status;
    json_object_set_new(root, "architectures", json_pack("[s]", found->key));
    *changed = hf_json_write(root, JSON_INDENT(2));
    json_decref(root);
    return NULL;
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

/* Adds a part of a model file; among its blocks also those of activations that are not modules. */
static void add_part(const struct config *config, const char *part, struct buf *out)
{
    static const char blocks[] = "\nblocks:\n";
    const char *at = strstr(part, blocks);
    bool quick = false;
    for (int i = 0; i < config->family->key_count; i++)
        quick = quick || (family_type(config->family->keys[i]) == FAMILY_ACTIVATION &&
                          config->values[i].kind == CONSTANT_TEXT &&
                          strcmp(config->values[i].text, "quick_gelu") == 0);
    if (at == NULL || !quick) {
        buf_add_text(out, part);
        return;
    }
    at += strlen(blocks);
    buf_add(out, part, (size_t)(at - part));
    int indent = (int)strspn(at, " ");
    buf_printf(out, "%*sQuickGELUActivation:\n", indent, "");
    buf_printf(out, "%*smodules: {gate: Sigmoid()}\n", indent + 2, "");
    buf_printf(out, "%*sforward: [output = x * gate(1.702 * x)]\n%s", indent + 2, "", at);
}

static char *write_model(const struct config *config)
{
    const struct yamldoc_node *body = yamldoc_get(config->family->root, "body");
    struct buf out = {0};
    if (body != NULL) {
        add_part(config, body->text, &out);
        buf_add_char(&out, '\n');
    }
    add_part(config, yamldoc_get(config->family->trained, "model")->text, &out);
    buf_add_text(&out, "\nargs:\n");
    for (int i = 0; i < config->family->key_count; i++) {
        buf_printf(&out, "  %s: ", config->names[i]);
        add_argument(&out, &config->values[i]);
        buf_add_char(&out, '\n');
    }
    return buf_take(&out);
}

status_t hf_config_to_model(struct hf_family *family, const char *json, size_t length,
                            const char *file, char **model)
{
    const struct yamldoc_node *checks = yamldoc_get(family->root, "checks");
    const struct yamldoc_node *left_out = yamldoc_get(family->tensors, "left_out");
    struct config config = {.family = family, .file = file};
    TRY(load(json, length, file, &config.root));
    family_forget_notes(family);
    config.keys = hf_json_inside(config.root, hf_family_inside(family));
    config.environment = (struct environment){config.names, config.values, 0, &literals};
    family_choose(family, json_string_value(
                              json_array_get(json_object_get(config.root, "architectures"), 0)));
    check_common(&config);
    for (int i = 0; i < family->key_count && config.status == NULL; i++)
        read_key(&config, family->keys[i]);
    for (int i = 0; i < family_count(checks); i++) check(&config, checks->items[i]);
    for (int i = 0; i < family_count(left_out); i++)
        family->left_out[i] = holds(&config, left_out->items[i]);
    if (config.status == NULL) note_unknown(&config, config.keys, "");
    if (config.status == NULL && config.keys != config.root)
        note_unknown(&config, config.root, "/");
    if (config.status == NULL) *model = write_model(&config);
    for (int i = 0; i < config.expression_count; i++) expression_free(config.expressions[i]);
    for (int i = 0; i < family->key_count; i++) free(config.lists[i]);
    free(config.expressions);
    json_decref(config.root);
    return config.status;
}
