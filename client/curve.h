/* Small text pictures: a curve and a bar, in Unicode or in ASCII. Pure. */
#ifndef FSDPD_CLIENT_CURVE_H
#define FSDPD_CLIENT_CURVE_H

#include <stdbool.h>

#include "base/buf.h"
#include "page/series.h"

enum { CURVE_MIN_WIDTH = 24, CURVE_MAX_HEIGHT = 16 };

/*
 * Draws the curve in `height` lines of `width` columns; the largest value labels the first line,
 * the smallest the last. A column covers the range between the smallest and the largest value of
 * its points. In Unicode a character has two by four Braille dots, in ASCII it is a "*". Appends to
 * lines[0] to lines[height - 1]; appends nothing if there are no points.
 */
void curve_draw(const struct series *series, int width, int height, bool unicode,
                struct buf lines[]);

/* "[=====>    ]", or in Unicode a bar of blocks with a resolution of an eighth of a column; `width`
 * columns wide. */
void curve_bar(double part, int width, bool unicode, bool colour, struct buf *out);

#endif
