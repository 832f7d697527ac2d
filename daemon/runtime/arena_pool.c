/* See arena_pool.h. */
#include "runtime/arena_pool.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

/* A job has two arenas. Larger ones belong to longer jobs, whose first step matters less. */
enum { ARENAS = 2, ARENA_MIN = 1 << 20, ARENA_MAX = 64 << 20 };

static struct {
    pthread_mutex_t lock;
    struct arena {
        void *memory; /* NULL: none */
        uint64_t bytes;
    } arenas[ARENAS];
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void empty(void)
{
    for (int i = 0; i < ARENAS; i++) {
        if (pool.arenas[i].memory != NULL) munmap(pool.arenas[i].memory, pool.arenas[i].bytes);
        pool.arenas[i] = (struct arena){0};
    }
}

void *arena_pool_take(uint64_t bytes)
{
    void *found = NULL;
    pthread_mutex_lock(&pool.lock);
    for (int i = 0; i < ARENAS && found == NULL; i++) {
        if (pool.arenas[i].bytes != bytes) continue;
        found = pool.arenas[i].memory;
        pool.arenas[i] = (struct arena){0};
    }
    if (found == NULL) empty();
    pthread_mutex_unlock(&pool.lock);
    return found;
}

static struct arena *find_place(void)
{
    for (int i = 0; i < ARENAS; i++)
        if (pool.arenas[i].memory == NULL) return &pool.arenas[i];
    return NULL;
}

bool arena_pool_give(void *memory, uint64_t bytes)
{
    if (bytes < ARENA_MIN || bytes > ARENA_MAX) return false;
    pthread_mutex_lock(&pool.lock);
    struct arena *place = find_place();
    if (place != NULL) {
        memset(memory, 0, bytes);
        *place = (struct arena){memory, bytes};
    }
    pthread_mutex_unlock(&pool.lock);
    return place != NULL;
}

uint64_t arena_pool_bytes(void)
{
    uint64_t bytes = 0;
    pthread_mutex_lock(&pool.lock);
    for (int i = 0; i < ARENAS; i++) bytes += pool.arenas[i].bytes;
    pthread_mutex_unlock(&pool.lock);
    return bytes;
}
