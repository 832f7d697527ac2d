/*
 * A search in progress, and its moves. Internal to search.c, which evaluates points and plans the
 * best ones, and explore.c, which decides what to evaluate.
 */
#ifndef FSDPD_PLANNING_SEARCH_INTERNAL_H
#define FSDPD_PLANNING_SEARCH_INTERNAL_H

#include "planning/search.h"

struct evaluation {
    uint64_t key;
    bool known, possible; /* possible: it can be planned */
    uint32_t batches;     /* of a step */
    struct point point;
    double seconds;
    uint64_t peak, host, outside;
};

struct searching {
    struct advisor *advisor;
    const struct space *space;
    uint64_t work, evaluated;
    struct train_session **sessions; /* by batch and recomputation; NULL: not made */
    bool *impossible;                /* likewise: has no session */
    int *recent;                     /* the sessions that are kept, the latest first */
    int recent_count, recent_max;
    struct evaluation *outcomes; /* hash table by key */
    uint64_t capacity;           /* a power of two */
    status_t first_error;
    bool evaluates; /* sketches include evaluation, which may need the most memory */
    bool frugal;    /* the goal is least memory */
    int tries;      /* full plans to choose from */
    uint64_t gap;   /* by which a full plan needs more than its sketch said */
};

/* ---- search.c ---- */

/* The point's times and memory, by a sketch unless they are known. Valid until the next call. */
const struct evaluation *search_evaluate(struct searching *search, struct point point);

bool search_fits(const struct searching *search, const struct evaluation *outcome);

/* Whether the search prefers `a`. Only exact comparisons: with ties, an order of improvements might
 * go around in a circle. */
bool search_prefers(const struct searching *search, const struct evaluation *a,
                    const struct evaluation *b);

/* ---- explore.c ---- */

/* Evaluates all points. */
void search_enumerate(struct searching *search, struct evaluation *best);

/* Evaluates points until the work is used up, or no change improves the best one. */
void search_explore(struct searching *search, struct evaluation *best);

/* The same from the best of the points known, for instance since other points fit now. */
void search_explore_more(struct searching *search);

/* The same for the settings that need least memory. */
void search_explore_frugal(struct searching *search, struct evaluation *best);

#endif
