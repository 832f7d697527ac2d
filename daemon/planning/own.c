/* Units with settings of their own; see own.h. */
#include "planning/own.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static bool is_inside(const struct model *model, const struct unit_set *units, int module)
{
    int parent = model->modules[module].parent;
    return parent > 0 && units->unit_of_module[parent] != units->unit_count - 1;
}

/* False if the unit's modules are inside another unit's. */
static bool add_unit(struct unit_list *list, int *names, const struct model *model,
                     const struct unit_set *units, const struct unit *unit)
{
    for (int i = 0; i < unit->module_count; i++) {
        if (is_inside(model, units, unit->modules[i])) return false;
        list->names[*names + i] = model->modules[unit->modules[i]].path;
    }
    list->units[list->count++] = (struct wrap_unit_spec){.modules = &list->names[*names],
                                                         .module_count = unit->module_count};
    *names += unit->module_count;
    return true;
}

struct unit_list unit_list_new(const struct model *model, const struct wrap_policy *policy)
{
    struct unit_list list = {0};
    struct unit_set *units = NULL;
    status_t status = units_build(model, policy, 1, &units);
    if (status != NULL) {
        status_free(status);
        return list;
    }
    list.units = mem_alloc_array((size_t)units->unit_count, sizeof *list.units);
    list.names = mem_alloc_array((size_t)model->module_count, sizeof *list.names);
    int names = 0, before = 0; /* the unit before may have the same modules' frozen parameters */
    bool flat = true;
    for (int u = 0; u < units->unit_count && flat; u++) {
        const struct unit *unit = &units->units[u];
        if (unit->modules[0] != 0 && unit->modules[0] != before)
            flat = add_unit(&list, &names, model, units, unit);
        before = unit->modules[0];
    }
    units_free(units);
    if (!flat) list.count = 0;
    return list;
}

void unit_list_deinit(struct unit_list *list)
{
    free(list->units);
    free(list->names);
    *list = (struct unit_list){0};
}

int own_share_count(int units, int quarters)
{
    return (units * quarters + 3) / 4;
}

/* The same as the job's strategies mean for all units. */
static void set_sharding(struct wrap_unit_spec *unit, const struct sharding *sharding, int world)
{
    bool hybrid = sharding->strategy == STRATEGY_HYBRID_SHARD;
    unit->shard_world = sharding->strategy == STRATEGY_NO_SHARD ? 1
                        : hybrid                                ? sharding->shard_size
                                                                : world;
    unit->reshard = sharding->strategy == STRATEGY_SHARD_GRAD_OP ? RESHARD_NO : RESHARD_YES;
    if (sharding->reshard == RESHARD_DEFAULT) return;
    unit->reshard = sharding->reshard;
    unit->reshard_ranks = sharding->reshard_ranks;
}

struct wrap_unit_spec *own_apply(const struct own_option *own, const struct unit_list *list,
                                 int quarters, const struct sharding *all, int world)
{
    struct wrap_unit_spec *units = mem_alloc_array((size_t)list->count, sizeof *units);
    int count = own_share_count(list->count, quarters);
    for (int i = 0; i < list->count; i++) {
        units[i] = list->units[i];
        switch (own->kind) {
        case OWN_NOTHING: break;
        case OWN_KEPT:
            if (i >= list->count - count) units[i].reshard = RESHARD_NO;
            break;
        case OWN_HOST: units[i].cpu_offload = i < count; break;
        case OWN_STRATEGY:
            if (i < count) set_sharding(&units[i], &own->sharding, world);
            break;
        case OWN_REST: set_sharding(&units[i], all, world); break;
        }
    }
    return units;
}
