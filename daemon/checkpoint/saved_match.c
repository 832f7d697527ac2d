/* The parameters of a model in a checkpoint; see saved.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "checkpoint/saved_internal.h"
#include "model/model.h"

struct named { /* a parameter of the checkpoint */
    const char *name;
    int unit, parameter;
};

static int compare_names(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static struct named *sort_names(const struct manifest *manifest, size_t *count)
{
    size_t total = 0;
    for (int u = 0; u < manifest->unit_count; u++)
        total += (size_t)manifest->units[u].parameter_count;
    struct named *names = mem_alloc_array(total + 1, sizeof *names);
    *count = 0;
    for (int u = 0; u < manifest->unit_count; u++)
        for (int p = 0; p < manifest->units[u].parameter_count; p++)
            names[(*count)++] = (struct named){manifest->units[u].parameters[p].name, u, p};
    if (total > 1) qsort(names, total, sizeof *names, compare_names);
    return names;
}

static status_t match_one(struct saved *saved, const struct named *names, size_t count,
                          const struct parameter *parameter, struct place *place)
{
    const struct named wanted = {.name = parameter->name};
    const struct named *found =
        count == 0 ? NULL : bsearch(&wanted, names, count, sizeof *names, compare_names);
    if (found == NULL)
        return status_new(STATUS_FAILED_PRECONDITION, "%s has no parameter %s",
                          saved->directory.path, parameter->name);
    const struct saved_parameter *there =
        &saved->manifest.units[found->unit].parameters[found->parameter];
    int64_t elements = tensor_element_count(&parameter->type);
    if (there->elements != elements)
        return status_new(STATUS_FAILED_PRECONDITION,
                          "%s has %" PRId64 " numbers of %s, the model has %" PRId64,
                          saved->directory.path, there->elements, parameter->name, elements);
    *place = (struct place){.unit = found->unit, .offset = there->offset};
    return NULL;
}

status_t saved_match(struct saved *saved, const struct model *model, const struct unit_set *units)
{
    size_t count;
    AUTO_FREE struct named *names = sort_names(&saved->manifest, &count);
    free(saved->places);
    saved->places = mem_alloc_array((size_t)model->parameter_count + 1, sizeof *saved->places);
    status_t status = NULL;
    for (int p = 0; p < model->parameter_count && status == NULL; p++) {
        saved->places[p].unit = -1;
        if (model->parameters[p].tied_to < 0 && !units->units[units->unit_of_parameter[p]].unsaved)
            status = match_one(saved, names, count, &model->parameters[p], &saved->places[p]);
    }
    return status;
}

bool saved_has(const struct saved *saved, int parameter)
{
    return saved->places[parameter].unit >= 0;
}

int saved_slots(const struct saved *saved, int parameter)
{
    int unit = saved->places[parameter].unit;
    return unit >= 0 ? saved->manifest.units[unit].slots : 0;
}

bool saved_is_rounded(const struct saved *saved, int parameter)
{
    int unit = saved->places[parameter].unit;
    return unit >= 0 && saved->manifest.units[unit].rounded;
}

status_t saved_read(struct saved *saved, int parameter, int slot, int64_t offset, int64_t count,
                    float *values)
{
    const struct place *place = &saved->places[parameter];
    if (place->unit < 0 || slot >= saved_slots(saved, parameter))
        return status_new(STATUS_INTERNAL, "parameter %d, slot %d, is not in %s", parameter, slot,
                          saved->directory.path);
    const struct slot_layout layout =
        slot_layout_of(&saved->manifest.units[place->unit].layout, slot);
    return saved_read_unit(saved, place->unit, slot, slot_at(&layout, place->offset) + offset,
                           count, values);
}
