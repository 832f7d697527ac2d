/* Inside checkpoint/: what capture.c copies and writes, and save.c completes. */
#ifndef FSDPD_CHECKPOINT_CAPTURE_INTERNAL_H
#define FSDPD_CHECKPOINT_CAPTURE_INTERNAL_H

#include <pthread.h>

#include "base/must.h"
#include "checkpoint/capture.h"
#include "checkpoint/folder.h"

struct captured { /* of one unit, the parameters (slot -1) or an optimizer slot */
    int unit, slot;
    const char *type; /* in files, of which a word has that many */
    int per_word;
    size_t elements, taken; /* of this rank's part; how many of them the writer has taken */
    const float *live;      /* the executor's array, still as it was; NULL: it is not */
    float *copy;            /* from element copied_from on; NULL: there is none */
    size_t copied_from;
};

struct capture {
    int rank;
    struct manifest manifest; /* files are filled in when they are written */
    pthread_mutex_t lock;     /* guards what follows */
    struct captured *arrays;  /* this rank's arrays, in the order of its file */
    int array_count;
    uint64_t copied; /* bytes, so far */
    status_t failed; /* copying, which was then given up; NULL: it did not */
    int users;       /* its owner, and the executor */
};

/* What a checkpoint of this moment has, and where; without its files. */
void capture_describe(const struct executor *executor, const struct capture_job *job,
                      const struct saved_progress *progress, struct manifest *manifest);

/* Why there is nothing to write; NULL: there is. The caller's. */
status_t capture_failure(struct capture *capture);

/* Frees the copies; the executor's arrays are not read any more. Returns the bytes copied. */
uint64_t capture_drop_arrays(struct capture *capture);

/* Writes and syncs this rank's file in `directory`; on failure no file is left. */
status_t capture_write(struct capture *capture, const struct folder *directory,
                       struct saved_file *file) FSDPD_MUST_USE;

/* Likewise another file there, of these bytes. */
status_t capture_write_file(const struct folder *directory, const char *name, struct buf *bytes,
                            struct saved_file *file) FSDPD_MUST_USE;

#endif
