/* Entries of a state_dict; see state_entries.h. */
#include "checkpoint/state_entries.h"

#include <string.h>

#include "base/mem.h"

struct state_entry *state_entries_list(const struct plan *plan, int *count)
{
    const struct model *model = plan->model;
    const struct unit_set *units = plan->units;
    *count = 0;
    while (*count < model->parameter_count && !model->parameters[*count].reference) ++*count;
    struct state_entry *entries = mem_alloc_array((size_t)*count + 1, sizeof *entries);
    for (int i = 0; i < *count; i++) {
        const struct parameter *parameter = &model->parameters[i];
        int unit = units->unit_of_parameter[i], owner = i;
        while (model->parameters[owner].tied_to >= 0) owner = model->parameters[owner].tied_to;
        entries[i] =
            (struct state_entry){.name = mem_strdup(parameter->name),
                                 .dim_count = parameter->type.dim_count,
                                 .count = parameter->buffer == MODEL_BUFFER_COUNT,
                                 .unit = unit,
                                 .offset = flat_parameter_offset(&units->units[unit].flat, owner)};
        memcpy(entries[i].dims, parameter->type.dims, sizeof entries[i].dims);
    }
    return entries;
}
