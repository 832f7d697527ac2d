/*
 * The policies `type` (PyTorch's transformer_auto_wrap_policy: every instance of the listed types,
 * also inside one another) and `match` (patterns of modules' paths). Pure functions; any thread.
 *
 * Because '*' crosses dots, "layers.*" matches the layers and everything inside them, though only
 * the layers are meant: a pattern selects the outermost modules that it matches. To nest units,
 * list a pattern for each depth.
 */
#include "fsdp/wrap_names.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

static bool is_listed(const char *name, const char *const *list, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(list[i], name) == 0) return true;
    return false;
}

/* "; did you mean 'X'?" or "". Caller frees. */
static char *suggestion(const char *nearest)
{
    return nearest != NULL ? mem_printf("; did you mean '%s'?", nearest) : mem_strdup("");
}

/* Names of the model's types, except its own, and of the `known` ones. */
static const char *nearest_type(const struct model *model, const char *type,
                                const char *const *known, int known_count)
{
    size_t count = 0;
    const char **types =
        mem_alloc_array((size_t)(model->module_count + known_count), sizeof *types);
    for (int m = 1; m < model->module_count; m++) types[count++] = model->modules[m].type;
    for (int i = 0; i < known_count; i++) types[count++] = known[i];
    const char *nearest = text_nearest(type, types, count);
    free(types);
    return nearest;
}

static bool has_type(const struct model *model, const char *type)
{
    for (int m = 1; m < model->module_count; m++)
        if (strcmp(model->modules[m].type, type) == 0) return true;
    return false;
}

static status_t unknown_type(const struct model *model, const char *what, const char *type,
                             const char *const *known, int known_count)
{
    if (strcmp(type, model->modules[0].type) == 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "%s: '%s' is the model itself, which is always the root unit", what,
                          type);
    char *meant = suggestion(nearest_type(model, type, known, known_count));
    status_t status = status_new(STATUS_INVALID_ARGUMENT, "%s: %s has no module type '%s'%s", what,
                                 model->modules[0].type, type, meant);
    free(meant);
    return status;
}

status_t wrap_check_types(const struct model *model, const char *what, const char *const *types,
                          int count, const char *const *known, int known_count)
{
    for (int i = 0; i < count; i++)
        if (!is_listed(types[i], known, known_count) && !has_type(model, types[i]))
            return unknown_type(model, what, types[i], known, known_count);
    return NULL;
}

status_t wrap_by_type(const struct model *model, const int64_t *subtree, const char *const *types,
                      int count, bool *wrapped)
{
    if (count <= 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "fsdp.wrap.types: lists no module types; use the policy none for one "
                          "unit");
    for (int i = 0; i < count; i++) {
        int64_t elements = 0;
        bool found = false;
        for (int m = 1; m < model->module_count; m++) {
            if (strcmp(model->modules[m].type, types[i]) != 0) continue;
            wrapped[m] = found = true;
            elements += subtree[m];
        }
        if (!found) return unknown_type(model, "fsdp.wrap.types", types[i], NULL, 0);
        if (elements == 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "fsdp.wrap.types: the modules of type '%s' have no parameters to "
                              "shard",
                              types[i]);
    }
    return NULL;
}

static bool has_teacher(const struct model *model)
{
    for (int p = 0; p < model->parameter_count; p++)
        if (model->parameters[p].reference && model->parameters[p].of < 0) return true;
    return false;
}

static bool is_of_teacher(const struct model *model, int module)
{
    return strncmp(model->modules[module].path, "teacher.", strlen("teacher.")) == 0;
}

/* If the model is `taught`, only of the teacher's, or of all others; -1: there is none. */
static int largest_list(const struct model *model, const int64_t *subtree, bool taught,
                        bool teachers)
{
    int list = -1;
    for (int m = 1; m < model->module_count; m++) {
        if (taught && is_of_teacher(model, m) != teachers) continue;
        if (strcmp(model->modules[m].type, "ModuleList") == 0 && subtree[m] > 0 &&
            (list < 0 || subtree[m] > subtree[list]))
            list = m;
    }
    return list;
}

int wrap_blocks(const struct model *model, const int64_t *subtree, bool *wrapped, const char **type)
{
    bool taught = has_teacher(model);
    int count = 0, types = 0;
    *type = NULL;
    for (int teachers = 0; teachers <= taught && model->tokens; teachers++) {
        int list = largest_list(model, subtree, taught, teachers);
        for (int i = 0; list >= 0 && i < model->modules[list].child_count; i++) {
            int block = model->modules[list].children[i];
            const char *own = model->modules[block].type;
            if (wrapped[block]) continue;
            for (int m = 1; m < model->module_count; m++) {
                if (subtree[m] == 0 || strcmp(model->modules[m].type, own) != 0) continue;
                wrapped[m] = true;
                count++;
            }
            *type = types++ == 0 ? own : NULL;
        }
    }
    return count;
}

/* The elements of the module's own parameters, without its children's; 0 if one is tied. */
static int64_t count_own(const struct model *model, int module)
{
    int64_t elements = 0;
    for (int p = 0; p < model->parameter_count; p++) {
        const struct parameter *parameter = &model->parameters[p];
        int tied = parameter->tied_to;
        if (tied >= 0 && (parameter->module == module || model->parameters[tied].module == module))
            return 0;
        if (parameter->module == module && parameter->buffer == MODEL_BUFFER_NONE)
            elements += tensor_element_count(&parameter->type);
    }
    return elements;
}

void wrap_larger(const struct model *model, const int64_t *subtree, const bool *blocks,
                 bool *larger)
{
    bool taught = has_teacher(model);
    int64_t largest[2] = {0, 0}; /* of the model, and of its teacher */
    for (int m = 1; m < model->module_count; m++) {
        int64_t *side = &largest[taught && is_of_teacher(model, m)];
        if (blocks[m] && subtree[m] > *side) *side = subtree[m];
    }
    bool *inside = mem_alloc_array((size_t)model->module_count, sizeof *inside);
    for (int m = 1; m < model->module_count; m++) {
        inside[m] = blocks[m] || inside[model->modules[m].parent];
        larger[m] = !inside[m] && count_own(model, m) > largest[taught && is_of_teacher(model, m)];
    }
    free(inside);
}

static status_t unmatched(const struct model *model, const char *pattern, bool without_parameters)
{
    if (without_parameters)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "fsdp.wrap.modules: the pattern '%s' matches only modules without "
                          "parameters to shard",
                          pattern);
    const char **paths = mem_alloc_array((size_t)model->module_count, sizeof *paths);
    for (int m = 1; m < model->module_count; m++) paths[m - 1] = model->modules[m].path;
    char *meant = suggestion(text_nearest(pattern, paths, (size_t)model->module_count - 1));
    free(paths);
    status_t status = status_new(STATUS_INVALID_ARGUMENT,
                                 "fsdp.wrap.modules: the pattern '%s' matches no module of %s%s",
                                 pattern, model->modules[0].type, meant);
    free(meant);
    return status;
}

status_t wrap_by_pattern(const struct model *model, const int64_t *subtree,
                         const char *const *patterns, int count, bool *wrapped)
{
    if (count <= 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "fsdp.wrap.modules: lists no patterns; use the policy none for one unit");
    bool *inside = mem_alloc_array((size_t)model->module_count, sizeof *inside);
    status_t status = NULL;
    for (int i = 0; i < count && status == NULL; i++) {
        bool found = false, chosen = false;
        inside[0] = false;
        for (int m = 1; m < model->module_count; m++) {
            inside[m] = inside[model->modules[m].parent];
            if (inside[m] || !text_glob_match(patterns[i], model->modules[m].path)) continue;
            inside[m] = found = true;
            if (subtree[m] > 0) wrapped[m] = chosen = true;
        }
        if (!chosen) status = unmatched(model, patterns[i], found);
    }
    free(inside);
    return status;
}
