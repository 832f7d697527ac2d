/*
 * Reports to the coordinator: numbered, kept until acknowledged, and sent again on a new stream.
 * While they are not acknowledged, metrics beyond a bound are thinned (the extremes of their curves
 * stay, and the next report has the number of dropped ones), and so are log lines (the older half
 * is dropped); everything else is kept. Loop's thread only.
 */
#ifndef FSDPD_WORKER_OUTBOX_H
#define FSDPD_WORKER_OUTBOX_H

#include <stdbool.h>

#include "base/buf.h"
#include "fsdpd/v1/worker.pb-c.h"

struct outbox {
    Fsdpd__V1__WorkerMessage **messages; /* attempt events, in order */
    int count, capacity;
    int metrics; /* of them */
    int logs;    /* of them */
    int keep;    /* metrics at most, at least 18; 0: OUTBOX_METRICS */
    char *job;   /* whose reports are being numbered */
    uint32_t attempt;
    uint64_t last; /* number given */
};

enum { OUTBOX_METRICS = 4096, OUTBOX_LOGS = 2048 };

/*
 * Takes an attempt event. If it is one to be kept, it gets its number, and `*kept` is true; else
 * the caller sends it if it can and frees it.
 */
void outbox_add(struct outbox *outbox, Fsdpd__V1__WorkerMessage *message, bool *kept);

/* Forgets the attempt's reports up to that number. */
void outbox_acknowledge(struct outbox *outbox, const char *job, uint32_t attempt, uint64_t report);

/* Appends, as a packed UnrecordedReports, the attempt's metrics up to `step` that are not
 * acknowledged, and those restored from its checkpoint; nothing if there are none. */
void outbox_pack_metrics(const struct outbox *outbox, const char *job, uint32_t attempt,
                         uint64_t step, struct buf *out);

/* The first report of each attempt whose reports are kept, one after the other: NULL at the end. */
const Fsdpd__V1__AttemptEvent *outbox_next_attempt(const struct outbox *outbox, int *position);

void outbox_deinit(struct outbox *outbox);

#endif
