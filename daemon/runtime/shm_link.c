/* Posting, reading and waiting; see shm_link.h. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "runtime/shm_segment.h"

enum { PAGE = 4096 };

/* Each rank needs two slots per peer, and two for messages to all peers: see comm_shm.c. */
void shm_link_measure(struct shm_link *link)
{
    link->slots = link->world * 2;
    link->slot_bytes = SHM_BOARD_BYTES / (size_t)link->slots / PAGE * PAGE;
    size_t slots = (size_t)(link->world * link->slots);
    size_t head = sizeof *link->segment + slots * sizeof link->segment->slots[0];
    link->boards_at = (head + PAGE - 1) / PAGE * PAGE;
    link->segment_bytes = link->boards_at + slots * link->slot_bytes;
}

size_t shm_link_slot_bytes(const struct shm_link *link)
{
    return link->slot_bytes;
}

int shm_link_slots(const struct shm_link *link)
{
    return link->slots;
}

static struct shm_slot *slot_of(const struct shm_link *link, int rank, int slot)
{
    return &link->segment->slots[rank * link->slots + slot];
}

static char *memory_of(const struct shm_link *link, int rank, int slot)
{
    return (char *)link->segment + link->boards_at +
           (size_t)(rank * link->slots + slot) * link->slot_bytes;
}

/* ---- Signals ---- */

/* The operations on `count` and `waiters` are totally ordered: either the waiter sees the new
 * count, or this sees the waiter. */
static void raise_signal(struct shm_signal *signal)
{
    atomic_fetch_add(&signal->count, 1);
    if (atomic_load(&signal->waiters) > 0)
        syscall(SYS_futex, &signal->count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Sleeps while the count is `seen`, at most until the deadline; false once the deadline has
 * passed. */
static bool sleep_on(struct shm_signal *signal, uint32_t seen, int64_t deadline_ns)
{
    struct timespec until = {.tv_sec = deadline_ns / 1000000000,
                             .tv_nsec = deadline_ns % 1000000000};
    long result = syscall(SYS_futex, &signal->count, FUTEX_WAIT_BITSET, seen, &until, NULL,
                          FUTEX_BITSET_MATCH_ANY);
    return result == 0 || errno != ETIMEDOUT;
}

static enum shm_state state_of(const struct shm_link *link, int rank)
{
    return (enum shm_state)atomic_load(&link->segment->ranks[rank].state);
}

static void wake_all(struct shm_link *link)
{
    for (int r = 0; r < link->world; r++) {
        raise_signal(&link->segment->ranks[r].posted);
        raise_signal(&link->segment->ranks[r].freed);
    }
}

void shm_mark(struct shm_link *link, int rank, enum shm_state state)
{
    uint32_t here = SHM_HERE;
    if (!atomic_compare_exchange_strong(&link->segment->ranks[rank].state, &here, state)) return;
    int32_t none = -1;
    if (state != SHM_LEFT) atomic_compare_exchange_strong(&link->segment->first_lost, &none, rank);
    wake_all(link);
}

void shm_link_quit(struct shm_link *link)
{
    if (atomic_exchange(&link->quit, true)) return;
    shm_mark(link, link->rank, SHM_GAVE_UP);
    wake_all(link); /* even if the rank was marked before */
}

/* ---- Waiting ---- */

static const char *reason_of(enum shm_state state)
{
    static const char *const reasons[] = {"it is there", "it left the group", "it gave up",
                                          "its process ended"};
    return reasons[state];
}

static status_t lost(const struct shm_link *link, int peer)
{
    int first = atomic_load(&link->segment->first_lost);
    if (first < 0 || first == peer)
        return status_new(STATUS_UNAVAILABLE, "lost rank %d: %s", peer,
                          reason_of(state_of(link, peer)));
    return status_new(STATUS_UNAVAILABLE, "lost rank %d: %s (then rank %d too)", first,
                      reason_of(state_of(link, first)), peer);
}

static int lowest(uint64_t ranks)
{
    return __builtin_ctzll(ranks);
}

/* The ranks in the bit set that have left, given up or died. */
static uint64_t gone_of(const struct shm_link *link, uint64_t ranks)
{
    uint64_t gone = 0;
    for (uint64_t left = ranks; left != 0; left &= left - 1)
        if (state_of(link, lowest(left)) != SHM_HERE) gone |= left & -left;
    return gone;
}

/* Waits until `awaited`, which returns the peers still waited for, returns none. Checks for lost
 * peers first, so that messages posted before a peer was lost still count. */
static status_t wait_for(struct shm_link *link, struct shm_signal *signal,
                         uint64_t (*awaited)(struct shm_link *link, void *user), void *user,
                         uint64_t peers, int64_t deadline_ns)
{
    for (;;) {
        uint64_t gone = gone_of(link, peers), missing = awaited(link, user);
        if (missing == 0) return NULL;
        if (atomic_load(&link->quit))
            return status_new(STATUS_ABORTED, "this rank left the others");
        if ((gone & missing) != 0) return lost(link, lowest(gone & missing));
        atomic_fetch_add(&signal->waiters, 1);
        uint32_t seen = atomic_load(&signal->count);
        bool in_time = true;
        if (awaited(link, user) != 0 && gone_of(link, peers) == gone && !atomic_load(&link->quit))
            in_time = sleep_on(signal, seen, deadline_ns);
        atomic_fetch_sub(&signal->waiters, 1);
        missing = awaited(link, user);
        if (!in_time && missing != 0)
            return status_new(STATUS_DEADLINE_EXCEEDED, "rank %d did not answer in time",
                              lowest(missing));
    }
}

/* ---- Messages ---- */

static uint64_t readers_of_next(struct shm_link *link, void *user)
{
    (void)user;
    return atomic_load(&slot_of(link, link->rank, link->next)->readers);
}

status_t shm_post(struct shm_link *link, uint64_t readers, uint64_t tag, const void *data,
                  size_t bytes, int64_t deadline_ns)
{
    MUST_ALONE(&link->user);
    uint64_t gone = gone_of(link, readers);
    if (gone != 0) return lost(link, lowest(gone)); /* the peer will never read this */
    struct shm_slot *slot = slot_of(link, link->rank, link->next);
    struct shm_rank *own = &link->segment->ranks[link->rank];
    TRY(wait_for(link, &own->freed, readers_of_next, NULL, atomic_load(&slot->readers),
                 deadline_ns));
    if (bytes > 0) memcpy(memory_of(link, link->rank, link->next), data, bytes);
    atomic_store(&slot->tag, tag);
    atomic_store(&slot->readers, readers);
    link->next = (link->next + 1) % link->slots;
    raise_signal(&own->posted);
    return NULL;
}

struct wanted {
    int from;
    uint64_t tag;
};

/* One rank's messages for another are in the order of posting, so the search starts at the last one
 * found. */
static uint64_t missing_message(struct shm_link *link, void *user)
{
    const struct wanted *wanted = user;
    int at = link->reading[wanted->from];
    for (int i = 0; i < link->slots; i++, at = (at + 1) % link->slots) {
        struct shm_slot *slot = slot_of(link, wanted->from, at);
        if ((atomic_load(&slot->readers) >> link->rank & 1) == 0 ||
            atomic_load(&slot->tag) != wanted->tag)
            continue;
        link->reading[wanted->from] = at;
        return 0;
    }
    return UINT64_C(1) << wanted->from;
}

status_t shm_read_begin(struct shm_link *link, int from, uint64_t tag, const void **data,
                        int64_t deadline_ns)
{
    MUST_ALONE(&link->user);
    struct wanted wanted = {from, tag};
    TRY(wait_for(link, &link->segment->ranks[from].posted, missing_message, &wanted,
                 UINT64_C(1) << from, deadline_ns));
    *data = memory_of(link, from, link->reading[from]);
    return NULL;
}

void shm_read_end(struct shm_link *link, int from)
{
    MUST_ALONE(&link->user);
    struct shm_slot *slot = slot_of(link, from, link->reading[from]);
    uint64_t own = UINT64_C(1) << link->rank;
    if (atomic_fetch_and(&slot->readers, ~own) == own)
        raise_signal(&link->segment->ranks[from].freed);
}

void shm_link_free(struct shm_link *link)
{
    if (link == NULL) return;
    if (link->segment != NULL) shm_mark(link, link->rank, SHM_LEFT);
    if (link->watched) {
        uint64_t one = 1;
        while (write(link->stop, &one, sizeof one) < 0 && errno == EINTR) {}
        pthread_join(link->watcher, NULL);
    }
    for (int r = 0; r < link->world; r++)
        if (link->sockets[r] >= 0) close(link->sockets[r]);
    if (link->stop >= 0) close(link->stop);
    if (link->segment != NULL) munmap(link->segment, link->segment_bytes);
    free(link->sockets);
    free(link->reading);
    free(link);
}
