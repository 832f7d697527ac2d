/*
 * A part of plan_validate: a unit is gathered before it is used and freed after, and no more units
 * are gathered at a time than the options allow. Pure functions; any thread.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "fsdp/plan_internal.h"
#include "fsdp/plan_validate.h"

struct gathering {
    int gather; /* -1 while not gathered */
    bool used;
    int free;    /* the preceding FREE, -1 */
    int reshard; /* the RESHARD, -1 */
    int last;    /* the last gather, -1 */
    int upload;  /* the UPLOAD for the next gather, -1 */
};

static bool op_uses_unit(const struct validator *v, int op, int unit)
{
    int units[OP_UNITS_MAX];
    for (int k = validate_op_units(v, op, false, units) - 1; k >= 0; k--)
        if (units[k] == unit) return true;
    return false;
}

/* The instruction that frees the unit after `gather`, and the first that uses it. */
static void find_end(const struct validator *v, int gather, int *first_use, int *freed)
{
    int unit = v->program->instructions[gather].unit;
    *first_use = *freed = v->program->instruction_count;
    for (int i = gather + 1; i < v->program->instruction_count; i++) {
        const struct plan_instruction *in = &v->program->instructions[i];
        if (in->kind == INSTRUCTION_COMPUTE && *first_use > i && op_uses_unit(v, in->op, unit))
            *first_use = i;
        if (in->kind == INSTRUCTION_FREE && in->unit == unit) {
            *freed = i;
            return;
        }
    }
}

struct interval {
    int gather, first_use, freed; /* instructions; the program's end if there is none */
};

/* The limiter: when a gather may start, at most the limit of units, including its own, may be
 * gathered and not freed; more only if all of them are still needed when this one is first used. */

static status_t check_limit(const struct validator *v, const struct interval *intervals, int count)
{
    int count_end = v->program->instruction_count;
    for (int i = 0; i < count; i++) {
        int at_once = 1, needed = 1;
        for (int k = 0; k < i; k++) {
            int freed = intervals[k].freed;
            if (freed < count_end && validate_before(v, freed, intervals[i].gather)) continue;
            at_once++;
            if (freed > intervals[i].first_use) needed++;
        }
        int limit = v->plan->options.gathered_limit;
        if (at_once > limit && at_once > needed)
            return validate_fail(v, intervals[i].gather,
                                 "may be the unit gathered as number %d; the limit is %d", at_once,
                                 limit);
    }
    return NULL;
}

status_t validate_gatherings(const struct validator *v)
{
    int unit_count = v->plan->units->unit_count, count = v->program->instruction_count,
        units[OP_UNITS_MAX];
    struct gathering *of = mem_alloc_array(unit_count, sizeof *of);
    for (int u = 0; u < unit_count; u++)
        of[u] =
            (struct gathering){.gather = -1, .free = -1, .reshard = -1, .last = -1, .upload = -1};
    struct interval *intervals = mem_alloc_array(count, sizeof *intervals);
    int interval_count = 0, turn = 0; /* the first instruction that computes in backward */
    while (turn < count && v->program->instructions[turn].op < v->graph->forward_op_count) turn++;
    status_t status = NULL;
    for (int i = 0; i < count && status == NULL; i++) {
        const struct plan_instruction *in = &v->program->instructions[i];
        struct gathering *unit = in->unit >= 0 ? &of[in->unit] : NULL;
        switch (in->kind) {
        case INSTRUCTION_UPLOAD:
            if (unit->upload >= 0) status = validate_fail(v, i, "is the second for one gather");
            if (validate_gathers(v, in->unit)) {
                unit->upload = i;
                break;
            }
            /* fall through */
        case INSTRUCTION_ALL_GATHER:
            if (in->kind == INSTRUCTION_ALL_GATHER && in->group != GROUP_RESHARD) {
                if (validate_offloads(v, in->unit) && unit->upload < 0)
                    status = validate_fail(v, i, "gathers what is not uploaded");
                unit->upload = -1;
            }
            if (status != NULL) break;
            if (unit->gather >= 0) status = validate_fail(v, i, "is gathered already");
            else if (unit->free >= 0 && !validate_before(v, unit->free, i))
                status = validate_fail(v, i, "may overwrite what is not freed yet");
            else if (unit->free >= 0 && validate_reshards(v, in->unit) && unit->reshard < 0)
                status = validate_fail(v, i, "gathers from all ranks, but %d were to keep it",
                                       validate_between(v, in->unit));
            unit->gather = unit->last = i;
            unit->used = false;
            struct interval interval = {.gather = i};
            find_end(v, i, &interval.first_use, &interval.freed);
            /* A unit that stays until backward does not count. */
            bool root = v->plan->units->units[in->unit].modules[0] == 0;
            bool kept = validate_stays(v, in->unit) && i < turn && interval.freed > turn;
            if (kept && unit->free >= 0)
                status = validate_fail(v, i, "gathers again what was to stay gathered");
            if (!root && !kept) intervals[interval_count++] = interval;
            break;
        case INSTRUCTION_RESHARD:
            if (unit->gather < 0 || !validate_before(v, unit->gather, i))
                status = validate_fail(v, i, "reshards a unit that is not gathered");
            else if (unit->reshard >= 0) status = validate_fail(v, i, "is the second of its unit");
            unit->reshard = i;
            break;
        case INSTRUCTION_FREE:
            if (unit->gather < 0) status = validate_fail(v, i, "frees what is not gathered");
            else if (!unit->used)
                status = validate_fail(v, i,
                                       "frees a unit that was gathered "
                                       "but never used");
            unit->gather = -1;
            unit->free = i;
            break;
        case INSTRUCTION_COMPUTE:
            for (int k = validate_op_units(v, in->op, false, units) - 1; k >= 0; k--) {
                struct gathering *used = &of[units[k]];
                if (!validate_fetches(v, units[k])) continue;
                used->used = true;
                if (used->gather < 0 || !validate_before(v, used->gather, i))
                    status = validate_fail(v, i, "uses unit %s, which is not gathered then",
                                           v->plan->units->units[units[k]].name);
            }
            break;
        default: break;
        }
    }
    for (int u = 0; u < unit_count && status == NULL; u++)
        if (of[u].gather >= 0)
            status = validate_fail(v, of[u].gather, "gathers what is never freed");
        else if (of[u].upload >= 0)
            status = validate_fail(v, of[u].upload, "uploads what is never gathered");
    for (int u = 0; u < unit_count && status == NULL; u++)
        if (of[u].reshard > of[u].last)
            status = validate_fail(v, of[u].reshard, "keeps what is not gathered again");
    if (status == NULL) status = check_limit(v, intervals, interval_count);
    free(intervals);
    free(of);
    return status;
}
