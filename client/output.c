/* Terminals, tables and sanitized text; see output.h. */
#include "output.h"

#include <langinfo.h>
#include <locale.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/text.h"
#include "exit.h"

void terminal_measure(struct terminal *terminal)
{
    struct winsize size;
    int64_t columns;
    const char *environment = getenv("COLUMNS");
    terminal->width = 80;
    terminal->rows = 24;
    if ((ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ||
         ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) &&
        size.ws_col > 0) {
        terminal->width = size.ws_col;
        if (size.ws_row > 0) terminal->rows = size.ws_row;
    } else if (environment != NULL && text_parse_i64(environment, &columns) && columns > 0 &&
               columns < 10000) {
        terminal->width = (int)columns;
    }
    if (terminal->width < 20) terminal->width = 20;
}

/* Uses a locale object of its own: everywhere else numbers and letters stay those of the C
 * locale. */
static bool locale_is_utf8(void)
{
    locale_t locale = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    if (locale == (locale_t)0) return false;
    bool utf8 = strcmp(nl_langinfo_l(CODESET, locale), "UTF-8") == 0;
    freelocale(locale);
    return utf8;
}

void terminal_init(struct terminal *terminal)
{
    const char *term = getenv("TERM");
    const char *no_colour = getenv("NO_COLOR");
    bool dumb = term == NULL || strcmp(term, "dumb") == 0;
    terminal->out = isatty(STDOUT_FILENO);
    terminal->err = isatty(STDERR_FILENO) && !dumb;
    bool wanted = !dumb && (no_colour == NULL || no_colour[0] == '\0');
    terminal->colour = terminal->err && wanted;
    terminal->colour_out = terminal->out && wanted;
    terminal->unicode = locale_is_utf8();
    terminal_measure(terminal);
}

void terminal_set_colours(struct terminal *terminal, enum colours colours)
{
    if (colours == COLOURS_AUTO) return;
    terminal->colour = terminal->colour_out = colours == COLOURS_ALWAYS;
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
    AUTO(buf_deinit) struct buf line = {0};
    output_clean(&line, status_message(text), true);
    buf_add_char(&line, '\n');
    fflush(stdout); /* keeps the order if both are the same pipe */
    fputs(buf_text(&line), stderr);
    status_free(text);
}

void output_guard(struct buf *text)
{
    static const char own[] = "\n\t\r\033"; /* sequences that fsdpctl itself writes */
    for (size_t i = 0; i < text->length;) {
        uint32_t character = 0;
        int length = utf8_decode(buf_text(text) + i, &character);
        bool control = character < 0x20 || (character >= 0x7f && character < 0xa0);
        bool harmless = length > 0 && (!control || (character != 0 && character < 0x20 &&
                                                    strchr(own, (int)character) != NULL));
        for (int k = 0; !harmless && k < (length > 0 ? length : 1); k++)
            text->data[i + (size_t)k] = '?';
        i += length > 0 ? (size_t)length : 1;
    }
}

void output_print(struct buf *text)
{
    output_guard(text);
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
