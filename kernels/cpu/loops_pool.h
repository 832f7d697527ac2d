/* The maximum of a window's elements, and its gradient. Part of loops_body.h. */

/* Greater, or NaN: a NaN wins, so that it shows in the loss. */
#define BEATS(value, best) (((value) > (best)) | ((value) != (value)))

LOOP_INLINE void max_of_four(size_t n, size_t step, const float *const *candidates, float *y,
                             uint8_t *indices, bool add)
{
    const float *first = candidates[0], *second = candidates[1];
    const float *third = candidates[2], *fourth = candidates[3];
    SIMD for (size_t i = 0; i < n; i++)
    {
        float best = first[i * step], value = second[i * step];
        int winner = BEATS(value, best) ? 1 : 0;
        best = BEATS(value, best) ? value : best;
        value = third[i * step];
        winner = BEATS(value, best) ? 2 : winner;
        best = BEATS(value, best) ? value : best;
        value = fourth[i * step];
        winner = BEATS(value, best) ? 3 : winner;
        best = BEATS(value, best) ? value : best;
        y[i] = add ? y[i] + best : best;
        if (indices != NULL) indices[i] = (uint8_t)winner;
    }
}

LOOP loop_max_of(size_t n, size_t step, int count, const float *const *candidates,
                 const uint8_t *numbers, float *y, uint8_t *indices, bool add)
{
    if (count == 4 && numbers[3] == 3) {
        /* Written out so that each call becomes a loop of its own. */
        if (step == 1 && indices != NULL && !add) max_of_four(n, 1, candidates, y, indices, false);
        else if (step == 2 && indices != NULL && !add)
            max_of_four(n, 2, candidates, y, indices, false);
        else if (indices != NULL) max_of_four(n, step, candidates, y, indices, add);
        else max_of_four(n, step, candidates, y, NULL, add);
        return;
    }
    enum { BLOCK = 128 };
    for (size_t start = 0; start < n; start += BLOCK) {
        size_t block = n - start < BLOCK ? n - start : BLOCK;
        float best[BLOCK];
        int winner[BLOCK];
        for (size_t i = 0; i < block; i++) {
            best[i] = candidates[0][(start + i) * step];
            winner[i] = numbers[0];
        }
        for (int k = 1; k < count; k++) {
            const float *values = candidates[k] + start * step;
            int number = numbers[k];
            SIMD for (size_t i = 0; i < block; i++)
            {
                float value = values[i * step];
                winner[i] = BEATS(value, best[i]) ? number : winner[i];
                best[i] = BEATS(value, best[i]) ? value : best[i];
            }
        }
        for (size_t i = 0; i < block; i++) y[start + i] = add ? y[start + i] + best[i] : best[i];
        if (indices != NULL)
            for (size_t i = 0; i < block; i++) indices[start + i] = (uint8_t)winner[i];
    }
}

LOOP loop_max_of_backward(size_t n, size_t step, int count, float *const *outputs,
                          const uint8_t *numbers, const float *dy, const uint8_t *indices, bool add)
{
    for (int k = 0; k < count; k++) {
        float *dx = outputs[k];
        int number = numbers[k];
        if (add) {
            SIMD for (size_t i = 0; i < n; i++) dx[i * step] += indices[i] == number ? dy[i] : 0;
        } else if (step == 1) {
            SIMD for (size_t i = 0; i < n; i++) dx[i] = indices[i] == number ? dy[i] : 0;
        } else {
            SIMD for (size_t i = 0; i < n; i++) dx[i * step] = indices[i] == number ? dy[i] : 0;
        }
    }
}
