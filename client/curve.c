/* Text curves and bars; see progress.h. */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

enum { LABEL_WIDTH = 9 };

/* A grid of `columns` by `rows` dots; row 0 is at the top. */
struct dots {
    int columns, rows;
    bool *set;
};

static void set_column(struct dots *dots, int column, int from, int to)
{
    if (from > to) {
        int swap = from;
        from = to;
        to = swap;
    }
    for (int row = from; row <= to; row++) dots->set[row * dots->columns + column] = true;
}

/* Fills the whole segment between two neighbouring buckets, so that the curve has no gaps. */
static void plot(const struct series *series, struct dots *dots)
{
    double min, max;
    series_range(series, &min, &max);
    double begin = series->buckets[0].first_x, end = series->buckets[series->count - 1].x;
    double high = max > min ? max - min : 1, wide = end > begin ? end - begin : 1;
    int last_column = -1, last_row = 0;
    for (int i = 0; i < series->count; i++) {
        const struct series_bucket *bucket = &series->buckets[i];
        int column = (int)((bucket->x - begin) / wide * (dots->columns - 1) + 0.5);
        int top = (int)((max - bucket->max) / high * (dots->rows - 1) + 0.5);
        int bottom = (int)((max - bucket->min) / high * (dots->rows - 1) + 0.5);
        int row = (int)((max - bucket->last) / high * (dots->rows - 1) + 0.5);
        for (int c = last_column + 1; last_column >= 0 && c < column; c++) {
            int at = last_row + (row - last_row) * (c - last_column) / (column - last_column);
            set_column(dots, c, at, at);
        }
        if (last_column >= 0 && column <= last_column + 1 && abs(row - last_row) > 1)
            set_column(dots, column, last_row, row); /* steep segment: close the gap */
        set_column(dots, column, top, bottom);
        last_column = column;
        last_row = row;
    }
}

/* The character is U+2800 plus one bit per dot: first the upper three of the left column, then
 * those of the right one, then the lowest two. */
static void add_braille(const struct dots *dots, int column, int row, struct buf *out)
{
    static const int bits[4][2] = {{0, 3}, {1, 4}, {2, 5}, {6, 7}};
    unsigned pattern = 0;
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 2; x++)
            if (dots->set[(row * 4 + y) * dots->columns + column * 2 + x])
                pattern |= 1u << bits[y][x];
    char text[4] = {(char)0xe2, (char)(0xa0 | pattern >> 6), (char)(0x80 | (pattern & 0x3f)), 0};
    buf_add_text(out, text);
}

void curve_draw(const struct series *series, int width, int height, bool unicode,
                struct buf lines[])
{
    double min, max;
    if (!series_range(series, &min, &max) || width < CURVE_MIN_WIDTH || height < 1) return;
    int inside = width - LABEL_WIDTH - 2;
    struct dots dots = {.columns = unicode ? 2 * inside : inside,
                        .rows = unicode ? 4 * height : height};
    dots.set = mem_alloc_array((size_t)dots.columns * (size_t)dots.rows, sizeof *dots.set);
    plot(series, &dots);
    for (int row = 0; row < height; row++) {
        struct buf *out = &lines[row];
        char label[32] = "";
        if (row == 0) snprintf(label, sizeof label, "%.4g", max);
        else if (row == height - 1) snprintf(label, sizeof label, "%.4g", min);
        buf_printf(out, "%*s %s", LABEL_WIDTH, label, unicode ? "\u2502" : "|");
        size_t end = out->length;
        for (int column = 0; column < inside; column++) {
            if (unicode) add_braille(&dots, column, row, out);
            else buf_add_char(out, dots.set[row * dots.columns + column] ? '*' : ' ');
        }
        while (!unicode && out->length > end && out->data[out->length - 1] == ' ')
            out->data[--out->length] = '\0';
    }
    free(dots.set);
}

void curve_bar(double part, int width, bool unicode, bool colour, struct buf *out)
{
    static const char *const eighths[] = {" ",      "\u258f", "\u258e", "\u258d",
                                          "\u258c", "\u258b", "\u258a", "\u2589"};
    int inside = width - 2;
    if (!(part > 0)) part = 0;
    if (part > 1) part = 1;
    int full = (int)(part * inside);
    buf_add_text(out, unicode ? "\u2595" : "[");
    if (colour) buf_add_text(out, "\033[32m");
    for (int i = 0; i < inside; i++) {
        if (!unicode) buf_add_char(out, i < full ? '=' : i == full ? '>' : ' ');
        else if (i < full) buf_add_text(out, "\u2588");
        else if (i == full) buf_add_text(out, eighths[(int)((part * inside - full) * 8)]);
        else buf_add_char(out, ' ');
    }
    if (colour) buf_add_text(out, "\033[0m");
    buf_add_text(out, unicode ? "\u258f" : "]");
}
