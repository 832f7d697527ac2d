/*
 * Attention by blocks of ATTENTION_BLOCK queries and keys. The forward pass corrects its softmax as
 * larger scores appear (Dao et al., "FlashAttention", 2022); the backward pass computes the
 * probabilities again from their log-sum-exp. A block of scores has its queries side by side, so
 * that sums along the keys need no sums within vectors. q and dy are transposed block by block. All
 * other operands are read in place, or on bf16 from a copy of the block. Memory: a few blocks per
 * thread, and for the backward pass on bf16 the sums of one kv head's gradients.
 *
 * Threads take query blocks of heads in the forward pass, and kv heads in the backward pass, where
 * a key's gradient is summed over the query blocks of its heads in their order. The number of
 * threads does not change a bit of the results.
 */
#include "kernels/attention.h"

#include <string.h>

#include "base/array.h"
#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"
#include "kernels/philox.h"

enum { BLOCK = ATTENTION_BLOCK, SCORES = BLOCK * BLOCK };

/* Random bits for a block of queries and two blocks of keys. A row's bits may start within a block
 * of the generator. */
enum { ROW_WORDS = 2 * BLOCK / 64 + 1, ALL_WORDS = BLOCK * ROW_WORDS + 2 };

/* One thread's working memory, all of it in the workspace. */
struct scratch {
    float *q, *dy;                            /* (d, BLOCK): of a query block, transposed */
    float *sums;                              /* (BLOCK, d): y or dq of a query block */
    float *scores, *kept, *gradients;         /* (BLOCK keys, BLOCK queries) */
    float *slopes;                            /* likewise; by scores without scale and cap */
    float *max, *sum, *shrink, *lse, *totals; /* by query */
    float *copies[4];                         /* (BLOCK, d), on bf16: q, dy, k, v */
    float *dk, *dv;                           /* (t, d), on bf16 */
};

struct attention_job {
    const struct kernel *kernel;
    const struct kernel_call *call;
    const struct cpu_loops *loops;
    struct attention_shape shape;
    struct attention_places at;
    int64_t blocks; /* of queries, and of keys */
    bool dropout;
    struct dropout_mask mask;
    float kept_scale;
    float *bias_sums; /* (batch, heads, bias rows): gradients */
};

/* Whether scores are final before softmax sees them, and not only to be scaled. */
static bool finishes_scores(const struct attention_shape *shape)
{
    return shape->softcap > 0 || shape->biased || shape->alibi > 0;
}

/* Lays out a thread's scratch from `at`; returns its size in floats. */
static size_t scratch_layout(const struct attention_shape *shape, float *at, struct scratch *s)
{
    size_t panel = (size_t)shape->head_dim * BLOCK;
    size_t whole = (size_t)(shape->head_dim * shape->time + 15) / 16 * 16;
    struct {
        float **part;
        size_t count;
        bool wanted;
    } parts[] = {{&s->q, panel, true},
                 {&s->sums, panel, true},
                 {&s->scores, SCORES, true},
                 {&s->max, BLOCK, !shape->backward},
                 {&s->sum, BLOCK, !shape->backward},
                 {&s->shrink, BLOCK, !shape->backward},
                 {&s->dy, panel, shape->backward},
                 {&s->kept, SCORES, shape->backward},
                 {&s->gradients, SCORES, shape->backward},
                 {&s->slopes, SCORES, shape->backward && finishes_scores(shape)},
                 {&s->lse, BLOCK, shape->backward},
                 {&s->totals, BLOCK, shape->backward},
                 {&s->copies[0], panel, shape->bf16},
                 {&s->copies[1], panel, shape->bf16 && shape->backward},
                 {&s->copies[2], panel, shape->bf16},
                 {&s->copies[3], panel, shape->bf16},
                 {&s->dk, whole, shape->bf16 && shape->backward},
                 {&s->dv, whole, shape->bf16 && shape->backward}};
    size_t total = 0;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        *parts[i].part = parts[i].wanted && at != NULL ? at + total : NULL;
        if (parts[i].wanted) total += parts[i].count;
    }
    return total;
}

static struct scratch scratch_of(const struct attention_job *job)
{
    struct scratch s;
    size_t count = scratch_layout(&job->shape, NULL, &s);
    scratch_layout(&job->shape,
                   (float *)job->call->workspace + (size_t)cpu_parallel_thread() * count, &s);
    return s;
}

/* Rows of one head of an operand; `stride` is their distance in elements. */
struct attention_rows {
    const float *at;
    size_t stride;
};

/* The rows in place; on bf16, a copy of them. */
static struct attention_rows rows_of(const struct attention_job *job, const void *operand,
                                     int64_t place, int64_t stride, size_t count, float *copy)
{
    if (!job->shape.bf16)
        return (struct attention_rows){(const float *)operand + place, (size_t)stride};
    const uint16_t *from = (const uint16_t *)operand + place;
    size_t width = (size_t)job->shape.head_dim;
    for (size_t i = 0; i < count; i++)
        job->loops->bf16_to_f32(width, copy + i * width, from + (int64_t)i * stride);
    return (struct attention_rows){copy, width};
}

/* One block of queries of one head, with one block of keys. */
struct meeting {
    int64_t batch, head, query, key; /* the first index of each */
    size_t queries, keys, lanes;     /* lanes: queries rounded up */
    struct attention_rows k, v;
    struct attention_block block;
    int64_t begin, end; /* blocks of keys that any of the queries sees; the end is exact */
    int64_t starts[BLOCK], ends[BLOCK]; /* of each query's document, if rows have starts */
    bool any;                           /* an earlier block had visible keys */
    int64_t drawn; /* the first key that the random bits in `words` are for; -1: there are none */
    uint64_t words[ALL_WORDS];
};

static size_t count_from(const struct attention_job *job, int64_t first)
{
    int64_t left = job->shape.time - first;
    return (size_t)(left < BLOCK ? left : BLOCK);
}

static int64_t kv_place(const struct attention_job *job, int64_t batch, int64_t head, int64_t key)
{
    return (batch * job->shape.time + key) * job->at.kv_row +
           head / job->shape.group * job->shape.head_dim;
}

static int64_t q_place(const struct attention_job *job, const struct meeting *m)
{
    return (m->batch * job->shape.time + m->query) * job->at.q_row + m->head * job->shape.head_dim;
}

/* The place in y and dy, which are dense. */
static int64_t y_place(const struct attention_job *job, const struct meeting *m)
{
    return ((m->batch * job->shape.time + m->query) * job->shape.heads + m->head) *
           job->shape.head_dim;
}

static int64_t y_row(const struct attention_job *job)
{
    return job->shape.heads * job->shape.head_dim;
}

/* Finds the keys that the queries see, and the documents of these. */
static void find_keys(const struct attention_job *job, struct meeting *m)
{
    int64_t last = m->query + (int64_t)m->queries - 1, time = job->shape.time;
    int64_t end = last + 1, begin = attention_first_key(&job->shape, m->query);
    m->end = attention_keys_end(&job->shape, last);
    m->begin = begin / BLOCK * BLOCK;
    if (job->at.starts == NULL) return;
    const int32_t *starts = job->at.starts + m->batch * time;
    while (end < m->end && starts[end] == starts[last]) end++;
    m->end = end;
    if (starts[m->query] > begin) m->begin = starts[m->query] / BLOCK * BLOCK;
    for (int64_t query = last; query >= m->query; query--) {
        if (query < last && starts[query] != starts[query + 1]) end = query + 1;
        m->starts[query - m->query] = starts[query];
        m->ends[query - m->query] = end;
    }
    for (size_t i = m->queries; i < m->lanes; i++) m->starts[i] = m->ends[i] = 0;
}

static void meeting_start(const struct attention_job *job, struct meeting *m, int64_t batch,
                          int64_t head, int64_t query)
{
    m->batch = batch, m->head = head, m->query = query;
    m->queries = count_from(job, query);
    m->lanes = (m->queries + 15) / 16 * 16;
    m->any = false;
    m->drawn = -1;
    find_keys(job, m);
}

/* Moves to a key block; false if no query sees any of its keys. */
static bool meeting_move(const struct attention_job *job, const struct scratch *s,
                         struct meeting *m, int64_t key)
{
    bool finished = finishes_scores(&job->shape);
    m->key = key;
    m->keys = count_from(job, key);
    m->block = (struct attention_block){.queries = m->lanes,
                                        .keys = m->keys,
                                        .diagonal = job->shape.causal && key == m->query,
                                        .scale = finished ? 1 : (float)job->shape.scale};
    if (job->at.mask != NULL) {
        m->block.seen = job->at.mask + m->batch * job->shape.time + key;
        bool any = false;
        for (size_t i = 0; i < m->keys; i++) any = any || m->block.seen[i] != 0;
        if (!any) return false;
    }
    int64_t place = kv_place(job, m->batch, m->head, key);
    m->k = rows_of(job, job->at.k, place, job->at.kv_row, m->keys, s->copies[2]);
    m->v = rows_of(job, job->at.v, place, job->at.kv_row, m->keys, s->copies[3]);
    return true;
}

static enum product_part part_of(const struct meeting *m, enum product_part of_diagonal)
{
    return m->block.diagonal ? of_diagonal : PRODUCT_WHOLE;
}

/* Multiplies rows (k or v) by lanes (q or dy): scores, or gradients of probabilities. */
static void make_scores(const struct attention_job *job, const struct meeting *m,
                        struct attention_rows rows, const float *lanes, float *scores)
{
    struct cpu_product product = {.rows = m->keys,
                                  .columns = m->lanes,
                                  .depth = (size_t)job->shape.head_dim,
                                  .a = rows.at,
                                  .a_row = rows.stride,
                                  .a_depth = 1,
                                  .b = lanes,
                                  .b_depth = BLOCK,
                                  .c = scores,
                                  .c_row = BLOCK,
                                  .part = part_of(m, PRODUCT_COLUMNS_FROM_ROW)};
    job->loops->product(&product);
}

/* Hides keys outside of the window and of the document, if the block has any. The diagonal of a
 * causal block hides later keys. */
static void hide_keys(const struct attention_job *job, const struct meeting *m, float *scores)
{
    const struct attention_shape *shape = &job->shape;
    bool documents = job->at.starts != NULL, hidden = false;
    int32_t first[BLOCK], count[BLOCK];
    int64_t begin = m->key, end = m->key + (int64_t)m->keys;
    for (size_t i = 0; i < m->lanes; i++) {
        int64_t row = m->query + (int64_t)i;
        int64_t from = attention_first_key(shape, row);
        int64_t to = shape->causal ? end : attention_window_end(shape, row);
        if (documents && m->starts[i] > from) from = m->starts[i];
        if (documents && !shape->causal && m->ends[i] < to) to = m->ends[i];
        hidden |= i < m->queries && (from > begin || to < end);
        if (from < begin) from = begin;
        if (to > end) to = end;
        first[i] = (int32_t)(from - begin);
        count[i] = to > from ? (int32_t)(to - from) : 0;
    }
    if (hidden) job->loops->attention_hide(m->lanes, m->keys, scores, first, count);
}

/* The row of the bias for lane 0 of attention_bias; those of later lanes are before it. */
static int64_t bias_row(const struct attention_job *job, const struct meeting *m)
{
    return attention_bias_row(&job->shape, m->key - m->query + BLOCK - 1);
}

static void add_bias(const struct attention_job *job, const struct meeting *m,
                     const struct scratch *s)
{
    const struct attention_shape *shape = &job->shape;
    bool capped = shape->softcap > 0;
    int64_t first = bias_row(job, m), rows = attention_bias_rows(shape);
    float bias[2 * BLOCK];
    for (int64_t i = 0; i < 2 * BLOCK; i++) {
        int64_t row = first - i;
        bool inside = row >= 0 && row < rows;
        bias[i] = inside ? job->at.bias[row * shape->heads + m->head] : 0;
    }
    job->loops->attention_bias(m->lanes, m->keys, s->scores, capped ? NULL : s->slopes,
                               capped ? 1 : (float)shape->scale, bias);
}

/* The position of a token in its document. */
static int64_t position_of(const struct attention_job *job, int64_t batch, int64_t token)
{
    const int32_t *starts = job->at.starts;
    return token - (starts != NULL ? starts[batch * job->shape.time + token] : 0);
}

/* Heights are those above the first query's, so that near keys lose no digits to far positions. */
static void add_alibi(const struct attention_job *job, const struct meeting *m,
                      const struct scratch *s)
{
    const struct attention_shape *shape = &job->shape;
    bool capped = shape->softcap > 0;
    double slope = attention_slope(shape, m->head);
    double base = attention_height(shape, slope, position_of(job, m->batch, m->query));
    float keys[BLOCK], queries[BLOCK] = {0};
    for (size_t i = 0; i < m->keys; i++)
        keys[i] = (float)(attention_height(shape, slope,
                                           position_of(job, m->batch, m->key + (int64_t)i)) -
                          base);
    for (size_t i = 0; i < m->queries; i++)
        queries[i] = (float)(attention_height(shape, slope,
                                              position_of(job, m->batch, m->query + (int64_t)i)) -
                             base);
    job->loops->attention_alibi(m->lanes, m->keys, s->scores, capped ? NULL : s->slopes,
                                capped ? 1 : (float)shape->scale, keys, queries);
}

/* Adds the gradients of a block's scores to those of the bias. */
static void sum_bias(const struct attention_job *job, const struct meeting *m,
                     const struct scratch *s)
{
    const struct attention_shape *shape = &job->shape;
    int64_t first = bias_row(job, m), rows = attention_bias_rows(shape);
    float sums[2 * BLOCK] = {0}, *to = job->bias_sums + (m->batch * shape->heads + m->head) * rows;
    job->loops->attention_bias_sums(m->queries, m->keys, s->gradients, sums);
    for (int64_t i = 0; i < 2 * BLOCK; i++)
        if (first - i >= 0 && first - i < rows) to[first - i] += sums[i];
}

/* Makes scores that only softmax is missing of: capped, with their bias, and -infinity outside of
 * the window and of the document. Capping and the bias read the whole block, so it is made. */
static void make_final_scores(const struct attention_job *job, struct meeting *m,
                              const struct scratch *s)
{
    const struct attention_shape *shape = &job->shape;
    bool diagonal = m->block.diagonal;
    m->block.diagonal = diagonal && !finishes_scores(shape);
    make_scores(job, m, m->k, s->q, s->scores);
    m->block.diagonal = diagonal;
    if (shape->softcap > 0)
        job->loops->attention_cap(m->lanes, m->keys, s->scores, s->slopes, (float)shape->scale,
                                  (float)shape->softcap);
    if (shape->biased) add_bias(job, m, s);
    if (shape->alibi > 0) add_alibi(job, m, s);
    if (shape->window > 0 || job->at.starts != NULL) hide_keys(job, m, s->scores);
}

/* Sums rows (v or k) for each query. */
static void sum_to_queries(const struct attention_job *job, const struct meeting *m,
                           const float *scores, struct attention_rows rows, float *sums,
                           size_t sums_row, bool add, const float *factors)
{
    struct cpu_product product = {.rows = m->queries,
                                  .columns = (size_t)job->shape.head_dim,
                                  .depth = m->keys,
                                  .a = scores,
                                  .a_row = 1,
                                  .a_depth = BLOCK,
                                  .b = rows.at,
                                  .b_depth = rows.stride,
                                  .c = sums,
                                  .c_row = sums_row,
                                  .part = part_of(m, PRODUCT_DEPTH_TO_ROW),
                                  .add = add,
                                  .factors = factors};
    job->loops->product(&product);
}

/* Sums rows (dy or q) for each key, into the gradient, or on bf16 into `sums`, rounded later. */
static void sum_to_keys(const struct attention_job *job, const struct meeting *m,
                        const float *scores, struct attention_rows rows, void *gradient,
                        float *sums)
{
    size_t width = (size_t)job->shape.head_dim;
    bool bf16 = job->shape.bf16;
    float *to = bf16 ? sums + (size_t)m->key * width
                     : (float *)gradient + kv_place(job, m->batch, m->head, m->key);
    struct cpu_product product = {.rows = m->keys,
                                  .columns = width,
                                  .depth = m->queries,
                                  .a = scores,
                                  .a_row = BLOCK,
                                  .a_depth = 1,
                                  .b = rows.at,
                                  .b_depth = rows.stride,
                                  .c = to,
                                  .c_row = bf16 ? width : (size_t)job->at.kv_row,
                                  .part = part_of(m, PRODUCT_DEPTH_FROM_ROW),
                                  .add = true};
    job->loops->product(&product);
}

/*
 * Dropout counts probabilities by query and then by key, while a block has them by key and then by
 * query. The generator gives at least 128 bits at a time: those of two key blocks, or of all rows
 * if one block holds all keys.
 */
static void drop(const struct attention_job *job, struct meeting *m, float *to, const float *from)
{
    uint32_t offsets[BLOCK];
    int64_t pair = m->key / (2 * BLOCK) * (2 * BLOCK), time = job->shape.time;
    bool one_run = time <= BLOCK, draw = m->drawn != pair;
    m->drawn = pair;
    uint64_t first = kernel_first_element(job->call) +
                     attention_row_index(&job->shape, m->batch, m->head, m->query);
    if (one_run)
        job->loops->keep_bits((size_t)(first % 4 + (uint64_t)time * m->queries + 63) / 64, m->words,
                              first / 4, &job->mask);
    for (size_t i = 0; i < m->queries; i++) {
        uint64_t start = first + i * (uint64_t)time + (uint64_t)pair;
        size_t left = (size_t)(time - pair), count = left < 2 * BLOCK ? left : 2 * BLOCK;
        if (!one_run && draw)
            job->loops->keep_bits((count + start % 4 + 63) / 64, m->words + i * ROW_WORDS,
                                  start / 4, &job->mask);
        offsets[i] =
            (uint32_t)(one_run ? first % 4 + i * (uint64_t)time
                               : i * ROW_WORDS * 64 + start % 4 + (uint64_t)(m->key - pair));
    }
    job->loops->apply_bits_transposed(m->queries, m->keys, BLOCK, to, from, m->words, offsets,
                                      job->kept_scale, false);
}

static void round_rows(const struct attention_job *job, void *operand, int64_t place,
                       int64_t stride, size_t count, const float *rows)
{
    size_t width = (size_t)job->shape.head_dim;
    for (size_t i = 0; i < count; i++)
        job->loops->f32_to_bf16(width, (uint16_t *)operand + place + (int64_t)i * stride,
                                rows + i * width);
}

/* Writes y and lse of a query block, after all of its keys. */
static void finish_queries(const struct attention_job *job, const struct meeting *m,
                           const struct scratch *s)
{
    const bool *add = job->kernel->desc.accumulate;
    size_t width = (size_t)job->shape.head_dim;
    for (size_t i = 0; i < m->queries; i++)
        s->shrink[i] = s->max[i] == -INFINITY ? 0 : 1 / s->sum[i];
    float *y = job->shape.bf16 ? s->sums : (float *)job->call->outputs[0] + y_place(job, m);
    job->loops->scale_rows(m->queries, width, y, job->shape.bf16 ? width : (size_t)y_row(job),
                           s->sums, width, s->shrink, add[0]);
    if (job->shape.bf16)
        round_rows(job, job->call->outputs[0], y_place(job, m), y_row(job), m->queries, s->sums);
    float *lse = job->call->outputs[1];
    if (lse == NULL) return;
    lse += (m->batch * job->shape.heads + m->head) * job->shape.time + m->query;
    for (size_t i = 0; i < m->queries; i++) {
        float value = s->max[i] == -INFINITY ? INFINITY : s->max[i] + logf(s->sum[i]);
        lse[i] = add[1] ? lse[i] + value : value;
    }
}

static void attend(const struct attention_job *job, struct meeting *m, const struct scratch *s)
{
    size_t width = (size_t)job->shape.head_dim;
    struct attention_rows q =
        rows_of(job, job->at.q, q_place(job, m), job->at.q_row, m->queries, s->copies[0]);
    job->loops->pack_lanes(m->queries, width, s->q, q.at, q.stride);
    for (size_t i = 0; i < BLOCK; i++) s->max[i] = -INFINITY, s->sum[i] = 0;
    for (int64_t key = m->begin; key < m->end; key += BLOCK) {
        if (!meeting_move(job, s, m, key)) continue;
        make_final_scores(job, m, s);
        job->loops->attention_softmax(&m->block, s->scores, s->max, s->sum, s->shrink);
        if (job->dropout) drop(job, m, s->scores, s->scores);
        sum_to_queries(job, m, s->scores, m->v, s->sums, width, m->any, s->shrink);
        m->any = true;
    }
    if (!m->any) memset(s->sums, 0, m->queries * width * sizeof(float));
    finish_queries(job, m, s);
}

/* The later a causal query block, the more keys it sees. So early and late blocks alternate, which
 * gives every range of them the same work. */
static int64_t order_of(const struct attention_job *job, int64_t n)
{
    if (!job->shape.causal) return n;
    return n % 2 == 0 ? n / 2 : job->blocks - 1 - n / 2;
}

static void forward_part(const void *argument, size_t begin, size_t end)
{
    const struct attention_job *job = argument;
    struct scratch s = scratch_of(job);
    struct meeting m;
    for (size_t n = begin; n < end; n++) {
        int64_t item = (int64_t)n / job->blocks, block = order_of(job, (int64_t)n % job->blocks);
        meeting_start(job, &m, item / job->shape.heads, item % job->shape.heads, block * BLOCK);
        attend(job, &m, &s);
    }
}

/* By query: the log-sum-exp to subtract from the scores, and sums(P dP). */
static void prepare_queries(const struct attention_job *job, const struct meeting *m,
                            const struct scratch *s, struct attention_rows dy)
{
    const struct attention_shape *shape = &job->shape;
    const float *lse = job->at.lse + (m->batch * shape->heads + m->head) * shape->time + m->query;
    for (size_t i = 0; i < BLOCK; i++) {
        s->lse[i] = i < m->queries ? lse[i] : INFINITY; /* gives probabilities of 0 */
        s->totals[i] = 0;
    }
    struct attention_rows y =
        rows_of(job, job->at.y, y_place(job, m), y_row(job), m->queries, s->copies[2]);
    job->loops->dot_rows(m->queries, (size_t)shape->head_dim, s->totals, dy.at, dy.stride, y.at,
                         y.stride);
}

/* A range of keys, and which gradients to make: of the queries, of the keys. */
struct attention_span {
    bool queries, keys;
    int64_t begin, end; /* of keys, at block boundaries */
};

/* Gradients of one query block of a head: writes dq, adds to dk and dv. */
static void attend_backward(const struct attention_job *job, struct meeting *m,
                            const struct scratch *s, const struct attention_span *span)
{
    size_t width = (size_t)job->shape.head_dim;
    bool bf16 = job->shape.bf16, add = job->kernel->desc.accumulate[0];
    struct attention_rows q =
        rows_of(job, job->at.q, q_place(job, m), job->at.q_row, m->queries, s->copies[0]);
    struct attention_rows dy =
        rows_of(job, job->at.dy, y_place(job, m), y_row(job), m->queries, s->copies[1]);
    job->loops->pack_lanes(m->queries, width, s->q, q.at, q.stride);
    job->loops->pack_lanes(m->queries, width, s->dy, dy.at, dy.stride);
    prepare_queries(job, m, s, dy);
    float *dq = bf16 ? s->sums : (float *)job->at.dq + q_place(job, m);
    size_t dq_row = bf16 ? width : (size_t)job->at.q_row;
    const float *kept = job->dropout ? s->kept : s->scores;
    int64_t end = m->end < span->end ? m->end : span->end;
    int64_t begin = m->begin > span->begin ? m->begin : span->begin;
    for (int64_t key = begin; key < end; key += BLOCK) {
        if (!meeting_move(job, s, m, key)) continue;
        make_final_scores(job, m, s);
        job->loops->attention_probabilities(&m->block, s->scores, s->lse);
        if (job->dropout) drop(job, m, s->kept, s->scores);
        if (span->keys) sum_to_keys(job, m, kept, dy, job->at.dv, s->dv);
        make_scores(job, m, m->v, s->dy, s->gradients);
        job->loops->attention_gradients(&m->block, s->gradients, s->scores, kept, s->totals);
        if (job->bias_sums != NULL) sum_bias(job, m, s);
        if (s->slopes != NULL)
            job->loops->attention_uncap(m->lanes, m->keys, s->gradients, s->slopes);
        if (span->keys) sum_to_keys(job, m, s->gradients, q, job->at.dk, s->dk);
        if (span->queries)
            sum_to_queries(job, m, s->gradients, m->k, dq, dq_row, m->any || add, NULL);
        m->any = true;
    }
    if (!span->queries) return;
    for (size_t i = 0; i < m->queries && !m->any && !add; i++)
        memset(dq + i * dq_row, 0, width * sizeof(float));
    if (bf16) round_rows(job, job->at.dq, q_place(job, m), job->at.q_row, m->queries, dq);
}

/* Clears the sums of a kv head's gradient, in place or on bf16 in scratch memory. */
static void clear_sums(const struct attention_job *job, int64_t batch, int64_t head,
                       const struct attention_span *span, void *gradient, float *sums, bool add)
{
    size_t width = (size_t)job->shape.head_dim;
    for (int64_t key = span->begin; key < span->end; key++) {
        if (job->shape.bf16) memset(sums + (size_t)key * width, 0, width * sizeof *sums);
        else if (!add)
            memset((float *)gradient + kv_place(job, batch, head, key), 0, width * sizeof(float));
    }
}

/* Makes dk and dv of a range of a kv head's keys, and dq of its query heads if requested. */
static void attend_kv_head(const struct attention_job *job, struct meeting *m,
                           const struct scratch *s, int64_t batch, int64_t kv_head,
                           const struct attention_span *span)
{
    const struct attention_shape *shape = &job->shape;
    const bool *add = job->kernel->desc.accumulate;
    int64_t first = kv_head * shape->group, row = attention_first_row(shape, span->begin);
    int64_t last = attention_rows_end(shape, span->end - 1);
    clear_sums(job, batch, first, span, job->at.dk, s->dk, add[shape->packed ? 0 : 1]);
    clear_sums(job, batch, first, span, job->at.dv, s->dv, add[shape->packed ? 0 : 2]);
    for (int64_t head = first; head < first + shape->group; head++)
        for (int64_t query = row / BLOCK * BLOCK; query < last; query += BLOCK) {
            meeting_start(job, m, batch, head, query);
            if (m->begin >= span->end) break; /* so do later queries */
            if (m->end > span->begin) attend_backward(job, m, s, span);
        }
    if (!shape->bf16) return;
    int64_t place = kv_place(job, batch, first, span->begin);
    size_t count = (size_t)(span->end - span->begin), at = (size_t)(span->begin * shape->head_dim);
    round_rows(job, job->at.dk, place, job->at.kv_row, count, s->dk + at);
    round_rows(job, job->at.dv, place, job->at.kv_row, count, s->dv + at);
}

static void kv_heads_part(const void *argument, size_t begin, size_t end)
{
    const struct attention_job *job = argument;
    struct attention_span span = {.queries = true, .keys = true, .end = job->shape.time};
    struct scratch s = scratch_of(job);
    struct meeting m;
    for (size_t n = begin; n < end; n++)
        attend_kv_head(job, &m, &s, (int64_t)n / job->shape.kv_heads,
                       (int64_t)n % job->shape.kv_heads, &span);
}

static void queries_part(const void *argument, size_t begin, size_t end)
{
    const struct attention_job *job = argument;
    struct attention_span span = {.queries = true, .end = job->shape.time};
    struct scratch s = scratch_of(job);
    struct meeting m;
    for (size_t n = begin; n < end; n++) {
        int64_t item = (int64_t)n / job->blocks, block = order_of(job, (int64_t)n % job->blocks);
        meeting_start(job, &m, item / job->shape.heads, item % job->shape.heads, block * BLOCK);
        attend_backward(job, &m, &s, &span);
    }
}

static void keys_part(const void *argument, size_t begin, size_t end)
{
    const struct attention_job *job = argument;
    struct scratch s = scratch_of(job);
    struct meeting m;
    for (size_t n = begin; n < end; n++) {
        int64_t item = (int64_t)n / job->blocks, block = order_of(job, (int64_t)n % job->blocks);
        int64_t key = block * BLOCK;
        struct attention_span span = {.keys = true,
                                      .begin = key,
                                      .end = key + (int64_t)count_from(job, key)};
        attend_kv_head(job, &m, &s, item / job->shape.kv_heads, item % job->shape.kv_heads, &span);
    }
}

/* The sums over the samples of the bias's gradient. */
static void finish_bias(const struct attention_job *job)
{
    const struct attention_shape *shape = &job->shape;
    int64_t rows = attention_bias_rows(shape), each = shape->heads * rows;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < shape->heads; head++) {
            const float *sums = job->bias_sums + head * rows + row;
            float *to = job->at.dbias + row * shape->heads + head, sum = 0;
            for (int64_t batch = 0; batch < shape->batch; batch++) sum += sums[batch * each];
            *to = job->kernel->desc.accumulate[3] ? *to + sum : sum;
        }
}

static size_t bias_sums_count(const struct attention_shape *shape)
{
    if (!shape->biased || !shape->backward) return 0;
    return (size_t)(shape->batch * shape->heads * attention_bias_rows(shape));
}

/* With more threads than kv heads, computes the probabilities twice, so that every block can have
 * its own thread. The order of sums stays the same, and so do the bits. The gradient of a bias is
 * summed over all blocks of a head, which then stay on one thread. */
static void run_backward(const struct attention_job *job)
{
    size_t kv_heads = (size_t)(job->shape.batch * job->shape.kv_heads);
    int threads = job->kernel->threads;
    if (kv_heads >= (size_t)threads || job->bias_sums != NULL) {
        if (job->bias_sums != NULL)
            memset(job->bias_sums, 0, bias_sums_count(&job->shape) * sizeof(float));
        cpu_parallel(threads, kv_heads, 1, kv_heads_part, job);
        if (job->bias_sums != NULL) finish_bias(job);
        return;
    }
    size_t blocks = (size_t)job->blocks;
    cpu_parallel(threads, kv_heads * (size_t)job->shape.group * blocks, 1, queries_part, job);
    cpu_parallel(threads, kv_heads * blocks, 1, keys_part, job);
}

static status_t run_attention(const struct kernel *kernel, const struct kernel_call *call)
{
    struct attention_shape shape = attention_shape_of(&kernel->desc);
    double p = kernel->desc.attrs.attention.p;
    struct attention_job job = {.kernel = kernel,
                                .call = call,
                                .loops = cpu_loops_get(),
                                .shape = shape,
                                .at = attention_places_of(&shape, call),
                                .blocks = (shape.time + BLOCK - 1) / BLOCK,
                                .dropout = p > 0,
                                .mask = {.seed = call->seed,
                                         .stream = kernel->desc.attrs.attention.stream,
                                         .step = (uint32_t)call->step,
                                         .rank = call->rank,
                                         .threshold = philox_threshold(p)},
                                .kept_scale = (float)(1 / (1 - p))};
    struct scratch unused;
    if (shape.backward && shape.biased)
        job.bias_sums = (float *)call->workspace +
                        (size_t)kernel->threads * scratch_layout(&shape, NULL, &unused);
    if (shape.backward) run_backward(&job);
    else
        cpu_parallel(kernel->threads, (size_t)(shape.batch * shape.heads * job.blocks), 1,
                     forward_part, &job);
    return NULL;
}

status_t cpu_prepare_attention(struct kernel *kernel)
{
    struct attention_shape shape = attention_shape_of(&kernel->desc);
    struct scratch scratch;
    if (shape.cached > 0) return cpu_prepare_attention_cached(kernel);
    kernel->workspace_bytes = ((uint64_t)kernel->threads * scratch_layout(&shape, NULL, &scratch) +
                               bias_sums_count(&shape)) *
                              sizeof(float);
    kernel->run = run_attention;
    return NULL;
}
