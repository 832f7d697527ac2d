/*
 * The directory of a job's checkpoints. Each is a directory "step-000000000100" in it, created by
 * one rename, so a directory with such a name is complete. Directories being written or removed
 * have a prefix by which the next attempt removes them, or the coordinator when the job is over
 * (base/tree.h). A second checkpoint of a step is called "step-000000000100-2"; it takes the
 * first one's place.
 */
#ifndef FSDPD_CHECKPOINT_FOLDER_H
#define FSDPD_CHECKPOINT_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { FOLDER_NAME_MAX = 48 };

struct folder_entry {
    char name[FOLDER_NAME_MAX];
    uint64_t step;
    uint32_t number; /* 1 for the first one of its step */
};

/*
 * An open directory: all work in it uses its descriptor, so users who may write to the directories
 * above cannot replace it meanwhile. `path` is for messages.
 */
struct folder {
    int fd; /* -1: there is no such directory */
    char *path;
};

/*
 * Opens a job's directory of checkpoints. With `root`, what holds `path` was named by people
 * without rights: it must be below the root, links included, and `path` itself must be a directory
 * and no link (FAILED_PRECONDITION). NULL: it is fsdpd's own, and may be trusted. With `make` it is
 * made, durably, if it is missing; without, that is no error.
 */
status_t folder_open(const char *root, const char *path, bool make,
                     struct folder *folder) FSDPD_MUST_USE;
void folder_close(struct folder *folder); /* also one of zero bytes, or closed already */

/* One of its entries, which must be a directory and no link; NOT_FOUND if it is missing. */
status_t folder_enter(const struct folder *folder, const char *name,
                      struct folder *entry) FSDPD_MUST_USE;

/* The step that the name of a checkpoint says; false: it is no such name. */
bool folder_parse_name(const char *name, struct folder_entry *entry);

/* The complete checkpoints, newest first; nothing (no error) if there is no such directory. Caller
 * frees.
 */
status_t folder_list(const struct folder *folder, struct folder_entry **entries,
                     int *count) FSDPD_MUST_USE;

/* Where to write; the same directory on every rank for the same attempt and number. Made if it is
 * missing. */
status_t folder_begin(const struct folder *folder, uint32_t attempt, uint64_t number,
                      struct folder *temporary) FSDPD_MUST_USE;

/* Everything in `temporary` is on the disk: gives it its name, durably. *name is the caller's. */
status_t folder_commit(const struct folder *folder, const struct folder *temporary, uint64_t step,
                       char **name) FSDPD_MUST_USE;

/* Discards what folder_begin began. */
status_t folder_abandon(const struct folder *folder, const struct folder *temporary) FSDPD_MUST_USE;

/* Removes a checkpoint: first its name, so that no half of one is ever seen. */
status_t folder_remove(const struct folder *folder, const char *name) FSDPD_MUST_USE;

#endif
