/* Which of the idle workers a job gets: those of one host, or else of as few as can be. Pure. */
#ifndef FSDPD_COORDINATOR_PLACEMENT_H
#define FSDPD_COORDINATOR_PLACEMENT_H

struct worker;

struct placement_worker {
    const char *host, *id;
    struct worker *worker; /* the caller's */
};

/*
 * Moves `count` of the `idle_count` workers to the front, in the order of their ranks; there must be
 * that many. If one host has enough, they are of one host: of those, the host with the fewest idle
 * workers, so that large jobs find large hosts. Otherwise of the hosts with the most, the rest of
 * the smallest one that has it: no choice takes fewer hosts. Ranks go host by host, in the order of
 * names and ids, with numbers in them by value.
 */
void placement_choose(struct placement_worker *idle, int idle_count, int count);

#endif
