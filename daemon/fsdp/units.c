/*
 * From a wrap policy to units: which modules each unit wraps, which unit owns each parameter, and
 * the flat parameters. Pure functions; any thread. A unit_set owns everything it points to.
 */
#include "fsdp/units.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"
#include "fsdp/factors.h"
#include "fsdp/wrap_names.h"

/* The policy's result, before parameters are laid out. Groups are numbered in the order of
 * discovery; the root's group is last. */
struct choice {
    const struct model *model;
    int *group_of_module; /* for modules that a group wraps: its number; otherwise -1 */
    int *nearest;         /* by module: the group of itself or of its nearest ancestor with one */
    int group_count;      /* root included */
    const struct wrap_policy *policy;
    struct wrap_unit_spec *own; /* by group: its unit's own settings */
};

/* Modules by path, for many lookups. */
struct path_index {
    const char *path;
    int module;
};

static int path_compare(const void *a, const void *b)
{
    return strcmp(((const struct path_index *)a)->path, ((const struct path_index *)b)->path);
}

static struct path_index *path_index_new(const struct model *model)
{
    struct path_index *index = mem_alloc_array(model->module_count, sizeof *index);
    for (int m = 0; m < model->module_count; m++)
        index[m] = (struct path_index){.path = model->modules[m].path, .module = m};
    qsort(index, model->module_count, sizeof *index, path_compare);
    return index;
}

static int path_index_find(const struct path_index *index, const struct model *model,
                           const char *path)
{
    struct path_index key = {.path = path};
    const struct path_index *found =
        bsearch(&key, index, model->module_count, sizeof key, path_compare);
    return found != NULL ? found->module : -1;
}

static status_t unknown_module(const struct model *model, int unit, const char *path)
{
    const char **paths = mem_alloc_array(model->module_count, sizeof *paths);
    for (int m = 1; m < model->module_count; m++) paths[m - 1] = model->modules[m].path;
    const char *nearest = text_nearest(path, paths, model->module_count - 1);
    free(paths);
    if (nearest == NULL)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "wrap unit %d names the module '%s', which %s does not have", unit + 1,
                          path, model->modules[0].type);
    return status_new(STATUS_INVALID_ARGUMENT,
                      "wrap unit %d names the module '%s', which %s does not have; did you mean "
                      "'%s'?",
                      unit + 1, path, model->modules[0].type, nearest);
}

static status_t choose_listed(struct choice *choice, const struct wrap_policy *policy,
                              const int64_t *subtree, const struct path_index *index)
{
    const struct model *model = choice->model;
    if (policy->unit_count <= 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "lists no units; use the policy none for one unit");
    for (int u = 0; u < policy->unit_count; u++) {
        const struct wrap_unit_spec *spec = &policy->units[u];
        if (spec->module_count <= 0)
            return status_new(STATUS_INVALID_ARGUMENT, "wrap unit %d lists no modules", u + 1);
        int64_t elements = 0;
        for (int i = 0; i < spec->module_count; i++) {
            int m = path_index_find(index, model, spec->modules[i]);
            if (m < 0) return unknown_module(model, u, spec->modules[i]);
            if (m == 0)
                return status_new(
                    STATUS_INVALID_ARGUMENT,
                    "wrap unit %d names the model itself, which is always the root unit", u + 1);
            if (choice->group_of_module[m] >= 0)
                return status_new(STATUS_INVALID_ARGUMENT,
                                  "the module '%s' is named twice, in wrap units %d and %d",
                                  spec->modules[i], choice->group_of_module[m] + 1, u + 1);
            choice->group_of_module[m] = u;
            elements += subtree[m];
        }
        if (spec->shard_world < 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "wrap unit %d is sharded over %d ranks; expected at least 1", u + 1,
                              spec->shard_world);
        if (elements == 0)
            return status_new(STATUS_INVALID_ARGUMENT,
                              "wrap unit %d ('%s') has no parameters to shard", u + 1,
                              spec->modules[0]);
    }
    for (int m = 1; m < model->module_count; m++) {
        if (choice->group_of_module[m] < 0) continue;
        for (int a = model->modules[m].parent; a > 0; a = model->modules[a].parent)
            if (choice->group_of_module[a] >= 0)
                return status_new(STATUS_INVALID_ARGUMENT,
                                  "wrap unit %d names '%s', which is inside '%s' of wrap unit %d",
                                  choice->group_of_module[m] + 1, model->modules[m].path,
                                  model->modules[a].path, choice->group_of_module[a] + 1);
    }
    choice->group_count = policy->unit_count + 1;
    return NULL;
}

/* Makes each of the modules in `wrapped` a unit; returns their number. */
static int choose_each(struct choice *choice, const bool *wrapped)
{
    int count = 0;
    for (int m = 1; m < choice->model->module_count; m++)
        if (wrapped[m]) choice->group_of_module[m] = count++;
    choice->group_count = count + 1;
    return count;
}

static status_t check_size(const struct model *model, const struct wrap_policy *policy,
                           const int64_t *subtree)
{
    const struct wrap_names *leaf = &policy->force_leaf, *exclude = &policy->exclude;
    char wanted[32], found[32];
    if (policy->min_num_params == 0)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "min_num_params is 0; expected a number of parameters, at least 1");
    if ((uint64_t)subtree[0] < policy->min_num_params)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "min_num_params is %s, but no module reaches it: all of %s has %s "
                          "parameters; use the policy none for one unit",
                          text_format_count(policy->min_num_params, wanted), model->modules[0].type,
                          text_format_count((uint64_t)subtree[0], found));
    TRY(wrap_check_types(model, "fsdp.wrap.force_leaf", leaf->items, leaf->count,
                         wrap_size_force_leaf.items, wrap_size_force_leaf.count));
    return wrap_check_types(model, "fsdp.wrap.exclude", exclude->items, exclude->count,
                            wrap_size_exclude.items, wrap_size_exclude.count);
}

static status_t choose_by_size(struct choice *choice, const struct wrap_policy *policy,
                               const int64_t *subtree, bool *wrapped, struct buf *notes)
{
    TRY(check_size(choice->model, policy, subtree));
    wrap_by_size(choice->model, subtree, policy, wrapped);
    char wanted[32];
    if (choose_each(choice, wrapped) == 0)
        buf_printf(notes,
                   "no module but the model itself holds min_num_params = %s parameters: the root "
                   "is the only unit\n",
                   text_format_count(policy->min_num_params, wanted));
    return NULL;
}

static void choose_larger(const struct model *model, const int64_t *subtree, bool *wrapped,
                          struct buf *notes)
{
    bool *larger = mem_alloc_array(model->module_count, sizeof *larger);
    wrap_larger(model, subtree, wrapped, larger);
    for (int m = 1; m < model->module_count; m++) {
        if (!larger[m]) continue;
        wrapped[m] = true;
        buf_printf(notes, "; so is %s, which is larger", model->modules[m].path);
    }
    free(larger);
}

static void choose_blocks(struct choice *choice, const int64_t *subtree, bool *wrapped,
                          struct buf *notes)
{
    const char *type;
    int count = wrap_blocks(choice->model, subtree, wrapped, &type);
    if (count == 0) return;
    buf_printf(notes, "no wrap policy was given: each of the %d blocks%s%s is a unit", count,
               type != NULL ? " of the type " : "", type != NULL ? type : "");
    choose_larger(choice->model, subtree, wrapped, notes);
    choose_each(choice, wrapped);
    buf_printf(notes, "; set fsdp.wrap.policy: none for one unit\n");
}

static status_t choose(struct choice *choice, const struct wrap_policy *policy,
                       const int64_t *subtree, bool *wrapped, struct buf *notes)
{
    const struct model *model = choice->model;
    switch (policy->kind) {
    case WRAP_NONE: return NULL;
    case WRAP_SIZE: return choose_by_size(choice, policy, subtree, wrapped, notes);
    case WRAP_TYPE:
        TRY(wrap_by_type(model, subtree, policy->types.items, policy->types.count, wrapped));
        choose_each(choice, wrapped);
        return NULL;
    case WRAP_AUTO: choose_blocks(choice, subtree, wrapped, notes); return NULL;
    case WRAP_MATCH:
        TRY(wrap_by_pattern(model, subtree, policy->modules.items, policy->modules.count, wrapped));
        choose_each(choice, wrapped);
        return NULL;
    case WRAP_UNITS: {
        struct path_index *index = path_index_new(model);
        status_t status =
            status_wrap(choose_listed(choice, policy, subtree, index), "fsdp.wrap.units");
        free(index);
        return status;
    }
    }
    return status_new(STATUS_INVALID_ARGUMENT, "wrap policy %d is unknown", policy->kind);
}

/* Renumbers groups in the order of their first module, and finds each module's nearest one. */
static void choice_number(struct choice *choice)
{
    const struct model *model = choice->model;
    int *number = mem_alloc_array(choice->group_count, sizeof *number);
    for (int g = 0; g < choice->group_count; g++) number[g] = -1;
    int next = 0;
    for (int m = 1; m < model->module_count; m++) {
        int group = choice->group_of_module[m];
        if (group < 0) continue;
        if (number[group] < 0) number[group] = next++;
        choice->group_of_module[m] = number[group];
    }
    struct wrap_unit_spec *sorted = mem_alloc_array(choice->group_count, sizeof *sorted);
    for (int g = 0; g < choice->group_count - 1; g++) sorted[number[g]] = choice->own[g];
    free(choice->own);
    choice->own = sorted;
    free(number);
    choice->group_of_module[0] = choice->group_count - 1;
    for (int m = 0; m < model->module_count; m++)
        choice->nearest[m] = choice->group_of_module[m] >= 0
                                 ? choice->group_of_module[m]
                                 : choice->nearest[model->modules[m].parent];
}

/* The innermost group around both `group` and `module`. */
static int covering_group(const struct choice *choice, const int *first_module, int group,
                          int module)
{
    int root = choice->group_count - 1;
    while (group != root) {
        int around = choice->nearest[module];
        while (around != group && around != root)
            around = choice->nearest[choice->model->modules[first_module[around]].parent];
        if (around == group) return group;
        group = choice->nearest[choice->model->modules[first_module[group]].parent];
    }
    return root;
}

/* By parameter: the group that owns it; tied ones follow their owner. */
static int *assign_parameters(const struct choice *choice)
{
    const struct model *model = choice->model;
    int *first_module = mem_alloc_array(choice->group_count, sizeof *first_module);
    for (int m = model->module_count - 1; m >= 0; m--)
        if (choice->group_of_module[m] >= 0) first_module[choice->group_of_module[m]] = m;
    int *group = mem_alloc_array(model->parameter_count, sizeof *group);
    for (int p = 0; p < model->parameter_count; p++) {
        int module = model->parameters[p].module, owner = flat_parameter_owner(model, p);
        group[p] = choice->nearest[module];
        if (owner != p) group[owner] = covering_group(choice, first_module, group[owner], module);
    }
    for (int p = 0; p < model->parameter_count; p++)
        group[p] = group[flat_parameter_owner(model, p)];
    free(first_module);
    return group;
}

static void note_ties(const struct choice *choice, const int *group, const char *const *names,
                      struct buf *notes)
{
    const struct model *model = choice->model;
    for (int p = 0; p < model->parameter_count; p++) {
        int owner = flat_parameter_owner(model, p);
        if (owner == p) continue;
        int mine = choice->nearest[model->parameters[p].module];
        int owners = choice->nearest[model->parameters[owner].module];
        if (mine == group[p] && owners == group[p]) continue;
        buf_printf(notes,
                   "%s is tied to %s: one parameter, owned by unit %s, the innermost around all of "
                   "its users\n",
                   model->parameters[p].name, model->parameters[owner].name, names[group[p]]);
    }
}

/* Items sorted into buckets, each bucket in ascending order: bucket b is items[begin[b]] to
 * items[begin[b + 1] - 1]. Items with a negative bucket are omitted. */
struct buckets {
    int *items, *begin;
};

static struct buckets buckets_new(const int *bucket_of, int count, int bucket_count)
{
    struct buckets buckets = {.items = mem_alloc_array(count, sizeof(int)),
                              .begin = mem_alloc_array(bucket_count + 2, sizeof(int))};
    int *fill = buckets.begin + 1;
    for (int i = 0; i < count; i++)
        if (bucket_of[i] >= 0) fill[bucket_of[i] + 1]++;
    for (int b = 1; b <= bucket_count; b++) fill[b] += fill[b - 1];
    for (int i = 0; i < count; i++)
        if (bucket_of[i] >= 0) buckets.items[fill[bucket_of[i]]++] = i;
    return buckets;
}

static void buckets_deinit(struct buckets *buckets)
{
    free(buckets->items);
    free(buckets->begin);
}

static bool is_frozen(const struct model *model, int parameter)
{
    return !model->parameters[flat_parameter_owner(model, parameter)].trainable;
}

struct laying {
    const struct choice *choice;
    struct unit_set *set;
    struct buckets modules;    /* wrapped modules, by group */
    struct buckets parameters; /* owners, by group, in registration order */
};

/* The type of a frozen unit; all in one type are as if the job had said so. */
static enum base_dtype choose_base(const struct wrap_policy *policy, const int *parameters,
                                   int count)
{
    int halved = 0;
    if (policy->base != BASE_FILE) return policy->base;
    for (int i = 0; i < count && policy->halved != NULL; i++)
        halved += policy->halved[parameters[i]];
    return halved == 0 ? BASE_F32 : halved == count ? BASE_BF16 : BASE_FILE;
}

/* Adds the unit of `group` with its frozen or its trainable parameters. */
static void add_unit(struct laying *laying, int group, const char *name, bool frozen)
{
    const struct model *model = laying->choice->model;
    struct unit_set *set = laying->set;
    struct unit *unit = &set->units[set->unit_count];
    unit->name = mem_strdup(name);
    unit->frozen = frozen;
    const struct wrap_unit_spec *own = &laying->choice->own[group];
    bool whole = frozen && laying->choice->policy->keep_frozen;
    unit->shard_world = own->shard_world > 0 ? own->shard_world : whole ? 1 : set->shard_world;
    unit->reshard = own->reshard;
    unit->reshard_ranks = own->reshard_ranks;
    unit->param_dtype = own->param_dtype;
    unit->reduce_dtype = own->reduce_dtype;
    unit->cpu_offload = own->cpu_offload;
    const int *modules = laying->modules.items + laying->modules.begin[group];
    unit->module_count = laying->modules.begin[group + 1] - laying->modules.begin[group];
    unit->modules = mem_dup(modules, unit->module_count * sizeof *modules);
    int begin = laying->parameters.begin[group], end = laying->parameters.begin[group + 1];
    int count = 0;
    int *parameters = mem_alloc_array(end - begin, sizeof *parameters);
    for (int i = begin; i < end; i++) {
        int p = laying->parameters.items[i];
        if (is_frozen(model, p) != frozen) continue;
        parameters[count++] = p;
        set->unit_of_parameter[p] = set->unit_count;
    }
    const struct wrap_policy *policy = laying->choice->policy;
    unit->unsaved = frozen && policy->base != BASE_F32;
    struct flat_storage storage = {.halved = policy->halved};
    if (frozen) storage.base = choose_base(policy, parameters, count);
    else
        storage = (struct flat_storage){.state = policy->state,
                                        .shape = policy->shape,
                                        .matrices = policy->matrices};
    storage.rounded = !unit->unsaved && policy->rounded &&
                      unit_dtype_or(unit->param_dtype, policy->param_dtype) == DTYPE_BF16;
    flat_parameter_init(&unit->flat, model, parameters, count, unit->shard_world, &storage);
    set->unit_count++;
}

/* Adds the group's unit, or two units if it has frozen and trainable parameters; returns the
 * last. */
static int add_group(struct laying *laying, int group, const char *name)
{
    const struct model *model = laying->choice->model;
    int begin = laying->parameters.begin[group], end = laying->parameters.begin[group + 1];
    int frozen = 0;
    for (int i = begin; i < end; i++) frozen += is_frozen(model, laying->parameters.items[i]);
    if (frozen > 0 && frozen < end - begin) {
        char *frozen_name = mem_printf("%s (frozen)", name);
        add_unit(laying, group, frozen_name, true);
        free(frozen_name);
        frozen = 0;
    }
    add_unit(laying, group, name, frozen > 0);
    return laying->set->unit_count - 1;
}

/* Adds the unit of the model's buffers, if it has any. */
static void add_buffers(struct laying *laying)
{
    const struct model *model = laying->choice->model;
    struct unit_set *set = laying->set;
    int count = 0, *buffers = mem_alloc_array(model->parameter_count, sizeof *buffers);
    for (int p = 0; p < model->parameter_count; p++)
        if (model->parameters[p].buffer != MODEL_BUFFER_NONE) buffers[count++] = p;
    if (count == 0) {
        free(buffers);
        return;
    }
    for (int i = 0; i < count; i++) set->unit_of_parameter[buffers[i]] = set->unit_count;
    struct unit *unit = &set->units[set->unit_count++];
    *unit = (struct unit){.name = mem_strdup("(buffers)"),
                          .modules = mem_alloc_array(1, sizeof(int)),
                          .module_count = 1,
                          .buffers = true,
                          .frozen = true,
                          .shard_world = 1};
    flat_parameter_init(&unit->flat, model, buffers, count, 1, &(struct flat_storage){0});
}

static struct unit_set *layout_units(const struct choice *choice, int shard_world,
                                     struct buf *notes)
{
    const struct model *model = choice->model;
    int *group = assign_parameters(choice);
    int *owners_group = mem_dup(group, model->parameter_count * sizeof *group);
    for (int p = 0; p < model->parameter_count; p++)
        if (model->parameters[p].tied_to >= 0 || model->parameters[p].buffer != MODEL_BUFFER_NONE)
            owners_group[p] = -1;

    struct unit_set *set = mem_alloc(sizeof *set);
    set->shard_world = shard_world;
    set->units = mem_alloc_array(2 * (size_t)choice->group_count + 1, sizeof *set->units);
    set->unit_of_parameter = mem_alloc_array(model->parameter_count, sizeof(int));
    set->unit_of_module = mem_alloc_array(model->module_count, sizeof(int));
    struct laying laying = {.choice = choice,
                            .set = set,
                            .modules = buckets_new(choice->group_of_module, model->module_count,
                                                   choice->group_count),
                            .parameters = buckets_new(owners_group, model->parameter_count,
                                                      choice->group_count)};
    const char **names = mem_alloc_array(choice->group_count, sizeof *names);
    int *unit_of_group = mem_alloc_array(choice->group_count, sizeof *unit_of_group);
    for (int g = 0; g < choice->group_count; g++) {
        int first = laying.modules.items[laying.modules.begin[g]];
        names[g] = first == 0 ? "(root)" : model->modules[first].path;
        if (g == choice->group_count - 1) add_buffers(&laying);
        unit_of_group[g] = add_group(&laying, g, names[g]);
    }
    for (int p = 0; p < model->parameter_count; p++)
        set->unit_of_parameter[p] = set->unit_of_parameter[flat_parameter_owner(model, p)];
    for (int m = 0; m < model->module_count; m++)
        set->unit_of_module[m] = unit_of_group[choice->nearest[m]];
    note_ties(choice, group, names, notes);
    set->notes = buf_take(notes);

    free(unit_of_group);
    free(names);
    buckets_deinit(&laying.modules);
    buckets_deinit(&laying.parameters);
    free(owners_group);
    free(group);
    return set;
}

status_t units_build(const struct model *model, const struct wrap_policy *policy, int shard_world,
                     struct unit_set **units)
{
    if (shard_world < 1)
        return status_new(STATUS_INVALID_ARGUMENT,
                          "cannot shard over %d ranks; expected at least 1", shard_world);
    struct choice choice = {.model = model, .group_count = 1, .policy = policy};
    choice.group_of_module = mem_alloc_array(model->module_count, sizeof(int));
    choice.nearest = mem_alloc_array(model->module_count, sizeof(int));
    for (int m = 0; m < model->module_count; m++) choice.group_of_module[m] = -1;
    int64_t *subtree = wrap_count_subtrees(model);
    struct buf notes = {0};
    bool *wrapped = mem_alloc_array(model->module_count, sizeof *wrapped);
    status_t status = choose(&choice, policy, subtree, wrapped, &notes);
    free(wrapped);
    if (status == NULL) {
        choice.own = mem_alloc_array(choice.group_count, sizeof *choice.own);
        for (int u = 0; policy->kind == WRAP_UNITS && u < policy->unit_count; u++)
            choice.own[u] = policy->units[u];
        choice_number(&choice);
        *units = layout_units(&choice, shard_world, &notes);
    }
    buf_deinit(&notes);
    free(choice.own);
    free(subtree);
    free(choice.nearest);
    free(choice.group_of_module);
    return status;
}

void units_find_dtypes(const struct unit_set *units, const struct model *model,
                       enum dtype param_dtype, enum dtype **parameters, enum dtype **modules)
{
    *parameters = mem_alloc_array((size_t)model->parameter_count + 1, sizeof **parameters);
    for (int p = 0; p < model->parameter_count; p++) {
        const struct unit *unit = &units->units[units->unit_of_parameter[p]];
        (*parameters)[p] =
            unit->buffers ? DTYPE_F32 : unit_dtype_or(unit->param_dtype, param_dtype);
    }
    bool differ = false;
    *modules = mem_alloc_array((size_t)model->module_count, sizeof **modules);
    for (int m = 0; m < model->module_count; m++) {
        const struct unit *unit = &units->units[units->unit_of_module[m]];
        (*modules)[m] = unit_dtype_or(unit->param_dtype, param_dtype);
        differ = differ || (*modules)[m] != param_dtype;
    }
    if (differ) return;
    free(*modules);
    *modules = NULL;
}

void units_free(struct unit_set *units)
{
    if (units == NULL) return;
    for (int u = 0; u < units->unit_count; u++) {
        free(units->units[u].name);
        free(units->units[u].modules);
        flat_parameter_deinit(&units->units[u].flat);
    }
    free(units->units);
    free(units->unit_of_parameter);
    free(units->unit_of_module);
    free(units->notes);
    free(units);
}

/* ---- flat parameter ---- */

int flat_parameter_owner(const struct model *model, int parameter)
{
    while (model->parameters[parameter].tied_to >= 0)
        parameter = model->parameters[parameter].tied_to;
    return parameter;
}

static bool is_packed(const struct model *model, int parameter, const struct flat_storage *storage)
{
    const struct tensor_type *type = &model->parameters[parameter].type;
    int64_t elements = tensor_element_count(type);
    if (storage->base == BASE_FILE) return storage->halved[parameter];
    if (storage->base == BASE_INT8 || storage->base == BASE_NF4)
        return base_packs(type->dim_count, elements);
    return storage->state == STATE_INT8 && slot_packs(elements);
}

static void add_shaped(struct flat_parameter *flat, const struct model *model, int i,
                       const struct flat_storage *storage)
{
    int parameter = flat->parameters[i];
    const struct tensor_type *type = &model->parameters[parameter].type;
    int64_t elements = tensor_element_count(type);
    if (storage->base == BASE_INT8 || storage->base == BASE_NF4)
        slot_layout_add_shaped(&flat->slots, flat->offsets[i], elements, elements);
    if (storage->shape == SHAPE_OTHERS && storage->matrices[parameter])
        slot_layout_add_shaped(&flat->slots, flat->offsets[i], elements, 0);
    if (storage->shape == SHAPE_FACTORS && type->dim_count > 1)
        slot_layout_add_shaped(&flat->slots, flat->offsets[i], elements, factor_words(type));
}

void flat_parameter_init(struct flat_parameter *flat, const struct model *model, int *parameters,
                         int count, int world, const struct flat_storage *storage)
{
    enum base_dtype base = storage->base;
    bool packs = storage->state == STATE_INT8 || base == BASE_INT8 || base == BASE_NF4;
    int64_t block = base_block(base);
    flat->parameters = parameters;
    flat->parameter_count = count;
    flat->offsets = mem_alloc_array(count, sizeof *flat->offsets);
    flat->parameter_elements = 0;
    flat->slots.base = base;
    flat->slots.shape = storage->shape;
    int64_t end = 0;
    for (int i = 0; i < count; i++) {
        const struct tensor_type *type = &model->parameters[parameters[i]].type;
        int64_t elements = tensor_element_count(type);
        bool packed = is_packed(model, parameters[i], storage);
        size_t align = packed && block > FLAT_ALIGN_ELEMENTS ? (size_t)block : FLAT_ALIGN_ELEMENTS;
        flat->offsets[i] = (int64_t)round_up((size_t)end, align);
        flat->parameter_elements += elements;
        end = flat->offsets[i] + (packed ? (int64_t)round_up((size_t)elements, align) : elements);
        if (packed) slot_layout_add(&flat->slots, flat->offsets[i], elements);
        else add_shaped(flat, model, i, storage);
    }
    flat->shard = (int64_t)round_up((size_t)((end + world - 1) / world),
                                    packs ? (size_t)block : FLAT_ALIGN_ELEMENTS);
    flat->padded = flat->shard * world;
    flat->slots.rounded = storage->rounded;
    flat->slots.halves = storage->state == STATE_BF16;
    if (base == BASE_BF16 && count > 0) slot_layout_add(&flat->slots, 0, flat->padded);
    slot_layout_end(&flat->slots, flat->shard, world);
}

void flat_parameter_deinit(struct flat_parameter *flat)
{
    free(flat->parameters);
    free(flat->offsets);
    slot_layout_deinit(&flat->slots);
}

int64_t flat_parameter_offset(const struct flat_parameter *flat, int parameter)
{
    int low = 0, high = flat->parameter_count - 1;
    while (low <= high) {
        int middle = low + (high - low) / 2;
        if (flat->parameters[middle] == parameter) return flat->offsets[middle];
        if (flat->parameters[middle] < parameter) low = middle + 1;
        else high = middle - 1;
    }
    return -1;
}
