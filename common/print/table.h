/* Sanitises untrusted text, and prints tables of it. Everything appends to a buffer. */
#ifndef FSDPD_PRINT_TABLE_H
#define FSDPD_PRINT_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/*
 * Appends untrusted text: control characters (including those that change the direction of text,
 * and invalid UTF-8) become '?'. Newlines and tabs stay if `lines`, otherwise become spaces.
 */
void output_clean(struct buf *out, const char *text, bool lines);

/* The width of a text on a terminal: its number of characters. */
int output_width(const char *text);

/* Appends a text that starts at `column`; it breaks at spaces, and further lines start there too. A
 * word that is longer than a line is not broken. */
void output_wrap(struct buf *out, const char *text, int column, int width);

/* A table filled cell by cell, row by row. */
struct table_column {
    const char *title;
    bool right;    /* numbers */
    bool optional; /* left out if every cell is "" or "-" */
    int drop;      /* > 0: may be left out where room is short, the highest first */
};
struct table_cell {
    char *text;
    const char *style; /* a static sequence that switches a colour on; NULL: none */
};
struct table {
    const struct table_column *columns;
    int column_count;
    int least;  /* characters of the last column that are worth dropping others for; 0: 22 */
    bool whole; /* text in the last column continues on further lines instead of being cut */
    struct table_cell *cells;
    int cell_count, cell_capacity;
};

void table_add(struct table *table, const char *text); /* sanitised and copied */
void table_addf(struct table *table, const char *format, ...) FSDPD_PRINTF(2, 3);
void table_add_count(struct table *table, uint64_t count);
void table_add_bytes(struct table *table, uint64_t bytes);

/* Gives the last cell a colour, "\033[32m"; NULL: none. */
void table_style(struct table *table, const char *style);

/*
 * Appends the title line and the rows, with two spaces between columns and no trailing spaces. With
 * `width` > 0, columns that may be dropped are left out until the rest fits, the last one with at
 * least `least` characters; then the last column is cut or continued. Each line starts with
 * `indent` spaces.
 */
void table_print(const struct table *table, int width, int indent, struct buf *out);
void table_deinit(struct table *table);

#endif
