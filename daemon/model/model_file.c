/* model_parse: the top level of a model file, and the order of the stages; see reader.h. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "model/reader.h"

status_t reader_wrap(const struct reader *reader, int line, status_t status)
{
    return status_wrap(status, "%s:%d", reader->file, line);
}

status_t reader_error(const struct reader *reader, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    status_t status = status_new_v(STATUS_INVALID_ARGUMENT, format, args);
    va_end(args);
    return reader_wrap(reader, line, status);
}

status_t reader_count_name(struct reader *reader, int line, size_t length)
{
    reader->name_bytes += length;
    if (reader->name_bytes <= MODEL_MAX_NAME_BYTES) return NULL;
    return reader_error(reader, line, "all names together are longer than %d MiB",
                        MODEL_MAX_NAME_BYTES >> 20);
}

const char *skip_python_prefix(const char *text)
{
    static const char *const prefixes[] = {
        "torch.nn.functional.", "nn.functional.", "torch.nn.", "torch.", "nn.", "F.", "self."};
    for (size_t i = 0; i < COUNT_OF(prefixes); i++)
        if (strncmp(text, prefixes[i], strlen(prefixes[i])) == 0) return text + strlen(prefixes[i]);
    return text;
}

/* Reads the shape of one sample, an image for example, or of its targets. */
static status_t read_shape(struct reader *reader, const struct yamldoc_node *input,
                           const char *expected, struct tensor_type *shape)
{
    TRY(yamldoc_expect_sequence(input, expected));
    if (input->item_count < 1 || input->item_count >= TENSOR_MAX_DIMS)
        return yamldoc_key_error(input, "expected 1 to %d dimensions, found %d",
                                 TENSOR_MAX_DIMS - 1, input->item_count);
    int64_t dims[TENSOR_MAX_DIMS] = {0};
    for (int i = 0; i < input->item_count; i++)
        TRY(reader_read_size(reader, input->items[i], &dims[i]));
    struct tensor_type type = tensor_type_make(DTYPE_F32, input->item_count, dims);
    if (tensor_element_count(&type) < 0)
        return yamldoc_key_error(input, "one sample has more than 2^40 elements");
    *shape = type;
    return NULL;
}

static status_t refuse_key(const struct yamldoc_node *root, const char *key, const char *why)
{
    const struct yamldoc_node *node = yamldoc_get(root, key);
    return node ? yamldoc_key_error(node, "%s", why) : NULL;
}

static status_t read_size(const struct reader *reader, const struct yamldoc_node *root,
                          const char *key, int64_t *value)
{
    struct yamldoc_node *node = NULL;
    TRY(yamldoc_require(root, key, &node));
    return reader_read_size(reader, node, value);
}

/* The keys that say what the targets are; one whose value is None is as if it were missing. */
static status_t find_target(const struct reader *reader, const struct yamldoc_node *root,
                            const struct yamldoc_node **found)
{
    static const char *const keys[] = {"classes", "targets", "token_classes", "texts"};
    *found = NULL;
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        const struct yamldoc_node *node = yamldoc_get(root, keys[i]);
        bool none = false;
        if (node == NULL) continue;
        TRY(reader_is_none(reader, node, &none));
        if (none) continue;
        if (*found != NULL)
            return yamldoc_key_error(node, "a model has either '%s' or '%s'", (*found)->key,
                                     keys[i]);
        *found = node;
    }
    return NULL;
}

/* Numbers: a shape, or an expression for the size of the only dimension. */
static status_t read_numbers(struct reader *reader, const struct yamldoc_node *node)
{
    struct tensor_type *targets = &reader->model->targets;
    int64_t size = 0;
    if (node->kind != YAMLDOC_SCALAR)
        return read_shape(reader, node, "the shape of one sample's targets such as [1]", targets);
    TRY(reader_read_size(reader, node, &size));
    *targets = tensor_type_make(DTYPE_F32, 1, &size);
    return NULL;
}

/* The texts of one sample, which are compared with those of the others. */
static status_t read_texts(const struct reader *reader, const struct yamldoc_node *node)
{
    struct model *model = reader->model;
    model->target = TARGET_PAIR;
    model->class_count = 1;
    if (!model->tokens) return yamldoc_key_error(node, "is only for models with 'input: tokens'");
    TRY(reader_read_size(reader, node, &model->texts));
    if (model->texts >= 2 && model->texts <= MODEL_MAX_TEXTS) return NULL;
    return yamldoc_key_error(node, "expected 2 to %d texts in a sample, found %lld",
                             MODEL_MAX_TEXTS, (long long)model->texts);
}

static status_t read_target(struct reader *reader, const struct yamldoc_node *root)
{
    struct model *model = reader->model;
    const struct yamldoc_node *node = NULL;
    TRY(find_target(reader, root, &node));
    if (node == NULL && model->input_count > 0) {
        model->target = TARGET_PAIR;
        model->class_count = 1;
        return NULL;
    }
    if (node == NULL) {
        model->target = model->tokens ? TARGET_TOKEN : TARGET_CLASS;
        model->class_count = model->vocabulary;
        return model->tokens ? NULL : read_size(reader, root, "classes", &model->class_count);
    }
    if (strcmp(node->key, "targets") == 0) {
        model->target = TARGET_NUMBERS;
        return read_numbers(reader, node);
    }
    if (strcmp(node->key, "texts") == 0) return read_texts(reader, node);
    bool of_tokens = strcmp(node->key, "token_classes") == 0;
    model->target = of_tokens ? TARGET_TOKEN_CLASS : TARGET_CLASS;
    if (of_tokens && !model->tokens)
        return yamldoc_key_error(node, "is only for models with 'input: tokens'");
    return reader_read_size(reader, node, &model->class_count);
}

static bool is_tokens(const struct yamldoc_node *input)
{
    return input->kind == YAMLDOC_SCALAR && strcmp(input->text, "tokens") == 0;
}

/* The vocabulary and the length of those of several inputs that are tokens. */
static status_t read_token_inputs(struct reader *reader, const struct yamldoc_node *root,
                                  int64_t *length)
{
    int64_t *vocabulary = &reader->model->vocabulary;
    TRY(read_size(reader, root, "context", length));
    TRY(read_size(reader, root, "vocabulary", vocabulary));
    if (*vocabulary <= OP_MAX_TOKENS) return NULL;
    return yamldoc_key_error(yamldoc_get(root, "vocabulary"),
                             "expected at most %d beside other inputs, found %lld", OP_MAX_TOKENS,
                             (long long)*vocabulary);
}

static status_t check_input_name(const struct reader *reader, const struct yamldoc_node *node)
{
    static const char *const taken[] = {"output", "target", "targets"};
    const char *name = node->key;
    bool fits = name_is_valid(name) && environment_find(&reader->environment, name) == NULL;
    for (size_t i = 0; i < COUNT_OF(taken); i++) fits = fits && strcmp(name, taken[i]) != 0;
    char found[72];
    if (fits) return NULL;
    return reader_error(reader, node->key_line, "an input cannot be called '%s'",
                        yamldoc_excerpt(name, found));
}

/* "input: {image: [3, 32, 32], text: tokens}" */
static status_t read_inputs(struct reader *reader, const struct yamldoc_node *root,
                            const struct yamldoc_node *inputs)
{
    struct model *model = reader->model;
    int64_t row = 0, length = 0;
    bool numbers = false;
    if (inputs->item_count < 2 || inputs->item_count > MODEL_MAX_INPUTS)
        return yamldoc_key_error(inputs, "expected 2 to %d inputs, found %d", MODEL_MAX_INPUTS,
                                 inputs->item_count);
    for (int i = 0; i < inputs->item_count; i++) {
        const struct yamldoc_node *node = inputs->items[i];
        struct tensor_type type;
        TRY(check_input_name(reader, node));
        if (is_tokens(node)) {
            if (length == 0) TRY(read_token_inputs(reader, root, &length));
            type = tensor_type_make(DTYPE_I32, 1, &length);
        } else {
            TRY(read_shape(reader, node, "its shape such as [3, 32, 32], or tokens", &type));
            numbers = true;
        }
        model->inputs[model->input_count++] =
            (struct model_input){.name = mem_strdup(node->key), .type = type, .start = row};
        row += tensor_element_count(&type);
    }
    model->input = tensor_type_make(DTYPE_F32, 1, &row);
    if (!numbers)
        return yamldoc_key_error(inputs, "expected one that is not tokens; several texts are one "
                                         "input with 'texts'");
    if (tensor_element_count(&model->input) < 0)
        return yamldoc_key_error(inputs, "one sample has more than 2^40 elements");
    return NULL;
}

static status_t read_input(struct reader *reader, const struct yamldoc_node *root)
{
    struct yamldoc_node *input = NULL;
    struct model *model = reader->model;
    TRY(yamldoc_require(root, "input", &input));
    model->tokens = is_tokens(input);
    model->padding = -1;
    model->texts = 1;
    if (!model->tokens) {
        static const char why[] = "is only for models with 'input: tokens'";
        if (input->kind == YAMLDOC_MAPPING) TRY(read_inputs(reader, root, input));
        else
            TRY(read_shape(reader, input, "one sample's shape such as [1, 28, 28], or tokens",
                           &model->input));
        if (model->vocabulary == 0) TRY(refuse_key(root, "vocabulary", why));
        if (model->vocabulary == 0) TRY(refuse_key(root, "context", why));
        return read_target(reader, root);
    }
    TRY(read_size(reader, root, "vocabulary", &model->vocabulary));
    TRY(read_size(reader, root, "context", &model->context));
    model->input = tensor_type_make(DTYPE_I32, 1, &model->context);
    return read_target(reader, root);
}

static status_t read_loss(struct reader *reader, const struct yamldoc_node *root)
{
    struct yamldoc_node *node = NULL;
    const char *text = NULL;
    TRY(yamldoc_require(root, "loss", &node));
    TRY(yamldoc_read_text(node, "a call such as nll_loss(output, target)", &text));
    reader->loss = mem_alloc(sizeof *reader->loss);
    reader->loss->line = node->line;
    return reader_wrap(reader, node->line,
                       status_wrap(expression_parse(text, &reader->loss->value), "loss"));
}

static status_t read_model(struct reader *reader, const struct yamldoc_node *root,
                           const struct model_argument *arguments, int argument_count)
{
    static const char *const keys[] = {"name",          "input",  "classes",    "targets",
                                       "token_classes", "texts",  "vocabulary", "context",
                                       "args",          "blocks", "modules",    "forward",
                                       "loss",          "init",   "tie",        "freeze"};
    TRY(yamldoc_expect_mapping(root, "a mapping with the keys name, input, classes, ..."));
    TRY(yamldoc_check_keys(root, keys, COUNT_OF(keys)));
    TRY(arguments_read(reader, yamldoc_get(root, "args"), arguments, argument_count));
    TRY(read_input(reader, root));
    TRY(definitions_read(reader, root));
    TRY(read_loss(reader, root));
    TRY(model_construct(reader));
    TRY(model_trace(reader));
    TRY(model_set_init(reader, yamldoc_get(root, "init")));
    TRY(model_tie(reader, yamldoc_get(root, "tie")));
    return model_freeze(reader->model, yamldoc_get(root, "freeze"));
}

static void reader_deinit(struct reader *reader)
{
    for (int i = 0; i < reader->model->module_count && i < reader->state_capacity; i++) {
        free(reader->states[i].arguments);
        free(reader->states[i].function_uses);
        free(reader->states[i].sorted_children);
    }
    free(reader->states);
    for (int i = 0; i < reader->definition_count; i++) definition_deinit(&reader->definitions[i]);
    free(reader->definitions);
    for (int i = 0; i < reader->list_count; i++) free(reader->lists[i]);
    free(reader->lists);
    statement_free(reader->loss);
}

status_t model_parse(const char *text, size_t length, const char *file_name, struct model **model)
{
    return model_parse_with(text, length, file_name, NULL, 0, model);
}

status_t model_parse_with(const char *text, size_t length, const char *file_name,
                          const struct model_argument *arguments, int argument_count,
                          struct model **model)
{
    struct yamldoc *document = NULL;
    TRY(yamldoc_parse(text, length, file_name, &document));
    struct model *made = mem_alloc(sizeof *made);
    made->program = mem_alloc(sizeof *made->program);
    made->program->file_name = mem_strdup(file_name);
    struct reader reader = {.file = file_name, .model = made};
    reader.environment =
        (struct environment){.names = reader.argument_names, .values = reader.argument_values};
    status_t status = read_model(&reader, document->root, arguments, argument_count);
    reader_deinit(&reader);
    yamldoc_free(document);
    if (status) {
        model_free(made);
        return status;
    }
    *model = made;
    return NULL;
}
