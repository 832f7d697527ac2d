/*
 * What people see: terminals, tables, and text from the daemon made harmless. Results go to stdout,
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
    bool out, err; /* stdout, stderr is a terminal */
    bool colour;   /* on stderr */
    bool unicode;  /* the locale's characters are UTF-8 */
    int width;     /* columns, at least 20 */
    int rows;      /* at least 1 */
};

/* Asks the file descriptors and the environment (NO_COLOR, TERM, COLUMNS, the locale). */
void terminal_init(struct terminal *terminal);

/* The width may have changed. */
void terminal_measure(struct terminal *terminal);

/* "fsdpctl: <message>" on stderr, cleaned; frees the status and returns its exit code. */
int output_error(status_t status);

/* The same for what is wrong with the command line: EXIT_USAGE. */
int output_usage_error(status_t status);

/* One line on stderr, cleaned. */
void output_note(const char *format, ...) FSDPD_PRINTF(1, 2);

/* Writes to stdout and frees the buffer. */
void output_print(struct buf *text);

/* "3m ago"-like durations from milliseconds since the epoch; "-" for 0. */
char *output_age(int64_t then_ms, int64_t now_ms, char text[static 32]);

#endif
