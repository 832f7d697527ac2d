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
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"

#define MOST_TABLE_BYTES ((uint64_t)1 << 30)

struct rope_table {
    size_t time, half; /* positions, pairs */
    float magnitude;
    float *frequencies; /* by pair */
    int users;
    float *values; /* cosines (time, half), then sines */
    struct rope_table *next;
};

static pthread_mutex_t tables_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rope_table *tables;

static bool turns_alike(const struct rope_table *a, const struct rope_table *b)
{
    return a->time == b->time && a->half == b->half && a->magnitude == b->magnitude &&
           memcmp(a->frequencies, b->frequencies, a->half * sizeof *a->frequencies) == 0;
}

static void fill_table(struct rope_table *table)
{
    size_t count = table->time * table->half;
    table->values = mem_alloc_array(2 * count, sizeof *table->values);
    for (size_t i = 0; i < count; i++) {
        float angle = (float)(i / table->half) * table->frequencies[i % table->half];
        table->values[i] = (float)cos(angle) * table->magnitude;
        table->values[count + i] = (float)sin(angle) * table->magnitude;
    }
}

static void table_free(struct rope_table *table)
{
    free(table->frequencies);
    free(table->values);
    free(table);
}

/* The table for this number of positions; `made` is set if the call made it. */
static struct rope_table *table_take(const struct op_desc *desc, size_t time, bool *made)
{
    struct rope_table *wanted = mem_alloc(sizeof *wanted);
    *wanted = (struct rope_table){.time = time,
                                  .half = (size_t)rope_pairs(desc),
                                  .magnitude = rope_magnitude(desc)};
    wanted->frequencies = mem_alloc_array(wanted->half, sizeof *wanted->frequencies);
    rope_frequencies(desc, wanted->frequencies);
    pthread_mutex_lock(&tables_lock);
    struct rope_table *table = tables;
    while (table != NULL && !turns_alike(table, wanted)) table = table->next;
    *made = table == NULL;
    if (table == NULL) {
        table = wanted;
        fill_table(table);
        table->next = tables;
        tables = table;
    }
    table->users++;
    pthread_mutex_unlock(&tables_lock);
    if (table != wanted) table_free(wanted);
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
    if (last) table_free(table);
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
    bool interleaved = job->kernel->desc.attrs.rope.interleaved;
    size_t time = (size_t)job->kernel->desc.inputs[0].dims[1];
    size_t head = (size_t)job->kernel->desc.attrs.rope.head_dim, width = job->heads * head;
    const int32_t *starts = job->call->inputs[1]; /* NULL: rows are one document */
    for (size_t row = begin; row < end; row++) {
        size_t position = row % time - (starts != NULL ? (size_t)starts[row] : 0);
        size_t at = position * table->half;
        cpu_loops_get()->rotate(job->heads, head, table->half, interleaved,
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
    int64_t time = rope_positions(&kernel->desc), columns = 2 * rope_pairs(&kernel->desc);
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
