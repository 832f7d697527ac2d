/*
 * The search for a job's fastest settings within a device's memory. It evaluates points by sketches
 * of their plans: exact about time as the estimate sees it, a lower bound about memory. What it
 * returns has been planned in full. How many points it evaluates depends only on the plans' sizes,
 * never on a clock. Internal to this room.
 */
#ifndef FSDPD_PLANNING_SEARCH_H
#define FSDPD_PLANNING_SEARCH_H

#include "planning/advice.h"
#include "planning/space.h"

enum { SEARCH_BEST_MAX = 4, SEARCH_WORK = 1060000 };

/* A point whose full plan fits. */
struct found {
    struct point point;
    double seconds;                /* of a step, with all its batches */
    uint64_t peak, host;           /* bytes per rank: of the device; pinned on the host */
    uint64_t outside;              /* of the device, beside the plan */
    struct plan_estimate estimate; /* of the step */
    double arithmetic_seconds;     /* of the ops, if memory had no limit of bandwidth */
    bool across_hosts;             /* communication uses the links between hosts */
    enum buffer_class largest;     /* at the peak of memory */
    uint64_t largest_bytes;
    char op[64]; /* with the largest operands, which take `op_bytes` */
    uint64_t op_bytes;
};

struct search_result {
    struct found
        best[SEARCH_BEST_MAX]; /* the fastest first, each different in more than fetching */
    int count;                 /* 0: nothing fits; best[0] then needs least memory */
    uint64_t points, evaluated;
};

/*
 * `work` limits the sketches: the sum of their instructions. INVALID_ARGUMENT and the like if the
 * job cannot be planned at all. The space belongs to the advisor's job.
 */
status_t search_run(struct advisor *advisor, const struct space *space, uint64_t work,
                    struct search_result *result) FSDPD_MUST_USE;

/* The times of a step of the plan, with all its batches. */
void search_estimate(const struct plan *plan, const struct plan_rates *rates,
                     struct plan_estimate *estimate);

#endif
