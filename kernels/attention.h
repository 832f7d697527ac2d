/*
 * The view of an op that the attention kernels of all libraries share: its sizes, and where the
 * heads of q, k and v (and of their gradients) lie, in three tensors or side by side in one. The
 * kernel's caller owns the memory.
 */
#ifndef FSDPD_KERNELS_ATTENTION_H
#define FSDPD_KERNELS_ATTENTION_H

#include <math.h>
#include <string.h>

#include "kernels/bfloat16.h"
#include "kernels/kernel.h"

struct attention_shape {
    int64_t batch, time, heads, kv_heads, head_dim;
    int64_t group; /* query heads per kv head */
    bool packed, causal, masked, biased, backward, bf16, dropped;
    int64_t cached; /* positions of the cache; 0: there is none */
    int64_t window; /* 0: none, or as wide as the whole */
    double scale, softcap;
    double alibi; /* 0: none */
    bool rounded;
};

static inline struct attention_shape attention_shape_of(const struct op_desc *desc)
{
    bool backward = desc->kind == OP_ATTENTION_BACKWARD;
    const struct tensor_type *y = backward ? &desc->inputs[0] : &desc->outputs[0];
    int64_t heads = desc->attrs.attention.heads, kv_heads = desc->attrs.attention.kv_heads;
    double scale = desc->attrs.attention.scale;
    int64_t head_dim = y->dims[2] / heads, window = desc->attrs.attention.window;
    bool cache = !backward && desc->output_present[2];
    int64_t cached = cache ? desc->outputs[2].dims[1] : 0;
    struct attention_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.batch = y->dims[0], shape.time = y->dims[1];
    shape.heads = heads, shape.kv_heads = kv_heads, shape.head_dim = head_dim;
    shape.group = heads / kv_heads;
    shape.packed = !desc->input_present[backward ? 2 : 1];
    shape.causal = desc->attrs.attention.causal;
    shape.masked = desc->input_present[backward ? 6 : 3];
    shape.biased = desc->input_present[backward ? 7 : 4];
    shape.backward = backward;
    shape.bf16 = y->dtype == DTYPE_BF16;
    shape.dropped = desc->attrs.attention.p > 0;
    shape.cached = cached;
    shape.window = window < (cache ? cached : y->dims[1]) ? window : 0;
    shape.scale = scale > 0 ? scale : 1 / sqrt((double)head_dim);
    shape.softcap = desc->attrs.attention.softcap;
    shape.alibi = desc->attrs.attention.alibi;
    shape.rounded = desc->attrs.attention.rounded;
    return shape;
}

/* Row `time` of head `head` of q is at q + (batch * time_count + time) * q_row + head * head_dim,
 * in elements; k and v likewise. y and its gradient are dense. */
struct attention_places {
    int64_t q_row, kv_row;          /* elements from one time to the next */
    const void *q, *k, *v, *y, *dy; /* f32, or bf16 */
    void *dq, *dk, *dv;
    const float *lse;      /* infinity for a row that sees no key: its probabilities become 0 */
    const uint8_t *mask;   /* NULL: all keys are visible */
    const float *bias;     /* by distance, then head; NULL: none */
    float *dbias;          /* likewise */
    const int32_t *starts; /* NULL: a row is one document */
    void *keys, *values;   /* the cache, by sequence, position and kv head; NULL: none */
};

static inline struct attention_places attention_places_of(const struct attention_shape *shape,
                                                          const struct kernel_call *call)
{
    const void *const *in = call->inputs + (shape->backward ? 1 : 0);
    int64_t q_width = shape->heads * shape->head_dim, kv_width = shape->kv_heads * shape->head_dim;
    struct attention_places p;
    memset(&p, 0, sizeof p);
    p.q_row = q_width, p.kv_row = kv_width;
    p.q = in[0], p.k = in[1], p.v = in[2];
    size_t size = shape->bf16 ? 2 : 4;
    if (shape->packed) {
        p.q_row = p.kv_row = q_width + 2 * kv_width;
        p.k = (const char *)p.q + (size_t)q_width * size;
        p.v = (const char *)p.k + (size_t)kv_width * size;
    }
    p.mask = (const uint8_t *)call->inputs[shape->backward ? 6 : 3];
    p.bias = (const float *)call->inputs[shape->backward ? 7 : 4];
    p.starts = (const int32_t *)call->inputs[shape->backward ? 8 : 5];
    if (shape->cached > 0) p.keys = call->outputs[2], p.values = call->outputs[3];
    if (!shape->backward) return p;
    p.dy = call->inputs[0], p.y = call->inputs[4];
    p.lse = (const float *)call->inputs[5];
    p.dq = call->outputs[0], p.dk = call->outputs[1], p.dv = call->outputs[2];
    p.dbias = (float *)call->outputs[3];
    if (shape->packed) {
        p.dk = (char *)p.dq + (size_t)q_width * size;
        p.dv = (char *)p.dk + (size_t)kv_width * size;
    }
    return p;
}

/* The first key that a row can see. */
static inline int64_t attention_first_key(const struct attention_shape *shape, int64_t row)
{
    return shape->window > 0 && row >= shape->window ? row - shape->window + 1 : 0;
}

/* The position of a row in its sequence; its place in the cache is the remainder by `cached`. */
static inline int64_t attention_position(const struct attention_shape *shape,
                                         const struct attention_places *at, int64_t batch,
                                         int64_t row)
{
    return row - at->starts[batch * shape->time + row];
}

/* The end of what a window around `place` holds. */
static inline int64_t attention_window_end(const struct attention_shape *shape, int64_t place)
{
    bool early = shape->window > 0 && place + shape->window < shape->time;
    return early ? place + shape->window : shape->time;
}

/* Behind the last key that a row can see. */
static inline int64_t attention_keys_end(const struct attention_shape *shape, int64_t row)
{
    return shape->causal ? row + 1 : attention_window_end(shape, row);
}

/* The first row that can see a key, and behind the last one. */
static inline int64_t attention_first_row(const struct attention_shape *shape, int64_t key)
{
    return shape->causal ? key : attention_first_key(shape, key);
}

static inline int64_t attention_rows_end(const struct attention_shape *shape, int64_t key)
{
    return attention_window_end(shape, key);
}

/* The rows of a bias, and that of a distance key - row. */
static inline int64_t attention_bias_rows(const struct attention_shape *shape)
{
    return 2 * shape->time - 1;
}

static inline int64_t attention_bias_row(const struct attention_shape *shape, int64_t distance)
{
    return distance + shape->time - 1;
}

/* A head's slope, as op.h defines it. */
static inline double attention_slope(const struct attention_shape *shape, int64_t head)
{
    int64_t power = 1;
    while (2 * power <= shape->heads) power *= 2;
    double step = head < power ? (double)(head + 1) : (double)(head - power) + 0.5;
    return exp2(-shape->alibi * step / (double)power);
}

static inline double attention_rounded(double value)
{
    return (double)bfloat16_to_f32(bfloat16_from_f32((float)value));
}

/* What a position is worth to a head of this slope: ALiBi adds that of the key, less the row's. */
static inline double attention_height(const struct attention_shape *shape, double slope,
                                      int64_t position)
{
    double place = (double)position;
    if (!shape->rounded) return slope * place;
    return shape->scale * attention_rounded(attention_rounded(slope) * attention_rounded(place));
}

/* The index of a row's first probability in dropout's count. */
static inline uint64_t attention_row_index(const struct attention_shape *shape, int64_t batch,
                                           int64_t head, int64_t row)
{
    return (uint64_t)(((batch * shape->heads + head) * shape->time + row) * shape->time);
}

#endif
