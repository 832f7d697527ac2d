/*
 * Attention by blocks of ATTENTION_BLOCK queries and keys, forward with a softmax that is corrected
 * as larger scores come up (Dao et al., "FlashAttention", 2022), backward with the probabilities
 * made again from their log-sum-exp. A block of scores lies with its queries side by side, so that
 * sums along the keys need no sums within vectors; q and dy are transposed block by block, all else
 * is read where it is, or on bf16 from a copy of the block. Memory: a few blocks per thread, and
 * on bf16 backward the sums of one kv head's gradients.
 *
 * Threads take query blocks of heads forward, and kv heads backward, where a key's gradient is
 * summed up over the query blocks of its heads in their order. The number of threads does not
 * change a bit of the results.
 */
#include "kernels/attention.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"
#include "kernels/philox.h"

enum { BLOCK = ATTENTION_BLOCK, SCORES = BLOCK * BLOCK };

/* Random bits of a block of queries and two blocks of keys, of which words before may be needed. */
enum { ROW_WORDS = 2 * BLOCK / 64 + 1, ALL_WORDS = BLOCK * ROW_WORDS + 2 };

/* What one thread works in, all of it in the workspace. */
struct scratch {
    float *q, *dy;                            /* (d, BLOCK): a query block's, transposed */
    float *sums;                              /* (BLOCK, d): y or dq of a query block */
    float *scores, *kept, *gradients;         /* (BLOCK keys, BLOCK queries) */
    float *max, *sum, *shrink, *lse, *totals; /* by query */
    float *copies[4];                         /* (BLOCK, d), on bf16: of q, dy, k, v */
    float *dk, *dv;                           /* (t, d), on bf16 */
};

struct job {
    const struct kernel *kernel;
    const struct kernel_call *call;
    const struct cpu_loops *loops;
    struct attention_shape shape;
    struct attention_places at;
    int64_t blocks; /* of queries, and of keys */
    bool dropout;
    struct dropout_mask mask;
    float kept_scale;
};

/* Lays out a thread's scratch from `at` on; returns how many floats that is. */
static size_t scratch_lay(const struct attention_shape *shape, float *at, struct scratch *s)
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
                 {&s->lse, BLOCK, shape->backward},
                 {&s->totals, BLOCK, shape->backward},
                 {&s->copies[0], panel, shape->bf16},
                 {&s->copies[1], panel, shape->bf16 && shape->backward},
                 {&s->copies[2], panel, shape->bf16},
                 {&s->copies[3], panel, shape->bf16},
                 {&s->dk, whole, shape->bf16 && shape->backward},
                 {&s->dv, whole, shape->bf16 && shape->backward}};
    size_t total = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].part = parts[i].wanted && at != NULL ? at + total : NULL;
        if (parts[i].wanted) total += parts[i].count;
    }
    return total;
}

static struct scratch scratch_of(const struct job *job)
{
    struct scratch s;
    size_t count = scratch_lay(&job->shape, NULL, &s);
    scratch_lay(&job->shape, (float *)job->call->workspace + (size_t)cpu_parallel_thread() * count,
                &s);
    return s;
}

/* Rows of one head of an operand, some elements apart. */
struct rows {
    const float *at;
    size_t stride;
};

/* Where they lie; on bf16, a copy of them. */
static struct rows rows_of(const struct job *job, const void *operand, int64_t place,
                           int64_t stride, size_t count, float *copy)
{
    if (!job->shape.bf16) return (struct rows){(const float *)operand + place, (size_t)stride};
    const uint16_t *from = (const uint16_t *)operand + place;
    size_t width = (size_t)job->shape.head_dim;
    for (size_t i = 0; i < count; i++)
        job->loops->bf16_to_f32(width, copy + i * width, from + (int64_t)i * stride);
    return (struct rows){copy, width};
}

/* One block of queries of one head, and one block of keys that it meets. */
struct meeting {
    int64_t batch, head, query, key; /* the first of each */
    size_t queries, keys, lanes;     /* lanes: queries rounded up */
    struct rows k, v;
    struct attention_block block;
    bool any;      /* keys met before */
    int64_t drawn; /* of which keys on the random bits are there; -1: none are */
    uint64_t words[ALL_WORDS];
};

static size_t count_from(const struct job *job, int64_t first)
{
    int64_t left = job->shape.time - first;
    return (size_t)(left < BLOCK ? left : BLOCK);
}

static int64_t kv_place(const struct job *job, int64_t batch, int64_t head, int64_t key)
{
    return (batch * job->shape.time + key) * job->at.kv_row +
           head / job->shape.group * job->shape.head_dim;
}

static int64_t q_place(const struct job *job, const struct meeting *m)
{
    return (m->batch * job->shape.time + m->query) * job->at.q_row + m->head * job->shape.head_dim;
}

/* Of y and dy, which are dense. */
static int64_t y_place(const struct job *job, const struct meeting *m)
{
    return ((m->batch * job->shape.time + m->query) * job->shape.heads + m->head) *
           job->shape.head_dim;
}

static int64_t y_row(const struct job *job)
{
    return job->shape.heads * job->shape.head_dim;
}

static void meeting_start(const struct job *job, struct meeting *m, int64_t batch, int64_t head,
                          int64_t query)
{
    m->batch = batch, m->head = head, m->query = query;
    m->queries = count_from(job, query);
    m->lanes = (m->queries + 15) / 16 * 16;
    m->any = false;
    m->drawn = -1;
}

/* Moves on to a key block; false if none of its keys is seen by anyone. */
static bool meeting_move(const struct job *job, const struct scratch *s, struct meeting *m,
                         int64_t key)
{
    m->key = key;
    m->keys = count_from(job, key);
    m->block = (struct attention_block){.queries = m->lanes,
                                        .keys = m->keys,
                                        .diagonal = job->shape.causal && key == m->query,
                                        .scale = (float)job->shape.scale};
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

/* Where the keys that a query block can meet end. */
static int64_t keys_end(const struct job *job, const struct meeting *m)
{
    return job->shape.causal ? m->query + (int64_t)m->queries : job->shape.time;
}

static enum product_part part_of(const struct meeting *m, enum product_part of_diagonal)
{
    return m->block.diagonal ? of_diagonal : PRODUCT_WHOLE;
}

/* Rows (k or v) against lanes (q or dy): scores, or gradients of probabilities. */
static void make_scores(const struct job *job, const struct meeting *m, struct rows rows,
                        const float *lanes, float *scores)
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

/* Adds up rows (v or k) for each query. */
static void sum_to_queries(const struct job *job, const struct meeting *m, const float *scores,
                           struct rows rows, float *sums, size_t sums_row, bool add,
                           const float *factors)
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

/* Adds up rows (dy or q) for each key; `sums` is the gradient, or on bf16 what becomes it. */
static void sum_to_keys(const struct job *job, const struct meeting *m, const float *scores,
                        struct rows rows, void *gradient, float *sums)
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
 * Dropout counts probabilities by query and then by key, a block the other way round. The generator
 * gives 128 bits at least: those of two key blocks, or of all rows where one block is all keys.
 */
static void drop(const struct job *job, struct meeting *m, float *to, const float *from)
{
    uint32_t offsets[BLOCK];
    int64_t pair = m->key / (2 * BLOCK) * (2 * BLOCK), time = job->shape.time;
    bool one_run = time <= BLOCK, draw = m->drawn != pair;
    m->drawn = pair;
    uint64_t first = attention_row_index(&job->shape, m->batch, m->head, m->query);
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

static void round_rows(const struct job *job, void *operand, int64_t place, int64_t stride,
                       size_t count, const float *rows)
{
    size_t width = (size_t)job->shape.head_dim;
    for (size_t i = 0; i < count; i++)
        job->loops->f32_to_bf16(width, (uint16_t *)operand + place + (int64_t)i * stride,
                                rows + i * width);
}

/* y and lse of a query block, when all its keys have been met. */
static void finish_queries(const struct job *job, const struct meeting *m, const struct scratch *s)
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
        float value = s->max[i] == -INFINITY ? -INFINITY : s->max[i] + logf(s->sum[i]);
        lse[i] = add[1] ? lse[i] + value : value;
    }
}

static void attend(const struct job *job, struct meeting *m, const struct scratch *s)
{
    size_t width = (size_t)job->shape.head_dim;
    struct rows q =
        rows_of(job, job->at.q, q_place(job, m), job->at.q_row, m->queries, s->copies[0]);
    job->loops->pack_lanes(m->queries, width, s->q, q.at, q.stride);
    for (size_t i = 0; i < BLOCK; i++) s->max[i] = -INFINITY, s->sum[i] = 0;
    for (int64_t key = 0; key < keys_end(job, m); key += BLOCK) {
        if (!meeting_move(job, s, m, key)) continue;
        make_scores(job, m, m->k, s->q, s->scores);
        job->loops->attention_softmax(&m->block, s->scores, s->max, s->sum, s->shrink);
        if (job->dropout) drop(job, m, s->scores, s->scores);
        sum_to_queries(job, m, s->scores, m->v, s->sums, width, m->any, s->shrink);
        m->any = true;
    }
    if (!m->any) memset(s->sums, 0, m->queries * width * sizeof(float));
    finish_queries(job, m, s);
}

/* Causal query blocks meet more keys the later they are: early and late ones alternate, so that
 * every run of them is as much work as another. */
static int64_t order_of(const struct job *job, int64_t n)
{
    if (!job->shape.causal) return n;
    return n % 2 == 0 ? n / 2 : job->blocks - 1 - n / 2;
}

static void forward_part(const void *argument, size_t begin, size_t end)
{
    const struct job *job = argument;
    struct scratch s = scratch_of(job);
    struct meeting m;
    for (size_t n = begin; n < end; n++) {
        int64_t item = (int64_t)n / job->blocks, block = order_of(job, (int64_t)n % job->blocks);
        meeting_start(job, &m, item / job->shape.heads, item % job->shape.heads, block * BLOCK);
        attend(job, &m, &s);
    }
}

/* By query: what the scores are to be reduced by, and sums(P dP). */
static void prepare_queries(const struct job *job, const struct meeting *m, const struct scratch *s,
                            struct rows dy)
{
    const struct attention_shape *shape = &job->shape;
    const float *lse = job->at.lse + (m->batch * shape->heads + m->head) * shape->time + m->query;
    for (size_t i = 0; i < BLOCK; i++) {
        bool sees = i < m->queries && lse[i] != -INFINITY;
        s->lse[i] = sees ? lse[i] : INFINITY; /* probabilities of 0 */
        s->totals[i] = 0;
    }
    struct rows y = rows_of(job, job->at.y, y_place(job, m), y_row(job), m->queries, s->copies[2]);
    job->loops->dot_rows(m->queries, (size_t)shape->head_dim, s->totals, dy.at, dy.stride, y.at,
                         y.stride);
}

/* Which gradients are wanted of which keys. */
struct span {
    bool queries, keys;
    int64_t begin, end; /* of keys, at block bounds */
};

/* Gradients of one query block of a head: dq at once, dk and dv added to what is there. */
static void attend_backward(const struct job *job, struct meeting *m, const struct scratch *s,
                            const struct span *span)
{
    size_t width = (size_t)job->shape.head_dim;
    bool bf16 = job->shape.bf16, add = job->kernel->desc.accumulate[0];
    struct rows q =
        rows_of(job, job->at.q, q_place(job, m), job->at.q_row, m->queries, s->copies[0]);
    struct rows dy =
        rows_of(job, job->at.dy, y_place(job, m), y_row(job), m->queries, s->copies[1]);
    job->loops->pack_lanes(m->queries, width, s->q, q.at, q.stride);
    job->loops->pack_lanes(m->queries, width, s->dy, dy.at, dy.stride);
    prepare_queries(job, m, s, dy);
    float *dq = bf16 ? s->sums : (float *)job->at.dq + q_place(job, m);
    size_t dq_row = bf16 ? width : (size_t)job->at.q_row;
    const float *kept = job->dropout ? s->kept : s->scores;
    int64_t end = keys_end(job, m) < span->end ? keys_end(job, m) : span->end;
    for (int64_t key = span->begin; key < end; key += BLOCK) {
        if (!meeting_move(job, s, m, key)) continue;
        make_scores(job, m, m->k, s->q, s->scores);
        job->loops->attention_probabilities(&m->block, s->scores, s->lse);
        if (job->dropout) drop(job, m, s->kept, s->scores);
        if (span->keys) sum_to_keys(job, m, kept, dy, job->at.dv, s->dv);
        make_scores(job, m, m->v, s->dy, s->gradients);
        job->loops->attention_gradients(&m->block, s->gradients, s->scores, kept, s->totals);
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

/* Before a kv head's gradient is summed up, in place or on bf16 beside it. */
static void clear_sums(const struct job *job, int64_t batch, int64_t head, const struct span *span,
                       void *gradient, float *sums, bool add)
{
    size_t width = (size_t)job->shape.head_dim;
    for (int64_t key = span->begin; key < span->end; key++) {
        if (job->shape.bf16) memset(sums + (size_t)key * width, 0, width * sizeof *sums);
        else if (!add)
            memset((float *)gradient + kv_place(job, batch, head, key), 0, width * sizeof(float));
    }
}

/* dk and dv of a span of a kv head's keys, and dq of its query heads if that is wanted too. */
static void attend_kv_head(const struct job *job, struct meeting *m, const struct scratch *s,
                           int64_t batch, int64_t kv_head, const struct span *span)
{
    const struct attention_shape *shape = &job->shape;
    const bool *add = job->kernel->desc.accumulate;
    int64_t first = kv_head * shape->group;
    clear_sums(job, batch, first, span, job->at.dk, s->dk, add[shape->packed ? 0 : 1]);
    clear_sums(job, batch, first, span, job->at.dv, s->dv, add[shape->packed ? 0 : 2]);
    for (int64_t head = first; head < first + shape->group; head++)
        for (int64_t query = shape->causal ? span->begin : 0; query < shape->time; query += BLOCK) {
            meeting_start(job, m, batch, head, query);
            attend_backward(job, m, s, span);
        }
    if (!shape->bf16) return;
    int64_t place = kv_place(job, batch, first, span->begin);
    size_t count = (size_t)(span->end - span->begin), at = (size_t)(span->begin * shape->head_dim);
    round_rows(job, job->at.dk, place, job->at.kv_row, count, s->dk + at);
    round_rows(job, job->at.dv, place, job->at.kv_row, count, s->dv + at);
}

static void kv_heads_part(const void *argument, size_t begin, size_t end)
{
    const struct job *job = argument;
    struct span span = {.queries = true, .keys = true, .end = job->shape.time};
    struct scratch s = scratch_of(job);
    struct meeting m;
    for (size_t n = begin; n < end; n++)
        attend_kv_head(job, &m, &s, (int64_t)n / job->shape.kv_heads,
                       (int64_t)n % job->shape.kv_heads, &span);
}

static void queries_part(const void *argument, size_t begin, size_t end)
{
    const struct job *job = argument;
    struct span span = {.queries = true, .end = job->shape.time};
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
    const struct job *job = argument;
    struct scratch s = scratch_of(job);
    struct meeting m;
    for (size_t n = begin; n < end; n++) {
        int64_t item = (int64_t)n / job->blocks, block = order_of(job, (int64_t)n % job->blocks);
        int64_t key = block * BLOCK;
        struct span span = {.keys = true, .begin = key, .end = key + (int64_t)count_from(job, key)};
        attend_kv_head(job, &m, &s, item / job->shape.kv_heads, item % job->shape.kv_heads, &span);
    }
}

/* With more threads than kv heads, the probabilities are made twice, and every block has its own
 * thread. Sums are made in the same order: the same bits. */
static void run_backward(const struct job *job)
{
    size_t kv_heads = (size_t)(job->shape.batch * job->shape.kv_heads);
    int threads = job->kernel->threads;
    if (kv_heads >= (size_t)threads) {
        cpu_parallel(threads, kv_heads, 1, kv_heads_part, job);
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
    struct job job = {.kernel = kernel,
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
    if (shape.backward) run_backward(&job);
    else
        cpu_parallel(kernel->threads, (size_t)(shape.batch * shape.heads * job.blocks), 1,
                     forward_part, &job);
    return STATUS_OKAY;
}

status_t cpu_prepare_attention(struct kernel *kernel)
{
    struct attention_shape shape = attention_shape_of(&kernel->desc);
    struct scratch scratch;
    kernel->workspace_bytes =
        (uint64_t)kernel->threads * scratch_lay(&shape, NULL, &scratch) * sizeof(float);
    kernel->run = run_attention;
    return STATUS_OKAY;
}
