/*
 * Answering pull orders while training continues: snapshots are taken on the training thread and
 * streamed, one after the other, by a thread of their own with a communicator of its own.
 */
#ifndef FSDPD_WORKER_PULL_H
#define FSDPD_WORKER_PULL_H

#include "checkpoint/state_dict.h"
#include "worker/side_group.h"

struct puller;

status_t puller_new(const struct side_context *context, struct puller **puller) FSDPD_MUST_USE;

/* Queues a pull (0: the final state_dict) and takes ownership of `snapshot`. Training thread. */
void puller_add(struct puller *puller, uint64_t pull, struct snapshot *snapshot);

/* Tells the coordinator that a pull failed, or, for pull 0, that it will be tried again. */
void puller_report(const struct side_context *context, uint64_t pull, status_t why);

/* Ends the pull in progress and those queued soon, whatever they wait for; they fail. From any
 * thread, until puller_free. */
void puller_abort(struct puller *puller, const char *why);

/* Waits until the final state_dict, if it was queued, is done, and its snapshot freed. */
void puller_wait_final(struct puller *puller);

/* Waits until everything queued is done; nothing may be added after. The error is that of the final
 * state_dict (pull 0), if that was asked for and failed. Accepts NULL. */
status_t puller_finish(struct puller *puller) FSDPD_MUST_USE;

/* After puller_finish, when no thread can reach it any more. Accepts NULL. */
void puller_free(struct puller *puller);

#endif
