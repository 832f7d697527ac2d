/* A rendezvous store in memory; see calibrate_internal.h. One lock; any thread. */
#include "planning/calibrate_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

struct local_entry {
    char *key;
    void *value;
    size_t size;
};

struct local_store {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct local_entry *entries;
    int count, capacity;
    char *closed; /* why; NULL: open */
};

struct local_store *local_store_new(void)
{
    struct local_store *store = mem_alloc(sizeof *store);
    pthread_mutex_init(&store->lock, NULL);
    condition_init(&store->changed);
    return store;
}

void local_store_free(struct local_store *store)
{
    if (store == NULL) return;
    for (int i = 0; i < store->count; i++) {
        free(store->entries[i].key);
        free(store->entries[i].value);
    }
    free(store->entries);
    free(store->closed);
    pthread_cond_destroy(&store->changed);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

static status_t set(void *user, const char *key, const void *value, size_t size)
{
    struct local_store *store = user;
    pthread_mutex_lock(&store->lock);
    MEM_GROW(store->entries, store->count, store->capacity);
    store->entries[store->count++] =
        (struct local_entry){mem_strdup(key), mem_dup(value, size), size};
    pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->lock);
    return NULL;
}

/* The newest of the key, NULL if it is not set. */
static const struct local_entry *find(const struct local_store *store, const char *key)
{
    for (int i = store->count - 1; i >= 0; i--)
        if (strcmp(store->entries[i].key, key) == 0) return &store->entries[i];
    return NULL;
}

static status_t get(void *user, const char *key, int64_t timeout_ms, void **value, size_t *size)
{
    struct local_store *store = user;
    int64_t deadline = clock_monotonic_ns() + timeout_ms * 1000000;
    const struct local_entry *entry = NULL;
    bool in_time = true;
    status_t status = NULL;
    pthread_mutex_lock(&store->lock);
    while (store->closed == NULL && (entry = find(store, key)) == NULL && in_time)
        in_time = condition_wait(&store->changed, &store->lock, deadline);
    if (store->closed != NULL) {
        status = status_new(STATUS_ABORTED, "%s", store->closed);
    } else if (entry == NULL) {
        status = status_new(STATUS_DEADLINE_EXCEEDED, "key %s was not set in time", key);
    } else {
        *value = mem_dup(entry->value, entry->size);
        *size = entry->size;
    }
    pthread_mutex_unlock(&store->lock);
    return status;
}

void local_store_close(struct local_store *store, const char *why)
{
    pthread_mutex_lock(&store->lock);
    if (store->closed == NULL) store->closed = mem_strdup(why);
    pthread_cond_broadcast(&store->changed);
    pthread_mutex_unlock(&store->lock);
}

static void fail(void *user, const char *group, const char *why)
{
    (void)group;
    local_store_close(user, why);
}

struct rendezvous local_store_view(struct local_store *store)
{
    return (struct rendezvous){.set = set, .get = get, .fail = fail, .user = store};
}
