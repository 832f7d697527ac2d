/* Inside checkpoint/: what capture.c copies and writes, and save.c completes. */
#ifndef FSDPD_CHECKPOINT_CAPTURE_INTERNAL_H
#define FSDPD_CHECKPOINT_CAPTURE_INTERNAL_H

#include "checkpoint/capture.h"
#include "checkpoint/folder.h"

struct captured { /* of one unit, the parameters (slot -1) or an optimizer slot */
    int unit, slot;
    size_t elements;
    float *values; /* (elements): this rank's part; NULL once written */
};

struct capture {
    int rank;
    struct manifest manifest; /* files are filled in when they are written */
    struct captured *arrays;  /* this rank's arrays, in the order of its file */
    int array_count;
    status_t failed; /* copying; NULL: it did not */
};

/* What a checkpoint of this moment has, and where; without its files. */
void capture_describe(const struct executor *executor, const struct capture_job *job,
                      const struct saved_progress *progress, struct manifest *manifest);

/* Writes and syncs this rank's file in `directory`; on failure no file is left. */
status_t capture_write(struct capture *capture, const struct folder *directory,
                       struct saved_file *file) FSDPD_MUST_USE;

/* Likewise another file there, of these bytes. */
status_t capture_write_file(const struct folder *directory, const char *name, struct buf *bytes,
                            struct saved_file *file) FSDPD_MUST_USE;

#endif
