/*
 * Which settings each parameter has: those of the first group that matches it, or the optimizer's
 * own; without weight decay, if the job excludes it. Pure functions; any thread.
 */
#include "setup/groups.h"

#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "model/layers.h"

static bool ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), part = strlen(end);
    return length >= part && strcmp(text + length - part, end) == 0;
}

/* Whether weight decay usually applies to it: it is no bias, and of no norm or embedding. */
static bool usually_decays(const struct model *model, int parameter)
{
    const struct parameter *it = &model->parameters[parameter];
    const struct layer_type *type = layer_find_module(model->modules[it->module].type);
    if (ends_in(it->name, ".bias") || ends_in(it->name, "_bias") || strcmp(it->name, "bias") == 0)
        return false;
    if (type == NULL) return true;
    return type->kind != OP_EMBEDDING && type->kind != OP_LAYER_NORM && type->kind != OP_RMS_NORM &&
           type->kind != OP_GROUP_NORM && type->kind != OP_BATCH_NORM;
}

bool optimizer_excludes(const struct optimizer_step *optimizer)
{
    int count = optimizer->group_count;
    return count > 0 && optimizer->groups[count - 1].match == NULL;
}

/* The groups with a pattern; behind them are, if weight decay is excluded, one without it for the
 * optimizer's own settings and one for each of these. */
static int matching_groups(const struct optimizer_step *optimizer)
{
    return optimizer_excludes(optimizer) ? optimizer->group_count / 2 : optimizer->group_count;
}

static status_t match_groups(const struct optimizer_step *optimizer, const struct model *model,
                             int *groups)
{
    for (int g = 0; g < matching_groups(optimizer); g++) {
        const char *match = optimizer->groups[g].match;
        bool found = false, taken = false;
        for (int p = 0; p < model->parameter_count; p++) {
            int ndim = optimizer->groups[g].ndim;
            if (!text_glob_match(match, model->parameters[p].name)) continue;
            if (ndim > 0 && model->parameters[p].type.dim_count != ndim) continue;
            found = found || groups[p] == 0;
            taken = true;
            if (groups[p] == 0) groups[p] = g + 1;
        }
        if (!found)
            return status_new(STATUS_INVALID_ARGUMENT, "optimizer.groups: '%s' matches %s", match,
                              taken ? "only parameters that an earlier group has taken"
                                    : "no parameter of the model");
    }
    return NULL;
}

status_t optimizer_sort_parameters(const struct optimizer_step *optimizer,
                                   const struct model *model, int **groups)
{
    if (optimizer->group_count == 0) return NULL;
    *groups = mem_alloc_array((size_t)model->parameter_count, sizeof **groups);
    TRY(match_groups(optimizer, model, *groups));
    if (!optimizer_excludes(optimizer)) return NULL;
    for (int p = 0; p < model->parameter_count; p++) {
        int group = (*groups)[p];
        bool own = group > 0 && optimizer->groups[group - 1].own_decay;
        if (!own && !usually_decays(model, p))
            (*groups)[p] = matching_groups(optimizer) + 1 + group;
    }
    return NULL;
}

/* Of the last Linear that is not a teacher's or a reference's, which makes the model's output; -1:
 * there is none. */
static int find_head(const struct model *model)
{
    for (int p = model->parameter_count - 1; p >= 0; p--) {
        const struct parameter *it = &model->parameters[p];
        const struct layer_type *type = layer_find_module(model->modules[it->module].type);
        size_t path = strlen(model->modules[it->module].path);
        if (!it->reference && type != NULL && type->kind == OP_LINEAR && it->type.dim_count == 2 &&
            strlen(it->name) > path && strcmp(it->name + path + (path > 0), "weight") == 0)
            return p;
    }
    return -1;
}

static bool is_embedding(const struct model *model, int parameter)
{
    const struct layer_type *type =
        layer_find_module(model->modules[model->parameters[parameter].module].type);
    return type != NULL && type->kind == OP_EMBEDDING;
}

/* What its group says, or a group without weight decay that stands for it. */
static enum optimizer_use use_of(const struct optimizer_step *optimizer, const int *groups,
                                 int parameter)
{
    int group = groups != NULL ? groups[parameter] : 0, matching = matching_groups(optimizer);
    if (group > matching) group -= matching + 1;
    return group > 0 ? optimizer->groups[group - 1].use : USE_DEFAULT;
}

status_t optimizer_find_matrices(const struct optimizer_step *optimizer, const struct model *model,
                                 const int *groups, bool **matrices)
{
    if (!optimizer_takes_matrices(optimizer->kind)) return NULL;
    int head = find_head(model), found = 0;
    *matrices = mem_alloc_array((size_t)model->parameter_count + 1, sizeof **matrices);
    for (int p = 0; p < model->parameter_count; p++) {
        const struct parameter *it = &model->parameters[p];
        enum optimizer_use use = use_of(optimizer, groups, p);
        if (!it->trainable || it->tied_to >= 0 || use == USE_OTHERS) continue;
        if (use == USE_MAIN && it->type.dim_count != 2)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "optimizer.groups: use: main: %s has %d dimensions, but %s updates "
                              "matrices, which have 2",
                              it->name, it->type.dim_count, plan_optimizer_name(optimizer->kind));
        (*matrices)[p] =
            use == USE_MAIN || (it->type.dim_count == 2 && p != head && !is_embedding(model, p));
        found += (*matrices)[p];
    }
    if (found > 0) return NULL;
    return status_new(STATUS_INVALID_ARGUMENT,
                      "optimizer.type: %s updates matrices, but the model trains none besides "
                      "embeddings and its head; choose with optimizer.groups and use: main",
                      plan_optimizer_name(optimizer->kind));
}

void optimizer_count_excluded(const struct optimizer_step *optimizer, const struct model *model,
                              const int *groups, int *parameters, int64_t *elements)
{
    *parameters = 0;
    *elements = 0;
    for (int p = 0; p < model->parameter_count; p++) {
        const struct parameter *parameter = &model->parameters[p];
        bool excluded = groups[p] > matching_groups(optimizer);
        if (!excluded || !parameter->trainable || parameter->tied_to >= 0) continue;
        (*parameters)++;
        *elements += tensor_element_count(&parameter->type);
    }
}
