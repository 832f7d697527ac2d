/*
 * Maps a rank's part of a flat parameter to the settings of its parameters. Pure functions;
 * any thread.
 */
#include "base/mem.h"
#include "fsdp/plan_internal.h"

static int group_of(const struct plan *plan, int parameter)
{
    const int *groups = plan->options.group_of_parameter;
    return groups != NULL ? groups[parameter] : 0;
}

int plan_find_ranges(const struct plan *plan, int unit, bool with_gaps, struct plan_range **ranges)
{
    const struct flat_parameter *flat = &plan->units->units[unit].flat;
    int64_t start = plan_kept_start(plan, unit), kept = plan_kept_elements(plan, unit);
    int64_t state = slot_at(&flat->slots, start);
    struct plan_range *found = mem_alloc_array((size_t)flat->parameter_count + 1, sizeof *found);
    int count = 0;
    for (int i = 0; i < flat->parameter_count; i++) {
        int parameter = flat->parameters[i], group = group_of(plan, parameter);
        int64_t size = tensor_element_count(&plan->model->parameters[parameter].type);
        int64_t from = flat->offsets[i] - start, to = from + size;
        bool matrix = plan->options.matrix_of_parameter != NULL &&
                      plan->options.matrix_of_parameter[parameter];
        bool halves = flat->slots.halves,
             alone = halves || flat->slots.rounded || flat->slots.shape == SHAPE_FACTORS;
        bool packed = halves || (slot_is_packed(&flat->slots) && slot_packs(size));
        if (from < 0) from = 0;
        if (to > kept) to = kept;
        if (from >= to) continue;
        struct plan_range *last = count > 0 ? &found[count - 1] : NULL;
        if (last != NULL && !alone && last->group == group && last->matrix == matrix &&
            last->packed == packed && ((with_gaps && !packed) || last->from + last->count == from))
            last->count = to - last->from;
        else
            found[count++] =
                (struct plan_range){.from = from,
                                    .count = to - from,
                                    .group = group,
                                    .matrix = matrix,
                                    .packed = packed,
                                    .parameter = parameter,
                                    .first = start + from - flat->offsets[i],
                                    .state = slot_at(&flat->slots, start + from) - state};
    }
    *ranges = found;
    return count;
}
