/* Small pictures of text: a curve and a bar, in Unicode or in ASCII. Pure. */
#ifndef FSDPD_CLIENT_CURVE_H
#define FSDPD_CLIENT_CURVE_H

#include <stdbool.h>

#include "base/buf.h"
#include "series.h"

enum { CURVE_MIN_WIDTH = 24, CURVE_MAX_HEIGHT = 16 };

/*
 * The curve in `height` lines of `width` columns, the first with the largest value before it and
 * the last with the smallest. A column shows all between the smallest and the largest value of its
 * points. Braille dots, two by four in a character; in ASCII one "*" for each. The lines are
 * appended to lines[0] to lines[height - 1]; nothing is without points.
 */
void curve_draw(const struct series *series, int width, int height, bool unicode,
                struct buf lines[]);

/* "[=====>    ]", or in Unicode a bar of blocks to the eighth of a column; `width` columns. */
void curve_bar(double part, int width, bool unicode, bool colour, struct buf *out);

#endif
