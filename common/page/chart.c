/* Curves as SVG; see chart.h. */
#include "page/chart.h"

#include <math.h>

#include "page/html.h"

/* In pixels of the narrowest column: labels of 12 are never smaller on a screen. */
enum { WIDTH = 480, HEIGHT = 200, LEFT = 64, RIGHT = 14, TOP = 10, BOTTOM = 30, TICKS = 5 };

struct axes {
    double x0, x1, y0, y1;
};

static double to_x(const struct axes *axes, double x)
{
    return LEFT + (x - axes->x0) / (axes->x1 - axes->x0) * (WIDTH - LEFT - RIGHT);
}

static double to_y(const struct axes *axes, double y)
{
    return TOP + (axes->y1 - y) / (axes->y1 - axes->y0) * (HEIGHT - TOP - BOTTOM);
}

static bool find_axes(const struct chart *chart, struct axes *axes)
{
    bool any = false;
    for (int i = 0; i < chart->line_count; i++) {
        const struct series *series = chart->lines[i].series;
        double low, high;
        if (!series_range(series, &low, &high)) continue;
        double first = series->buckets[0].first_x, last = series->buckets[series->count - 1].x;
        axes->x0 = any ? fmin(axes->x0, first) : first;
        axes->x1 = any ? fmax(axes->x1, last) : last;
        axes->y0 = any ? fmin(axes->y0, low) : low;
        axes->y1 = any ? fmax(axes->y1, high) : high;
        any = true;
    }
    if (!any) return false;
    if (chart->from_zero && axes->y0 > 0) axes->y0 = 0;
    if (!(axes->x1 > axes->x0)) axes->x1 = axes->x0 + 1;
    if (!(axes->y1 > axes->y0)) {
        double around = fabs(axes->y0) > 0 ? fabs(axes->y0) * 0.1 : 1;
        axes->y0 -= chart->from_zero ? 0 : around;
        axes->y1 += around;
    }
    return true;
}

/* The tick distance: 1, 2 or 5 times a power of ten, for about TICKS ticks in the range. */
static double tick_step(double range)
{
    double rough = range / TICKS, power = pow(10, floor(log10(rough))), part = rough / power;
    return (part < 1.5 ? 1 : part < 3.5 ? 2 : part < 7.5 ? 5 : 10) * power;
}

static void add_ticks(const struct axes *axes, struct buf *out)
{
    double step = tick_step(axes->y1 - axes->y0);
    for (double y = ceil(axes->y0 / step) * step; y <= axes->y1 + step * 1e-9; y += step) {
        double at = to_y(axes, y);
        buf_printf(out,
                   "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                   "<text class=\"y\" x=\"%d\" y=\"%.1f\">%.4g</text>\n",
                   LEFT, WIDTH - RIGHT, at, at, LEFT - 6, at + 4, fabs(y) < step * 1e-9 ? 0 : y);
    }
    step = tick_step(axes->x1 - axes->x0);
    if (step < 1) step = 1;
    for (double x = ceil(axes->x0 / step) * step; x <= axes->x1 + step * 1e-9; x += step)
        buf_printf(out, "<text class=\"x\" x=\"%.1f\" y=\"%d\">%.10g</text>\n", to_x(axes, x),
                   HEIGHT - 12, x);
}

static void add_marks(const struct axes *axes, const struct chart *chart, struct buf *out)
{
    for (int i = 0; i < chart->mark_count; i++) {
        double step = chart->marks[i].step;
        if (step < axes->x0 || step > axes->x1) continue;
        buf_printf(out, "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"><title>",
                   to_x(axes, step), to_x(axes, step), TOP, HEIGHT - BOTTOM);
        html_add(out, chart->marks[i].name);
        buf_printf(out, " at step %.10g</title></line>\n", step);
    }
}

static bool is_thinned(const struct series *series)
{
    return series->stride > 1;
}

static void add_band(const struct axes *axes, const struct series *series, int line,
                     struct buf *out)
{
    buf_printf(out, "<polygon class=\"band c%d\" points=\"", line);
    for (int i = 0; i < series->count; i++)
        buf_printf(out, "%.1f,%.1f ", to_x(axes, series->buckets[i].x),
                   to_y(axes, series->buckets[i].max));
    for (int i = series->count - 1; i >= 0; i--)
        buf_printf(out, "%.1f,%.1f ", to_x(axes, series->buckets[i].x),
                   to_y(axes, series->buckets[i].min));
    buf_add_text(out, "\"/>\n");
}

static void add_line(const struct axes *axes, const struct chart_line *line, int number,
                     struct buf *out)
{
    const struct series *series = line->series;
    if (series->count == 0) return;
    if (is_thinned(series)) add_band(axes, series, number, out);
    if (line->dots || series->count == 1) {
        for (int i = 0; i < series->count; i++)
            buf_printf(out, "<circle class=\"c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", number,
                       to_x(axes, series->buckets[i].x), to_y(axes, series->buckets[i].last));
        return;
    }
    buf_printf(out, "<polyline class=\"c%d\" points=\"", number);
    for (int i = 0; i < series->count; i++)
        buf_printf(out, "%.1f,%.1f ", to_x(axes, series->buckets[i].x),
                   to_y(axes, series->buckets[i].last));
    buf_add_text(out, "\"/>\n");
}

/* Adds "name|x y x y ..." for each line; the page's script reads it. */
static void add_data(const struct chart *chart, struct buf *out)
{
    for (int i = 0; i < chart->line_count; i++) {
        const struct series *series = chart->lines[i].series;
        buf_printf(out, " data-line%d=\"", i);
        html_add(out, chart->lines[i].name);
        buf_add_char(out, '|');
        for (int b = 0; b < series->count; b++)
            buf_printf(out, "%s%.10g %.6g", b > 0 ? " " : "", series->buckets[b].x,
                       series->buckets[b].last);
        buf_add_char(out, '"');
    }
}

static void add_notes(const struct chart *chart, struct buf *out)
{
    bool band_is_named = false;
    for (int i = 0; i < chart->line_count; i++) {
        const struct series *series = chart->lines[i].series;
        if (series->count == 0) continue;
        buf_printf(out, "<span class=\"key c%d\"></span>", i);
        html_add(out, chart->lines[i].name);
        if (is_thinned(series) && !band_is_named)
            buf_printf(out,
                       " (a point stands for up to %u recorded steps; the band goes from their "
                       "smallest to their largest value)",
                       series->stride);
        band_is_named |= is_thinned(series);
        if (series->not_finite > 0)
            buf_printf(out, " (%llu values were not finite)",
                       (unsigned long long)series->not_finite);
        buf_add_text(out, " ");
    }
    if (chart->mark_count == 0) return;
    buf_add_text(out, "<span class=\"key mark\"></span>");
    html_add(out, chart->mark_name);
}

void chart_add(const struct chart *chart, struct buf *out)
{
    struct axes axes = {0};
    buf_add_text(out, "<figure><h3>");
    html_add(out, chart->title);
    buf_add_text(out, "</h3>\n");
    if (!find_axes(chart, &axes)) {
        buf_add_text(out, "<p class=\"none\">Nothing was recorded.</p></figure>\n");
        return;
    }
    buf_printf(out,
               "<svg class=\"chart\" role=\"img\" viewBox=\"0 0 %d %d\" data-x0=\"%.10g\" "
               "data-x1=\"%.10g\" data-left=\"%d\" data-right=\"%d\" data-unit=\"",
               WIDTH, HEIGHT, axes.x0, axes.x1, LEFT, WIDTH - RIGHT);
    html_add(out, chart->unit);
    buf_add_char(out, '"');
    add_data(chart, out);
    buf_add_text(out, ">\n<title>");
    html_add(out, chart->title);
    buf_add_text(out, "</title>\n");
    add_ticks(&axes, out);
    add_marks(&axes, chart, out);
    for (int i = chart->line_count - 1; i >= 0; i--) add_line(&axes, &chart->lines[i], i, out);
    buf_printf(out, "<line class=\"cursor\" x1=\"0\" x2=\"0\" y1=\"%d\" y2=\"%d\"/>\n</svg>\n", TOP,
               HEIGHT - BOTTOM);
    buf_add_text(out, "<figcaption>");
    add_notes(chart, out);
    buf_add_text(out, "<output></output></figcaption></figure>\n");
}
