/* See arena_pool.h. */
#include "runtime/arena_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/signals.h"

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

/* ---- touching ahead ---- */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* PIECE: between looks at `stop`; meanwhile the process can neither map nor unmap. NICE: as others
 * may want the processors. */
enum { PIECE = 2 << 20, NICE = 10 };
#define SECOND_NODE "/sys/devices/system/node/node1"

static struct touch {
    struct touch *next;
    char *memory;
    uint64_t bytes;
    pthread_t thread;
    atomic_bool stop;
} * touches;
static pthread_mutex_t touches_lock = PTHREAD_MUTEX_INITIALIZER;

static void *touch_thread(void *argument)
{
    struct touch *touch = argument;
    pthread_setname_np(pthread_self(), "first-touch");
    setpriority(PRIO_PROCESS, (id_t)gettid(), NICE); /* of this thread */
    for (uint64_t at = 0; at < touch->bytes && !atomic_load(&touch->stop); at += PIECE) {
        uint64_t left = touch->bytes - at;
        if (madvise(touch->memory + at, left < PIECE ? left : PIECE, MADV_POPULATE_WRITE) != 0)
            break;
    }
    return NULL;
}

void arena_touch_begin(void *memory, uint64_t bytes)
{
    if (access(SECOND_NODE, F_OK) == 0) return;
    struct touch *touch = mem_alloc(sizeof *touch);
    *touch = (struct touch){.memory = memory, .bytes = bytes};
    sigset_t before;
    signals_block(&before);
    pthread_mutex_lock(&touches_lock);
    if (pthread_create(&touch->thread, NULL, touch_thread, touch) == 0) {
        touch->next = touches;
        touches = touch;
        touch = NULL;
    }
    pthread_mutex_unlock(&touches_lock);
    signals_restore(&before);
    free(touch);
}

void arena_touch_end(void *memory)
{
    pthread_mutex_lock(&touches_lock);
    struct touch **at = &touches;
    while (*at != NULL && (*at)->memory != memory) at = &(*at)->next;
    struct touch *touch = *at;
    if (touch != NULL) *at = touch->next;
    pthread_mutex_unlock(&touches_lock);
    if (touch == NULL) return;
    atomic_store(&touch->stop, true);
    pthread_join(touch->thread, NULL);
    free(touch);
}
