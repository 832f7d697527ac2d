/*
 * Attention over a cache of keys and values, for rows that continue sequences. A cache that is
 * shorter than the sequences is a ring of their last positions. Rows first go into the cache; then
 * each row of each query head makes its scores with all the keys that it sees, and sums the values.
 * On bf16 blocks of the cache are copied to f32. What a row gives depends on its sequence alone,
 * not on the other rows of the call.
 *
 * Threads take sequences, then rows of heads. Memory: the scores of one row per thread.
 */
#include "kernels/attention.h"

#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

enum { BLOCK = ATTENTION_BLOCK };

struct cached_job {
    const struct kernel_call *call;
    const struct cpu_loops *loops;
    struct attention_shape shape;
    struct attention_places at;
};

/* One thread's working memory, all of it in the workspace. */
struct cached_scratch {
    float *scores;       /* (cached) */
    float *q, *y, *rows; /* (d), (d), (BLOCK, d); on bf16 */
};

static size_t scratch_count(const struct attention_shape *shape)
{
    size_t width = (size_t)shape->head_dim, count = (size_t)shape->cached;
    if (shape->bf16) count += (BLOCK + 2) * width;
    return round_up(count, 16);
}

static struct cached_scratch scratch_of(const struct cached_job *job)
{
    const struct attention_shape *shape = &job->shape;
    size_t width = (size_t)shape->head_dim;
    float *at =
        (float *)job->call->workspace + (size_t)cpu_parallel_thread() * scratch_count(shape);
    float *q = at + shape->cached;
    return (struct cached_scratch){at, q, q + width, q + 2 * width};
}

/* Puts k and v of sequences into the cache; their rows in order, as positions may be equal. */
static void fill_part(const void *argument, size_t begin, size_t end)
{
    const struct cached_job *job = argument;
    const struct attention_shape *shape = &job->shape;
    size_t size = shape->bf16 ? 2 : 4, width = (size_t)(shape->kv_heads * shape->head_dim) * size;
    size_t row = (size_t)job->at.kv_row * size;
    for (size_t n = begin * (size_t)shape->time; n < end * (size_t)shape->time; n++) {
        int64_t batch = (int64_t)n / shape->time;
        int64_t place =
            batch * shape->cached +
            attention_position(shape, &job->at, batch, (int64_t)n % shape->time) % shape->cached;
        memcpy((char *)job->at.keys + (size_t)place * width, (const char *)job->at.k + n * row,
               width);
        memcpy((char *)job->at.values + (size_t)place * width, (const char *)job->at.v + n * row,
               width);
    }
}

struct cached_row {
    int64_t first, last; /* keys that it sees */
    int64_t head;
    int64_t head_place;  /* of position 0, in the cache */
};

/* Keys from `key` on that are side by side in the cache, at most a block. */
static int64_t block_of(const struct cached_job *job, const struct cached_row *row, int64_t key)
{
    int64_t count = row->last + 1 - key, left = job->shape.cached - key % job->shape.cached;
    if (count > left) count = left;
    return count < BLOCK ? count : BLOCK;
}

/* `count` rows of one head of the cache from `key` on: in place, or a copy. */
static const float *cache_rows(const struct cached_job *job, const void *cache,
                               const struct cached_row *row, int64_t key, int64_t count,
                               float *copy, size_t *stride)
{
    size_t width = (size_t)job->shape.head_dim;
    *stride = (size_t)job->shape.kv_heads * width;
    int64_t place = row->head_place + key % job->shape.cached * (int64_t)*stride;
    if (!job->shape.bf16) return (const float *)cache + place;
    for (int64_t i = 0; i < count; i++)
        job->loops->bf16_to_f32(width, copy + (size_t)i * width,
                                (const uint16_t *)cache + place + i * (int64_t)*stride);
    *stride = width;
    return copy;
}

/* Scores are those of the row's keys, from its first on. */
static void make_scores(const struct cached_job *job, const struct cached_scratch *s,
                        const struct cached_row *row, const float *q)
{
    const struct attention_shape *shape = &job->shape;
    int64_t count;
    for (int64_t key = row->first; key <= row->last; key += count) {
        size_t stride;
        count = block_of(job, row, key);
        const float *k = cache_rows(job, job->at.keys, row, key, count, s->rows, &stride);
        job->loops->dot_rows((size_t)count, (size_t)shape->head_dim, s->scores + key - row->first,
                             q, 0, k, stride);
    }
    float cap = (float)shape->softcap, scale = (float)shape->scale;
    for (int64_t i = 0; i <= row->last - row->first; i++) {
        float score = s->scores[i] * scale;
        s->scores[i] = cap > 0 ? cap * tanhf(score / cap) : score;
    }
    if (shape->alibi == 0) return;
    double slope = attention_slope(shape, row->head);
    double base = attention_height(shape, slope, row->last);
    for (int64_t key = row->first; key <= row->last; key++)
        s->scores[key - row->first] += (float)(attention_height(shape, slope, key) - base);
}

static void sum_values(const struct cached_job *job, const struct cached_scratch *s,
                       const struct cached_row *row, float *y)
{
    const struct attention_shape *shape = &job->shape;
    int64_t count;
    for (int64_t key = row->first; key <= row->last; key += count) {
        size_t stride;
        count = block_of(job, row, key);
        const float *v = cache_rows(job, job->at.values, row, key, count, s->rows, &stride);
        struct cpu_product product = {.rows = 1,
                                      .columns = (size_t)shape->head_dim,
                                      .depth = (size_t)count,
                                      .a = s->scores + key - row->first,
                                      .a_row = 1,
                                      .a_depth = 1,
                                      .b = v,
                                      .b_depth = stride,
                                      .c = y,
                                      .c_row = (size_t)shape->head_dim,
                                      .add = key > row->first};
        job->loops->product(&product);
    }
}

/* Rows of heads, heads of a row side by side. */
static void rows_part(const void *argument, size_t begin, size_t end)
{
    const struct cached_job *job = argument;
    const struct attention_shape *shape = &job->shape;
    struct cached_scratch s = scratch_of(job);
    size_t width = (size_t)shape->head_dim;
    for (size_t n = begin; n < end; n++) {
        int64_t head = (int64_t)n % shape->heads, row = (int64_t)n / shape->heads;
        int64_t batch = row / shape->time;
        int64_t last = attention_position(shape, &job->at, batch, row % shape->time);
        int64_t place = row * job->at.q_row + head * shape->head_dim;
        struct cached_row seen = {.first = attention_first_key(shape, last),
                                  .last = last,
                                  .head = head,
                                  .head_place = (batch * shape->cached * shape->kv_heads +
                                                 head / shape->group) *
                                                shape->head_dim};
        const float *q = (const float *)job->at.q + place;
        float *y = (float *)job->call->outputs[0] + n * width;
        if (shape->bf16) {
            job->loops->bf16_to_f32(width, s.q, (const uint16_t *)job->at.q + place);
            q = s.q, y = s.y;
        }
        make_scores(job, &s, &seen, q);
        job->loops->softmax_scaled((size_t)(last + 1 - seen.first), s.scores, 1, true);
        sum_values(job, &s, &seen, y);
        if (shape->bf16)
            job->loops->f32_to_bf16(width, (uint16_t *)job->call->outputs[0] + n * width, y);
    }
}

static status_t run_cached(const struct kernel *kernel, const struct kernel_call *call)
{
    struct cached_job job = {.call = call,
                             .loops = cpu_loops_get(),
                             .shape = attention_shape_of(&kernel->desc)};
    job.at = attention_places_of(&job.shape, call);
    const struct attention_shape *shape = &job.shape;
    cpu_parallel(kernel->threads, (size_t)shape->batch, 1, fill_part, &job);
    cpu_parallel(kernel->threads, (size_t)(shape->batch * shape->time * shape->heads), 1, rows_part,
                 &job);
    return NULL;
}

status_t cpu_prepare_attention_cached(struct kernel *kernel)
{
    struct attention_shape shape = attention_shape_of(&kernel->desc);
    if (kernel->desc.accumulate[0])
        return status_new(STATUS_UNIMPLEMENTED, "%s: adding over a cache", kernel_name(kernel));
    kernel->workspace_bytes = (uint64_t)kernel->threads * scratch_count(&shape) * sizeof(float);
    kernel->run = run_cached;
    return NULL;
}
