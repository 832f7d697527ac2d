/*
 * The size policy: exactly PyTorch's size_based_auto_wrap_policy with its recursion
 * (torch/distributed/fsdp/wrap.py). Pure functions; any thread.
 *
 * A visit to a module first counts the distinct parameters of its whole subtree, then lets the
 * children take theirs, and wraps the module if the remainder is large enough. Because of
 * "distinct", a parameter tied across two children is subtracted twice; PyTorch does the same.
 */
#include "fsdp/units.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int64_t *wrap_count_subtrees(const struct model *model)
{
    int64_t *counts = mem_alloc_array(model->module_count, sizeof *counts);
    int *seen = mem_alloc_array(model->module_count, sizeof *seen); /* parameter + 1 */
    /* The users of one tied parameter must be consecutive for the marks in `seen` to be correct. */
    int *next_user = mem_alloc_array(model->parameter_count, sizeof *next_user);
    int *last_user = mem_alloc_array(model->parameter_count, sizeof *last_user);
    for (int p = 0; p < model->parameter_count; p++) {
        next_user[p] = -1;
        last_user[p] = p;
        int owner = flat_parameter_owner(model, p);
        if (owner == p) continue;
        next_user[last_user[owner]] = p;
        last_user[owner] = p;
    }
    for (int p = 0; p < model->parameter_count; p++) {
        if (model->parameters[p].tied_to >= 0 || model->parameters[p].buffer != MODEL_BUFFER_NONE ||
            (model->parameters[p].reference && model->parameters[p].of >= 0))
            continue; /* with a reference, units are those without it; a teacher has its own */
        int64_t elements = tensor_element_count(&model->parameters[p].type);
        for (int user = p; user >= 0; user = next_user[user]) {
            int m = model->parameters[user].module;
            for (; m >= 0 && seen[m] != p + 1; m = model->modules[m].parent) {
                seen[m] = p + 1;
                counts[m] += elements;
            }
        }
    }
    free(last_user);
    free(next_user);
    free(seen);
    return counts;
}

static const char *const leaf_types[] = {"MultiheadAttention"};
static const char *const container_types[] = {"ModuleList", "ModuleDict"};
const struct wrap_names wrap_size_force_leaf = {leaf_types, 1};
const struct wrap_names wrap_size_exclude = {container_types, 2};

static bool is_of(const struct module *module, const struct wrap_names *types)
{
    for (int i = 0; i < types->count; i++)
        if (strcmp(module->type, types->items[i]) == 0) return true;
    return false;
}

struct wrap_visit {
    const struct model *model;
    const int64_t *subtree;
    int64_t min_num_params;
    const struct wrap_names *force_leaf, *exclude;
    bool *wrapped;
    int *visited_by; /* by module: the parent that visited it, + 1 */
};

/* Returns the elements that ended up in units at or below `m`. */
static int64_t visit(struct wrap_visit *visiting, int m)
{
    const struct module *module = &visiting->model->modules[m];
    int64_t here = visiting->subtree[m];
    if (here < visiting->min_num_params || is_of(module, visiting->force_leaf)) return 0;
    int64_t taken = 0;
    for (int i = 0; i < module->child_count; i++) {
        int child = module->children[i];
        if (visiting->visited_by[child] == m + 1) continue;
        visiting->visited_by[child] = m + 1;
        taken += visit(visiting, child);
    }
    int64_t left = here - taken;
    if (m == 0 || left < visiting->min_num_params || is_of(module, visiting->exclude)) return taken;
    visiting->wrapped[m] = true;
    return here;
}

void wrap_by_size(const struct model *model, const int64_t *subtree,
                  const struct wrap_policy *policy, bool *wrapped)
{
    uint64_t least = policy->min_num_params;
    struct wrap_visit visiting = {
        .model = model,
        .subtree = subtree,
        .min_num_params = least > INT64_MAX ? INT64_MAX : (int64_t)least,
        .force_leaf = policy->force_leaf.items ? &policy->force_leaf : &wrap_size_force_leaf,
        .exclude = policy->exclude.items ? &policy->exclude : &wrap_size_exclude,
        .wrapped = wrapped,
        .visited_by = mem_alloc_array(model->module_count, sizeof(int)),
    };
    visit(&visiting, 0);
    free(visiting.visited_by);
}
