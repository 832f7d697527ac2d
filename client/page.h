/*
 * A job as one page of HTML that needs nothing else: no network, no other file. All text of the job
 * is escaped, and a policy in the page allows it no script and no style but its own, by their
 * hashes. Pure: appends to a buffer.
 */
#ifndef FSDPD_CLIENT_PAGE_H
#define FSDPD_CLIENT_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "fsdpd/v1/control.pb-c.h"
#include "series.h"
#include "timeline.h"

struct page {
    const Fsdpd__V1__Job *job;
    const Fsdpd__V1__History *history; /* NULL: not known */
    int64_t made_ms;

    /* Over the steps. */
    struct series loss, validation, test, learning_rate, rate, gradient_norm, step_time, exposed;
    bool tokens;            /* the rate is of tokens, else of samples */
    uint32_t attempts;      /* that have recorded steps */
    uint32_t wrap_changes;  /* since the job's first step */
    uint64_t steps_thinned; /* recorded, and no longer kept */

    /* The step: measured, or by the plan, or why there is neither. */
    const struct timeline *timeline; /* finished; NULL: none */
    const Fsdpd__V1__Plan *schedule; /* a plan with its schedule; NULL: none */
    const char *no_timeline;
};

/* Takes a row of GetMetrics, with changes, into the series. */
void page_take(struct page *page, const Fsdpd__V1__MetricsRow *row);

void page_write(const struct page *page, struct buf *out);
void page_deinit(struct page *page);

/* In page_head.c and page_step.c: the beginning up to <body>, the end, and the timeline. */
void page_add_head(const char *title, struct buf *out);
void page_add_foot(struct buf *out);
void page_add_step(const struct page *page, struct buf *out);

#endif
