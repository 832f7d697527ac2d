/*
 * A job as HTML: as one self-contained page, which needs no network and no other file and whose
 * content security policy allows only its own script and style, by their hashes; or as a part of
 * the page of http.listen, whose script asks for it again when the job changes. Both are the
 * template page.html. All text of the job is escaped. Pure: appends to a buffer.
 */
#ifndef FSDPD_PAGE_PAGE_H
#define FSDPD_PAGE_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "fsdpd/v1/control.pb-c.h"
#include "page/chart.h"
#include "page/series.h"
#include "page/timeline.h"
#include "spec/metric_curves.h"
#include "spec/spec.h"

enum { PAGE_SAMPLES = 8 }; /* steps of train.sample that are shown */

struct page {
    const Fsdpd__V1__Job *job;
    const Fsdpd__V1__GetHistoryResponse *history;          /* NULL: unknown */
    const Fsdpd__V1__ListCheckpointsResponse *checkpoints; /* NULL: unknown */
    const char *why;                                       /* of ExplainJob; NULL: unknown */
    const char *verdict; /* of a diagnosis; NULL: none, or the job makes progress */
    bool live;           /* part of the page of http.listen */
    uint64_t sequence;   /* of the last event that was taken; more of them follow at once: */
    bool more;
    int64_t made_ms;

    /* Curves over the steps. */
    struct series curves[CURVES], validation, test;
    struct page_set {
        char *name;
        struct series loss;
    } sets[SPEC_HELD_OUT_MAX]; /* the job's held-out sets */
    int set_count;
    struct buf samples[PAGE_SAMPLES]; /* the last ones, a text for each step */
    int sample_count;                 /* of all steps; that of number n is at n % PAGE_SAMPLES */
    bool tokens;                      /* the rate counts tokens, otherwise samples */
    uint32_t attempts;                /* the number that have recorded steps */
    uint32_t wrap_changes;            /* since the job's first step */
    struct chart_mark *marks;         /* where units changed, or another attempt began */
    int mark_count, mark_capacity;
    uint32_t began;         /* the last attempt of which a row said that it trains */
    uint64_t steps_thinned; /* recorded, but no longer kept */

    /* The timeline of a step: as traced, as planned, or the reason why there is neither. */
    const struct timeline *timeline; /* complete; NULL: none */
    const Fsdpd__V1__Plan *schedule; /* a plan with its schedule; NULL: none */
    const char *no_timeline;
};

/* Takes a row of GetMetrics, with changes, into the series. */
void page_take(struct page *page, const Fsdpd__V1__MetricsRow *row);

/* The whole page, or with `live` the part of it. */
void page_write(const struct page *page, struct buf *out);
void page_deinit(struct page *page);

/* The page of http.listen before anything was read, and its two files. */
void page_write_live(struct buf *out);
const char *page_style(void);
const char *page_script(void);

/* The part of it that lists jobs and workers; in lists.c. */
void page_write_lists(const Fsdpd__V1__ListJobsResponse *jobs,
                      const Fsdpd__V1__ListWorkersResponse *workers, struct buf *out);

/* "RUNNING"; never NULL. */
const char *page_state(Fsdpd__V1__JobState state);

/* In page_step.c: the timeline. */
void page_add_step(const struct page *page, struct buf *out);

#endif
