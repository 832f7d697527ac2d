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

struct terminal {
    bool out, err; /* stdout, stderr is a terminal */
    bool colour;   /* on stderr */
    int width;     /* columns, at least 20 */
};

/* Asks the file descriptors and the environment (NO_COLOR, TERM, COLUMNS). */
void terminal_init(struct terminal *terminal);

/* The width may have changed. */
void terminal_measure(struct terminal *terminal);

/*
 * Appends text that came from elsewhere: control characters (also those that change the direction
 * of text, and what is not UTF-8) become '?'. Line ends and tabs stay if `lines`, else become
 * spaces.
 */
void output_clean(struct buf *out, const char *text, bool lines);

/* Columns that a text takes on a terminal: its characters. */
int output_width(const char *text);

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

/* A table whose cells are added one by one, row by row. */
struct table_column {
    const char *title;
    bool right; /* numbers */
};
struct table {
    const struct table_column *columns;
    int column_count;
    char **cells;
    int cell_count, cell_capacity;
};

void table_add(struct table *table, const char *text); /* cleaned and copied */
void table_addf(struct table *table, const char *format, ...) FSDPD_PRINTF(2, 3);
void table_add_count(struct table *table, uint64_t count);
void table_add_bytes(struct table *table, uint64_t bytes);

/* Appends title line and rows, two spaces between columns, nothing at the end of lines. With
 * `width` > 0 the last column is cut there. Each line starts with `indent` spaces. */
void table_print(const struct table *table, int width, int indent, struct buf *out);
void table_deinit(struct table *table);

#endif
