/* What is kept between attempts; see spare.h. */
#include "worker/spare.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "proto/message.h"
#include "runtime/comm.h"

static void forget_metrics(struct spare *spare)
{
    for (int i = 0; i < SPARE_METRICS; i++)
        if (spare->metrics[i] != NULL) fsdpd__v1__metrics__free_unpacked(spare->metrics[i], NULL);
    memset(spare->metrics, 0, sizeof spare->metrics);
    spare->metrics_count = 0;
}

void spare_clear(struct spare *spare)
{
    forget_metrics(spare);
    kept_clear(&spare->kept);
    comm_free(spare->group);
    spare->group = NULL;
    free(spare->job);
    spare->job = NULL;
}

bool spare_is_used(const Fsdpd__V1__Assignment *assignment)
{
    const Fsdpd__V1__JobSpec *spec = assignment->spec;
    return spec != NULL && spec->elastic != NULL &&
           spec->elastic->redundancy > FSDPD__V1__REDUNDANCY__REDUNDANCY_NONE;
}

void spare_begin(struct spare *spare, const Fsdpd__V1__Assignment *assignment)
{
    bool same = spare->job != NULL && strcmp(spare->job, assignment->job) == 0;
    if (!same || assignment->kept_since == 0) spare_clear(spare);
    if (!spare_is_used(assignment)) return;
    if (spare->job == NULL) spare->job = mem_strdup(assignment->job);
    kept_begin(&spare->kept, assignment->run[0] != '\0' ? assignment->run : assignment->job);
    kept_drop_before(&spare->kept, assignment->kept_since);
}

/* Ranks whose numbers differ by a multiple of it have the same shards of all units. */
static uint32_t spread_of(const struct manifest *manifest)
{
    uint32_t spread = 1;
    for (int u = 0; u < manifest->unit_count; u++) {
        uint32_t world = (uint32_t)manifest->units[u].shard_world, common = world, rest = spread;
        while (rest != 0) {
            uint32_t next = common % rest;
            common = rest;
            rest = next;
        }
        if (world > 0) spread = spread / common * world;
    }
    return spread;
}

static Fsdpd__V1__KeptPart *part_new(const struct kept_generation *generation)
{
    const struct kept_shape *shape = &generation->shape;
    Fsdpd__V1__KeptPart *part = MESSAGE_NEW(part, fsdpd__v1__kept_part__init);
    part->attempt = generation->attempt;
    part->step = generation->manifest.progress.step;
    part->valid = generation->valid;
    part->world = (uint32_t)shape->world;
    part->rank = (uint32_t)shape->rank;
    part->own = generation->primary.whole;
    part->other = kept_has_backup(generation);
    part->distance = (uint32_t)shape->distance;
    part->groups = (uint32_t)shape->groups;
    part->spread = spread_of(&generation->manifest);
    part->kind = shape->kind == REDUNDANCY_MIRROR   ? FSDPD__V1__REDUNDANCY__REDUNDANCY_MIRROR
                 : shape->kind == REDUNDANCY_PARITY ? FSDPD__V1__REDUNDANCY__REDUNDANCY_PARITY
                                                    : FSDPD__V1__REDUNDANCY__REDUNDANCY_REPLICA;
    return part;
}

Fsdpd__V1__KeptState *spare_describe(const struct spare *spare)
{
    if (spare->job == NULL) return NULL;
    Fsdpd__V1__KeptState *state = MESSAGE_NEW(state, fsdpd__v1__kept_state__init);
    state->job = mem_strdup(spare->job);
    state->parts = mem_alloc_array(KEPT_GENERATIONS, sizeof *state->parts);
    for (int g = 0; g < KEPT_GENERATIONS; g++)
        if (spare->kept.generations[g].attempt != 0)
            state->parts[state->n_parts++] = part_new(&spare->kept.generations[g]);
    if (state->n_parts > 0) return state;
    fsdpd__v1__kept_state__free_unpacked(state, NULL);
    return NULL;
}

void spare_add_metrics(struct spare *spare, const Fsdpd__V1__Metrics *metrics)
{
    Fsdpd__V1__Metrics **place = &spare->metrics[spare->metrics_count++ % SPARE_METRICS];
    if (*place != NULL) fsdpd__v1__metrics__free_unpacked(*place, NULL);
    *place = message_copy(metrics);
}

/* Metrics of one step may be there twice, as a later attempt did it again: the newer ones count. */
static bool is_repeated(const struct spare *spare, uint64_t number)
{
    uint64_t step = spare->metrics[number % SPARE_METRICS]->step;
    for (uint64_t n = number + 1; n < spare->metrics_count; n++)
        if (spare->metrics[n % SPARE_METRICS]->step <= step) return true;
    return false;
}

void spare_pack_metrics(const struct spare *spare, uint64_t step, struct buf *out)
{
    Fsdpd__V1__UnrecordedMetrics entries[SPARE_METRICS];
    Fsdpd__V1__UnrecordedMetrics *list[SPARE_METRICS];
    Fsdpd__V1__UnrecordedReports reports = FSDPD__V1__UNRECORDED_REPORTS__INIT;
    reports.metrics = list;
    uint64_t count = spare->metrics_count;
    for (uint64_t n = count > SPARE_METRICS ? count - SPARE_METRICS : 0; n < count; n++) {
        Fsdpd__V1__Metrics *metrics = spare->metrics[n % SPARE_METRICS];
        if (metrics->step > step || is_repeated(spare, n)) continue;
        Fsdpd__V1__UnrecordedMetrics *entry = &entries[reports.n_metrics];
        fsdpd__v1__unrecorded_metrics__init(entry);
        entry->metrics = metrics;
        list[reports.n_metrics++] = entry;
    }
    size_t size = fsdpd__v1__unrecorded_reports__get_packed_size(&reports);
    if (reports.n_metrics == 0) return;
    AUTO_FREE uint8_t *bytes = mem_alloc(size);
    fsdpd__v1__unrecorded_reports__pack(&reports, bytes);
    buf_add(out, bytes, size);
}
