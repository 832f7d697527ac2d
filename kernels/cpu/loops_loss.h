/*
 * Losses of every element by itself, and their slopes; see ELEMENT_LOSS in ops/op.h. Part of
 * loops_body.h; loop_exp and LANES come from loops_softmax.h.
 */
LOOP_INLINE float difference_value(int kind, float x, float r, float delta)
{
    float away = x - r, far = fabsf(away);
    if (kind == DIFFERENCE_SQUARED) return away * away;
    if (kind == DIFFERENCE_ABSOLUTE) return far;
    if (kind == DIFFERENCE_HUBER)
        return far <= delta ? 0.5f * away * away : delta * (far - 0.5f * delta);
    float p = loop_exp(r);
    return p == 0 ? 0 : -p * away;
}

LOOP_INLINE float difference_slope(int kind, float x, float r, float delta)
{
    float away = x - r;
    if (kind == DIFFERENCE_SQUARED) return 2 * away;
    if (kind == DIFFERENCE_ABSOLUTE) return away > 0 ? 1 : away < 0 ? -1 : away;
    if (kind == DIFFERENCE_HUBER) return away > delta ? delta : away < -delta ? -delta : away;
    return -loop_exp(r);
}

LOOP_INLINE void sum_differences(int kind, size_t n, float *lanes, const float *x, const float *r,
                                 float delta, bool computed)
{
#define VALUE(i) (r[i] == r[i] || computed ? difference_value(kind, x[i], r[i], delta) : 0)
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        SIMD for (size_t j = 0; j < LANES; j++) lanes[j] += VALUE(i + j);
    }
    for (; i < n; i++) lanes[i % LANES] += VALUE(i);
#undef VALUE
}

/* The kind is a constant of each loop. */
#define EACH_DIFFERENCE(run)                                                                       \
    switch (kind) {                                                                                \
    case DIFFERENCE_SQUARED: run(DIFFERENCE_SQUARED); break;                                       \
    case DIFFERENCE_ABSOLUTE: run(DIFFERENCE_ABSOLUTE); break;                                     \
    case DIFFERENCE_HUBER: run(DIFFERENCE_HUBER); break;                                           \
    default: run(DIFFERENCE_DIVERGENCE); break;                                                    \
    }

LOOP loop_add_differences(size_t n, float *lanes, const float *x, const float *r, int kind,
                          float delta, bool computed)
{
#define RUN(kind) sum_differences(kind, n, lanes, x, r, delta, computed)
    EACH_DIFFERENCE(RUN)
#undef RUN
}

LOOP loop_put_differences(size_t n, float *dx, const float *x, const float *r, int kind,
                          float delta, float scale, bool computed, bool add)
{
#define RUN(kind)                                                                                  \
    EACH(n, dx, add,                                                                               \
         r[i] == r[i] || computed ? difference_slope(kind, x[i], r[i], delta) * scale : 0)
    EACH_DIFFERENCE(RUN)
#undef RUN
}
