/* See first_touch.h. */
#include "runtime/first_touch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/signals.h"

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
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

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

void first_touch_begin(void *memory, uint64_t bytes)
{
    if (access(SECOND_NODE, F_OK) == 0) return;
    struct touch *touch = mem_alloc(sizeof *touch);
    *touch = (struct touch){.memory = memory, .bytes = bytes};
    sigset_t before;
    signals_block(&before);
    pthread_mutex_lock(&lock);
    if (pthread_create(&touch->thread, NULL, touch_thread, touch) == 0) {
        touch->next = touches;
        touches = touch;
        touch = NULL;
    }
    pthread_mutex_unlock(&lock);
    signals_restore(&before);
    free(touch);
}

void first_touch_end(void *memory)
{
    pthread_mutex_lock(&lock);
    struct touch **at = &touches;
    while (*at != NULL && (*at)->memory != memory) at = &(*at)->next;
    struct touch *touch = *at;
    if (touch != NULL) *at = touch->next;
    pthread_mutex_unlock(&lock);
    if (touch == NULL) return;
    atomic_store(&touch->stop, true);
    pthread_join(touch->thread, NULL);
    free(touch);
}
