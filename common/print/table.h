/* Text that came from elsewhere made harmless, and tables of it. Everything appends to a buffer. */
#ifndef FSDPD_PRINT_TABLE_H
#define FSDPD_PRINT_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/*
 * Appends text that came from elsewhere: control characters (also those that change the direction
 * of text, and what is not UTF-8) become '?'. Line ends and tabs stay if `lines`, else become
 * spaces.
 */
void output_clean(struct buf *out, const char *text, bool lines);

/* Columns that a text takes on a terminal: its characters. */
int output_width(const char *text);

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
