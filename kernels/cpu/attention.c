/*
 * Attention by blocks of ATTENTION_BLOCK queries and keys, forward with a softmax that is corrected
 * as larger scores come up (Dao et al., "FlashAttention", 2022), backward with the probabilities
 * made again from their log-sum-exp. A block of scores lies with its queries side by side, so that
 * sums along the keys need no sums within vectors; q and dy are transposed block by block, all else
 * is read where it is. Memory: a few blocks per thread.
 *
 * Threads take query blocks of heads forward, and kv heads backward, where a key's gradient is
 * summed up over the query blocks of its heads in their order.
 */
#include "kernels/attention.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"
#include "kernels/philox.h"

enum { BLOCK = ATTENTION_BLOCK, SCORES = BLOCK * BLOCK };

/* What one thread works in, all of it in the workspace. */
struct scratch {
    float *q, *dy;                            /* (d, BLOCK): a query block's, transposed */
    float *sums;                              /* (BLOCK, d): y or dq of a query block */
    float *scores, *kept, *gradients;         /* (BLOCK keys, BLOCK queries) */
    float *max, *sum, *shrink, *lse, *totals; /* by query */
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

static size_t scratch_floats(const struct attention_shape *shape)
{
    size_t panel = (size_t)shape->head_dim * BLOCK;
    return shape->backward ? 3 * panel + 3 * SCORES + 2 * BLOCK : 2 * panel + SCORES + 3 * BLOCK;
}

static float *take(float **at, size_t count)
{
    float *taken = *at;
    *at += count;
    return taken;
}

static struct scratch scratch_of(const struct job *job)
{
    float *at =
        (float *)job->call->workspace + (size_t)cpu_parallel_thread() * scratch_floats(&job->shape);
    size_t panel = (size_t)job->shape.head_dim * BLOCK;
    struct scratch s = {.q = take(&at, panel),
                        .sums = take(&at, panel),
                        .scores = take(&at, SCORES)};
    if (job->shape.backward) {
        s.dy = take(&at, panel);
        s.kept = take(&at, SCORES);
        s.gradients = take(&at, SCORES);
        s.lse = take(&at, BLOCK);
        s.totals = take(&at, BLOCK);
    } else {
        s.max = take(&at, BLOCK);
        s.sum = take(&at, BLOCK);
        s.shrink = take(&at, BLOCK);
    }
    return s;
}

/* One block of queries of one head, and one block of keys that it meets. */
struct meeting {
    int64_t batch, head, query, key; /* the first of each */
    size_t queries, keys, lanes;     /* lanes: queries rounded up */
    const float *k, *v;
    struct attention_block block;
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

static struct meeting meeting_start(const struct job *job, int64_t batch, int64_t head,
                                    int64_t query)
{
    size_t queries = count_from(job, query);
    return (struct meeting){.batch = batch,
                            .head = head,
                            .query = query,
                            .queries = queries,
                            .lanes = (queries + 15) / 16 * 16};
}

/* Moves on to a key block; false if none of its keys is seen by anyone. */
static bool meeting_move(const struct job *job, struct meeting *m, int64_t key)
{
    m->key = key;
    m->keys = count_from(job, key);
    int64_t place = kv_place(job, m->batch, m->head, key);
    m->k = job->at.k + place;
    m->v = job->at.v + place;
    m->block = (struct attention_block){.queries = m->lanes,
                                        .keys = m->keys,
                                        .diagonal = job->shape.causal && key == m->query,
                                        .scale = (float)job->shape.scale};
    if (job->at.mask == NULL) return true;
    m->block.seen = job->at.mask + m->batch * job->shape.time + key;
    bool any = false;
    for (size_t i = 0; i < m->keys; i++) any = any || m->block.seen[i] != 0;
    return any;
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

/* rows (k or v) against lanes (q or dy): scores, or gradients of probabilities. */
static void make_scores(const struct job *job, const struct meeting *m, const float *rows,
                        const float *lanes, float *scores)
{
    struct cpu_product product = {.rows = m->keys,
                                  .columns = m->lanes,
                                  .depth = (size_t)job->shape.head_dim,
                                  .a = rows,
                                  .a_row = (size_t)job->at.kv_row,
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
                           const float *rows, float *sums, bool add, const float *factors)
{
    struct cpu_product product = {.rows = m->queries,
                                  .columns = (size_t)job->shape.head_dim,
                                  .depth = m->keys,
                                  .a = scores,
                                  .a_row = 1,
                                  .a_depth = BLOCK,
                                  .b = rows,
                                  .b_depth = (size_t)job->at.kv_row,
                                  .c = sums,
                                  .c_row = (size_t)job->shape.head_dim,
                                  .part = part_of(m, PRODUCT_DEPTH_TO_ROW),
                                  .add = add,
                                  .factors = factors};
    job->loops->product(&product);
}

/* Adds up rows (dy or q) for each key. */
static void sum_to_keys(const struct job *job, const struct meeting *m, const float *scores,
                        const float *rows, int64_t row_stride, float *gradient)
{
    struct cpu_product product = {.rows = m->keys,
                                  .columns = (size_t)job->shape.head_dim,
                                  .depth = m->queries,
                                  .a = scores,
                                  .a_row = BLOCK,
                                  .a_depth = 1,
                                  .b = rows,
                                  .b_depth = (size_t)row_stride,
                                  .c = gradient + kv_place(job, m->batch, m->head, m->key),
                                  .c_row = (size_t)job->at.kv_row,
                                  .part = part_of(m, PRODUCT_DEPTH_FROM_ROW),
                                  .add = true};
    job->loops->product(&product);
}

/* Dropout counts probabilities by query and then by key, a block the other way round. */
static void drop(const struct job *job, const struct meeting *m, float *to, const float *from)
{
    enum { ROW_WORDS = BLOCK / 64 + 1 };
    uint64_t words[BLOCK * ROW_WORDS + 1];
    uint32_t offsets[BLOCK];
    for (size_t i = 0; i < m->queries; i++) {
        uint64_t start =
            attention_row_index(&job->shape, m->batch, m->head, m->query + (int64_t)i) +
            (uint64_t)m->key;
        job->loops->keep_bits((m->keys + start % 4 + 63) / 64, words + i * ROW_WORDS, start / 4,
                              &job->mask);
        offsets[i] = (uint32_t)(i * ROW_WORDS * 64 + start % 4);
    }
    job->loops->apply_bits_transposed(m->queries, m->keys, BLOCK, to, from, words, offsets,
                                      job->kept_scale, false);
}

static const float *query_rows(const struct job *job, const struct meeting *m)
{
    return job->at.q + (m->batch * job->shape.time + m->query) * job->at.q_row +
           m->head * job->shape.head_dim;
}

/* Of y and dy, which are dense. */
static int64_t output_place(const struct job *job, const struct meeting *m)
{
    return ((m->batch * job->shape.time + m->query) * job->shape.heads + m->head) *
           job->shape.head_dim;
}

static void put_row(size_t count, float *to, const float *from, float factor, bool add)
{
    if (add)
        for (size_t i = 0; i < count; i++) to[i] += from[i] * factor;
    else
        for (size_t i = 0; i < count; i++) to[i] = from[i] * factor;
}

/* y and lse of a query block, when all its keys have been met. */
static void finish_queries(const struct job *job, const struct meeting *m, const struct scratch *s)
{
    const bool *add = job->kernel->desc.accumulate;
    size_t width = (size_t)job->shape.head_dim;
    float *y = (float *)job->call->outputs[0] + output_place(job, m);
    float *lse = job->call->outputs[1];
    if (lse != NULL) lse += (m->batch * job->shape.heads + m->head) * job->shape.time + m->query;
    for (size_t i = 0; i < m->queries; i++) {
        float factor = s->max[i] == -INFINITY ? 0 : 1 / s->sum[i];
        put_row(width, y + i * width * (size_t)job->shape.heads, s->sums + i * width, factor,
                add[0]);
        if (lse == NULL) continue;
        float value = s->max[i] == -INFINITY ? -INFINITY : s->max[i] + logf(s->sum[i]);
        lse[i] = add[1] ? lse[i] + value : value;
    }
}

static void attend(const struct job *job, struct meeting *m, const struct scratch *s)
{
    size_t width = (size_t)job->shape.head_dim;
    job->loops->pack_lanes(m->queries, width, s->q, query_rows(job, m), (size_t)job->at.q_row);
    for (size_t i = 0; i < BLOCK; i++) s->max[i] = -INFINITY, s->sum[i] = 0;
    bool add = false;
    for (int64_t key = 0; key < keys_end(job, m); key += BLOCK) {
        if (!meeting_move(job, m, key)) continue;
        make_scores(job, m, m->k, s->q, s->scores);
        job->loops->attention_softmax(&m->block, s->scores, s->max, s->sum, s->shrink);
        if (job->dropout) drop(job, m, s->scores, s->scores);
        sum_to_queries(job, m, s->scores, m->v, s->sums, add, s->shrink);
        add = true;
    }
    if (!add) memset(s->sums, 0, m->queries * width * sizeof(float));
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
    for (size_t n = begin; n < end; n++) {
        int64_t item = (int64_t)n / job->blocks, block = order_of(job, (int64_t)n % job->blocks);
        struct meeting m =
            meeting_start(job, item / job->shape.heads, item % job->shape.heads, block * BLOCK);
        attend(job, &m, &s);
    }
}

/* Gradients of one query block's head: dq at once, dk and dv added to what is there. */
static void attend_backward(const struct job *job, struct meeting *m, const struct scratch *s)
{
    const struct attention_shape *shape = &job->shape;
    size_t width = (size_t)shape->head_dim;
    int64_t y_row = shape->heads * shape->head_dim;
    const float *q = query_rows(job, m), *dy = job->at.dy + output_place(job, m);
    const float *lse = job->at.lse + (m->batch * shape->heads + m->head) * shape->time + m->query;
    job->loops->pack_lanes(m->queries, width, s->q, q, (size_t)job->at.q_row);
    job->loops->pack_lanes(m->queries, width, s->dy, dy, (size_t)y_row);
    for (size_t i = 0; i < BLOCK; i++) {
        bool sees = i < m->queries && lse[i] != -INFINITY;
        s->lse[i] = sees ? lse[i] : INFINITY; /* probabilities of 0 */
        s->totals[i] = 0;
    }
    job->loops->dot_rows(m->queries, width, s->totals, dy, job->at.y + output_place(job, m),
                         (size_t)y_row);
    const float *kept = job->dropout ? s->kept : s->scores;
    bool add = false;
    for (int64_t key = 0; key < keys_end(job, m); key += BLOCK) {
        if (!meeting_move(job, m, key)) continue;
        make_scores(job, m, m->k, s->q, s->scores);
        job->loops->attention_probabilities(&m->block, s->scores, s->lse);
        if (job->dropout) drop(job, m, s->kept, s->scores);
        sum_to_keys(job, m, kept, dy, y_row, job->at.dv);
        make_scores(job, m, m->v, s->dy, s->gradients);
        job->loops->attention_gradients(&m->block, s->gradients, s->scores, kept, s->totals);
        sum_to_keys(job, m, s->gradients, q, job->at.q_row, job->at.dk);
        sum_to_queries(job, m, s->gradients, m->k, s->sums, add, NULL);
        add = true;
    }
    if (!add) memset(s->sums, 0, m->queries * width * sizeof(float));
    float *dq = job->at.dq + (q - job->at.q);
    for (size_t i = 0; i < m->queries; i++)
        put_row(width, dq + (int64_t)i * job->at.q_row, s->sums + i * width, 1,
                job->kernel->desc.accumulate[0]);
}

static void clear_rows(const struct job *job, int64_t batch, int64_t head, float *gradient)
{
    for (int64_t key = 0; key < job->shape.time; key++)
        memset(gradient + kv_place(job, batch, head, key), 0,
               (size_t)job->shape.head_dim * sizeof(float));
}

static void backward_part(const void *argument, size_t begin, size_t end)
{
    const struct job *job = argument;
    const struct attention_shape *shape = &job->shape;
    const bool *add = job->kernel->desc.accumulate;
    struct scratch s = scratch_of(job);
    for (size_t n = begin; n < end; n++) {
        int64_t batch = (int64_t)n / shape->kv_heads;
        int64_t first = (int64_t)n % shape->kv_heads * shape->group;
        if (!add[shape->packed ? 0 : 1]) clear_rows(job, batch, first, job->at.dk);
        if (!add[shape->packed ? 0 : 2]) clear_rows(job, batch, first, job->at.dv);
        for (int64_t head = first; head < first + shape->group; head++)
            for (int64_t query = 0; query < shape->time; query += BLOCK) {
                struct meeting m = meeting_start(job, batch, head, query);
                attend_backward(job, &m, &s);
            }
    }
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
    size_t items = (size_t)(shape.batch * (shape.backward ? shape.kv_heads : shape.heads));
    if (shape.backward) cpu_parallel(kernel->threads, items, 1, backward_part, &job);
    else cpu_parallel(kernel->threads, items * (size_t)job.blocks, 1, forward_part, &job);
    return STATUS_OKAY;
}

status_t cpu_prepare_attention(struct kernel *kernel)
{
    struct attention_shape shape = attention_shape_of(&kernel->desc);
    kernel->workspace_bytes = (uint64_t)kernel->threads * scratch_floats(&shape) * sizeof(float);
    kernel->run = run_attention;
    return STATUS_OKAY;
}
