/* The key `init`: initial values by patterns of parameter names, instead of PyTorch's. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "model/reader.h"

enum { MAX_RULES = 64, MAX_GLOB_LENGTH = 256 };

/* "zeros: true", or in braces only "zeros". */
static status_t read_flag(const struct yamldoc_node *node)
{
    bool value = true;
    if (!yamldoc_is_null(node)) TRY(yamldoc_read_bool(node, &value));
    return value ? NULL : yamldoc_key_error(node, "expected true, or the rule left out");
}

/* One rule's values as an otherwise empty parameter's. */
static status_t read_values(const struct yamldoc_node *rule, struct parameter *values)
{
    static const char *const keys[] = {"match", "normal", "uniform", "zeros", "ones"};
    TRY(yamldoc_expect_mapping(rule, "a rule such as {match: \"*.bias\", zeros: true}"));
    TRY(yamldoc_check_keys(rule, keys, sizeof keys / sizeof keys[0]));
    if (rule->item_count != 2 || !yamldoc_get(rule, "match"))
        return yamldoc_key_error(rule, "expected match and one of normal, uniform, zeros and ones");
    for (int i = 0; i < rule->item_count; i++) {
        const struct yamldoc_node *node = rule->items[i];
        if (strcmp(node->key, "match") == 0) continue;
        bool normal = strcmp(node->key, "normal") == 0, zeros = strcmp(node->key, "zeros") == 0;
        if (normal || strcmp(node->key, "uniform") == 0) {
            TRY(yamldoc_read_f64(node, 0, 1e30, &values->bound));
            values->init = normal ? INIT_NORMAL : INIT_UNIFORM;
        } else {
            TRY(read_flag(node));
            values->init = zeros ? INIT_ZEROS : INIT_ONES;
        }
    }
    return NULL;
}

/* `set` says by parameter whether an earlier rule had it. */
static status_t apply_rule(struct model *model, const struct yamldoc_node *rule, bool *set)
{
    struct parameter values = {.init = INIT_ZEROS};
    TRY(read_values(rule, &values));
    const char *glob = NULL;
    const struct yamldoc_node *match = yamldoc_get(rule, "match");
    TRY(yamldoc_read_text(match, "a pattern such as *.bias", &glob));
    if (strlen(glob) > MAX_GLOB_LENGTH)
        return yamldoc_key_error(match, "longer than %d letters", MAX_GLOB_LENGTH);
    bool matched = false;
    for (int i = 0; i < model->parameter_count; i++) {
        if (!text_glob_match(glob, model->parameters[i].name)) continue;
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

status_t model_set_init(struct model *model, const struct yamldoc_node *init)
{
    if (!init) return NULL;
    TRY(yamldoc_expect_sequence(init, "a list of rules such as {match: \"*.bias\", zeros: true}"));
    if (init->item_count > MAX_RULES)
        return yamldoc_key_error(init, "more than %d rules", MAX_RULES);
    bool *set = mem_alloc_array((size_t)model->parameter_count + 1, sizeof *set);
    status_t status = NULL;
    for (int i = 0; i < init->item_count && !status; i++)
        status = apply_rule(model, init->items[i], set);
    free(set);
    return status;
}
