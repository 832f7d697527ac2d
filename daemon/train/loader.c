/*
 * The loader; see loader.h. A mutex guards the counters; batches are numbered within the epoch, and
 * number n lies in slot n % RING. Filled batches wait in the ring: taken <= n < next are being
 * filled or ready, and n < taken + RING always.
 */
#include "train/loader.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { RING = 4, THREADS = 2 };

struct slot {
    float *input;
    int32_t *target;
    int64_t samples;
    bool ready;
};

struct loader {
    const struct dataset *dataset;
    int64_t batch_size, sample_pixels;
    float values[256]; /* of a byte, normalised */
    struct slot slots[RING];
    pthread_t threads[THREADS];
    int thread_count;

    pthread_mutex_t mutex;
    pthread_cond_t work;  /* for the threads: something to fill, or stop */
    pthread_cond_t ready; /* for the owner: a batch is ready, or nobody fills any more */
    const uint32_t *order;
    int64_t count, batches; /* of the epoch: entries of `order`, batches */
    int64_t next;           /* the first batch that nobody has begun to fill */
    int64_t taken;          /* batches that the owner is done with */
    bool holding;           /* the owner uses batch `taken` */
    int filling;            /* threads in the middle of a batch */
    bool stop;
};

static void fill_slot(const struct loader *loader, struct slot *slot, int64_t number)
{
    slot->samples = 0;
    for (int64_t row = 0; row < loader->batch_size; row++) {
        int64_t place = number * loader->batch_size + row;
        uint32_t sample = place < loader->count ? loader->order[place] : SAMPLE_NONE;
        float *out = slot->input + row * loader->sample_pixels;
        if (sample == SAMPLE_NONE) {
            memset(out, 0, (size_t)loader->sample_pixels * sizeof *out);
            slot->target[row] = -1;
            continue;
        }
        const uint8_t *in = loader->dataset->images + (int64_t)sample * loader->sample_pixels;
        for (int64_t i = 0; i < loader->sample_pixels; i++) out[i] = loader->values[in[i]];
        slot->target[row] = loader->dataset->labels[sample];
        slot->samples++;
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
        struct slot *slot = &loader->slots[number % RING];
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

static status_t make_values(struct loader *loader, double mean, double std)
{
    for (int byte = 0; byte < 256; byte++) {
        float value = ((float)byte / 255.0f - (float)mean) / (float)std;
        if (!isfinite(value))
            return status_new(STATUS_INVALID_ARGUMENT,
                              "data.normalize: (%d / 255 - %g) / %g is not a finite number", byte,
                              mean, std);
        loader->values[byte] = value;
    }
    return NULL;
}

static status_t make_slots(struct loader *loader)
{
    size_t rows = (size_t)loader->batch_size, pixels = (size_t)loader->sample_pixels, bytes;
    if (__builtin_mul_overflow(rows * sizeof(float), pixels, &bytes)) bytes = SIZE_MAX;
    for (int i = 0; i < RING; i++) {
        loader->slots[i].input = bytes == SIZE_MAX ? NULL : malloc(bytes);
        loader->slots[i].target = malloc(rows * sizeof(int32_t));
        if (loader->slots[i].input == NULL || loader->slots[i].target == NULL)
            return status_new(STATUS_RESOURCE_EXHAUSTED,
                              "no memory to load %d batches of %zu images ahead", RING, rows);
    }
    return NULL;
}

/* Signals are for the process's main loop: the threads block all of them. */
static status_t start_threads(struct loader *loader)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    while (error == 0 && loader->thread_count < THREADS) {
        error = pthread_create(&loader->threads[loader->thread_count], NULL, fill_batches, loader);
        if (error != 0) break;
        pthread_setname_np(loader->threads[loader->thread_count], "loader");
        loader->thread_count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? status_from_errno(error, "cannot start a loader thread") : NULL;
}

status_t loader_new(const struct dataset *dataset, int64_t batch_size, double mean, double std,
                    struct loader **result)
{
    struct loader *loader = mem_alloc(sizeof *loader);
    loader->dataset = dataset;
    loader->batch_size = batch_size;
    loader->sample_pixels = dataset->height * dataset->width;
    pthread_mutex_init(&loader->mutex, NULL);
    pthread_cond_init(&loader->work, NULL);
    pthread_cond_init(&loader->ready, NULL);
    status_t status = make_values(loader, mean, std);
    if (status == NULL) status = make_slots(loader);
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
    }
    pthread_cond_destroy(&loader->ready);
    pthread_cond_destroy(&loader->work);
    pthread_mutex_destroy(&loader->mutex);
    free(loader);
}

void loader_start(struct loader *loader, const uint32_t *order, int64_t count)
{
    pthread_mutex_lock(&loader->mutex);
    loader->batches = 0; /* nobody begins another batch of an epoch that is given up */
    while (loader->filling > 0) pthread_cond_wait(&loader->ready, &loader->mutex);
    for (int i = 0; i < RING; i++) loader->slots[i].ready = false;
    loader->order = order;
    loader->count = count;
    loader->batches = (count + loader->batch_size - 1) / loader->batch_size;
    loader->next = loader->taken = 0;
    loader->holding = false;
    pthread_cond_broadcast(&loader->work);
    pthread_mutex_unlock(&loader->mutex);
}

bool loader_next(struct loader *loader, struct batch *batch)
{
    pthread_mutex_lock(&loader->mutex);
    if (loader->holding) {
        loader->slots[loader->taken % RING].ready = false;
        loader->taken++;
        loader->holding = false;
        pthread_cond_signal(&loader->work);
    }
    bool more = loader->taken < loader->batches;
    if (more) {
        struct slot *slot = &loader->slots[loader->taken % RING];
        while (!slot->ready) pthread_cond_wait(&loader->ready, &loader->mutex);
        loader->holding = true;
        *batch = (struct batch){slot->input, slot->target, slot->samples};
    }
    pthread_mutex_unlock(&loader->mutex);
    return more;
}
