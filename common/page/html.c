/* HTML; see html.h. Pure. */
#include "page/html.h"

#include <stdint.h>

#include "base/text.h"

void html_add(struct buf *out, const char *text)
{
    while (*text != '\0') {
        uint32_t character = 0;
        int length = utf8_decode(text, &character);
        bool line = *text == '\n' || *text == '\t';
        if (length == 0 || (utf8_is_control(character) && !line)) buf_add_text(out, "\ufffd");
        else if (*text == '&') buf_add_text(out, "&amp;");
        else if (*text == '<') buf_add_text(out, "&lt;");
        else if (*text == '>') buf_add_text(out, "&gt;");
        else if (*text == '"') buf_add_text(out, "&quot;");
        else if (*text == '\'') buf_add_text(out, "&#39;");
        else buf_add(out, text, (size_t)length);
        text += length > 0 ? length : 1;
    }
}

void html_cell(struct buf *out, const char *text, bool number)
{
    buf_add_text(out, number ? "<td class=\"n\">" : "<td>");
    html_add(out, text);
    buf_add_text(out, "</td>");
}
