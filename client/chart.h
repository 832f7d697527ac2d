/* Curves as SVG, for a page; pure. */
#ifndef FSDPD_CLIENT_CHART_H
#define FSDPD_CLIENT_CHART_H

#include <stdbool.h>

#include "base/buf.h"
#include "series.h"

enum { CHART_LINES = 3, CHART_BUCKETS = 600 };

struct chart {
    const char *title; /* for people, and for those who hear the page read */
    const char *unit;  /* after values; may be "" */
    bool from_zero;    /* the axis begins at 0 */
    struct chart_line {
        const char *name;
        const struct series *series;
        bool dots; /* single measurements, not a curve */
    } lines[CHART_LINES];
    int line_count;
};

/*
 * A figure with the curves over the step; where a bucket stands for several points, a band behind
 * the curve goes from the smallest to the largest. What the page's script shows of it under the
 * pointer is in attributes. Says so if there is nothing to show.
 */
void chart_add(const struct chart *chart, struct buf *out);

#endif
