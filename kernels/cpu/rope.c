/*
 * Rotary positions, forward and backward: the cosines and sines of every position are made once,
 * when a kernel is, as Hugging Face's models make them: angles and their cosines rounded to f32.
 * All kernels of a process that turn by the same angles (a model's queries and keys, in every
 * layer) share one table, which the last of them frees; a lock guards their list. It counts as held
 * by the kernel that made it.
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
    struct op_desc desc; /* the attributes count */
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
           a->attrs.rope.theta == b->attrs.rope.theta &&
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
    table->half = (size_t)desc->attrs.rope.head_dim / 2;
    table->users = 0;
    size_t count = time * table->half;
    table->values = mem_alloc_array(2 * count, sizeof *table->values);
    float *frequencies = mem_alloc_array(table->half, sizeof *frequencies);
    rope_frequencies(desc, frequencies);
    for (size_t i = 0; i < count; i++) {
        float angle = (float)(i / table->half) * frequencies[i % table->half];
        table->values[i] = (float)cos(angle);
        table->values[count + i] = (float)sin(angle);
    }
    free(frequencies);
    return table;
}

/* The table for that many positions; `made` if there was none. */
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

/* Rows of (batch, time). */
static void rope_part(const void *argument, size_t begin, size_t end)
{
    const struct rope_job *job = argument;
    const struct rope_table *table = job->kernel->state;
    const float *cosines = table->values, *sines = cosines + table->time * table->half;
    bool back = job->kernel->desc.kind == OP_ROPE_BACKWARD, add = job->kernel->desc.accumulate[0];
    size_t width = 2 * job->heads * table->half;
    for (size_t row = begin; row < end; row++) {
        size_t at = row % table->time * table->half;
        cpu_loops_get()->rotate(job->heads, table->half,
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
    return STATUS_OKAY;
}

status_t cpu_prepare_rope(struct kernel *kernel)
{
    int64_t time = kernel->desc.inputs[0].dims[1], head = kernel->desc.attrs.rope.head_dim;
    uint64_t bytes = (uint64_t)(time * head) * sizeof(float);
    if (bytes > MOST_TABLE_BYTES)
        return status_new(STATUS_RESOURCE_EXHAUSTED,
                          "%s: the angles of %lld positions and %lld columns take %llu bytes, at "
                          "most %llu can be",
                          kernel_name(kernel), (long long)time, (long long)head,
                          (unsigned long long)bytes, (unsigned long long)MOST_TABLE_BYTES);
    bool made = false;
    struct rope_table *table = table_take(&kernel->desc, (size_t)time, &made);
    kernel->state = table;
    kernel->release = table_release;
    if (made) kernel->held_bytes = bytes;
    kernel->run = run_rope;
    return STATUS_OKAY;
}
