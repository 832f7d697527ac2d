/*
 * A checkpoint in the making: at a step boundary every rank copies what it keeps of parameters and
 * optimizer slots to host memory; training goes on; and another thread of every rank writes the
 * copy to the rank's file, agrees with the others that all files are on the disk, and rank 0
 * completes the checkpoint (manifest.h says what it is). See also folder.h.
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

/* Independent of the executor once taken. If there is no memory for the copy, saving it says so, to
 * all ranks. */
struct capture *capture_take(struct executor *executor, const struct capture_job *job,
                             const struct saved_progress *progress);
void capture_free(struct capture *capture); /* accepts NULL */

uint64_t capture_step(const struct capture *capture);

struct capture_target {
    const char *folder; /* of the job's checkpoints; made if it is missing */
    const char *root;   /* that it must be below; NULL: any. See folder_open */
    uint64_t number;    /* of the save within the attempt: the same on every rank */
    uint32_t keep;      /* so many checkpoints of this run are kept, at least 1; 0: all */
    /* Rank 0, when all files are on the disk: appends what the run has reported up to `step` and
     * might be lost with this process. Kept beside the files and given back by
     * saved_read_reports. NULL, or nothing appended: there is nothing. */
    void (*pack_reports)(void *user, uint64_t step, struct buf *out);
    void *user;
};

struct capture_result {
    uint64_t step, bytes; /* bytes: of all files; rank 0 knows */
    char *path;           /* of the checkpoint; on rank 0, NULL elsewhere. Caller frees */
    uint64_t *removed;    /* steps of older ones that had to go; on rank 0. Caller frees */
    int removed_count;
};

/*
 * Every rank calls this with its capture of the same boundary and a communicator of its own (never
 * the executor's; NULL with one rank). Memory beyond the capture: one piece of 1 MiB. The capture
 * is spent. An error is every rank's: then nothing is left of this checkpoint, and all earlier ones
 * are as they were. RESOURCE_EXHAUSTED if a disk is full. If the communicator failed, the lane is
 * closed and NULL, and the communicator must not be used again.
 */
status_t capture_save(struct capture *capture, const struct capture_target *target,
                      struct comm *comm, struct lane_queue **lane, int64_t timeout_ms,
                      struct capture_result *result) FSDPD_MUST_USE;

#endif
