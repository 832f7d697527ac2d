/*
 * The loader; see loader.h. A mutex guards the counters. Batches are numbered within the epoch;
 * batch n is in slot n % RING. Filled batches wait in the ring: those with taken <= n < next are
 * being filled or ready, and n < taken + RING always.
 */
#include "data/loader.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/signals.h"

enum { RING = LOADER_RING, THREADS = 2 };

struct loader_slot {
    void *input;
    int32_t *target, *starts;
    float *reference;
    int64_t samples;
    status_t status; /* why the batch could not be filled */
    bool ready;
};

struct loader {
    struct rows rows;
    int64_t batch_size;
    struct loader_slot slots[RING];
    pthread_t threads[THREADS];
    int thread_count;

    pthread_mutex_t mutex;
    pthread_cond_t work;           /* for the threads: a batch to fill, or stop */
    pthread_cond_t ready;          /* for the owner: a batch is ready, or no thread fills any
                                    * more */
    int64_t first, count, batches; /* of the epoch: its rows, and batches of them */
    int64_t next;                  /* the first batch that no thread has begun to fill */
    int64_t taken;                 /* number of batches that the owner has finished with */
    bool holding;                  /* the owner uses batch `taken` */
    int filling;                   /* number of threads that are filling a batch */
    bool stop;
};

static status_t fill_row(const struct loader *loader, int64_t place, char *input, int32_t *target,
                         int64_t *samples)
{
    const struct rows *rows = &loader->rows;
    *samples = 0;
    if (place < loader->count)
        return rows->fill(rows->user, loader->first + place, input, target, samples);
    memset(input, 0, rows->input_bytes);
    for (size_t i = 0; i < rows->targets; i++) target[i] = -1;
    return NULL;
}

/* Each token of a row that does not exist is a document of its own. */
static status_t fill_starts(const struct loader *loader, int64_t place, int32_t *starts)
{
    const struct rows *rows = &loader->rows;
    if (place < loader->count) return rows->fill_starts(rows->user, loader->first + place, starts);
    for (size_t i = 0; i < rows->targets; i++) starts[i] = (int32_t)i;
    return NULL;
}

/* A row that does not exist has zeros. */
static status_t fill_reference(const struct loader *loader, int64_t place, float *sums)
{
    const struct rows *rows = &loader->rows;
    memset(sums, 0, rows->references * sizeof *sums);
    if (place >= loader->count) return NULL;
    return rows->fill_reference(rows->user, loader->first + place, sums);
}

static void fill_slot(const struct loader *loader, struct loader_slot *slot, int64_t number)
{
    const struct rows *rows = &loader->rows;
    status_free(slot->status);
    slot->status = NULL;
    slot->samples = 0;
    for (int64_t row = 0; row < loader->batch_size && slot->status == NULL; row++) {
        int64_t samples;
        slot->status = fill_row(loader, number * loader->batch_size + row,
                                (char *)slot->input + (size_t)row * rows->input_bytes,
                                slot->target + (size_t)row * rows->targets, &samples);
        slot->samples += samples;
        if (slot->status == NULL && rows->fill_starts != NULL)
            slot->status = fill_starts(loader, number * loader->batch_size + row,
                                       slot->starts + (size_t)row * rows->targets);
        if (slot->status == NULL && rows->references > 0)
            slot->status = fill_reference(loader, number * loader->batch_size + row,
                                          slot->reference + (size_t)row * rows->references);
    }
}

static bool can_fill(const struct loader *loader)
{
    return loader->next < loader->batches && loader->next < loader->taken + RING;
}

static void *fill_batches(void *argument)
{
    struct loader *loader = argument;
    pthread_mutex_lock(&loader->mutex);
    for (;;) {
        while (!loader->stop && !can_fill(loader)) pthread_cond_wait(&loader->work, &loader->mutex);
        if (loader->stop) break;
        int64_t number = loader->next++;
        struct loader_slot *slot = &loader->slots[number % RING];
        loader->filling++;
        pthread_mutex_unlock(&loader->mutex);
        fill_slot(loader, slot, number);
        pthread_mutex_lock(&loader->mutex);
        loader->filling--;
        slot->ready = true;
        pthread_cond_signal(&loader->ready);
    }
    pthread_mutex_unlock(&loader->mutex);
    return NULL;
}

static status_t make_slots(struct loader *loader)
{
    const struct rows *rows = &loader->rows;
    size_t count = (size_t)loader->batch_size, input = 0, target = 0;
    bool too_many = __builtin_mul_overflow(count, rows->input_bytes, &input) ||
                    __builtin_mul_overflow(count * sizeof(int32_t), rows->targets, &target);
    for (int i = 0; i < RING; i++) {
        loader->slots[i].input = too_many ? NULL : malloc(input);
        loader->slots[i].target = too_many ? NULL : malloc(target);
        bool starts = rows->fill_starts != NULL;
        loader->slots[i].starts = too_many || !starts ? NULL : malloc(target);
        bool references = rows->references > 0;
        size_t sums = count * rows->references * sizeof(float); /* fewer than targets, or as many */
        loader->slots[i].reference = too_many || !references ? NULL : malloc(sums);
        if (loader->slots[i].input == NULL || loader->slots[i].target == NULL ||
            (starts && loader->slots[i].starts == NULL) ||
            (references && loader->slots[i].reference == NULL))
            return status_new(STATUS_RESOURCE_EXHAUSTED,
                              "no memory to load %d batches of %zu rows ahead", RING, count);
    }
    return NULL;
}

/* Signals are for the process's main loop, so the threads block all of them. */
static status_t start_threads(struct loader *loader)
{
    sigset_t before;
    signals_block(&before);
    int error = 0;
    while (error == 0 && loader->thread_count < THREADS) {
        error = pthread_create(&loader->threads[loader->thread_count], NULL, fill_batches, loader);
        if (error != 0) break;
        pthread_setname_np(loader->threads[loader->thread_count], "loader");
        loader->thread_count++;
    }
    signals_restore(&before);
    return error ? status_from_errno(error, "cannot start a loader thread") : NULL;
}

status_t loader_new(const struct rows *rows, int64_t batch_size, struct loader **result)
{
    struct loader *loader = mem_alloc(sizeof *loader);
    loader->rows = *rows;
    loader->batch_size = batch_size;
    pthread_mutex_init(&loader->mutex, NULL);
    pthread_cond_init(&loader->work, NULL);
    pthread_cond_init(&loader->ready, NULL);
    status_t status = make_slots(loader);
    if (status == NULL) status = start_threads(loader);
    if (status != NULL) {
        loader_free(loader);
        return status;
    }
    *result = loader;
    return NULL;
}

void loader_free(struct loader *loader)
{
    if (loader == NULL) return;
    pthread_mutex_lock(&loader->mutex);
    loader->stop = true;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
    for (int i = 0; i < loader->thread_count; i++) pthread_join(loader->threads[i], NULL);
    for (int i = 0; i < RING; i++) {
        free(loader->slots[i].input);
        free(loader->slots[i].target);
        free(loader->slots[i].starts);
        free(loader->slots[i].reference);
        status_free(loader->slots[i].status);
    }
    pthread_cond_destroy(&loader->ready);
    pthread_cond_destroy(&loader->work);
    pthread_mutex_destroy(&loader->mutex);
    free(loader);
}

void loader_start(struct loader *loader, int64_t first, int64_t count)
{
    pthread_mutex_lock(&loader->mutex);
    loader->batches = 0; /* no thread begins another batch of an abandoned epoch */
    while (loader->filling > 0) pthread_cond_wait(&loader->ready, &loader->mutex);
    for (int i = 0; i < RING; i++) loader->slots[i].ready = false;
    loader->first = first;
    loader->count = count;
    loader->batches = (count + loader->batch_size - 1) / loader->batch_size;
    loader->next = loader->taken = 0;
    loader->holding = false;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
}

status_t loader_next(struct loader *loader, struct batch *batch, bool *more)
{
    status_t status = NULL;
    pthread_mutex_lock(&loader->mutex);
    if (loader->holding) {
        loader->slots[loader->taken % RING].ready = false;
        loader->taken++;
        loader->holding = false;
        pthread_cond_signal(&loader->work);
    }
    *more = loader->taken < loader->batches;
    if (*more) {
        struct loader_slot *slot = &loader->slots[loader->taken % RING];
        while (!slot->ready) pthread_cond_wait(&loader->ready, &loader->mutex);
        if (slot->status != NULL) status = status_copy(slot->status);
        else
            *batch = (struct batch){slot->input, slot->target, slot->starts, slot->reference,
                                    slot->samples};
        loader->holding = status == NULL;
    }
    pthread_mutex_unlock(&loader->mutex);
    return status;
}
