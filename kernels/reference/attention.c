/* Reference attention, one row of probabilities at a time, and rotary positions. */
#include "kernels/attention.h"

#include <string.h>

#include "kernels/philox.h"
#include "kernels/reference/reference.h"
#include "kernels/rope.h"

/* One run: the op, its operands, and the current row of one query head. */
struct attention {
    const struct kernel *kernel;
    const struct kernel_call *call;
    struct attention_shape shape;
    struct attention_places at;
};

/* The reference library's operands are f32. */
static const float *f32(const void *operand)
{
    return operand;
}

static struct attention attention_of(const struct kernel *kernel, const struct kernel_call *call)
{
    struct attention a = {kernel, call, attention_shape_of(&kernel->desc), {0}};
    a.at = attention_places_of(&a.shape, call);
    return a;
}

static int64_t q_place(const struct attention *a, int64_t batch, int64_t head, int64_t row)
{
    return (batch * a->shape.time + row) * a->at.q_row + head * a->shape.head_dim;
}

static int64_t kv_place(const struct attention *a, int64_t batch, int64_t head, int64_t column)
{
    return (batch * a->shape.time + column) * a->at.kv_row +
           head / a->shape.group * a->shape.head_dim;
}

static int64_t y_place(const struct attention *a, int64_t batch, int64_t head, int64_t row)
{
    return ((batch * a->shape.time + row) * a->shape.heads + head) * a->shape.head_dim;
}

static double dot(int64_t n, const float *a, const float *b)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

static bool attends(const struct attention *a, int64_t batch, int64_t row, int64_t column)
{
    if (column < attention_first_key(&a->shape, row)) return false;
    if (column >= attention_keys_end(&a->shape, row)) return false;
    const int32_t *starts = a->at.starts != NULL ? a->at.starts + batch * a->shape.time : NULL;
    if (starts != NULL && starts[row] != starts[column]) return false;
    return a->at.mask == NULL || a->at.mask[batch * a->shape.time + column] != 0;
}

/* As capped, without the bias. */
static double plain_score(const struct attention *a, int64_t batch, int64_t head, int64_t row,
                          int64_t column)
{
    double plain =
        a->shape.scale * dot(a->shape.head_dim, f32(a->at.q) + q_place(a, batch, head, row),
                             f32(a->at.k) + kv_place(a, batch, head, column));
    double cap = a->shape.softcap;
    return cap > 0 ? cap * tanh(plain / cap) : plain;
}

/* What ALiBi adds to the score of a key and a row, by their positions. */
static double lean(const struct attention *a, int64_t head, int64_t row, int64_t column)
{
    if (a->shape.alibi == 0) return 0;
    double slope = attention_slope(&a->shape, head);
    return attention_height(&a->shape, slope, column) - attention_height(&a->shape, slope, row);
}

static double score(const struct attention *a, int64_t batch, int64_t head, int64_t row,
                    int64_t column)
{
    int64_t place = attention_bias_row(&a->shape, column - row) * a->shape.heads + head;
    double bias = a->at.bias != NULL ? a->at.bias[place] : 0;
    int64_t start = a->at.starts != NULL ? a->at.starts[batch * a->shape.time + row] : 0;
    return plain_score(a, batch, head, row, column) + bias +
           lean(a, head, row - start, column - start);
}

/* The derivative of a score by what the cap was given. */
static double cap_slope(const struct attention *a, int64_t batch, int64_t head, int64_t row,
                        int64_t column)
{
    if (a->shape.softcap == 0) return 1;
    double ratio = plain_score(a, batch, head, row, column) / a->shape.softcap;
    return 1 - ratio * ratio;
}

/* The factor of a probability: 0, or 1 / (1 - p). */
static double dropout_factor(const struct attention *a, int64_t batch, int64_t head, int64_t row,
                             int64_t column)
{
    double p = a->kernel->desc.attrs.attention.p;
    if (p == 0) return 1;
    uint64_t i = kernel_first_element(a->call) + attention_row_index(&a->shape, batch, head, row) +
                 (uint64_t)column;
    uint32_t key[2] = {(uint32_t)a->call->seed, (uint32_t)(a->call->seed >> 32)}, words[4];
    uint32_t counter[4] = {(uint32_t)(i / 4), a->kernel->desc.attrs.attention.stream,
                           (uint32_t)a->call->step, a->call->rank};
    philox_block(counter, key, words);
    return words[i % 4] * 0x1p-32 >= p ? 1 / (1 - p) : 0;
}

/* Puts k and v of all rows into the cache, in their order. */
static void fill_cache(const struct attention *a)
{
    int64_t width = a->shape.kv_heads * a->shape.head_dim;
    for (int64_t b = 0; b < a->shape.batch; b++)
        for (int64_t i = 0; i < a->shape.time; i++) {
            int64_t position = attention_position(&a->shape, &a->at, b, i) % a->shape.cached;
            int64_t from = kv_place(a, b, 0, i), to = (b * a->shape.cached + position) * width;
            memcpy((float *)a->at.keys + to, f32(a->at.k) + from, (size_t)width * sizeof(float));
            memcpy((float *)a->at.values + to, f32(a->at.v) + from, (size_t)width * sizeof(float));
        }
}

/* Of one row of a query head, over the cache. */
static void attend_cached(const struct attention *a, int64_t batch, int64_t head, int64_t row,
                          double *scores, float *y)
{
    int64_t last = attention_position(&a->shape, &a->at, batch, row), d = a->shape.head_dim;
    int64_t first = attention_first_key(&a->shape, last), width = a->shape.kv_heads * d;
    int64_t place = batch * a->shape.cached * width + head / a->shape.group * d;
    const float *keys = (const float *)a->at.keys + place,
                *values = (const float *)a->at.values + place;
    double max = -INFINITY, sum = 0, cap = a->shape.softcap;
    for (int64_t j = first; j <= last; j++) {
        double *score = &scores[j - first];
        *score = a->shape.scale * dot(d, f32(a->at.q) + q_place(a, batch, head, row),
                                      keys + j % a->shape.cached * width);
        if (cap > 0) *score = cap * tanh(*score / cap);
        *score += lean(a, head, last, j);
        max = fmax(max, *score);
    }
    for (int64_t j = 0; j <= last - first; j++) sum += scores[j] = exp(scores[j] - max);
    for (int64_t c = 0; c < d; c++) {
        double value = 0;
        for (int64_t j = first; j <= last; j++)
            value += scores[j - first] * values[j % a->shape.cached * width + c];
        reference_put(a->kernel, 0, &y[c], value / sum);
    }
}

static void run_cached(const struct attention *a)
{
    float *y = a->call->outputs[0];
    fill_cache(a);
    for (int64_t b = 0; b < a->shape.batch; b++)
        for (int64_t h = 0; h < a->shape.heads; h++)
            for (int64_t i = 0; i < a->shape.time; i++)
                attend_cached(a, b, h, i, a->call->workspace, y + y_place(a, b, h, i));
}

/* Writes a row of probabilities, before dropout; returns the log of the sum of exponentials,
 * infinity if the row sees no key. */
static double row_of_probabilities(const struct attention *a, int64_t batch, int64_t head,
                                   int64_t row, double *probabilities)
{
    double max = -INFINITY, sum = 0;
    bool any = false;
    for (int64_t j = 0; j < a->shape.time; j++) {
        if (!attends(a, batch, row, j)) continue;
        probabilities[j] = score(a, batch, head, row, j);
        if (!any || probabilities[j] > max) max = probabilities[j];
        any = true;
    }
    for (int64_t j = 0; j < a->shape.time; j++)
        if (attends(a, batch, row, j)) sum += exp(probabilities[j] - max);
    for (int64_t j = 0; j < a->shape.time; j++)
        probabilities[j] = attends(a, batch, row, j) ? exp(probabilities[j] - max) / sum : 0;
    return any ? max + log(sum) : INFINITY;
}

status_t reference_attention(const struct kernel *kernel, const struct kernel_call *call)
{
    struct attention a = attention_of(kernel, call);
    double *probabilities = call->workspace;
    float *y = call->outputs[0], *lse = call->outputs[1];
    if (a.shape.cached > 0) {
        run_cached(&a);
        return NULL;
    }
    for (int64_t b = 0; b < a.shape.batch; b++)
        for (int64_t h = 0; h < a.shape.heads; h++)
            for (int64_t i = 0; i < a.shape.time; i++) {
                double log_sum = row_of_probabilities(&a, b, h, i, probabilities);
                if (kernel->desc.output_present[1])
                    reference_put(kernel, 1, &lse[(b * a.shape.heads + h) * a.shape.time + i],
                                  log_sum);
                for (int64_t j = 0; j < a.shape.time; j++)
                    probabilities[j] *= dropout_factor(&a, b, h, i, j);
                for (int64_t c = 0; c < a.shape.head_dim; c++) {
                    double sum = 0;
                    for (int64_t j = 0; j < a.shape.time; j++)
                        if (probabilities[j] != 0)
                            sum += probabilities[j] * f32(a.at.v)[kv_place(&a, b, h, j) + c];
                    reference_put(kernel, 0, &y[y_place(&a, b, h, i) + c], sum);
                }
            }
    return NULL;
}

/*
 * The gradient of a probability P, before dropout M, is dP = M (dy . v), and that of a score is P
 * (dP - sum(P dP)), where the sum over the row is dy . y. One pass over the rows makes dq, and each
 * key takes another pass.
 */

/* P at a row and column; `lse` comes from the forward pass. */
static double probability(const struct attention *a, int64_t batch, int64_t head, int64_t row,
                          int64_t column)
{
    if (!attends(a, batch, row, column)) return 0;
    double lse = a->at.lse[(batch * a->shape.heads + head) * a->shape.time + row];
    return exp(score(a, batch, head, row, column) - lse);
}

/* dP at a row and column. */
static double probability_gradient(const struct attention *a, int64_t batch, int64_t head,
                                   int64_t row, int64_t column)
{
    return dropout_factor(a, batch, head, row, column) *
           dot(a->shape.head_dim, f32(a->at.dy) + y_place(a, batch, head, row),
               f32(a->at.v) + kv_place(a, batch, head, column));
}

/* sum(P dP) over a row. */
static double row_total(const struct attention *a, int64_t batch, int64_t head, int64_t row)
{
    int64_t place = y_place(a, batch, head, row);
    return dot(a->shape.head_dim, f32(a->at.dy) + place, f32(a->at.y) + place);
}

/* Sums a head's gradients of scores whose key is `distance` behind its row. */
static double distance_gradient(const struct attention *a, int64_t head, int64_t distance)
{
    double sum = 0;
    for (int64_t b = 0; b < a->shape.batch; b++)
        for (int64_t row = 0; row < a->shape.time; row++) {
            int64_t column = row + distance;
            if (column < 0 || column >= a->shape.time) continue;
            double p = probability(a, b, head, row, column);
            if (p != 0)
                sum += p *
                       (probability_gradient(a, b, head, row, column) - row_total(a, b, head, row));
        }
    return sum;
}

static void bias_gradient(const struct attention *a)
{
    int64_t far = a->shape.time - 1;
    for (int64_t distance = -far; distance <= far; distance++)
        for (int64_t h = 0; h < a->shape.heads; h++) {
            int64_t place = attention_bias_row(&a->shape, distance) * a->shape.heads + h;
            reference_put(a->kernel, 3, a->at.dbias + place, distance_gradient(a, h, distance));
        }
}

/* Makes dq of one row; returns sum(P dP). `scores` holds a row. */
static double row_gradient(const struct attention *a, int64_t batch, int64_t head, int64_t row,
                           double *scores)
{
    const struct attention_shape *s = &a->shape;
    double total = row_total(a, batch, head, row);
    for (int64_t j = 0; j < s->time; j++) {
        double p = probability(a, batch, head, row, j);
        scores[j] = p != 0 ? p * (probability_gradient(a, batch, head, row, j) - total) *
                                 cap_slope(a, batch, head, row, j)
                           : 0;
    }
    for (int64_t c = 0; c < s->head_dim; c++) {
        double sum = 0;
        for (int64_t j = 0; j < s->time; j++)
            if (scores[j] != 0) sum += scores[j] * f32(a->at.k)[kv_place(a, batch, head, j) + c];
        reference_put(a->kernel, 0, (float *)a->at.dq + q_place(a, batch, head, row) + c,
                      sum * s->scale);
    }
    return total;
}

/* Makes dk and dv of one key from all heads that it serves. `totals`: by head of the group, then
 * row. */
static void column_gradient(const struct attention *a, int64_t batch, int64_t kv_head,
                            int64_t column, const double *totals, double *scores, double *kept)
{
    const struct attention_shape *s = &a->shape;
    int64_t first = kv_head * s->group, count = s->group * s->time;
    for (int64_t n = 0; n < count; n++) {
        int64_t head = first + n / s->time, row = n % s->time;
        double p = probability(a, batch, head, row, column);
        double dp = p != 0 ? probability_gradient(a, batch, head, row, column) : 0;
        scores[n] = p != 0 ? p * (dp - totals[n]) * cap_slope(a, batch, head, row, column) : 0;
        kept[n] = p * dropout_factor(a, batch, head, row, column);
    }
    int64_t place = kv_place(a, batch, first, column);
    for (int64_t c = 0; c < s->head_dim; c++) {
        double dk = 0, dv = 0;
        for (int64_t n = 0; n < count; n++) {
            int64_t head = first + n / s->time, row = n % s->time;
            if (scores[n] != 0) dk += scores[n] * f32(a->at.q)[q_place(a, batch, head, row) + c];
            if (kept[n] != 0) dv += kept[n] * f32(a->at.dy)[y_place(a, batch, head, row) + c];
        }
        reference_put(a->kernel, s->packed ? 0 : 1, (float *)a->at.dk + place + c, dk * s->scale);
        reference_put(a->kernel, s->packed ? 0 : 2, (float *)a->at.dv + place + c, dv);
    }
}

status_t reference_attention_backward(const struct kernel *kernel, const struct kernel_call *call)
{
    struct attention a = attention_of(kernel, call);
    int64_t count = a.shape.group * a.shape.time;
    double *totals = call->workspace, *scores = totals + count, *kept = scores + count;
    for (int64_t b = 0; b < a.shape.batch; b++)
        for (int64_t g = 0; g < a.shape.kv_heads; g++) {
            for (int64_t n = 0; n < count; n++)
                totals[n] = row_gradient(&a, b, g * a.shape.group + n / a.shape.time,
                                         n % a.shape.time, scores);
            for (int64_t j = 0; j < a.shape.time; j++)
                column_gradient(&a, b, g, j, totals, scores, kept);
        }
    if (a.shape.biased) bias_gradient(&a);
    return NULL;
}

uint64_t reference_attention_workspace(const struct op_desc *desc)
{
    struct attention_shape shape = attention_shape_of(desc);
    int64_t count = shape.backward ? 3 * shape.group * shape.time : shape.time;
    if (shape.cached > 0) count = shape.cached;
    return (uint64_t)count * sizeof(double);
}

/* Rotates by the angle forward, and by its opposite backward. */
status_t reference_rope(const struct kernel *kernel, const struct kernel_call *call)
{
    const int64_t *dims = kernel->desc.inputs[0].dims;
    int64_t head = kernel->desc.attrs.rope.head_dim, heads = dims[2] / head;
    int64_t half = rope_pairs(&kernel->desc);
    float magnitude = rope_magnitude(&kernel->desc);
    bool back = kernel->desc.kind == OP_ROPE_BACKWARD;
    int64_t step = kernel->desc.attrs.rope.interleaved ? 2 : 1, apart = step == 2 ? 1 : half;
    float *frequencies = call->workspace;
    rope_frequencies(&kernel->desc, frequencies);
    const int32_t *starts = call->inputs[1]; /* NULL: rows are one document */
    for (int64_t n = 0; n < dims[0] * dims[1] * heads; n++) {
        const float *x = (const float *)call->inputs[0] + n * head;
        float *y = (float *)call->outputs[0] + n * head;
        int64_t token = n / heads;
        int64_t position = token % dims[1] - (starts != NULL ? starts[token] : 0);
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)position * frequencies[i];
            double cosine = (float)cos(angle) * magnitude;
            double sine = (float)(back ? -sin(angle) : sin(angle)) * magnitude;
            int64_t at = step * i;
            double first = x[at], second = x[at + apart];
            reference_put(kernel, 0, &y[at], first * cosine - second * sine);
            reference_put(kernel, 0, &y[at + apart], second * cosine + first * sine);
        }
        for (int64_t i = 2 * half; i < head; i++) reference_put(kernel, 0, &y[i], x[i]);
    }
    return NULL;
}
