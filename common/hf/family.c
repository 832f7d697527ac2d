/* Family files: their form, and their heads; see hf.h and family.h. */
#include "hf/family.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "hf/known.h"
#include "hf/like.h"

enum {
    KEYS_MAX = FAMILY_KEYS_MAX / 2,
    CHECKS_MAX = 64,
    TEXTS_MAX = 64,
    HEADS_MAX = 32,
    FIELDS_MAX = 16
};

static const char *const types[] = {"size", "integer", "number", "probability", "boolean",
                                    "text", "list",    "count",  "activation"};

/* ---- The form of a file ---- */

enum kind { TEXT, FLAG, ROW, TYPE, VALUE, REF, EXPRESSION, DEFAULT, TEXTS, LIST, MAP, FIELDS, KEY };

struct form {
    const char *name; /* of a field */
    enum kind kind;
    const char *what;         /* that is expected; NULL: as yaml.h says it */
    const struct form *items; /* of LIST and MAP: what each is; of FIELDS and KEY: each field
                               * that there may be */
    int max;                  /* their number */
    bool required;
};
#define FIELDS_OF(forms) (forms), COUNT_OF(forms)

static const struct form a_text = {.kind = TEXT}, a_value = {.kind = VALUE};
static const struct form a_row = {.kind = ROW}, an_expression = {.kind = EXPRESSION};
static const struct form texts = {.kind = LIST, "a text or a list of texts", &a_text, TEXTS_MAX};
static const struct form defaults = {.kind = LIST, "a list", &an_expression, YAMLDOC_MAX_NODES};

static const struct form of_key[] = {
    {.name = "type", TYPE, .required = true},
    {.name = "at", .kind = TEXTS},
    {.name = "why", .kind = TEXT},
    {.name = "null", .kind = EXPRESSION},
    {.name = "from", .kind = EXPRESSION},
    {.name = "to", .kind = EXPRESSION},
    {.name = "needed", .kind = EXPRESSION},
    {.name = "length", .kind = EXPRESSION},
    {.name = "supported", LIST, "a list of values", &a_value, YAMLDOC_MAX_NODES},
    {.name = "default", .kind = DEFAULT},
};
static const struct form a_key = {.kind = KEY, "a key's type and default", FIELDS_OF(of_key)};
static const char keys[] = "a mapping from keys of config.json to what they may be";

static const struct form of_check[] = {
    {.name = "key", REF, .required = true},
    {.name = "that", EXPRESSION, .required = true},
    {.name = "expected", TEXT, .required = true},
};
static const struct form a_check = {.kind = FIELDS, "key, that and expected", FIELDS_OF(of_check)};

static const struct form of_tensors[] = {
    {.name = "prefix", .kind = TEXT},
    {.name = "bare", .kind = TEXTS},
    {.name = "buffers", .kind = TEXTS},
    {.name = "starts", MAP, "a mapping from old starts to new ones", &a_text, TEXTS_MAX},
    {.name = "names", MAP, "a mapping from names to names", &a_text, TEXTS_MAX},
    {.name = "old_names", MAP, "a mapping from old ends to new ones", &a_text, TEXTS_MAX},
    {.name = "grids", MAP, "a mapping from tables to their first rows", &a_row, TEXTS_MAX},
    {.name = "left_out", MAP, "conditions by parameter", &an_expression, FAMILY_LEFT_OUT_MAX},
};

static const struct form of_head[] = {
    {.name = "name", .kind = TEXT},
    {.name = "bare", .kind = FLAG},
    {.name = "config", MAP, keys, &a_key, KEYS_MAX},
    {.name = "other_heads", .kind = TEXTS},
    {.name = "new", .kind = TEXTS},
    {.name = "model", TEXT, "a model file as a text (model: |)", .required = true},
};
static const struct form a_head = {.kind = FIELDS, "a head with its model", FIELDS_OF(of_head)};

static const struct form of_family[] = {
    {.name = "name", TEXT, .required = true},
    {.name = "model_type", TEXTS, .required = true},
    {.name = "architecture", TEXT, .required = true},
    {.name = "also", .kind = TEXTS},
    {.name = "inside", .kind = TEXT},
    {.name = "other_heads", .kind = TEXTS},
    {.name = "new", .kind = TEXTS},
    {.name = "config", MAP, keys, &a_key, KEYS_MAX, .required = true},
    {.name = "harmless", .kind = TEXTS},
    {.name = "checks", LIST, "a list of checks", &a_check, CHECKS_MAX},
    {.name = "tensors", FIELDS, "what is to be known of tensors", FIELDS_OF(of_tensors)},
    {.name = "body", TEXT, "sections of a model file as a text (body: |)"},
    {.name = "model", TEXT, "a model file as a text (model: |)", .required = true},
    {.name = "heads", MAP, "a mapping from architectures to heads", &a_head, HEADS_MAX},
};
static const struct form a_family = {.kind = FIELDS,
                                     "a family: name, model_type, architecture, config, model",
                                     FIELDS_OF(of_family)};

status_t family_expression(const struct yamldoc_node *node, struct expression **expression)
{
    return yamldoc_wrap(expression_parse(yamldoc_is_null(node) ? "None" : node->text, expression),
                        node);
}

static status_t check_expression(const struct yamldoc_node *node)
{
    struct expression *parsed = NULL;
    if (node->kind != YAMLDOC_SCALAR) return yamldoc_expected(node, "an expression");
    TRY(family_expression(node, &parsed));
    expression_free(parsed);
    return NULL;
}

static status_t check_form(const struct yamldoc_node *node, const struct form *form);

static status_t check_items(const struct yamldoc_node *node, const struct form *form)
{
    if (node->kind != (form->kind == MAP ? YAMLDOC_MAPPING : YAMLDOC_SEQUENCE))
        return yamldoc_expected(node, form->what);
    if (node->item_count > form->max)
        return yamldoc_key_error(node, "more than %d entries", form->max);
    for (int i = 0; i < node->item_count; i++) TRY(check_form(node->items[i], form->items));
    return NULL;
}

static status_t check_fields(const struct yamldoc_node *node, const struct form *form)
{
    const char *known[FIELDS_MAX];
    for (int i = 0; i < form->max; i++) known[i] = form->items[i].name;
    TRY(yamldoc_expect_mapping(node, form->what));
    TRY(yamldoc_check_keys(node, known, (size_t)form->max));
    for (int i = 0; i < form->max; i++) {
        struct yamldoc_node *item = yamldoc_get(node, known[i]);
        if (form->items[i].required) TRY(yamldoc_require(node, known[i], &item));
        if (item != NULL) TRY(check_form(item, &form->items[i]));
    }
    return NULL;
}

static status_t check_key_name(const struct yamldoc_node *node)
{
    if (name_is_valid(node->key) && strcmp(node->key, "x") != 0 &&
        strcmp(node->key, "output") != 0 && strcmp(node->key, "target") != 0)
        return NULL;
    return yamldoc_error(node, "a key cannot be called '%.60s' here", node->key);
}

/* A text, a list or an expression, as the key's type says. */
static status_t check_default(const struct yamldoc_node *node)
{
    enum family_type type = family_type(node->parent);
    if (type == FAMILY_LIST && node->kind == YAMLDOC_SEQUENCE) return check_items(node, &defaults);
    if (type != FAMILY_TEXT && type != FAMILY_ACTIVATION) return check_expression(node);
    return yamldoc_is_null(node) ? NULL : check_form(node, &a_text);
}

/* One of the family's keys; the node is in one of its checks. */
static status_t check_name(const struct yamldoc_node *node)
{
    const struct yamldoc_node *family = node->parent->parent->parent;
    const char *name;
    TRY(yamldoc_read_text(node, NULL, &name));
    if (yamldoc_get(yamldoc_get(family, "config"), name) != NULL) return NULL;
    return yamldoc_key_error(node, "config has no key '%.60s'", name);
}

static status_t check_form(const struct yamldoc_node *node, const struct form *form)
{
    const char *text;
    int64_t row;
    bool flag;
    int type;
    switch (form->kind) {
    case TEXT: return yamldoc_read_text(node, form->what, &text);
    case FLAG: return yamldoc_read_bool(node, &flag);
    case ROW: return yamldoc_read_i64(node, 0, INT32_MAX, &row);
    case TYPE: return yamldoc_read_choice(node, types, COUNT_OF(types), &type);
    case VALUE:
        return node->kind == YAMLDOC_SCALAR ? NULL : yamldoc_expected(node, "a number or a text");
    case REF: return check_name(node);
    case EXPRESSION: return check_expression(node);
    case DEFAULT: return check_default(node);
    case TEXTS: return check_form(node, node->kind == YAMLDOC_SCALAR ? &a_text : &texts);
    case LIST:
    case MAP: return check_items(node, form);
    case KEY: TRY(check_key_name(node)); break;
    case FIELDS: break;
    }
    return check_fields(node, form);
}

/* ---- Its parts ---- */

int family_count(const struct yamldoc_node *node)
{
    return node == NULL ? 0 : node->kind == YAMLDOC_SCALAR ? 1 : node->item_count;
}

const char *family_text(const struct yamldoc_node *node, int index)
{
    return node->kind == YAMLDOC_SCALAR ? node->text : node->items[index]->text;
}

bool family_has_text(const struct yamldoc_node *node, const char *wanted)
{
    for (int i = 0; i < family_count(node); i++)
        if (strcmp(family_text(node, i), wanted) == 0) return true;
    return false;
}

bool family_flag(const struct yamldoc_node *node)
{
    return node != NULL && strcmp(node->text, "true") == 0;
}

enum family_type family_type(const struct yamldoc_node *node)
{
    int type = 0;
    status_free(yamldoc_read_choice(yamldoc_get(node, "type"), types, COUNT_OF(types), &type));
    return (enum family_type)type;
}

int family_find_key(const struct hf_family *family, const char *name)
{
    int index = family->key_count - 1;
    while (index >= 0 && strcmp(family->keys[index]->key, name) != 0) index--;
    return index;
}

/* Those of names that are there replace them. */
static void take_keys(struct hf_family *family, const struct yamldoc_node *config)
{
    for (int i = 0; i < family_count(config); i++) {
        int at = family_find_key(family, config->items[i]->key);
        if (at < 0) at = family->key_count++;
        family->keys[at] = config->items[i];
    }
}

const char *hf_family_name(const struct hf_family *family)
{
    return yamldoc_get(family->root, "name")->text;
}

const char *hf_family_inside(const struct hf_family *family)
{
    const struct yamldoc_node *inside = yamldoc_get(family->root, "inside");
    return inside != NULL ? inside->text : NULL;
}

const char *hf_family_item(const struct hf_family *family, enum hf_family_list list, int index)
{
    const struct yamldoc_node *from = yamldoc_get(family->root, "model_type");
    if (list == HF_FAMILY_NOTES) return index < family->note_count ? family->notes[index] : NULL;
    if (list == HF_FAMILY_HARMLESS) from = yamldoc_get(family->root, "harmless");
    if (list == HF_FAMILY_KEYS) return index < family->key_count ? family->keys[index]->key : NULL;
    if (list == HF_FAMILY_ARCHITECTURES) {
        if (index-- == 0) return yamldoc_get(family->root, "architecture")->text;
        if (index < family_count(family->heads)) return family->heads->items[index]->key;
        index -= family_count(family->heads);
        from = yamldoc_get(family->root, "also");
    }
    return index < family_count(from) ? family_text(from, index) : NULL;
}

const char *hf_family_architecture(const struct hf_family *family)
{
    return family->architecture;
}

void hf_family_note(struct hf_family *family, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *note = mem_vprintf(format, args);
    va_end(args);
    for (int i = 0; i < family->note_count; i++) {
        if (strcmp(family->notes[i], note) != 0) continue;
        free(note);
        return;
    }
    MEM_GROW(family->notes, family->note_count, family->note_capacity);
    family->notes[family->note_count++] = note;
}

void family_forget_notes(struct hf_family *family)
{
    for (int i = 0; i < family->note_count; i++) free(family->notes[i]);
    family->note_count = 0;
}

/* Whether one of these keys of config is found at this path, or inside it. */
static enum family_key place_of(const struct yamldoc_node *const *of, int count, const char *path)
{
    size_t length = strlen(path);
    enum family_key known = FAMILY_KEY_UNKNOWN;
    for (int i = 0; i < count; i++) {
        const struct yamldoc_node *at = yamldoc_get(of[i], "at");
        if (strcmp(of[i]->key, path) == 0 && at == NULL) return FAMILY_KEY_APPLIED;
        for (int k = 0; k < family_count(at); k++) {
            const char *place = family_text(at, k);
            if (strcmp(place, path) == 0) return FAMILY_KEY_APPLIED;
            if (strncmp(place, path, length) == 0 && place[length] == '.') known = FAMILY_KEY_OUTER;
        }
    }
    return known;
}

enum family_key family_key(const struct hf_family *family, const char *path)
{
    enum family_key known = place_of(family->keys, family->key_count, path);
    const char *name = path + (path[0] == '/');
    if (known == FAMILY_KEY_UNKNOWN &&
        (known_is_harmless(name) || family_has_text(yamldoc_get(family->root, "harmless"), name)))
        known = FAMILY_KEY_HARMLESS;
    for (int i = 0; i < family_count(family->heads) && known == FAMILY_KEY_UNKNOWN; i++) {
        const struct yamldoc_node *config = yamldoc_get(family->heads->items[i], "config");
        if (config != NULL &&
            place_of((const struct yamldoc_node *const *)config->items, config->item_count, path) !=
                FAMILY_KEY_UNKNOWN)
            known = FAMILY_KEY_HARMLESS; /* of a head that is not trained */
    }
    return known;
}

void family_choose(struct hf_family *family, const char *architecture)
{
    const char *own = yamldoc_get(family->root, "architecture")->text;
    const char *name = architecture != NULL ? architecture : own;
    const struct yamldoc_node *head = yamldoc_get(family->heads, name);
    family->trained = head != NULL ? head : family->root;
    family->architecture = head != NULL ? head->key : own;
    family->has_new = strcmp(name, own) != 0;
    family->key_count = 0;
    take_keys(family, yamldoc_get(family->root, "config"));
    if (head != NULL) take_keys(family, yamldoc_get(head, "config"));
}

/* Of the texts of a family or a head that are parts of a model file. */
static void join_lines(const struct yamldoc_node *node)
{
    const struct yamldoc_node *parts[] = {yamldoc_get(node, "body"), yamldoc_get(node, "model")};
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (parts[i] != NULL) family_join_lines(parts[i]->text);
}

status_t family_parse(const char *text, size_t length, const char *file,
                      const struct family_text *from, struct hf_family **family)
{
    if (length > HF_FAMILY_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %zu bytes, at most %d are possible", file,
                          length, HF_FAMILY_MAX);
    struct yamldoc *document = NULL;
    TRY(yamldoc_parse(text, length, file, &document));
    if (from != NULL) family_text_place(from, document->root);
    struct hf_family *made = mem_alloc(sizeof *made);
    made->document = document;
    made->root = document->root;
    made->heads = yamldoc_get(made->root, "heads");
    made->tensors = yamldoc_get(made->root, "tensors");
    status_t status = check_form(made->root, &a_family);
    if (status == NULL) {
        join_lines(made->root);
        for (int i = 0; i < family_count(made->heads); i++) join_lines(made->heads->items[i]);
        family_choose(made, NULL);
        *family = made;
    } else {
        hf_family_free(made);
    }
    return status;
}

status_t hf_family_parse(const char *text, size_t length, const char *file,
                         struct hf_family **family)
{
    return family_parse(text, length, file, NULL, family);
}

void hf_family_free(struct hf_family *family)
{
    if (family == NULL) return;
    yamldoc_free(family->document);
    family_forget_notes(family);
    free(family->notes);
    free(family);
}
