/* Tables and harmless text; see table.h. Pure functions; any thread. */
#include "print/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "base/utf8.h"

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
    table->cells[table->cell_count++] = buf_take(&cell);
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

static void print_line(const struct table *table, const int *widths, const char *const *cells,
                       int width, int indent, struct buf *out)
{
    int column = indent;
    size_t start = out->length;
    for (int i = 0; i < indent; i++) buf_add_char(out, ' ');
    for (int i = 0; i < table->column_count; i++) {
        bool last = i + 1 == table->column_count;
        int space = widths[i] - output_width(cells[i]);
        if (i > 0) buf_add_text(out, "  ");
        column += i > 0 ? 2 : 0;
        if (table->columns[i].right) buf_printf(out, "%*s", space, "");
        if (last && width > 0 && !table->columns[i].right) add_cut(out, cells[i], width - column);
        else buf_add_text(out, cells[i]);
        if (!table->columns[i].right && !last) buf_printf(out, "%*s", space, "");
        column += widths[i];
    }
    while (out->length > start && out->data[out->length - 1] == ' ') out->length--;
    buf_add_char(out, '\n');
}

void table_print(const struct table *table, int width, int indent, struct buf *out)
{
    int *widths = mem_alloc_array((size_t)table->column_count, sizeof *widths);
    const char **titles = mem_alloc_array((size_t)table->column_count, sizeof *titles);
    for (int i = 0; i < table->column_count; i++) {
        titles[i] = table->columns[i].title;
        widths[i] = output_width(titles[i]);
    }
    for (int i = 0; i < table->cell_count; i++) {
        int *column = &widths[i % table->column_count];
        int cell = output_width(table->cells[i]);
        if (cell > *column) *column = cell;
    }
    print_line(table, widths, titles, width, indent, out);
    for (int i = 0; i + table->column_count <= table->cell_count; i += table->column_count)
        print_line(table, widths, (const char *const *)table->cells + i, width, indent, out);
    free(titles);
    free(widths);
}

void table_deinit(struct table *table)
{
    for (int i = 0; i < table->cell_count; i++) free(table->cells[i]);
    free(table->cells);
    table->cells = NULL;
    table->cell_count = table->cell_capacity = 0;
}
