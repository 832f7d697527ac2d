/* Chooses the idle workers for a job: those that can reach each other, on one host, or else on as few
 * hosts as possible. Pure. */
#ifndef FSDPD_COORDINATOR_PLACEMENT_H
#define FSDPD_COORDINATOR_PLACEMENT_H

#include <stdbool.h>

struct worker;

struct placement_worker {
    const char *host, *id;
    struct worker *worker; /* for the caller */
};

/*
 * Moves `count` of the `idle_count` workers to the front, in the order of their ranks; there must
 * be that many. If one host has enough workers, all are on one host: the one with the fewest idle
 * workers that suffice, so that large hosts remain for large jobs. Otherwise the hosts with the
 * most idle workers come first, and the smallest host that suffices provides the rest: no choice
 * uses fewer hosts. Ranks are numbered host by host, in the order of names and ids, where numbers
 * compare by value.
 */
void placement_choose(struct placement_worker *idle, int idle_count, int count);

/* Whether the two cannot be connected. */
typedef bool placement_cut(const struct placement_worker *worker,
                           const struct placement_worker *other);

/*
 * Leaves workers out, so that any two of the others can reach each other, and keeps the order of the
 * others, whose number it returns: as few as possible of the first *needed, whose number it updates,
 * then as few as possible of the rest. Of equal choices, the first of the workers that have the most
 * cuts stays. With very many cuts it may leave out more than it must.
 */
int placement_keep_apart(struct placement_worker *workers, int count, int *needed,
                         placement_cut *is_cut);

#endif
