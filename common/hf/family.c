/* Family files, read; see hf.h and family.h. */
#include "hf/family.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"

enum { KEYS_MAX = 128, CHECKS_MAX = 64, TEXTS_MAX = 64, HEADS_MAX = 32 };

int family_text_count(const struct yamldoc_node *node)
{
    return node == NULL ? 0 : node->kind == YAMLDOC_SCALAR ? 1 : node->item_count;
}

const char *family_text(const struct yamldoc_node *node, int index)
{
    return node->kind == YAMLDOC_SCALAR ? node->text : node->items[index]->text;
}

bool family_has_text(const struct yamldoc_node *node, const char *text)
{
    for (int i = 0; i < family_text_count(node); i++)
        if (strcmp(family_text(node, i), text) == 0) return true;
    return false;
}

const char *hf_family_name(const struct hf_family *family)
{
    return family->name;
}

static const char *item_of(const struct yamldoc_node *texts, int index)
{
    return index < family_text_count(texts) ? family_text(texts, index) : NULL;
}

/* The one that is trained, its heads, and those whose files are read, too. */
static const char *architecture_of(const struct hf_family *family, int index)
{
    if (index == 0) return family->architecture;
    if (--index < family->head_count) return family->heads[index].architecture;
    return item_of(family->also, index - family->head_count);
}

const char *hf_family_item(const struct hf_family *family, enum hf_family_list list, int index)
{
    switch (list) {
    case HF_FAMILY_MODEL_TYPES: return item_of(family->model_types, index);
    case HF_FAMILY_ARCHITECTURES: return architecture_of(family, index);
    case HF_FAMILY_KEYS: return index < family->key_count ? family->keys[index].name : NULL;
    }
    return NULL;
}

/* A text or a list of some; may be NULL. */
static status_t read_texts(const struct yamldoc_node *node, const struct yamldoc_node **texts)
{
    const char *text = NULL;
    *texts = node;
    if (node == NULL || node->kind == YAMLDOC_SCALAR) return yamldoc_read_text(node, NULL, &text);
    TRY(yamldoc_expect_sequence(node, "a text or a list of texts"));
    if (node->item_count > TEXTS_MAX)
        return yamldoc_key_error(node, "more than %d texts", TEXTS_MAX);
    for (int i = 0; i < node->item_count; i++) TRY(yamldoc_read_text(node->items[i], NULL, &text));
    return NULL;
}

/* A mapping from texts to texts; may be NULL. */
static status_t read_pairs(const struct yamldoc_node *node, const struct yamldoc_node **pairs)
{
    const char *text = NULL;
    *pairs = node;
    if (node == NULL) return NULL;
    TRY(yamldoc_expect_mapping(node, "a mapping from names to names"));
    if (node->item_count > TEXTS_MAX)
        return yamldoc_key_error(node, "more than %d names", TEXTS_MAX);
    for (int i = 0; i < node->item_count; i++) TRY(yamldoc_read_text(node->items[i], NULL, &text));
    return NULL;
}

static status_t read_expression(const struct yamldoc_node *node,
                                struct family_expression *expression)
{
    if (node == NULL) return NULL;
    if (node->kind != YAMLDOC_SCALAR) return yamldoc_expected(node, "an expression");
    expression->node = node;
    const char *text = yamldoc_is_null(node) ? "None" : node->text;
    status_t status = expression_parse(text, &expression->expression);
    if (status == NULL) return NULL;
    char *path = yamldoc_path(node);
    status = status_wrap(status, "%s:%d: key '%s'", node->file, node->line, path);
    free(path);
    return status;
}

static status_t read_key(struct family_key *key, const struct yamldoc_node *node)
{
    static const char *const words[] = {"type", "at",     "default",   "from",   "to",
                                        "why",  "needed", "supported", "length", "null"};
    static const char *const types[] = {"size",    "integer", "number", "probability",
                                        "boolean", "text",    "list",   "count"};
    struct yamldoc_node *type = NULL;
    int index = 0;
    key->name = node->key;
    if (!name_is_valid(node->key) || strcmp(node->key, "x") == 0 ||
        strcmp(node->key, "output") == 0 || strcmp(node->key, "target") == 0)
        return yamldoc_error(node, "a key cannot be called '%.60s' here", node->key);
    TRY(yamldoc_expect_mapping(node, "a key's type and default"));
    TRY(yamldoc_check_keys(node, words, COUNT_OF(words)));
    TRY(yamldoc_require(node, "type", &type));
    TRY(yamldoc_read_choice(type, types, COUNT_OF(types), &index));
    key->type = (enum family_type)index;
    TRY(read_texts(yamldoc_get(node, "at"), &key->paths));
    TRY(yamldoc_read_text(yamldoc_get(node, "why"), NULL, &key->why));
    TRY(yamldoc_read_bool(yamldoc_get(node, "null"), &key->null));
    TRY(read_expression(yamldoc_get(node, "from"), &key->from));
    TRY(read_expression(yamldoc_get(node, "to"), &key->to));
    TRY(read_expression(yamldoc_get(node, "needed"), &key->needed));
    TRY(read_expression(yamldoc_get(node, "length"), &key->length));
    key->supported = yamldoc_get(node, "supported");
    if (key->supported != NULL) {
        TRY(yamldoc_expect_sequence(key->supported, "a list of values"));
        for (int i = 0; i < key->supported->item_count; i++)
            if (key->supported->items[i]->kind != YAMLDOC_SCALAR)
                return yamldoc_expected(key->supported->items[i], "a number or a text");
    }
    const struct yamldoc_node *standard = yamldoc_get(node, "default");
    if (key->type != FAMILY_TEXT) return read_expression(standard, &key->standard);
    if (standard != NULL && yamldoc_is_null(standard)) return NULL;
    return yamldoc_read_text(standard, NULL, &key->text);
}

static int find_key(const struct hf_family *family, const char *name)
{
    for (int i = 0; i < family->key_count; i++)
        if (strcmp(family->keys[i].name, name) == 0) return i;
    return -1;
}

static status_t read_keys(const struct yamldoc_node *config, struct family_key **keys, int *count)
{
    TRY(yamldoc_expect_mapping(config, "a mapping from keys of config.json to what they may be"));
    if (config->item_count > KEYS_MAX)
        return yamldoc_key_error(config, "more than %d keys", KEYS_MAX);
    *keys = mem_alloc_array((size_t)config->item_count + 1, sizeof **keys);
    for (int i = 0; i < config->item_count; i++)
        TRY(read_key(&(*keys)[(*count)++], config->items[i]));
    return NULL;
}

static status_t read_check(struct hf_family *family, const struct yamldoc_node *node)
{
    static const char *const words[] = {"key", "that", "expected"};
    struct family_check *check = &family->checks[family->check_count++];
    struct yamldoc_node *key = NULL, *that = NULL, *expected = NULL;
    const char *name = NULL;
    TRY(yamldoc_expect_mapping(node, "key, that and expected"));
    TRY(yamldoc_check_keys(node, words, 3));
    TRY(yamldoc_require(node, "key", &key));
    TRY(yamldoc_require(node, "that", &that));
    TRY(yamldoc_require(node, "expected", &expected));
    TRY(yamldoc_read_text(key, NULL, &name));
    check->key = find_key(family, name);
    if (check->key < 0) return yamldoc_key_error(key, "config has no key '%.60s'", name);
    TRY(read_expression(that, &check->that));
    return yamldoc_read_text(expected, NULL, &check->expected);
}

static status_t read_checks(struct hf_family *family, const struct yamldoc_node *checks)
{
    if (checks == NULL) return NULL;
    TRY(yamldoc_expect_sequence(checks, "a list of checks"));
    if (checks->item_count > CHECKS_MAX)
        return yamldoc_key_error(checks, "more than %d checks", CHECKS_MAX);
    family->checks = mem_alloc_array((size_t)checks->item_count + 1, sizeof *family->checks);
    for (int i = 0; i < checks->item_count; i++) TRY(read_check(family, checks->items[i]));
    return NULL;
}

static status_t read_left_out(struct hf_family *family, const struct yamldoc_node *node)
{
    if (node == NULL) return NULL;
    TRY(yamldoc_expect_mapping(node, "a mapping from parameters to conditions"));
    if (node->item_count > HF_LEFT_OUT_MAX)
        return yamldoc_key_error(node, "more than %d parameters", HF_LEFT_OUT_MAX);
    family->left_out = mem_alloc_array((size_t)node->item_count + 1, sizeof *family->left_out);
    for (int i = 0; i < node->item_count; i++) {
        struct family_left_out *left_out = &family->left_out[family->left_out_count++];
        left_out->parameter = node->items[i]->key;
        TRY(read_expression(node->items[i], &left_out->when));
    }
    return NULL;
}

/* An old name ends differently: "*LayerNorm.gamma" and "*LayerNorm.weight". */
static status_t check_old_names(const struct yamldoc_node *pairs)
{
    for (int i = 0; pairs != NULL && i < pairs->item_count; i++) {
        const struct yamldoc_node *pair = pairs->items[i];
        if (pair->key[0] != '*' || pair->text[0] != '*' || strchr(pair->key + 1, '*') != NULL ||
            strchr(pair->text + 1, '*') != NULL)
            return yamldoc_key_error(pair, "expected an end of names such as *.gamma: *.weight");
    }
    return NULL;
}

static status_t read_tensors(struct hf_family *family, const struct yamldoc_node *node)
{
    static const char *const words[] = {"prefix", "bare",      "buffers", "other_heads",
                                        "names",  "old_names", "left_out"};
    family->prefix = "";
    if (node == NULL) return NULL;
    TRY(yamldoc_expect_mapping(node, "what is to be known of tensors in files"));
    TRY(yamldoc_check_keys(node, words, COUNT_OF(words)));
    TRY(yamldoc_read_text(yamldoc_get(node, "prefix"), NULL, &family->prefix));
    TRY(read_texts(yamldoc_get(node, "bare"), &family->bare));
    TRY(read_texts(yamldoc_get(node, "buffers"), &family->buffers));
    TRY(read_texts(yamldoc_get(node, "other_heads"), &family->other_heads));
    TRY(read_pairs(yamldoc_get(node, "names"), &family->names));
    TRY(read_pairs(yamldoc_get(node, "old_names"), &family->old_names));
    TRY(check_old_names(family->old_names));
    return read_left_out(family, yamldoc_get(node, "left_out"));
}

static status_t read_head(struct family_head *head, const struct yamldoc_node *node)
{
    static const char *const words[] = {"config", "other_heads", "new", "model"};
    struct yamldoc_node *model = NULL;
    head->architecture = node->key;
    TRY(yamldoc_expect_mapping(node, "a head: config, other_heads, new, model"));
    TRY(yamldoc_check_keys(node, words, COUNT_OF(words)));
    const struct yamldoc_node *config = yamldoc_get(node, "config");
    if (config != NULL) TRY(read_keys(config, &head->keys, &head->key_count));
    TRY(read_texts(yamldoc_get(node, "other_heads"), &head->other_heads));
    TRY(read_texts(yamldoc_get(node, "new"), &head->fresh));
    TRY(yamldoc_require(node, "model", &model));
    return yamldoc_read_text(model, "sections of a model file as a text (model: |)", &head->model);
}

static status_t read_heads(struct hf_family *family, const struct yamldoc_node *heads)
{
    if (heads == NULL) return NULL;
    TRY(yamldoc_expect_mapping(heads, "a mapping from architectures to heads"));
    if (heads->item_count > HEADS_MAX)
        return yamldoc_key_error(heads, "more than %d heads", HEADS_MAX);
    family->heads = mem_alloc_array((size_t)heads->item_count + 1, sizeof *family->heads);
    for (int i = 0; i < heads->item_count; i++)
        TRY(read_head(&family->heads[family->head_count++], heads->items[i]));
    return NULL;
}

static status_t read_family(struct hf_family *family, const struct yamldoc_node *root)
{
    static const char *const words[] = {"name",   "model_type", "architecture", "also", "config",
                                        "checks", "tensors",    "model",        "heads"};
    struct yamldoc_node *name = NULL, *types = NULL, *architecture = NULL, *config = NULL;
    struct yamldoc_node *model = NULL;
    TRY(yamldoc_expect_mapping(root, "a family: name, model_type, architecture, config, model"));
    TRY(yamldoc_check_keys(root, words, COUNT_OF(words)));
    TRY(yamldoc_require(root, "name", &name));
    TRY(yamldoc_read_text(name, NULL, &family->name));
    TRY(yamldoc_require(root, "model_type", &types));
    TRY(read_texts(types, &family->model_types));
    TRY(yamldoc_require(root, "architecture", &architecture));
    TRY(yamldoc_read_text(architecture, NULL, &family->architecture));
    TRY(read_texts(yamldoc_get(root, "also"), &family->also));
    TRY(yamldoc_require(root, "config", &config));
    TRY(read_keys(config, &family->keys, &family->key_count));
    TRY(read_checks(family, yamldoc_get(root, "checks")));
    TRY(read_tensors(family, yamldoc_get(root, "tensors")));
    TRY(yamldoc_require(root, "model", &model));
    TRY(read_heads(family, yamldoc_get(root, "heads")));
    return yamldoc_read_text(model, "a model file as a text (model: |)", &family->model);
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
    status_t status = read_family(made, document->root);
    if (status == NULL) *family = made;
    else hf_family_free(made);
    return status;
}

void family_key_deinit(struct family_key *key)
{
    expression_free(key->standard.expression);
    expression_free(key->from.expression);
    expression_free(key->to.expression);
    expression_free(key->needed.expression);
    expression_free(key->length.expression);
}

static void free_keys(struct family_key *keys, int count)
{
    for (int i = 0; i < count; i++) family_key_deinit(&keys[i]);
    free(keys);
}

void hf_family_free(struct hf_family *family)
{
    if (family == NULL) return;
    for (int i = 0; i < family->head_count; i++)
        free_keys(family->heads[i].keys, family->heads[i].key_count);
    free(family->heads);
    free(family->composed);
    free_keys(family->keys, family->key_count);
    for (int i = 0; i < family->check_count; i++)
        expression_free(family->checks[i].that.expression);
    for (int i = 0; i < family->left_out_count; i++)
        expression_free(family->left_out[i].when.expression);
    free(family->checks);
    free(family->left_out);
    yamldoc_free(family->document);
    free(family);
}
