/*
 * The directory of a job's checkpoints. Each is a directory "step-000000000100" in it that came to
 * be by one rename, so what has such a name is complete. What is being written or removed has a
 * name by which the next attempt sweeps it away, or the coordinator when the job is over
 * (base/unfinished.h). A second checkpoint of a step is called "step-000000000100-2"; it takes the
 * first one's place.
 */
#ifndef FSDPD_CHECKPOINT_FOLDER_H
#define FSDPD_CHECKPOINT_FOLDER_H

#include <stdint.h>

#include "base/status.h"

enum { FOLDER_NAME_MAX = 48 };

struct folder_entry {
    char name[FOLDER_NAME_MAX];
    uint64_t step;
    uint32_t number; /* 1 for the first one of its step */
};

/* What is complete, newest first; nothing (no error) if there is no such directory. Caller frees.
 */
status_t folder_list(const char *folder, struct folder_entry **entries, int *count) FSDPD_MUST_USE;

/* Where to write; the same path on every rank for the same attempt and number. Made, with the
 * folder, if it is missing. Caller frees. */
status_t folder_begin(const char *folder, uint32_t attempt, uint64_t number,
                      char **temporary) FSDPD_MUST_USE;

/* Everything in `temporary` is on the disk: gives it its name, durably. *name is the caller's. */
status_t folder_commit(const char *folder, const char *temporary, uint64_t step,
                       char **name) FSDPD_MUST_USE;

/* Removes a checkpoint: first its name, so that no half of one is ever seen. */
status_t folder_remove(const char *folder, const char *name) FSDPD_MUST_USE;

#endif
