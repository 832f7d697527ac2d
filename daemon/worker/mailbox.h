/*
 * How a worker's other threads reach its loop: a call is posted from any thread and runs on the
 * loop's thread, in order.
 */
#ifndef FSDPD_WORKER_MAILBOX_H
#define FSDPD_WORKER_MAILBOX_H

#include <uv.h>

#include "base/status.h"

struct mailbox;

status_t mailbox_new(uv_loop_t *loop, struct mailbox **mailbox) FSDPD_MUST_USE;

/* From any thread, as long as the mailbox is not closed. */
void mailbox_post(struct mailbox *mailbox, void (*function)(void *argument), void *argument);

/* On the loop's thread. Runs the tasks posted before, then frees the queue once the loop has closed
 * its handle. No thread may post any more. */
void mailbox_close(struct mailbox *mailbox);

#endif
