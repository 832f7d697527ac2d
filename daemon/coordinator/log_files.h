/*
 * A job's log on the disk: lines of text in numbered files of one directory, so that they can also
 * be read with what every administrator knows:
 *
 *     2026-01-31T12:34:56.789Z 1 0 INFO group_joined world=2 seconds=0.012
 *
 * which is the time, the attempt, the rank ("-": fsdpd itself), the level and what was logged.
 * Files only grow; when there is more than a limit in all, the oldest file goes. A place in a log
 * is one number, which stays valid as long as its file is there. Nothing is kept in memory or open.
 * Lines are not synced one by one: a crash of the machine may cost the last seconds, one of the
 * process nothing.
 */
#ifndef FSDPD_COORDINATOR_LOG_FILES_H
#define FSDPD_COORDINATOR_LOG_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { LOG_LINE_MAX = 8192 }; /* of a line's text, in bytes; what is longer is cut */

struct log_line {
    uint64_t position; /* reading: the place after the line */
    int64_t time_ms;   /* since the Unix epoch */
    uint32_t attempt;
    int rank; /* -1: fsdpd itself */
    const char *level, *text;
};

/*
 * Adds lines at the end, in one write, making the directory if need be. Control characters and what
 * is not UTF-8 become '?'. The oldest file is removed while there is more than `max_bytes` in all,
 * of which a file has at most an eighth. RESOURCE_EXHAUSTED on a full disk: a part may have been
 * written, the last line of it cut off.
 */
status_t log_files_append(const char *directory, uint64_t max_bytes, const struct log_line *lines,
                          size_t count) FSDPD_MUST_USE;

/* Which lines; zeroed: all. */
struct log_filter {
    uint32_t attempt; /* 0: any */
    bool one_rank;
    int rank;
    int64_t since_ms;
};

struct log_query {
    const char *directory;
    struct log_filter filter;
    uint64_t position; /* the place to read from; 0: the beginning. Moved on by what was read. */
    int limit;         /* lines that are visited, at most */
    /* The texts are valid during the call. */
    void (*visit)(void *user, const struct log_line *line);
    void *user;
    bool at_end;        /* set: there is nothing more at present */
    bool older_removed; /* set: files before what was read are gone */
};

/* Visits the lines that the filter lets through. No log at all is an empty one. */
status_t log_files_read(struct log_query *query) FSDPD_MUST_USE;

/* The place before the last `count` lines that the filter lets through. */
status_t log_files_tail(const char *directory, const struct log_filter *filter, uint32_t count,
                        uint64_t *position) FSDPD_MUST_USE;

#endif
