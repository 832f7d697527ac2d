/* The keys `tie` and `freeze`: which parameters share memory, and which are not trained. */
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "model/reader.h"

enum { MAX_TIES = 256, MAX_GLOBS = 64, MAX_GLOB_LENGTH = 256 };

static status_t find_parameter(const struct model *model, const struct yamldoc_node *node,
                               const char *name, int *index)
{
    int found = model_find_parameter(model, name);
    if (found >= 0) {
        *index = found;
        return NULL;
    }
    size_t count = (size_t)model->parameter_count;
    AUTO_FREE const char **names = mem_alloc_array(count, sizeof *names);
    for (size_t i = 0; i < count; i++) names[i] = model->parameters[i].name;
    const char *nearest = text_nearest(name, names, count);
    char excerpt[72];
    return yamldoc_key_error(node, "the model has no parameter '%s'%s%s%s",
                             yamldoc_excerpt(name, excerpt), nearest ? "; did you mean '" : "",
                             nearest ? nearest : "", nearest ? "'?" : "");
}

static int root_of(const struct model *model, int parameter)
{
    int tied_to = model->parameters[parameter].tied_to;
    return tied_to < 0 ? parameter : tied_to;
}

/* Makes `root` the owner of all memory that `other` owned. */
static void join(struct model *model, int root, int other)
{
    for (int i = 0; i < model->parameter_count; i++)
        if (i == other || model->parameters[i].tied_to == other)
            model->parameters[i].tied_to = root;
}

/* Keeps the initial value of `from`, as PyTorch's "a.weight = b.weight" does. */
static void swap_initial_values(struct parameter *keeper, struct parameter *from)
{
    struct parameter old = *keeper;
    keeper->init = from->init;
    keeper->bound = from->bound;
    keeper->has_zero_row = from->has_zero_row;
    keeper->zero_row = from->zero_row;
    keeper->init_order = from->init_order;
    from->init = old.init;
    from->bound = old.bound;
    from->has_zero_row = old.has_zero_row;
    from->zero_row = old.zero_row;
    from->init_order = old.init_order;
}

static status_t tie_parameters(struct model *model, const struct yamldoc_node *node,
                               const char *source_name)
{
    int target = -1, source = -1;
    TRY(find_parameter(model, node, node->key, &target));
    TRY(find_parameter(model, node, source_name, &source));
    struct parameter *a = &model->parameters[target], *b = &model->parameters[source];
    if (!tensor_same_shape(&a->type, &b->type)) {
        char a_shape[128], b_shape[128];
        return yamldoc_key_error(node, "shapes differ: %s is %s, %s is %s", a->name,
                                 tensor_format_shape(&a->type, a_shape), b->name,
                                 tensor_format_shape(&b->type, b_shape));
    }
    if (a->buffer != MODEL_BUFFER_NONE || b->buffer != MODEL_BUFFER_NONE)
        return yamldoc_key_error(node, "%s is a buffer, which cannot be tied",
                                 a->buffer != MODEL_BUFFER_NONE ? a->name : b->name);
    int target_root = root_of(model, target), source_root = root_of(model, source);
    if (target_root == source_root)
        return yamldoc_key_error(node, "%s and %s are one parameter already", a->name, b->name);
    if (target_root < source_root) {
        swap_initial_values(&model->parameters[target_root], &model->parameters[source_root]);
        join(model, target_root, source_root);
    } else {
        join(model, source_root, target_root);
    }
    return NULL;
}

/* "encoder.weight", or "encoder.weight if tied else None". */
static status_t tie_one(const struct reader *reader, const struct yamldoc_node *node)
{
    const char *text = NULL;
    struct constant value;
    TRY(yamldoc_read_text(node, "the name of a parameter", &text));
    const char *condition = strstr(text, " if ");
    if (!condition) return tie_parameters(reader->model, node, text);
    AUTO_FREE char *choice = mem_printf("True%s", condition);
    status_t status = reader_evaluate(reader, node, choice, &value);
    if (status || value.kind == CONSTANT_NONE) return status;
    if (value.kind != CONSTANT_BOOLEAN || !value.integer)
        return yamldoc_expected(node, "NAME if CONDITION else None");
    AUTO_FREE char *name = mem_strndup(text, (size_t)(condition - text));
    status = tie_parameters(reader->model, node, name);
    return status;
}

status_t model_tie(struct reader *reader, const struct yamldoc_node *tie)
{
    if (!tie) return NULL;
    TRY(yamldoc_expect_mapping(tie, "a mapping from parameters to parameters"));
    if (tie->item_count > MAX_TIES) return yamldoc_key_error(tie, "more than %d entries", MAX_TIES);
    for (int i = 0; i < tie->item_count; i++) TRY(tie_one(reader, tie->items[i]));
    return NULL;
}

static status_t freeze_matching(struct model *model, const struct yamldoc_node *node)
{
    const char *glob = NULL;
    TRY(yamldoc_read_text(node, "a pattern such as conv1.*", &glob));
    if (strlen(glob) > MAX_GLOB_LENGTH)
        return yamldoc_key_error(node, "longer than %d letters", MAX_GLOB_LENGTH);
    bool matched = false;
    for (int i = 0; i < model->parameter_count; i++) {
        if (!text_glob_match(glob, model->parameters[i].name)) continue;
        matched = true;
        model->parameters[root_of(model, i)].trainable = false;
    }
    char excerpt[72];
    if (!matched)
        return yamldoc_key_error(node, "no parameter matches '%s'", yamldoc_excerpt(glob, excerpt));
    return NULL;
}

status_t model_freeze(struct model *model, const struct yamldoc_node *freeze)
{
    if (!freeze) return NULL;
    TRY(yamldoc_expect_sequence(freeze, "a list of patterns of parameter names"));
    if (freeze->item_count > MAX_GLOBS)
        return yamldoc_key_error(freeze, "more than %d patterns", MAX_GLOBS);
    for (int i = 0; i < freeze->item_count; i++) TRY(freeze_matching(model, freeze->items[i]));
    for (int i = 0; i < model->parameter_count; i++) /* tied parameters are frozen together */
        model->parameters[i].trainable = model->parameters[root_of(model, i)].trainable;
    return NULL;
}
