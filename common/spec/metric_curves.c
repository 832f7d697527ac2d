/* Curves of steps, and which of their points stay; see metric_curves.h. */
#include "spec/metric_curves.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

bool metric_curve(const Fsdpd__V1__Metrics *metrics, enum metric_curve curve, double *value)
{
    switch (curve) {
    case CURVE_LOSS: *value = metrics->loss; return true;
    case CURVE_GRADIENT_NORM:
        *value = metrics->gradient_norm;
        return metrics->_gradient_norm_case != 0;
    case CURVE_RATE:
        *value = metrics->tokens_per_second > 0 ? metrics->tokens_per_second
                                                : metrics->samples_per_second;
        return true;
    case CURVE_STEP_TIME: *value = metrics->step_seconds; return true;
    case CURVE_EXPOSED: *value = metrics->exposed_communication_seconds; return true;
    case CURVE_LEARNING_RATE: *value = metrics->learning_rate; return true;
    case CURVES: break;
    }
    return false;
}

void metric_reports_add(struct metric_reports *all, uint64_t number,
                        const Fsdpd__V1__Metrics *metrics)
{
    MEM_GROW(all->points, all->count, all->capacity);
    struct metric_point *point = &all->points[all->count++];
    *point = (struct metric_point){.number = number, .step = metrics->step, .stays = true};
    for (int c = 0; c < CURVES; c++)
        if (!metric_curve(metrics, (enum metric_curve)c, &point->values[c])) point->values[c] = NAN;
}

/* Returns by how many more stay. */
static size_t stay(struct metric_point *point)
{
    if (point == NULL || point->stays) return 0;
    point->stays = true;
    return 1;
}

/* Of a stretch; returns how many stay. Only the loss has a point where it is level: another curve
 * has that value in every point. */
static size_t choose_of_curve(struct metric_point *points, size_t count, int curve)
{
    struct metric_point *least = NULL, *largest = NULL, *odd = NULL;
    for (struct metric_point *point = points; point < points + count; point++) {
        const double value = point->values[curve];
        if (!isfinite(value)) {
            if (odd == NULL) odd = point;
            continue;
        }
        if (least == NULL || value < least->values[curve]) least = point;
        if (largest == NULL || value > largest->values[curve]) largest = point;
    }
    if (curve == CURVE_LOSS) return stay(odd) + stay(least) + stay(largest);
    return least != largest ? stay(least) + stay(largest) : 0;
}

/* Of all stretches of that length, for the first curves; with none, for the loss, and beyond places
 * where the job went back. */
static size_t choose(struct metric_point *points, size_t count, uint64_t length, int curves)
{
    size_t chosen = 0;
    for (size_t i = 0; i < count; i++) {
        points[i].stayed = points[i].stays;
        points[i].stays = false;
    }
    for (size_t from = 0, to = 0; from < count; from = to) {
        const uint64_t stretch = points[from].number / length;
        for (to = from + 1; to < count && points[to].number / length == stretch; to++)
            if (curves > 0 && points[to].step <= points[to - 1].step) break;
        for (int c = 0; c == 0 || c < curves; c++)
            chosen += choose_of_curve(points + from, to - from, c);
    }
    return chosen + stay(&points[0]);
}

/* Evenly of those that stayed before and do not now. */
static void fill(struct metric_point *points, size_t count, size_t room)
{
    size_t left = 0, seen = 0;
    for (size_t i = 0; i < count; i++) left += points[i].stayed && !points[i].stays;
    for (size_t i = 0; i < count; i++) {
        if (!points[i].stayed || points[i].stays) continue;
        points[i].stays = (seen + 1) * room / left > seen * room / left;
        seen++;
    }
}

size_t metric_reports_thin(struct metric_reports *all, size_t keep)
{
    if (all->count <= keep) return all->count;
    const size_t newest = keep / 4 + 1, room = keep - newest, old = all->count - newest;
    const uint64_t span = all->points[old].number - all->points[0].number;
    size_t chosen = old;
    for (int curves = CURVES; chosen > room; curves--) /* 7 of two stretches at the end */
        for (uint64_t length = 2; chosen > room && length <= 2 * span; length *= 2)
            chosen = choose(all->points, old, length, curves);
    fill(all->points, old, room - chosen);
    return keep;
}

void metric_reports_deinit(struct metric_reports *all)
{
    free(all->points);
    *all = (struct metric_reports){0};
}
