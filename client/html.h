/* Text and numbers for a page of HTML. Everything appends to a buffer. */
#ifndef FSDPD_CLIENT_HTML_H
#define FSDPD_CLIENT_HTML_H

#include <stdbool.h>

#include "base/buf.h"

/* Text that came from elsewhere, for an element or a quoted attribute: nothing in it is markup, and
 * what is not UTF-8 or changes how other text is shown becomes U+FFFD. Line ends stay. */
void html_add(struct buf *out, const char *text);

/* "<td>text</td>", or "<td class=n>text</td>" for numbers. */
void html_cell(struct buf *out, const char *text, bool number);

#endif
