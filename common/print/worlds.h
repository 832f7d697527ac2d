/* A job planned for several numbers of workers, the same from fsdpctl and from fsdpd. */
#ifndef FSDPD_PRINT_WORLDS_H
#define FSDPD_PRINT_WORLDS_H

#include "base/status.h"
#include "fsdpd/v1/control.pb-c.h"

enum { WORLDS_MAX = 16 };

struct worlds { /* in rising order */
    uint32_t workers[WORLDS_MAX];
    int count; /* 0: none was asked for */
};

/* "8..64": 8, 16, 32 and 64; "6..20": 6, 12 and 20. INVALID_ARGUMENT for anything else, or for more
 * than `most` workers. */
status_t worlds_read(const char *text, uint32_t most, struct worlds *worlds) FSDPD_MUST_USE;

/*
 * Calls `plan` for each number of workers. *best is the plan that trains the most per second, with
 * fewer workers where the difference is below 0.5 %; its `worlds` have the others. If none fits,
 * the error of the last one; any error but RESOURCE_EXHAUSTED ends the search.
 */
status_t worlds_plan(const struct worlds *worlds,
                     status_t (*plan)(void *user, uint32_t workers, Fsdpd__V1__Plan **made),
                     void *user, Fsdpd__V1__Plan **best) FSDPD_MUST_USE;

#endif
