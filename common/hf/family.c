/* Family files: their form, and their heads; see hf.h and family.h. */
#include "hf/family.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"

enum {
    KEYS_MAX = FAMILY_KEYS_MAX / 2,
    CHECKS_MAX = 64,
    TEXTS_MAX = 64,
    HEADS_MAX = 32,
    FIELDS_MAX = 16
};

static const char *const types[] = {"size",    "integer", "number", "probability",
                                    "boolean", "text",    "list",   "count"};

/* ---- The form of a file ---- */

enum kind { TEXT, FLAG, ROW, TYPE, VALUE, EXPRESSION, ENDING, TEXTS, LIST, MAPPING, FIELDS, KEY };

struct form {
    const char *name; /* of a field */
    enum kind kind;
    const char *what;         /* that is expected; NULL: as yaml.h says it */
    const struct form *items; /* of LIST and MAPPING: what each is; of FIELDS and KEY: all that
                               * there may be, up to one without a name */
    int max;                  /* the number of items of LIST and MAPPING */
    bool required;
};

static const struct form a_text = {.kind = TEXT}, an_ending = {.kind = ENDING};
static const struct form a_row = {.kind = ROW}, an_expression = {.kind = EXPRESSION};
static const struct form a_value = {.kind = VALUE, .what = "a number or a text"};
static const struct form texts = {.kind = LIST, "a text or a list of texts", &a_text, TEXTS_MAX};

static const struct form key_fields[] = {
    {.name = "type", TYPE, .required = true},
    {.name = "at", .kind = TEXTS},
    {.name = "why", .kind = TEXT},
    {.name = "null", .kind = FLAG},
    {.name = "from", .kind = EXPRESSION},
    {.name = "to", .kind = EXPRESSION},
    {.name = "needed", .kind = EXPRESSION},
    {.name = "length", .kind = EXPRESSION},
    {.name = "supported", LIST, "a list of values", &a_value, YAMLDOC_MAX_NODES},
    {.name = "default", VALUE, "an expression or a text"},
    {.name = NULL},
};
static const struct form a_key = {.kind = KEY, "a key's type and default", key_fields};
static const char keys[] = "a mapping from keys of config.json to what they may be";

static const struct form check_fields_of[] = {
    {.name = "key", TEXT, .required = true},
    {.name = "that", EXPRESSION, .required = true},
    {.name = "expected", TEXT, .required = true},
    {.name = NULL},
};
static const struct form a_check = {.kind = FIELDS, "key, that and expected", check_fields_of};

static const struct form tensor_fields[] = {
    {.name = "prefix", .kind = TEXT},
    {.name = "bare", .kind = TEXTS},
    {.name = "buffers", .kind = TEXTS},
    {.name = "other_heads", .kind = TEXTS},
    {.name = "new", .kind = TEXTS},
    {.name = "names", MAPPING, "a mapping from names to names", &a_text, TEXTS_MAX},
    {.name = "old_names", MAPPING, "a mapping from old ends to new ones", &an_ending, TEXTS_MAX},
    {.name = "grids", MAPPING, "a mapping from tables to their first rows", &a_row, TEXTS_MAX},
    {.name = "left_out",
     MAPPING,
     "a mapping from parameters to conditions",
     &an_expression,
     HF_LEFT_OUT_MAX},
    {.name = NULL},
};

static const struct form head_fields[] = {
    {.name = "name", .kind = TEXT},
    {.name = "bare", .kind = FLAG},
    {.name = "config", MAPPING, keys, &a_key, KEYS_MAX},
    {.name = "other_heads", .kind = TEXTS},
    {.name = "new", .kind = TEXTS},
    {.name = "model", TEXT, "a model file as a text (model: |)", .required = true},
    {.name = NULL},
};
static const struct form a_head = {.kind = FIELDS,
                                   "a head: name, config, other_heads, new, model",
                                   head_fields};

static const struct form family_fields[] = {
    {.name = "name", TEXT, .required = true},
    {.name = "model_type", TEXTS, .required = true},
    {.name = "architecture", TEXT, .required = true},
    {.name = "also", .kind = TEXTS},
    {.name = "config", MAPPING, keys, &a_key, KEYS_MAX, .required = true},
    {.name = "checks", LIST, "a list of checks", &a_check, CHECKS_MAX},
    {.name = "tensors", FIELDS, "what is to be known of tensors in files", tensor_fields},
    {.name = "body", TEXT, "sections of a model file as a text (body: |)"},
    {.name = "model", TEXT, "a model file as a text (model: |)", .required = true},
    {.name = "heads", MAPPING, "a mapping from architectures to heads", &a_head, HEADS_MAX},
    {.name = NULL},
};
static const struct form a_family = {.kind = FIELDS,
                                     "a family: name, model_type, architecture, config, model",
                                     family_fields};

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

/* An old name ends differently: "*LayerNorm.gamma" and "*LayerNorm.weight". */
static status_t check_old_name(const struct yamldoc_node *node)
{
    const char *name;
    TRY(yamldoc_read_text(node, NULL, &name));
    if (strrchr(node->key, '*') == node->key && strrchr(name, '*') == name) return NULL;
    return yamldoc_key_error(node, "expected an end of names such as *.gamma: *.weight");
}

static status_t check_form(const struct yamldoc_node *node, const struct form *form);

static status_t check_items(const struct yamldoc_node *node, const struct form *form)
{
    if (node->kind != (form->kind == MAPPING ? YAMLDOC_MAPPING : YAMLDOC_SEQUENCE))
        return yamldoc_expected(node, form->what);
    if (node->item_count > form->max)
        return yamldoc_key_error(node, "more than %d entries", form->max);
    for (int i = 0; i < node->item_count; i++) TRY(check_form(node->items[i], form->items));
    return NULL;
}

static status_t check_fields(const struct yamldoc_node *node, const struct form *form)
{
    const char *known[FIELDS_MAX];
    size_t count = 0;
    for (const struct form *field = form->items; field->name != NULL; field++)
        known[count++] = field->name;
    TRY(yamldoc_expect_mapping(node, form->what));
    TRY(yamldoc_check_keys(node, known, count));
    for (const struct form *field = form->items; field->name != NULL; field++) {
        struct yamldoc_node *item = yamldoc_get(node, field->name);
        if (field->required) TRY(yamldoc_require(node, field->name, &item));
        if (item != NULL) TRY(check_form(item, field));
    }
    return NULL;
}

/* Also what relates its values: a default is a text or an expression, as the type says. */
static status_t check_key(const struct yamldoc_node *node, const struct form *form)
{
    if (!name_is_valid(node->key) || strcmp(node->key, "x") == 0 ||
        strcmp(node->key, "output") == 0 || strcmp(node->key, "target") == 0)
        return yamldoc_error(node, "a key cannot be called '%.60s' here", node->key);
    TRY(check_fields(node, form));
    const struct yamldoc_node *standard = yamldoc_get(node, "default");
    if (standard == NULL) return NULL;
    if (family_type(node) != FAMILY_TEXT) return check_expression(standard);
    return yamldoc_is_null(standard) ? NULL : check_form(standard, &a_text);
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
    case VALUE: return node->kind == YAMLDOC_SCALAR ? NULL : yamldoc_expected(node, form->what);
    case EXPRESSION: return check_expression(node);
    case ENDING: return check_old_name(node);
    case TEXTS: return check_form(node, node->kind == YAMLDOC_SCALAR ? &a_text : &texts);
    case LIST:
    case MAPPING: return check_items(node, form);
    case FIELDS: return check_fields(node, form);
    case KEY: break;
    }
    return check_key(node, form);
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

const char *hf_family_item(const struct hf_family *family, enum hf_family_list list, int index)
{
    const struct yamldoc_node *from = yamldoc_get(family->root, "model_type");
    if (list == HF_FAMILY_KEYS) return index < family->key_count ? family->keys[index]->key : NULL;
    if (list == HF_FAMILY_ARCHITECTURES) {
        if (index-- == 0) return family->architecture;
        if (index < family_count(family->heads)) return family->heads->items[index]->key;
        index -= family_count(family->heads);
        from = family->also;
    }
    return index < family_count(from) ? family_text(from, index) : NULL;
}

static status_t take_root(struct hf_family *family, const struct yamldoc_node *root)
{
    TRY(check_form(root, &a_family));
    take_keys(family, yamldoc_get(root, "config"));
    family->root = root;
    family->heads = yamldoc_get(root, "heads");
    family->tensors = yamldoc_get(root, "tensors");
    family->also = yamldoc_get(root, "also");
    family->architecture = yamldoc_get(root, "architecture")->text;
    family->model = yamldoc_get(root, "model")->text;
    family->other_heads = yamldoc_get(family->tensors, "other_heads");
    const struct yamldoc_node *relations = yamldoc_get(root, "checks");
    for (int i = 0; i < family_count(relations); i++) {
        const struct yamldoc_node *name = yamldoc_get(relations->items[i], "key");
        if (family_find_key(family, name->text) < 0)
            return yamldoc_key_error(name, "config has no key '%.60s'", name->text);
    }
    return NULL;
}

status_t hf_family_parse(const char *text, size_t length, const char *file,
                         struct hf_family **family)
{
    if (length > HF_FAMILY_MAX)
        return status_new(STATUS_INVALID_ARGUMENT, "%s: %zu bytes, at most %d are possible", file,
                          length, HF_FAMILY_MAX);
    struct yamldoc *document = NULL;
    TRY(yamldoc_parse(text, length, file, &document));
    struct hf_family *made = mem_alloc(sizeof *made);
    made->document = document;
    status_t status = take_root(made, document->root);
    if (status == NULL) *family = made;
    else hf_family_free(made);
    return status;
}

void hf_family_free(struct hf_family *family)
{
    if (family == NULL) return;
    yamldoc_free(family->document);
    free(family);
}

/* ---- The head that a config.json chooses ---- */

static void take_head(struct hf_family *family, const struct yamldoc_node *head)
{
    family->model = yamldoc_get(head, "model")->text;
    family->architecture = head->key;
    family->also = NULL;
    family->is_bare = family_flag(yamldoc_get(head, "bare"));
    family->other_heads = yamldoc_get(head, "other_heads");
    family->fresh = yamldoc_get(head, "new");
    take_keys(family, yamldoc_get(head, "config"));
}

status_t hf_family_choose(struct hf_family *family, const char *json, size_t length,
                          const char *file)
{
    char *architecture = NULL;
    TRY(hf_config_architecture(json, length, file, &architecture));
    if (architecture == NULL) return NULL;
    const struct yamldoc_node *head = yamldoc_get(family->heads, architecture);
    if (head != NULL) take_head(family, head);
    else if (family_has_text(family->also, architecture))
        family->fresh = yamldoc_get(family->tensors, "new");
    free(architecture);
    return NULL;
}
