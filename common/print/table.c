/* Tables and sanitised text; see table.h. Pure functions; any thread. */
#include "print/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

void output_clean(struct buf *out, const char *text, bool lines)
{
    while (*text != '\0') {
        uint32_t character = 0;
        int length = utf8_decode(text, &character);
        if (*text == '\n' || *text == '\t') buf_add_char(out, lines ? *text : ' ');
        else if (length == 0 || utf8_is_control(character)) buf_add_char(out, '?');
        else buf_add(out, text, (size_t)length);
        text += length ? length : 1;
    }
}

int output_width(const char *text)
{
    int width = 0;
    for (; *text != '\0'; text++) width += ((unsigned char)*text & 0xC0) != 0x80;
    return width;
}

void table_add(struct table *table, const char *text)
{
    struct buf cell = {0};
    output_clean(&cell, text, false);
    MEM_GROW(table->cells, table->cell_count, table->cell_capacity);
    table->cells[table->cell_count++] = (struct table_cell){.text = buf_take(&cell)};
}

void table_style(struct table *table, const char *style)
{
    table->cells[table->cell_count - 1].style = style;
}

void table_addf(struct table *table, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    status_t text = status_new_v(STATUS_UNKNOWN, format, args);
    va_end(args);
    table_add(table, status_message(text));
    status_free(text);
}

void table_add_count(struct table *table, uint64_t count)
{
    char text[32];
    table_add(table, text_format_count(count, text));
}

void table_add_bytes(struct table *table, uint64_t bytes)
{
    char text[32];
    table_add(table, text_format_bytes(bytes, text));
}

enum { LAST_LEAST = 22 }; /* characters of the last column that are worth having */

/* Appends at most `room` characters of the text. */
static void add_cut(struct buf *out, const char *text, int room)
{
    if (output_width(text) <= room) {
        buf_add_text(out, text);
        return;
    }
    size_t end = 0;
    for (int left = room > 3 ? room - 3 : 0; text[end] != '\0'; end++)
        if (((unsigned char)text[end] & 0xC0) != 0x80 && left-- == 0) break;
    buf_add(out, text, end);
    buf_add_text(out, room > 3 ? "..." : "");
}

/* Which columns are printed, and how wide each is. */
struct layout {
    const struct table *table;
    int *widths; /* -1: left out */
    int last;    /* the last column printed */
    int width, indent;
};

static bool is_empty(const char *text)
{
    return text[0] == '\0' || strcmp(text, "-") == 0;
}

static void measure(struct layout *layout)
{
    const struct table *table = layout->table;
    for (int column = 0; column < table->column_count; column++) {
        bool empty = true;
        int width = output_width(table->columns[column].title);
        for (int i = column; i < table->cell_count; i += table->column_count) {
            int cell = output_width(table->cells[i].text);
            if (cell > width) width = cell;
            empty = empty && is_empty(table->cells[i].text);
        }
        layout->widths[column] = empty && table->columns[column].optional ? -1 : width;
        if (layout->widths[column] >= 0) layout->last = column;
    }
}

static int least_of(const struct layout *layout)
{
    return layout->table->least > 0 ? layout->table->least : LAST_LEAST;
}

/* The columns needed, with a part of the last one. */
static int room_needed(const struct layout *layout)
{
    int needed = layout->indent, least = least_of(layout);
    for (int i = 0; i <= layout->last; i++) {
        if (layout->widths[i] < 0) continue;
        bool text = i == layout->last && !layout->table->columns[i].right;
        needed += text && layout->widths[i] > least ? least : layout->widths[i];
        needed += i < layout->last ? 2 : 0;
    }
    return needed;
}

static void drop_columns(struct layout *layout)
{
    while (layout->width > 0 && room_needed(layout) > layout->width) {
        int worst = -1;
        for (int i = 0; i <= layout->last; i++) {
            int drop = layout->widths[i] >= 0 ? layout->table->columns[i].drop : 0;
            if (drop > 0 && (worst < 0 || drop > layout->table->columns[worst].drop)) worst = i;
        }
        if (worst < 0) return;
        layout->widths[worst] = -1;
        while (layout->last > 0 && layout->widths[layout->last] < 0) layout->last--;
    }
}

void output_wrap(struct buf *out, const char *text, int column, int width)
{
    for (int at = column; *text != '\0';) {
        size_t length = strcspn(text, " ");
        AUTO_FREE char *word = mem_strndup(text, length);
        int needed = output_width(word);
        if (at > column && at + 1 + needed > width) {
            buf_printf(out, "\n%*s", column, "");
            at = column;
        } else if (at > column) {
            buf_add_char(out, ' ');
            at++;
        }
        buf_add_text(out, word);
        at += needed;
        text += length;
        text += strspn(text, " ");
    }
}

static void add_last(const struct layout *layout, const struct table_cell *cell, int column,
                     struct buf *out)
{
    bool text = layout->width > 0 && !layout->table->columns[layout->last].right;
    if (text && layout->table->whole && column + LAST_LEAST <= layout->width)
        output_wrap(out, cell->text, column, layout->width);
    else if (text && !layout->table->whole) add_cut(out, cell->text, layout->width - column);
    else buf_add_text(out, cell->text);
}

static void print_line(const struct layout *layout, const struct table_cell *cells, struct buf *out)
{
    int column = layout->indent;
    size_t start = out->length;
    for (int i = 0; i < layout->indent; i++) buf_add_char(out, ' ');
    for (int i = 0; i <= layout->last; i++) {
        if (layout->widths[i] < 0) continue;
        bool right = layout->table->columns[i].right;
        int space = layout->widths[i] - output_width(cells[i].text);
        if (right) buf_printf(out, "%*s", space, "");
        if (cells[i].style != NULL) buf_add_text(out, cells[i].style);
        if (i == layout->last) add_last(layout, &cells[i], column, out);
        else buf_add_text(out, cells[i].text);
        if (cells[i].style != NULL) buf_add_text(out, "\033[0m");
        if (i < layout->last) buf_printf(out, "%*s", (right ? 0 : space) + 2, "");
        column += layout->widths[i] + 2;
    }
    while (out->length > start && out->data[out->length - 1] == ' ') out->length--;
    buf_add_char(out, '\n');
}

void table_print(const struct table *table, int width, int indent, struct buf *out)
{
    size_t count = (size_t)table->column_count;
    struct layout layout = {.table = table, .width = width, .indent = indent};
    layout.widths = mem_alloc_array(count, sizeof *layout.widths);
    AUTO_FREE struct table_cell *titles = mem_alloc_array(count, sizeof *titles);
    for (size_t i = 0; i < count; i++) titles[i].text = (char *)table->columns[i].title;
    measure(&layout);
    drop_columns(&layout);
    print_line(&layout, titles, out);
    for (int i = 0; i + table->column_count <= table->cell_count; i += table->column_count)
        print_line(&layout, table->cells + i, out);
    free(layout.widths);
}

void table_deinit(struct table *table)
{
    for (int i = 0; i < table->cell_count; i++) free(table->cells[i].text);
    free(table->cells);
    table->cells = NULL;
    table->cell_count = table->cell_capacity = 0;
}
