/*
 * Logs: one line per event on stderr, key=value fields after the event's name:
 *
 *     2026-01-31T12:34:56.789Z INFO job_finished job=mnist-1 state=SUCCEEDED seconds=41.2
 *
 * Under systemd the same goes to the journal, with every field as a field of the entry.
 * Only the top level of a role (daemon/, client/) logs; libraries return a status. Each line is one
 * write(2), so processes that share stderr do not mix their lines. Thread-safe.
 */
#ifndef FSDPD_BASE_LOG_H
#define FSDPD_BASE_LOG_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/status.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR };

/* Lines below `level` are dropped; LOG_INFO until this is called. */
void log_set_level(enum log_level level);

/*
 * From now on, sends lines to the journal's socket at `path` as entries with fields; lines that it
 * does not accept go to stderr. NULL: systemd's journal, if stderr is connected to it.
 */
void log_use_journal(const char *path);

/* Fields that every later line of this process carries, e.g. "worker=cpu:0"; copied. */
void log_set_context(const char *fields);

/*
 * `event` is a name in snake_case; `format` gives the fields ("job=%s rank=%d") and may be "".
 * Quote values that can hold spaces with log_quote.
 */
void log_event(enum log_level level, const char *event, const char *format, ...) FSDPD_PRINTF(3, 4);

/*
 * From now on, also passes every line to `tap`, without the context's fields; NULL stops that. The
 * logging thread calls `tap`, one thread at a time; `tap` must not log. The strings are valid
 * during the call.
 */
typedef void log_tap(void *user, enum log_level level, const char *event, const char *fields);
void log_set_tap(log_tap *tap, void *user);

/* "INFO" */
const char *log_level_name(enum log_level level);

/* `text` as one field value: in double quotes with escapes if it needs them; caller frees. */
char *log_quote(const char *text);

/* Logs `status` as `event` with code= and message= fields and frees it. Does nothing for NULL. */
void log_status(enum log_level level, const char *event, status_t status);

/*
 * A log line as an entry of systemd's journal, in its native protocol: the line is MESSAGE, and
 * each key=value field becomes a field FSDPD_<KEY> of the entry. Used by log.c.
 */

/* Whether standard error is a stream to the journal (JOURNAL_STREAM). */
bool journal_has_stderr(void);

/* A datagram socket connected to `path`, or -1. */
int journal_open(const char *path);

/* The entry's bytes. `priority` is syslog's; `fields` are "job=a-1 message=\"b c\"". */
void journal_format(struct buf *out, int priority, const char *event, const char *fields);

#endif
