/*
 * A curve of unbounded length in bounded memory: neighbouring points are merged into buckets that
 * keep the smallest, the largest and the last value, so that no peak is lost. Pure.
 */
#ifndef FSDPD_PAGE_SERIES_H
#define FSDPD_PAGE_SERIES_H

#include <stdbool.h>
#include <stdint.h>

struct series_bucket {
    double first_x, x; /* of its first and last point */
    double min, max, last;
    uint32_t count; /* points */
};

struct series {
    struct series_bucket *buckets;
    int count, capacity;
    int limit;       /* maximum number of buckets, even; 0: 1024 */
    uint32_t stride; /* points in a full bucket */
    uint64_t points, not_finite;
};

/*
 * Adds a point. Values that are not finite are only counted. A point whose x is not above the last
 * one replaces it and all points from that x on: the job went back to an earlier step.
 */
void series_add(struct series *series, double x, double y);

/* The smallest and the largest value; false if there are none. */
bool series_range(const struct series *series, double *min, double *max);

void series_deinit(struct series *series);

#endif
