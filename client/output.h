/*
 * What users see: terminals, tables, and sanitized text from the daemon. Results go to stdout,
 * everything else to stderr.
 */
#ifndef FSDPD_CLIENT_OUTPUT_H
#define FSDPD_CLIENT_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/status.h"
#include "print/table.h"

struct terminal {
    bool out, err;   /* whether stdout, stderr is a terminal */
    bool colour;     /* on stderr */
    bool colour_out; /* on stdout */
    bool unicode;    /* the locale's encoding is UTF-8 */
    int width;       /* columns, at least 20 */
    int rows;        /* at least 1 */
};

enum colours { COLOURS_AUTO, COLOURS_ALWAYS, COLOURS_NEVER };

/* Queries the file descriptors and the environment (NO_COLOR, TERM, COLUMNS, the locale). */
void terminal_init(struct terminal *terminal);

/* Applies --color, which outranks the environment. */
void terminal_set_colours(struct terminal *terminal, enum colours colours);

/* Measures again: the size may have changed. */
void terminal_measure(struct terminal *terminal);

/* Prints "fsdpctl: <message>" on stderr, sanitized; frees the status and returns its exit code. */
int output_error(status_t status);

/* The same for an error in the command line: EXIT_USAGE. */
int output_usage_error(status_t status);

/* Prints one sanitized line on stderr. */
void output_note(const char *format, ...) FSDPD_PRINTF(1, 2);

/* Replaces everything that a terminal would interpret with '?': C0 and C1 controls, except those
 * that fsdpctl itself writes, and bytes that are not UTF-8. A second safeguard: text from elsewhere
 * has passed output_clean already. */
void output_guard(struct buf *text);

/* Writes to stdout and frees the buffer. */
void output_print(struct buf *text);

/* A duration such as "3m ago" between two times in milliseconds since the epoch; "-" for 0. */
char *output_age(int64_t then_ms, int64_t now_ms, char text[static 32]);

#endif
