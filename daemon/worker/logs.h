/*
 * A rank's log lines also go to the coordinator, which keeps them with the job: while an attempt
 * runs, every line of this process is posted to the link. The rate is limited, after a burst;
 * further lines are dropped, and the next line sent has their number. A process has one attempt at
 * a time.
 */
#ifndef FSDPD_WORKER_LOGS_H
#define FSDPD_WORKER_LOGS_H

#include "setup/session.h"
#include "worker/link.h"

/* From here on lines are those of this attempt; the link must live until logs_end. Loop's thread.
 */
void logs_begin(struct link *link, const char *job, uint32_t attempt);
void logs_end(void);

/* A line with the latest figures now and then, of one rank; the training thread's. */
void logs_progress(const struct train_metrics *metrics);
void logs_epoch(const struct train_epoch *epoch);

/*
 * The rate: whether one more line may go at `now_ns`; if not it is counted in `dropped`. Zeroed: a
 * full bucket.
 */
struct log_rate {
    int64_t filled_ns; /* the bucket would have been empty then */
    uint64_t dropped;
};
enum { LOG_RATE_PER_SECOND = 100, LOG_RATE_BURST = 500 };
bool log_rate_take(struct log_rate *rate, int64_t now_ns);

#endif
