/* Terminals, tables and harmless text; see output.h. */
#include "output.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/text.h"
#include "exit.h"
#include "utf8.h"

void terminal_measure(struct terminal *terminal)
{
    struct winsize size;
    int64_t columns;
    const char *environment = getenv("COLUMNS");
    terminal->width = 80;
    if ((ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ||
         ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) &&
        size.ws_col > 0)
        terminal->width = size.ws_col;
    else if (environment != NULL && text_parse_i64(environment, &columns) && columns > 0 &&
             columns < 10000)
        terminal->width = (int)columns;
    if (terminal->width < 20) terminal->width = 20;
}

void terminal_init(struct terminal *terminal)
{
    const char *term = getenv("TERM");
    const char *no_colour = getenv("NO_COLOR");
    bool dumb = term == NULL || strcmp(term, "dumb") == 0;
    terminal->out = isatty(STDOUT_FILENO);
    terminal->err = isatty(STDERR_FILENO) && !dumb;
    terminal->colour = terminal->err && (no_colour == NULL || no_colour[0] == '\0');
    terminal_measure(terminal);
}

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

int output_error(status_t status)
{
    int code = exit_from_status(status);
    output_note("fsdpctl: %s", status_message(status));
    status_free(status);
    return code;
}

int output_usage_error(status_t status)
{
    output_error(status);
    return EXIT_USAGE;
}

void output_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    /* status_new_v formats and bounds for us. */
    status_t text = status_new_v(STATUS_UNKNOWN, format, args);
    va_end(args);
    struct buf line = {0};
    output_clean(&line, status_message(text), true);
    buf_add_char(&line, '\n');
    fflush(stdout); /* so that a pipe of both keeps the order */
    fputs(buf_text(&line), stderr);
    buf_deinit(&line);
    status_free(text);
}

void output_print(struct buf *text)
{
    fwrite(buf_text(text), 1, text->length, stdout);
    fflush(stdout);
    buf_deinit(text);
}

char *output_age(int64_t then_ms, int64_t now_ms, char text[static 32])
{
    int64_t seconds = (now_ms - then_ms) / 1000;
    if (seconds < 0) seconds = 0;
    if (then_ms <= 0) snprintf(text, 32, "-");
    else if (seconds < 60) snprintf(text, 32, "%llds", (long long)seconds);
    else if (seconds < 3600) snprintf(text, 32, "%lldm", (long long)seconds / 60);
    else if (seconds < 48 * 3600) snprintf(text, 32, "%lldh", (long long)seconds / 3600);
    else snprintf(text, 32, "%lldd", (long long)seconds / 86400);
    return text;
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
