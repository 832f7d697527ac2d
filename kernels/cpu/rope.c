/*
 * Rotary positions, forward and backward. Preparing a kernel computes the cosines and sines of
 * every position, as Hugging Face's models do: angles and their cosines rounded to f32. All kernels
 * of a process with the same angles (a model's queries and keys, in every layer) share one table,
 * which the last of them frees; a lock guards their list. The table counts as held by the kernel
 * that made it.
 */
#include "kernels/rope.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

#define MOST_TABLE_BYTES ((uint64_t)1 << 30)

struct rope_table {
    struct op_desc desc; /* only the attributes matter */
    size_t time, half;   /* positions, pairs */
    int users;
    float *values; /* cosines (time, half), then sines */
    struct rope_table *next;
};

static pthread_mutex_t tables_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rope_table *tables;

static bool turns_alike(const struct op_desc *a, const struct op_desc *b)
{
    return a->attrs.rope.head_dim == b->attrs.rope.head_dim &&
           a->attrs.rope.rotary_dim == b->attrs.rope.rotary_dim &&
           a->attrs.rope.theta == b->attrs.rope.theta &&
           a->attrs.rope.beta_fast == b->attrs.rope.beta_fast &&
           a->attrs.rope.beta_slow == b->attrs.rope.beta_slow &&
           a->attrs.rope.magnitude == b->attrs.rope.magnitude &&
           a->attrs.rope.scaling == b->attrs.rope.scaling &&
           a->attrs.rope.factor == b->attrs.rope.factor &&
           a->attrs.rope.low_freq_factor == b->attrs.rope.low_freq_factor &&
           a->attrs.rope.high_freq_factor == b->attrs.rope.high_freq_factor &&
           a->attrs.rope.original_context == b->attrs.rope.original_context;
}

static struct rope_table *table_new(const struct op_desc *desc, size_t time)
{
    struct rope_table *table = mem_alloc(sizeof *table);
    table->desc = *desc;
    table->time = time;
    table->half = (size_t)rope_pairs(desc);
    table->users = 0;
    size_t count = time * table->half;
    table->values = mem_alloc_array(2 * count, sizeof *table->values);
    float *frequencies = mem_alloc_array(table->half, sizeof *frequencies);
    rope_frequencies(desc, frequencies);
    float magnitude = rope_magnitude(desc);
    for (size_t i = 0; i < count; i++) {
        float angle = (float)(i / table->half) * frequencies[i % table->half];
        table->values[i] = (float)cos(angle) * magnitude;
        table->values[count + i] = (float)sin(angle) * magnitude;
    }
    free(frequencies);
    return table;
}

/* The table for this number of positions; `made` is set if the call made it. */
static struct rope_table *table_take(const struct op_desc *desc, size_t time, bool *made)
{
    pthread_mutex_lock(&tables_lock);
    struct rope_table *table = tables;
    while (table != NULL && !(table->time == time && turns_alike(&table->desc, desc)))
        table = table->next;
    *made = table == NULL;
    if (table == NULL) {
        table = table_new(desc, time);
        table->next = tables;
        tables = table;
    }
    table->users++;
    pthread_mutex_unlock(&tables_lock);
    return table;
}

static void table_release(void *state)
{
    struct rope_table *table = state;
    pthread_mutex_lock(&tables_lock);
    bool last = --table->users == 0;
    struct rope_table **at = &tables;
    while (last && *at != table) at = &(*at)->next;
    if (last) *at = table->next;
    pthread_mutex_unlock(&tables_lock);
    if (!last) return;
    free(table->values);
    free(table);
}

struct rope_job {
    const struct kernel *kernel;
    const struct kernel_call *call;
    size_t heads;
};

/* Rotates rows of (batch, time). */
static void rope_part(const void *argument, size_t begin, size_t end)
{
    const struct rope_job *job = argument;
    const struct rope_table *table = job->kernel->state;
    const float *cosines = table->values, *sines = cosines + table->time * table->half;
    bool back = job->kernel->desc.kind == OP_ROPE_BACKWARD, add = job->kernel->desc.accumulate[0];
    size_t head = (size_t)job->kernel->desc.attrs.rope.head_dim, width = job->heads * head;
    const int32_t *starts = job->call->inputs[1]; /* NULL: rows are one document */
    for (size_t row = begin; row < end; row++) {
        size_t position = row % table->time - (starts != NULL ? (size_t)starts[row] : 0);
        size_t at = position * table->half;
        cpu_loops_get()->rotate(job->heads, head, table->half,
                                (float *)job->call->outputs[0] + row * width,
                                (const float *)job->call->inputs[0] + row * width, cosines + at,
                                sines + at, back, add);
    }
}

static status_t run_rope(const struct kernel *kernel, const struct kernel_call *call)
{
    const int64_t *dims = kernel->desc.inputs[0].dims;
    struct rope_job job = {kernel, call, (size_t)(dims[2] / kernel->desc.attrs.rope.head_dim)};
    size_t grain = (size_t)dims[2] < CPU_GRAIN ? CPU_GRAIN / (size_t)dims[2] : 1;
    cpu_parallel(kernel->threads, (size_t)(dims[0] * dims[1]), grain, rope_part, &job);
    return NULL;
}

status_t cpu_prepare_rope(struct kernel *kernel)
{
    int64_t time = kernel->desc.inputs[0].dims[1], columns = 2 * rope_pairs(&kernel->desc);
    uint64_t bytes = (uint64_t)(time * columns) * sizeof(float);
    if (bytes > MOST_TABLE_BYTES)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "%s: the angles of %lld positions and %lld columns take %llu bytes, at "
                          "most %llu can be",
                          kernel_name(kernel), (long long)time, (long long)columns,
                          (unsigned long long)bytes, (unsigned long long)MOST_TABLE_BYTES);
    bool made = false;
    struct rope_table *table = table_take(&kernel->desc, (size_t)time, &made);
    kernel->state = table;
    kernel->release = table_release;
    if (made) kernel->held_bytes = bytes;
    kernel->run = run_rope;
    return NULL;
}
