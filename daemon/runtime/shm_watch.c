/* The thread that detects peers whose process ended: the kernel closes their sockets. */
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/signals.h"
#include "runtime/shm_segment.h"

/* Nothing is sent after the group has joined, so a readable socket means that the peer closed
 * it. */
static void *watch(void *argument)
{
    struct shm_link *link = argument;
    struct pollfd polled[SHM_RANKS_MAX + 1];
    for (int r = 0; r < link->world; r++)
        polled[r] = (struct pollfd){.fd = link->sockets[r], .events = POLLIN};
    polled[link->world] = (struct pollfd){.fd = link->stop, .events = POLLIN};
    for (;;) {
        if (poll(polled, (nfds_t)link->world + 1, -1) < 0) continue; /* EINTR */
        if (polled[link->world].revents != 0) return NULL;
        for (int r = 0; r < link->world; r++) {
            if (polled[r].revents == 0) continue;
            polled[r].fd = -1;
            shm_mark(link, r, SHM_DIED); /* no effect if the peer has already marked itself */
        }
    }
}

status_t shm_watch(struct shm_link *link)
{
    sigset_t before;
    signals_block(&before); /* signals go to the main loop */
    int error = pthread_create(&link->watcher, NULL, watch, link);
    signals_restore(&before);
    if (error != 0) return status_from_errno(error, "starting a thread");
    pthread_setname_np(link->watcher, "shm-watcher");
    link->watched = true;
    return NULL;
}
