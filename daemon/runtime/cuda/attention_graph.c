/*
 * See attention_graph.h. The gradient recomputes the probabilities from the scores and the
 * log-sum-exp (Dao et al., "FlashAttention", 2022); dq is the direct result of a product, which
 * makes cuDNN choose an engine that adds in one order.
 */
#include "runtime/cuda/attention_graph.h"

enum { TILE = 64 };

/* Whether a part's log-sum-exp, which lie side by side, are whole 16-byte vectors of cuDNN's; all
 * else is rows of heads. */
static bool is_aligned(const struct attention_shape *shape, struct attention_part part)
{
    bool whole = part.samples == shape->batch && part.kv_heads == shape->kv_heads;
    return whole || part.samples * part.kv_heads * shape->group * shape->time % 4 == 0;
}

struct attention_part attention_part_of(const struct attention_shape *shape, int64_t scores_bytes)
{
    struct attention_part part = {shape->batch, shape->kv_heads}, least = part;
    int64_t rows = (shape->time + TILE - 1) / TILE * TILE;
    /* of the heads that share one of k's */
    int64_t bytes = 2 * (shape->backward + shape->dropped) * shape->group * rows * rows;
    while (bytes > 0 && part.kv_heads > 0) {
        bool divides = shape->batch % part.samples == 0 && shape->kv_heads % part.kv_heads == 0;
        if (divides && is_aligned(shape, part)) {
            least = part;
            if (part.samples * part.kv_heads * bytes <= scores_bytes) break;
        }
        if (part.samples > 1) part.samples--;
        else part.kv_heads--;
    }
    return least;
}

int64_t attention_most_workspace(const struct attention_shape *shape, struct attention_part part)
{
    struct attention_part least = attention_part_of(shape, 0);
    bool smallest = part.samples == least.samples && part.kv_heads == least.kv_heads;
    return shape->backward && smallest ? INT64_MAX : ATTENTION_MOST_WORKSPACE;
}

/* A graph under construction: the shapes used repeatedly. */
struct attention_builder {
    struct dnn_graph *graph;
    struct attention_shape shape; /* the part's, in the whole's rows */
    struct dnn_shape q, k, v;     /* as memory has them */
    struct dnn_shape y;           /* dense, heads side by side */
    struct dnn_shape scores;      /* (batch, heads, time, time) */
    struct dnn_shape row;         /* a number to a row of them */
    dnn_tensor scale, one;
};

static struct dnn_shape heads_of(const struct attention_shape *shape, int64_t heads, int64_t row)
{
    return (struct dnn_shape){{shape->batch, heads, shape->time, shape->head_dim},
                              {shape->time * row, shape->head_dim, row, 1}};
}

static struct dnn_shape dense(int64_t batch, int64_t heads, int64_t rows, int64_t columns)
{
    return (struct dnn_shape){{batch, heads, rows, columns},
                              {heads * rows * columns, rows * columns, columns, 1}};
}

static struct dnn_shape transposed(struct dnn_shape shape)
{
    return (
        struct dnn_shape){{shape.dims[0], shape.dims[1], shape.dims[3], shape.dims[2]},
                          {shape.strides[0], shape.strides[1], shape.strides[3], shape.strides[2]}};
}

static struct attention_builder begin(struct dnn_graph *graph, const struct attention_shape *whole,
                                      struct attention_part part)
{
    int64_t q_width = whole->heads * whole->head_dim, kv_width = whole->kv_heads * whole->head_dim;
    int64_t packed = q_width + 2 * kv_width;
    struct attention_builder b = {.graph = graph, .shape = *whole};
    const struct attention_shape *shape = &b.shape;
    b.shape.batch = part.samples;
    b.shape.kv_heads = part.kv_heads;
    b.shape.heads = part.kv_heads * whole->group;
    b.q = heads_of(shape, shape->heads, shape->packed ? packed : q_width);
    b.k = b.v = heads_of(shape, shape->kv_heads, shape->packed ? packed : kv_width);
    b.y = heads_of(shape, shape->heads, q_width);
    b.scores = dense(shape->batch, shape->heads, shape->time, shape->time);
    b.row = dense(shape->batch, shape->heads, shape->time, 1);
    b.scale = dnn_value(graph, ATTENTION_SCALE);
    return b;
}

static dnn_tensor operand(struct attention_builder *b, enum attention_operand id,
                          const struct dnn_shape *shape)
{
    return dnn_operand(b->graph, id, CUDNN_DATA_BFLOAT16, shape);
}

/* In f32, of two operands or of one. */
static dnn_tensor combine(struct attention_builder *b, cudnnPointwiseMode_t mode, dnn_tensor a,
                          dnn_tensor other, const struct dnn_shape *shape)
{
    return dnn_pointwise(b->graph, mode, CUDNN_DATA_FLOAT, a, other, NULL,
                         dnn_inside(b->graph, CUDNN_DATA_FLOAT, shape));
}

/* 1 for the probabilities that dropout keeps, 0 for the others. */
static dnn_tensor kept_of(struct attention_builder *b)
{
    return operand(b, ATTENTION_KEPT, &b->scores);
}

static dnn_tensor index_along(struct attention_builder *b, int64_t axis, dnn_tensor scores)
{
    return dnn_index(b->graph, axis, scores, dnn_inside(b->graph, CUDNN_DATA_INT32, &b->scores));
}

/* By sample and key. */
static dnn_tensor hiding_of(struct attention_builder *b)
{
    int64_t row = attention_hiding_row(&b->shape);
    struct dnn_shape keys = {{b->shape.batch, 1, 1, b->shape.time}, {row, row, row, 1}};
    return operand(b, ATTENTION_HIDING, &keys);
}

/* Scaled; hidden keys have very low ones. */
static dnn_tensor scores_of(struct attention_builder *b, dnn_tensor q, dnn_tensor keys_transposed)
{
    dnn_tensor product = dnn_matmul(b->graph, q, keys_transposed,
                                    dnn_inside(b->graph, CUDNN_DATA_FLOAT, &b->scores));
    dnn_tensor scores = combine(b, CUDNN_POINTWISE_MUL, product, b->scale, &b->scores);
    if (b->shape.masked) scores = combine(b, CUDNN_POINTWISE_ADD, scores, hiding_of(b), &b->scores);
    if (!b->shape.causal) return scores;
    dnn_tensor row = index_along(b, 2, scores), column = index_along(b, 3, scores);
    dnn_tensor seen =
        dnn_pointwise(b->graph, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, row, column, NULL,
                      dnn_inside(b->graph, CUDNN_DATA_BOOLEAN, &b->scores));
    return dnn_pointwise(b->graph, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, scores,
                         dnn_value(b->graph, ATTENTION_LOWEST), seen,
                         dnn_inside(b->graph, CUDNN_DATA_FLOAT, &b->scores));
}

void attention_graph_forward(struct dnn_graph *graph, const struct attention_shape *shape,
                             struct attention_part part, bool statistics)
{
    struct attention_builder b = begin(graph, shape, part);
    struct dnn_shape keys = transposed(b.k);
    dnn_tensor q = operand(&b, ATTENTION_Q, &b.q), k = operand(&b, ATTENTION_K, &keys);
    dnn_tensor v = operand(&b, ATTENTION_V, &b.v);
    dnn_tensor scores = scores_of(&b, q, k);
    dnn_tensor max = dnn_reduction(graph, CUDNN_REDUCE_TENSOR_MAX, scores,
                                   dnn_inside(graph, CUDNN_DATA_FLOAT, &b.row));
    dnn_tensor below = combine(&b, CUDNN_POINTWISE_SUB, scores, max, &b.scores);
    dnn_tensor powers = combine(&b, CUDNN_POINTWISE_EXP, below, NULL, &b.scores);
    dnn_tensor sum = dnn_reduction(graph, CUDNN_REDUCE_TENSOR_ADD, powers,
                                   dnn_inside(graph, CUDNN_DATA_FLOAT, &b.row));
    dnn_tensor log = combine(&b, CUDNN_POINTWISE_LOG, sum, NULL, &b.row);
    dnn_pointwise(graph, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, max, log, NULL,
                  statistics ? dnn_operand(graph, ATTENTION_LSE, CUDNN_DATA_FLOAT, &b.row)
                             : dnn_inside(graph, CUDNN_DATA_FLOAT, &b.row));
    cudnnDataType_t type = shape->dropped ? CUDNN_DATA_FLOAT : CUDNN_DATA_BFLOAT16;
    dnn_tensor p = dnn_pointwise(graph, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, powers, sum, NULL,
                                 dnn_inside(graph, type, &b.scores));
    if (shape->dropped) {
        p = combine(&b, CUDNN_POINTWISE_MUL, p, kept_of(&b), &b.scores);
        p = dnn_pointwise(graph, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, p,
                          dnn_value(graph, ATTENTION_FACTOR), NULL,
                          dnn_inside(graph, CUDNN_DATA_BFLOAT16, &b.scores));
    }
    dnn_matmul(graph, p, v, operand(&b, ATTENTION_Y, &b.y));
}

/* The gradient of k or v: the transposed scores times `other`, added over the queries' heads that
 * share one of theirs. */
static void key_gradient(struct attention_builder *b, dnn_tensor scores, dnn_tensor other,
                         enum attention_operand id, const struct dnn_shape *shape)
{
    const struct attention_shape *s = &b->shape;
    struct dnn_shape turned = transposed(b->scores);
    struct dnn_shape of_queries = dense(s->batch, s->heads, s->time, s->head_dim);
    dnn_tensor rows =
        dnn_reshape(b->graph, scores, dnn_inside(b->graph, CUDNN_DATA_BFLOAT16, &turned));
    dnn_tensor to = operand(b, id, shape);
    if (s->group == 1) {
        dnn_matmul(b->graph, rows, other, to);
        return;
    }
    dnn_tensor each =
        dnn_matmul(b->graph, rows, other, dnn_inside(b->graph, CUDNN_DATA_BFLOAT16, &of_queries));
    dnn_reduction(b->graph, CUDNN_REDUCE_TENSOR_ADD, each, to);
}

void attention_graph_backward(struct dnn_graph *graph, const struct attention_shape *shape,
                              struct attention_part part)
{
    struct attention_builder b = begin(graph, shape, part);
    struct dnn_shape keys = transposed(b.k), values = transposed(b.v);
    b.one = dnn_value(graph, ATTENTION_ONE);
    dnn_tensor q = operand(&b, ATTENTION_Q, &b.q), k = operand(&b, ATTENTION_K, &keys);
    dnn_tensor v = operand(&b, ATTENTION_V, &values), y = operand(&b, ATTENTION_Y, &b.y);
    dnn_tensor dy = operand(&b, ATTENTION_DY, &b.y);
    dnn_tensor lse = dnn_operand(graph, ATTENTION_LSE, CUDNN_DATA_FLOAT, &b.row);

    /* a row's sum of dy * y, which has dropout's factor already; `one` takes it out */
    dnn_tensor products = combine(&b, CUDNN_POINTWISE_MUL, dy, y, &b.y);
    dnn_tensor total = dnn_reduction(graph, CUDNN_REDUCE_TENSOR_ADD, products,
                                     dnn_inside(graph, CUDNN_DATA_FLOAT, &b.row));
    total = combine(&b, CUDNN_POINTWISE_MUL, total, b.one, &b.row);

    dnn_tensor below = combine(&b, CUDNN_POINTWISE_SUB, scores_of(&b, q, k), lse, &b.scores);
    dnn_tensor p = combine(&b, CUDNN_POINTWISE_EXP, below, NULL, &b.scores);
    dnn_tensor kept = b.one, factor = NULL, dropped = p;
    if (shape->dropped) {
        kept = kept_of(&b), factor = dnn_value(graph, ATTENTION_FACTOR);
        dropped = combine(&b, CUDNN_POINTWISE_MUL, p, kept, &b.scores);
        dropped = combine(&b, CUDNN_POINTWISE_MUL, dropped, factor, &b.scores);
    }
    key_gradient(&b, dropped, dy, ATTENTION_DV, &b.v);

    dnn_tensor dp = dnn_matmul(graph, dy, v, dnn_inside(graph, CUDNN_DATA_FLOAT, &b.scores));
    dp = combine(&b, CUDNN_POINTWISE_MUL, dp, kept, &b.scores);
    dnn_tensor rest = combine(&b, CUDNN_POINTWISE_SUB, dp, total, &b.scores);
    dnn_tensor ds = combine(&b, CUDNN_POINTWISE_MUL, rest, p, &b.scores);
    if (shape->dropped) ds = combine(&b, CUDNN_POINTWISE_MUL, ds, factor, &b.scores);
    ds = combine(&b, CUDNN_POINTWISE_MUL, ds, b.scale, &b.scores);
    key_gradient(&b, ds, q, ATTENTION_DK, &b.k);
    dnn_tensor upright = dnn_reshape(graph, k, dnn_inside(graph, CUDNN_DATA_BFLOAT16, &b.k));
    dnn_matmul(graph, ds, upright, operand(&b, ATTENTION_DQ, &b.q));
}
