/* Text and numbers for an HTML page. Every function appends to a buffer. */
#ifndef FSDPD_PAGE_HTML_H
#define FSDPD_PAGE_HTML_H

#include <stdbool.h>

#include "base/buf.h"

/* Appends text from elsewhere, for an element or a quoted attribute: it escapes all markup and
 * replaces invalid UTF-8, and characters that change how other text is shown, with U+FFFD. Newlines
 * stay. */
void html_add(struct buf *out, const char *text);

/* "<td>text</td>", or "<td class=n>text</td>" for numbers. */
void html_cell(struct buf *out, const char *text, bool number);

#endif
