/*
 * A checkpoint in the making: at a step boundary every rank captures what it keeps of parameters
 * and optimizer slots; training continues; and another thread of every rank writes that to the
 * rank's file, agrees with the others that all files are on the disk, and rank 0 completes the
 * checkpoint (manifest.h says what it is). See also folder.h.
 *
 * Capturing copies only what is in a device's memory. What the host can read is copied on write:
 * the thread reads the executor's arrays, and before these change (executor_set_guard), what is not
 * yet written of the unit is copied.
 */
#ifndef FSDPD_CHECKPOINT_CAPTURE_H
#define FSDPD_CHECKPOINT_CAPTURE_H

#include "checkpoint/manifest.h"
#include "runtime/executor.h"

struct capture;

struct capture_job {
    const char *run, *job; /* for the manifest */
    uint32_t attempt;
};

/* Captures the state of this moment, whatever the executor does afterwards; it may be freed before
 * the capture, which becomes its guard. If there is no memory for a copy, saving fails on all
 * ranks. */
struct capture *capture_take(struct executor *executor, const struct capture_job *job,
                             const struct saved_progress *progress);
void capture_free(struct capture *capture); /* accepts NULL */

uint64_t capture_step(const struct capture *capture);

/* Whether what made a save fail may pass, as a full disk does: it is worth another try. */
static inline bool capture_may_succeed_later(status_t status)
{
    enum status_code code = status_code(status);
    return code == STATUS_RESOURCE_EXHAUSTED || code == STATUS_INTERNAL ||
           code == STATUS_UNAVAILABLE || code == STATUS_DEADLINE_EXCEEDED;
}

struct capture_target {
    const char *folder; /* of the job's checkpoints; made if it is missing */
    const char *root;   /* that it must be below; NULL: any. See folder_open */
    uint64_t number;    /* of the save within the attempt: the same on every rank */
    uint32_t keep;      /* number of checkpoints of this run to keep, at least 1; 0: all. The best
                         * one (checkpoint.best) stays beside them */
    /* Rank 0, when all files are on disk: appends reports of the run up to `step` that might be
     * lost with this process. They are stored beside the files, and saved_read_reports returns
     * them. NULL, or nothing appended: there are none. */
    void (*pack_reports)(void *user, uint64_t step, struct buf *out);
    void *user;
};

struct capture_result {
    uint64_t step, bytes; /* bytes: of all files; rank 0 knows */
    uint64_t copied;      /* bytes of this rank's state: its extra memory was at most that */
    char *path;           /* of the checkpoint; on rank 0, NULL elsewhere. Caller frees */
    uint64_t *removed;    /* steps of older ones that had to go; on rank 0. Caller frees */
    int removed_count;
    /* Whether its step's evaluation is the best one of the run until now, and its metric's value.
     */
    bool is_best;
    double best;
    bool unshared; /* on rank 0: complete, but the communicator failed before the others knew */
};

/*
 * Every rank calls this with its capture of the same boundary and a communicator of its own (never
 * the executor's; NULL with one rank). Memory beyond the capture: one piece of 1 MiB. The capture
 * is spent. An error is every rank's: then nothing is left of this checkpoint, and all earlier ones
 * are as they were; but once it is complete, rank 0 succeeds, even if the communicator fails.
 * RESOURCE_EXHAUSTED if a disk is full. If the communicator failed, the lane is closed and NULL,
 * and the communicator must not be used again.
 */
status_t capture_save(struct capture *capture, const struct capture_target *target,
                      struct comm *comm, struct lane_queue **lane, int64_t timeout_ms,
                      struct capture_result *result) FSDPD_MUST_USE;

#endif
