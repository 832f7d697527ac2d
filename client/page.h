/*
 * A job as one self-contained HTML page: it needs no network and no other file. All text of the job
 * is escaped, and a content security policy allows only the page's own script and style, by their
 * hashes. Pure: appends to a buffer.
 */
#ifndef FSDPD_CLIENT_PAGE_H
#define FSDPD_CLIENT_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "fsdpd/v1/control.pb-c.h"
#include "series.h"
#include "spec/spec.h"
#include "timeline.h"

enum { PAGE_SAMPLES = 8 }; /* steps of train.sample that are shown */

struct page {
    const Fsdpd__V1__Job *job;
    const Fsdpd__V1__GetHistoryResponse *history; /* NULL: unknown */
    int64_t made_ms;

    /* Curves over the steps. */
    struct series loss, validation, test, learning_rate, rate, gradient_norm, step_time, exposed;
    struct page_set {
        char *name;
        struct series loss;
    } sets[SPEC_HELD_OUT_MAX]; /* the job's held-out sets */
    int set_count;
    struct buf samples[PAGE_SAMPLES]; /* the last ones, a text for each step */
    int sample_count;                 /* of all steps; that of number n is at n % PAGE_SAMPLES */
    bool tokens;           /* the rate counts tokens, otherwise samples */
    uint32_t attempts;     /* the number that have recorded steps */
    uint32_t wrap_changes; /* since the job's first step */
    double *wrap_steps;    /* and after which steps */
    int wrap_step_count, wrap_step_capacity;
    uint64_t steps_thinned; /* recorded, but no longer kept */

    /* The timeline of a step: as traced, as planned, or the reason why there is neither. */
    const struct timeline *timeline; /* complete; NULL: none */
    const Fsdpd__V1__Plan *schedule; /* a plan with its schedule; NULL: none */
    const char *no_timeline;
};

/* Takes a row of GetMetrics, with changes, into the series. */
void page_take(struct page *page, const Fsdpd__V1__MetricsRow *row);

void page_write(const struct page *page, struct buf *out);
void page_deinit(struct page *page);

/* In page_step.c: the timeline. */
void page_add_step(const struct page *page, struct buf *out);

#endif
