/*
 * The mark: a small file beside the store ("store.db-mark") that records the acknowledged changes.
 * SQLite replays its log up to the first frame with a wrong checksum, and treats the rest as an
 * interrupted write: a damaged, missing or older log looks like less work done. With the mark,
 * these cases differ from a crash.
 *
 * It holds the number of acknowledged changes, which the store has, too (as its user_version,
 * changed in the same transaction), and the position in the log up to which all is on the disk. It
 * is written in place after the log was synced, and is not synced itself: it never promises more
 * than the disk has. For store*.c only.
 */
#ifndef FSDPD_COORDINATOR_STORE_MARK_H
#define FSDPD_COORDINATOR_STORE_MARK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* A position in the log with this salt: after `frames` frames. The checksum of the last frame
 * covers all of them. */
struct log_place {
    uint32_t frames, salt[2], sum[2];
};

struct store_mark {
    uint32_t changes; /* number of acknowledged changes */
    uint32_t copied;  /* those in store.db itself after the log was last copied to it */
    bool copying; /* the log is being copied to store.db: neither is complete without the other */
    struct log_place log; /* on the disk up to here; no frames: the log's state is unknown */
};

/*
 * Reads the mark of the store `path`. NOT_FOUND if there is none, DATA_LOSS if it is damaged. The
 * caller decides what the status means: the mark is not part of the acknowledged data.
 */
status_t mark_read(const char *path, struct store_mark *mark) FSDPD_MUST_USE;

/* Creates or replaces the mark of the store `path`; it is on the disk when the call returns. */
status_t mark_replace(const char *path, const struct store_mark *mark) FSDPD_MUST_USE;

/* Opens the mark of the store for mark_write. */
status_t mark_open(const char *path, int *fd) FSDPD_MUST_USE;

/* Overwrites the mark: all or nothing, as it is smaller than a sector; on the disk with `sync`. */
status_t mark_write(int fd, const struct store_mark *mark, bool sync) FSDPD_MUST_USE;

/*
 * Checks that the store `path` and its log have all acknowledged changes. The store has `changes`
 * with its log and `copied` without it. DATA_LOSS states what is missing. Reads the log's file, and
 * changes nothing.
 */
status_t mark_verify(const char *path, const struct store_mark *mark, uint32_t changes,
                     uint32_t copied) FSDPD_MUST_USE;

/* DATA_LOSS if the store is missing or empty although its log, its mark, or directories of jobs
 * exist beside it. */
status_t mark_find_store(const char *path) FSDPD_MUST_USE;

/* The offset of frame `frame` (from 1) in a log with pages of this size, and the position that the
 * frame's header describes. */
enum { LOG_FRAME_HEADER = 24 };
int64_t log_frame_offset(uint32_t frame, int page_size);
struct log_place log_place_of(uint32_t frame, const uint8_t header[LOG_FRAME_HEADER]);

/* "PATH is damaged (WHY). Nothing was changed. Restore ..." */
#define STORE_DAMAGED_ADVICE ". Nothing was changed. "
status_t store_damaged(const char *path, const char *format, ...) FSDPD_PRINTF(2, 3) FSDPD_MUST_USE;

#endif
