/* Curves in bounded memory; see series.h. */
#include "page/series.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"

enum { LIMIT = 1024 };

static struct series_bucket merge(struct series_bucket a, struct series_bucket b)
{
    return (struct series_bucket){.first_x = a.first_x,
                                  .x = b.x,
                                  .min = fmin(a.min, b.min),
                                  .max = fmax(a.max, b.max),
                                  .last = b.last,
                                  .count = a.count + b.count};
}

/* Merges pairs of buckets to make room. */
static void compact(struct series *series)
{
    int kept = 0;
    for (int i = 0; i < series->count; i += 2)
        series->buckets[kept++] = i + 1 < series->count
                                      ? merge(series->buckets[i], series->buckets[i + 1])
                                      : series->buckets[i];
    series->count = kept;
    series->stride *= 2;
}

void series_add(struct series *series, double x, double y)
{
    if (!isfinite(x) || !isfinite(y)) {
        series->not_finite++;
        return;
    }
    series->points++;
    if (series->stride == 0) series->stride = 1;
    while (series->count > 0 && series->buckets[series->count - 1].first_x >= x) series->count--;
    struct series_bucket point = {.first_x = x, .x = x, .min = y, .max = y, .last = y, .count = 1};
    struct series_bucket *last = series->count > 0 ? &series->buckets[series->count - 1] : NULL;
    if (last != NULL && last->count < series->stride && last->x < x) {
        *last = merge(*last, point);
        return;
    }
    if (series->count == (series->limit > 0 ? series->limit : LIMIT)) compact(series);
    MEM_GROW(series->buckets, series->count, series->capacity);
    series->buckets[series->count++] = point;
}

bool series_range(const struct series *series, double *min, double *max)
{
    for (int i = 0; i < series->count; i++) {
        *min = i == 0 ? series->buckets[i].min : fmin(*min, series->buckets[i].min);
        *max = i == 0 ? series->buckets[i].max : fmax(*max, series->buckets[i].max);
    }
    return series->count > 0;
}

void series_deinit(struct series *series)
{
    free(series->buckets);
    *series = (struct series){0};
}
