/* See memory_store.h. */
#include "memory_store.h"

#include <check.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/mem.h"

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct {
        char *key;
        void *value;
        size_t size;
    } entries[256];
    int count;
    bool broken;
} store = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static status_t store_set(void *user, const char *key, const void *value, size_t size)
{
    (void)user;
    pthread_mutex_lock(&store.lock);
    ck_assert_uint_lt((size_t)store.count, COUNT_OF(store.entries));
    store.entries[store.count].key = mem_strdup(key);
    store.entries[store.count].value = mem_dup(value, size);
    store.entries[store.count++].size = size;
    pthread_cond_broadcast(&store.changed);
    pthread_mutex_unlock(&store.lock);
    return NULL;
}

static status_t store_get(void *user, const char *key, int64_t timeout_ms, void **value,
                          size_t *size)
{
    (void)user, (void)timeout_ms;
    int i = 0;
    pthread_mutex_lock(&store.lock);
    for (;;) {
        for (i = 0; i < store.count && strcmp(store.entries[i].key, key) != 0; i++) {}
        if (i < store.count || store.broken) break;
        pthread_cond_wait(&store.changed, &store.lock);
    }
    const bool found = i < store.count;
    if (found) *value = mem_dup(store.entries[i].value, store.entries[i].size);
    if (found) *size = store.entries[i].size;
    pthread_mutex_unlock(&store.lock);
    return found ? NULL : status_new(STATUS_CANCELLED, "%s: the attempt ends", key);
}

struct rendezvous memory_store(void)
{
    return (struct rendezvous){.set = store_set, .get = store_get};
}

void memory_store_break(void)
{
    pthread_mutex_lock(&store.lock);
    store.broken = true;
    pthread_cond_broadcast(&store.changed);
    pthread_mutex_unlock(&store.lock);
}

void memory_store_reset(void)
{
    store.broken = false;
    for (; store.count > 0; store.count--) {
        free(store.entries[store.count - 1].key);
        free(store.entries[store.count - 1].value);
    }
}
