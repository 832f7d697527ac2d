/* Pages of lists; see list_page.h. A token is "<number>:<text>". */
#include "coordinator/core/list_page.h"

#include <string.h>

#include "base/mem.h"
#include "base/text.h"

enum { ROW_BYTES = 16 }; /* of a row's field, at most, besides the row itself */

status_t list_page_token_error(void)
{
    return status_with(status_new(STATUS_INVALID_ARGUMENT,
                                  "page_token: expected the next_page_token of a response"),
                       (struct status_details){.field = "page_token"});
}

status_t list_page_begin(struct list_page *page, uint32_t size, const char *token, bool named)
{
    *page = (struct list_page){.size = size};
    if (token[0] == '\0') return NULL;
    const char *colon = strchr(token, ':');
    AUTO_FREE char *number = mem_strndup(token, colon != NULL ? (size_t)(colon - token) : 0);
    bool valid = text_parse_i64(number, &page->after_number) && (colon[1] != '\0') == named;
    if (!valid) return list_page_token_error();
    page->after = colon + 1;
    return NULL;
}

bool list_page_take(struct list_page *page, const ProtobufCMessage *row)
{
    bool full = page->left_out > 0 || (page->size > 0 && page->count == page->size);
    size_t bytes = full ? 0 : protobuf_c_message_get_packed_size(row) + ROW_BYTES;
    if (full || page->bytes + bytes > LIST_PAGE_BYTES) {
        page->left_out++;
        return false;
    }
    page->bytes += bytes;
    page->count++;
    return true;
}

char *list_page_next(const struct list_page *page, int64_t number, const char *text)
{
    if (page->left_out == 0 || page->count == 0) return mem_strdup("");
    return mem_printf("%lld:%s", (long long)number, text);
}
