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
    for (int i = 0; i < family_text_count(patterns); i++)
        if (text_glob_match(family_text(patterns, i), name)) return true;
    return false;
}

static bool is_bare(const struct hf_family *family, const char *name)
{
    for (int i = 0; i < family_text_count(family->bare); i++) {
        const char *start = family_text(family->bare, i);
        if (strncmp(name, start, strlen(start)) == 0) return true;
    }
    return false;
}

/* "*LayerNorm.gamma": its end becomes that of "*LayerNorm.weight". */
static void modernise(const struct hf_family *family, char **name)
{
    size_t length = strlen(*name);
    for (int i = 0; family->old_names != NULL && i < family->old_names->item_count; i++) {
        const struct yamldoc_node *pair = family->old_names->items[i];
        size_t old = strlen(pair->key) - 1;
        if (length < old || strcmp(*name + length - old, pair->key + 1) != 0) continue;
        char *modern = mem_printf("%.*s%s", (int)(length - old), *name, pair->text + 1);
        free(*name);
        *name = modern;
        return;
    }
}

char *hf_parameter_name(const struct hf_family *family, const char *name, enum hf_tensor *kind)
{
    *kind = matches(family->buffers, name)       ? HF_TENSOR_BUFFER
            : matches(family->other_heads, name) ? HF_TENSOR_OTHER_HEAD
                                                 : HF_TENSOR_PARAMETER;
    if (*kind != HF_TENSOR_PARAMETER) return NULL;
    for (int i = 0; family->names != NULL && i < family->names->item_count; i++) {
        const struct yamldoc_node *pair = family->names->items[i];
        if (strcmp(name, pair->key) == 0) return mem_strdup(pair->text);
        if (strcmp(name, pair->text) == 0) *kind = HF_TENSOR_COPY;
    }
    char *full =
        is_bare(family, name) ? mem_printf("%s%s", family->prefix, name) : mem_strdup(name);
    modernise(family, &full);
    return full;
}

bool hf_parameter_is_new(const struct hf_family *family, const char *parameter)
{
    return matches(family->fresh, parameter);
}

const char *hf_export_name(const struct hf_family *family, const struct hf_model *model,
                           const char *parameter)
{
    for (int i = 0; i < family->left_out_count; i++)
        if (model->left_out[i] && strcmp(parameter, family->left_out[i].parameter) == 0)
            return NULL;
    for (int i = 0; family->names != NULL && i < family->names->item_count; i++)
        if (strcmp(parameter, family->names->items[i]->text) == 0)
            return family->names->items[i]->key;
    return parameter;
}
