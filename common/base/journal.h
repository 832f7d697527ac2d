/*
 * A log line as an entry of systemd's journal, in its native protocol: the line is MESSAGE, and
 * each key=value field becomes a field FSDPD_<KEY> of the entry. Used by log.c.
 */
#ifndef FSDPD_BASE_JOURNAL_H
#define FSDPD_BASE_JOURNAL_H

#include <stdbool.h>

#include "base/buf.h"

/* Whether standard error is a stream to the journal (JOURNAL_STREAM). */
bool journal_has_stderr(void);

/* A datagram socket connected to `path`, or -1. */
int journal_open(const char *path);

/* The entry's bytes. `priority` is syslog's; `fields` are "job=a-1 message=\"b c\"". */
void journal_format(struct buf *out, int priority, const char *event, const char *fields);

#endif
