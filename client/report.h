/* Jobs, plans and units as text for users, shared by the verbs. Every function appends to a
 * buffer. */
#ifndef FSDPD_CLIENT_REPORT_H
#define FSDPD_CLIENT_REPORT_H

#include <stdint.h>

#include "base/buf.h"
#include "fsdpd/v1/control.pb-c.h"
#include "print/plan_report.h"

/* Sequences that switch a terminal's colours on, and off again. */
#define STYLE_BOLD_RED "\033[1;31m"
#define STYLE_BOLD_GREEN "\033[1;32m"
#define STYLE_GREEN "\033[32m"
#define STYLE_YELLOW "\033[33m"
#define STYLE_BLUE "\033[34m"
#define STYLE_MAGENTA "\033[35m"
#define STYLE_CYAN "\033[36m"
#define STYLE_END "\033[0m"

/* For whom and when a report is made. */
struct view {
    int64_t now_ms; /* wall time, for ages */
    int width;      /* columns; 0: no limit */
    bool colour;
};

/* "RUNNING"; never NULL. */
const char *report_state(Fsdpd__V1__JobState state);
bool report_is_over(Fsdpd__V1__JobState state);

/* The colour of a state, for table_style; NULL: none. */
const char *report_state_style(Fsdpd__V1__JobState state, bool colour);

/* The message of a reason (may be NULL), or else its code; never NULL. */
const char *report_reason(const Fsdpd__V1__Reason *reason);

/* Everything about a job. */
void report_job(const Fsdpd__V1__Job *job, const struct view *view, struct buf *out);

void report_workers(Fsdpd__V1__Worker *const *workers, size_t count, const struct view *view,
                    struct buf *out);

/* A job's states and reasons. */
void report_history(const Fsdpd__V1__GetHistoryResponse *history, const struct view *view,
                    struct buf *out);

/* "checkpoint of step 100: 1.2 MB in /srv/checkpoints/..." and a newline. */
void report_checkpoint(const Fsdpd__V1__Checkpoint *checkpoint, struct buf *out);

/* "mnist-1 SUCCEEDED: all epochs done" */
void report_end(const char *id, Fsdpd__V1__JobState state, const Fsdpd__V1__Reason *reason,
                bool colour, struct buf *out);

#endif
