/*
 * The names of tensors in files; see hf.h. Files of the bare model leave the prefix out, old ones
 * have names that were changed since, and there are buffers and heads that nothing here needs. All
 * of it is in the family's file.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "hf/family.h"

static bool matches(const struct yamldoc_node *patterns, const char *name)
{
    for (int i = 0; i < family_count(patterns); i++)
        if (text_glob_match(family_text(patterns, i), name)) return true;
    return false;
}

static bool starts_with(const char *name, const char *start)
{
    return strncmp(name, start, strlen(start)) == 0;
}

/* "LayerNorm.gamma": such an end becomes "LayerNorm.weight". */
static char *modernise(const struct yamldoc_node *old_names, char *name)
{
    size_t length = strlen(name);
    for (int i = 0; i < family_count(old_names); i++) {
        const char *old = old_names->items[i]->key, *modern = family_text(old_names, i);
        if (length < strlen(old) || strcmp(name + length - strlen(old), old) != 0) continue;
        char *changed = mem_printf("%.*s%s", (int)(length - strlen(old)), name, modern);
        free(name);
        return changed;
    }
    return name;
}

/* "model.language_model.": such a start becomes "language_model.model.". */
static char *restart(const struct yamldoc_node *starts, const char *name)
{
    for (int i = 0; i < family_count(starts); i++)
        if (starts_with(name, starts->items[i]->key))
            return mem_printf("%s%s", family_text(starts, i), name + strlen(starts->items[i]->key));
    return mem_strdup(name);
}

/* The parameter's name: with the prefix, or without it. */
static char *full_name(const struct hf_family *family, const char *name)
{
    const struct yamldoc_node *bare = yamldoc_get(family->tensors, "bare");
    const struct yamldoc_node *node = yamldoc_get(family->tensors, "prefix");
    const char *prefix = node != NULL ? node->text : "";
    if (family_flag(yamldoc_get(family->trained, "bare")))
        return mem_strdup(starts_with(name, prefix) ? name + strlen(prefix) : name);
    for (int i = 0; i < family_count(bare); i++)
        if (starts_with(name, family_text(bare, i))) return mem_printf("%s%s", prefix, name);
    return mem_strdup(name);
}

char *hf_parameter_name(const struct hf_family *family, const char *name, enum hf_tensor *kind)
{
    const struct yamldoc_node *names = yamldoc_get(family->tensors, "names");
    *kind = matches(yamldoc_get(family->tensors, "buffers"), name)       ? HF_TENSOR_BUFFER
            : matches(yamldoc_get(family->trained, "other_heads"), name) ? HF_TENSOR_OTHER_HEAD
                                                                         : HF_TENSOR_PARAMETER;
    if (*kind != HF_TENSOR_PARAMETER) return NULL;
    for (int i = 0; i < family_count(names); i++) {
        if (strcmp(name, names->items[i]->key) != 0) continue;
        *kind = HF_TENSOR_COPY; /* transformers computes with the parameter of the other name */
        return mem_strdup(family_text(names, i));
    }
    AUTO_FREE char *started = restart(yamldoc_get(family->tensors, "starts"), name);
    return modernise(yamldoc_get(family->tensors, "old_names"), full_name(family, started));
}

bool hf_parameter_is_new(const struct hf_family *family, const char *parameter)
{
    return family->has_new && matches(yamldoc_get(family->trained, "new"), parameter);
}

int64_t hf_parameter_grid(const struct hf_family *family, const char *parameter)
{
    int64_t row = -1;
    const struct yamldoc_node *grids = yamldoc_get(family->tensors, "grids");
    status_free(yamldoc_read_i64(yamldoc_get(grids, parameter), 0, INT32_MAX, &row));
    return row;
}

const char *hf_export_name(const struct hf_family *family, const char *parameter)
{
    const struct yamldoc_node *left_out = yamldoc_get(family->tensors, "left_out");
    const struct yamldoc_node *names = yamldoc_get(family->tensors, "names");
    for (int i = 0; i < family_count(left_out); i++)
        if (family->left_out[i] && strcmp(parameter, left_out->items[i]->key) == 0) return NULL;
    for (int i = 0; i < family_count(names); i++)
        if (strcmp(parameter, family_text(names, i)) == 0) return names->items[i]->key;
    return parameter;
}
