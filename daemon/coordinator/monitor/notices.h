/*
 * Notices: what happens to a job goes to a command or a webhook that fsdpd.yaml names (`notify`)
 * and the job chose. One bounded queue in memory; a few are under way at a time, each as a child
 * process with a deadline, and a failed one is tried again with growing pauses. Every try is an
 * event of its job, whether or not that is over. On the loop's thread.
 */
#ifndef FSDPD_COORDINATOR_NOTICES_H
#define FSDPD_COORDINATOR_NOTICES_H

#include "coordinator/jobs/jobs.h"
#include "coordinator/monitor/notice_targets.h"

/* The events that a job can choose (notify.on). */
#define NOTICE_END "end"               /* it is over, and `failure` does not say so */
#define NOTICE_FAILURE "failure"       /* it has FAILED */
#define NOTICE_STALL "stall"           /* its steps do not advance */
#define NOTICE_PREEMPTION "preemption" /* it is QUEUED with the reason PREEMPTED */

struct notice_counts {
    int queued; /* those under way included */
    uint64_t sent, retried, failed, dropped;
};

/* Replaces all targets, and takes these. Queued notices go to the new ones. */
void notices_set(struct coordinator *c, struct notice_targets *targets);

/* INVALID_ARGUMENT, with the names that exist, if the job chooses one that does not. */
status_t notices_check(const struct coordinator *c, const job_spec *spec) FSDPD_MUST_USE;

/* An event of the job was recorded: adds a notice if the job chose it. */
void notices_event(struct job *job, const job_event *event);

/* Adds a notice of what has happened to the job, one of the events above, if it chose it. */
void notices_add(struct job *job, const char *what);

/* Starts those that are due, and ends those that take too long. */
void notices_tick(struct coordinator *c);
bool notices_are_waiting(const struct coordinator *c);

struct notice_counts notices_count(const struct coordinator *c);

/* Ends those under way; the loop must run until they are gone (coordinator_disk_done). Those not
 * delivered are lost, which the log says. */
void notices_close(struct coordinator *c);
void notices_free(struct coordinator *c);

#endif
