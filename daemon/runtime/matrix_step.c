/* Whole matrices at the end of a step; see matrix_step.h. */
#include "runtime/matrix_step.h"

#include "base/mem.h"
#include "kernels/kernels.h"
#include "runtime/device_table.h"
#include "runtime/step_args.h"

static status_t move(const struct matrix_work *work)
{
    const struct muon_args args = step_muon_args(&work->step, step_scale(work->stats, work->gated));
    for (int r = 0; r < work->range_count; r++) {
        const struct plan_range *range = &work->ranges[r];
        if (range->matrix)
            kernel_muon_momentum((size_t)range->count, work->values + range->from,
                                 work->average + range->from, &args);
    }
    return NULL;
}

static status_t orthogonalize(const struct matrix_work *work)
{
    for (int m = 0; m < work->matrix_count; m++) {
        const struct plan_matrix *it = &work->matrices[m];
        if (it->owner != work->rank) continue;
        TRY(kernel_orthogonalize(it->rows, it->columns, work->step.ns_steps,
                                 step_muon_scale(&work->step, it->rows, it->columns),
                                 work->values + (work->gathered ? it->place : it->offset),
                                 work->scratch));
    }
    return NULL;
}

/* On lanes that are threads. */
static status_t run(void *argument)
{
    const struct matrix_work *work = argument;
    if (step_is_skipped(work->stats, work->gated)) return NULL;
    return work->kind == INSTRUCTION_MOMENTUM ? move(work) : orthogonalize(work);
}

status_t matrix_step_enqueue(struct lane_queue *lane, struct matrix_work *work)
{
    if (lane->device->table->matrices == NULL) return lane_call(lane, run, work);
    MUST_ALONE(&lane->user);
    return lane->device->table->matrices(lane, work);
}

status_t matrix_step_prepare(struct device *device, const struct plan *plan)
{
    for (int m = 0; m < plan->matrix_count && device->table->prepare_matrix != NULL; m++) {
        const struct plan_matrix *it = &plan->matrices[m];
        if (it->owner == plan_matrix_rank(plan, it->unit))
            TRY(device->table->prepare_matrix(device, it->rows, it->columns));
    }
    return NULL;
}

struct comm_piece *matrix_step_pieces(const struct plan *plan, int unit, bool collects, int *count)
{
    const struct plan_matrix *matrices;
    int found = plan_find_matrices(plan, unit, &matrices), ranks = plan_matrix_ranks(plan, unit);
    bool gathers = plan->units->units[unit].shard_world > 1;
    int64_t shard = gathers ? plan->units->units[unit].flat.shard : 0;
    struct comm_piece *pieces = mem_alloc_array((size_t)found * (size_t)ranks + 1, sizeof *pieces);
    *count = 0;
    for (int m = 0; m < found; m++)
        for (int r = 0; r < ranks; r++) {
            const struct plan_matrix *it = &matrices[m];
            struct plan_part part = plan_matrix_part(plan, it, r);
            int64_t held = it->offset + part.from - shard * r;
            int64_t whole = gathers ? it->place + part.from : it->offset;
            if (part.count == 0) continue;
            pieces[(*count)++] = (struct comm_piece){.from = collects ? r : it->owner,
                                                     .to = collects ? it->owner : r,
                                                     .source = collects ? held : whole,
                                                     .target = collects ? whole : held,
                                                     .count = part.count};
        }
    return pieces;
}
