/*
 * Norms over a batch, of n channels side by side: pixels are `stride` elements apart. Part of
 * loops_body.h.
 */

LOOP loop_add_distances(size_t pixels, size_t stride, size_t n, const float *x, const double *mean,
                        bool square, double *sums)
{
    for (size_t pixel = 0; pixel < pixels; pixel++, x += stride) {
        if (square) {
            SIMD for (size_t i = 0; i < n; i++)
            {
                double distance = x[i] - mean[i];
                sums[i] += distance * distance;
            }
        } else {
            SIMD for (size_t i = 0; i < n; i++) sums[i] += x[i] - mean[i];
        }
    }
}

LOOP loop_add_slopes(size_t pixels, size_t stride, size_t n, const float *dy, const float *x,
                     const float *mean, double *sums, double *products)
{
    for (size_t pixel = 0; pixel < pixels; pixel++, dy += stride, x += stride)
        SIMD for (size_t i = 0; i < n; i++)
        {
            sums[i] += dy[i];
            products[i] += (double)dy[i] * (x[i] - mean[i]);
        }
}

LOOP loop_scale_channels(size_t pixels, size_t stride, size_t n, float *y, const float *x,
                         const struct channel_line *line, bool add)
{
    for (size_t pixel = 0; pixel < pixels; pixel++, y += stride, x += stride)
        EACH(n, y, add, (x[i] - line->middle[i]) * line->scale[i] + line->shift[i]);
}

LOOP loop_bend_channels(size_t pixels, size_t stride, size_t n, float *dx, const float *dy,
                        const float *x, const struct channel_line *line, bool add)
{
    for (size_t pixel = 0; pixel < pixels; pixel++, dx += stride, dy += stride, x += stride)
        EACH(n, dx, add,
             line->scale[i] * (dy[i] - line->shift[i] - (x[i] - line->middle[i]) * line->bend[i]));
}
