/*
 * A job's log on disk: lines of text in numbered files of one directory, so that standard tools can
 * read them, too:
 *
 *     5f0c9a1b 2026-01-31T12:34:56.789Z 1 0 INFO group_joined world=2 seconds=0.012
 *
 * The fields are the CRC-32 of the rest of the line, the time, the attempt, the rank ("-": fsdpd itself), the level and the text. Files
 * only grow; when their total size exceeds a limit, the oldest file is removed. A position in a log
 * is one number, which stays valid as long as its file exists. Nothing is kept in memory or open.
 * Lines are not synced one by one: a crash of the machine may lose the last seconds, a crash of the
 * process loses nothing.
 */
#ifndef FSDPD_COORDINATOR_LOG_FILES_H
#define FSDPD_COORDINATOR_LOG_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { LOG_LINE_MAX = 8192 }; /* bytes of a line's text; longer texts are cut */

struct log_line {
    uint64_t position; /* reading: the position after the line */
    int64_t time_ms;   /* since the Unix epoch */
    uint32_t attempt;
    int rank; /* -1: fsdpd itself */
    const char *level, *text;
    bool damaged; /* reading: its bytes are in the text, and its time is that of the line before */
};

/*
 * Appends lines in one write, creating the directory if needed. Control characters and invalid
 * UTF-8 become '?'. Removes the oldest file while the total exceeds `max_bytes`; a file has at most
 * an eighth of that. RESOURCE_EXHAUSTED on a full disk: some of the lines may have been written,
 * the last one cut off.
 */
status_t log_files_append(const char *directory, uint64_t max_bytes, const struct log_line *lines,
                          size_t count) FSDPD_MUST_USE;

/* Selects lines; zeroed: all. */
struct log_filter {
    uint32_t attempt; /* 0: any */
    bool one_rank;
    int rank;
    int64_t since_ms;
};

struct log_query {
    const char *directory;
    struct log_filter filter;
    uint64_t position; /* where to read from; 0: the beginning. Advanced past what was read. */
    bool ended;        /* nothing is added any more: what follows the last line is damaged, too */
    int limit;         /* maximum number of lines to visit */
    /* The texts are valid during the call. */
    void (*visit)(void *user, const struct log_line *line);
    void *user;
    int64_t time_ms;    /* of the line that was read last */
    bool at_end;        /* set: there are no more lines at present */
    bool older_removed; /* set: files before what was read have been removed */
};

/* Visits the lines that match the filter, and those that are damaged. A missing log is an empty
 * one. */
status_t log_files_read(struct log_query *query) FSDPD_MUST_USE;

/* Finds the position before the last `count` lines that match the filter. */
status_t log_files_tail(const char *directory, const struct log_filter *filter, uint32_t count,
                        uint64_t *position) FSDPD_MUST_USE;

#endif
