/* Curves as SVG, for a page; pure. */
#ifndef FSDPD_PAGE_CHART_H
#define FSDPD_PAGE_CHART_H

#include <stdbool.h>

#include "base/buf.h"
#include "page/series.h"

enum { CHART_LINES = 3, CHART_BUCKETS = 600 };

struct chart_mark {
    double step;
    char *name; /* "units changed" */
};

struct chart {
    const char *title; /* for readers and screen readers */
    const char *unit;  /* after values; may be "" */
    bool from_zero;    /* the axis starts at 0 */
    struct chart_line {
        const char *name;
        const struct series *series;
        bool dots; /* separate measurements, not a curve */
    } lines[CHART_LINES];
    int line_count;
    const struct chart_mark *marks; /* where something changed: vertical lines */
    int mark_count;
    const char *mark_name; /* of all of them, for the key */
};

/*
 * Appends a figure that plots the curves over the step. Where a bucket holds several points, a band
 * behind the curve spans their smallest to largest value. Attributes carry the values that the
 * page's script shows under the pointer. Without any points the figure states that nothing was
 * recorded.
 */
void chart_add(const struct chart *chart, struct buf *out);

#endif
