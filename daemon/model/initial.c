/* The key `init`: initial values by patterns of parameter names, instead of PyTorch's. */
#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "base/text.h"
#include "model/reader.h"

enum { MAX_RULES = 64, MAX_GLOB_LENGTH = 256 };

/* "zeros: true", or in braces just "zeros". An expression that is False disables the rule. */
static status_t read_flag(const struct reader *reader, const struct yamldoc_node *node, bool *value)
{
    *value = true;
    if (yamldoc_is_null(node)) return NULL;
    if (!node->quoted && node->text != NULL && strcmp(node->text, "false") == 0)
        return yamldoc_key_error(node, "expected true, or the rule left out");
    return reader_read_flag(reader, node, value);
}

/* A number for all values; an expression that is None disables the rule. */
static status_t read_constant(const struct reader *reader, const struct yamldoc_node *node,
                              struct parameter *values, bool *holds)
{
    struct constant value = {.kind = CONSTANT_INTEGER};
    values->init = INIT_CONSTANT;
    if (!node->quoted && node->text != NULL)
        TRY(reader_evaluate(reader, node, node->text, &value));
    *holds = value.kind != CONSTANT_NONE;
    if (!*holds) return NULL;
    return reader_read_real(reader, node, -1e30, 1e30, &values->bound);
}

/* Reads one rule's values into an otherwise empty parameter; *holds is false if the rule is
 * disabled. */
static status_t read_values(const struct reader *reader, const struct yamldoc_node *rule,
                            struct parameter *values, bool *holds)
{
    static const char *const keys[] = {"match", "normal", "uniform",
                                       "constant", "zeros", "ones"};
    TRY(yamldoc_expect_mapping(rule, "a rule such as {match: \"*.bias\", zeros: true}"));
    TRY(yamldoc_check_keys(rule, keys, COUNT_OF(keys)));
    if (rule->item_count != 2 || !yamldoc_get(rule, "match"))
        return yamldoc_key_error(
            rule, "expected match and one of normal, uniform, constant, zeros and ones");
    for (int i = 0; i < rule->item_count; i++) {
        const struct yamldoc_node *node = rule->items[i];
        if (strcmp(node->key, "match") == 0) continue;
        bool normal = strcmp(node->key, "normal") == 0, zeros = strcmp(node->key, "zeros") == 0;
        if (strcmp(node->key, "constant") == 0) {
            TRY(read_constant(reader, node, values, holds));
        } else if (normal || strcmp(node->key, "uniform") == 0) {
            TRY(reader_read_real(reader, node, 0, 1e30, &values->bound));
            values->init = normal ? INIT_NORMAL : INIT_UNIFORM;
        } else {
            TRY(read_flag(reader, node, holds));
            values->init = zeros ? INIT_ZEROS : INIT_ONES;
        }
    }
    return NULL;
}

/* `set`, by parameter: an earlier rule has set its initial values. */
static status_t apply_rule(const struct reader *reader, const struct yamldoc_node *rule, bool *set)
{
    struct model *model = reader->model;
    struct parameter values = {.init = INIT_ZEROS};
    bool holds = true;
    TRY(read_values(reader, rule, &values, &holds));
    if (!holds) return NULL;
    const char *glob = NULL;
    const struct yamldoc_node *match = yamldoc_get(rule, "match");
    TRY(yamldoc_read_text(match, "a pattern such as *.bias", &glob));
    if (strlen(glob) > MAX_GLOB_LENGTH)
        return yamldoc_key_error(match, "longer than %d letters", MAX_GLOB_LENGTH);
    bool matched = false;
    for (int i = 0; i < model->parameter_count; i++) {
        if (!text_glob_match(glob, model->parameters[i].name)) continue;
        if (model->parameters[i].buffer != MODEL_BUFFER_NONE) continue;
        matched = true;
        if (set[i]) continue;
        set[i] = true;
        model->parameters[i].init = values.init;
        model->parameters[i].bound = values.bound;
    }
    char excerpt[72];
    if (matched) return NULL;
    return yamldoc_key_error(match, "no parameter matches '%s'", yamldoc_excerpt(glob, excerpt));
}

status_t model_set_init(struct reader *reader, const struct yamldoc_node *init)
{
    const struct model *model = reader->model;
    if (!init) return NULL;
    TRY(yamldoc_expect_sequence(init, "a list of rules such as {match: \"*.bias\", zeros: true}"));
    if (init->item_count > MAX_RULES)
        return yamldoc_key_error(init, "more than %d rules", MAX_RULES);
    AUTO_FREE bool *set = mem_alloc_array((size_t)model->parameter_count + 1, sizeof *set);
    status_t status = NULL;
    for (int i = 0; i < init->item_count && !status; i++)
        status = apply_rule(reader, init->items[i], set);
    return status;
}
