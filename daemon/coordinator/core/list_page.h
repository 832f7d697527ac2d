/*
 * The pages of a list. A row is known by a number, a text or both, by which the list is ordered;
 * the token of the next page has those of the last row of its page. So pages stay right while rows
 * come and go between them.
 */
#ifndef FSDPD_COORDINATOR_LIST_PAGE_H
#define FSDPD_COORDINATOR_LIST_PAGE_H

#include "base/status.h"
#include "rpc/rpc.h"

enum {
    LIST_PAGE_BYTES = RPC_MESSAGE_MAX - 65536
}; /* leaves room for the response's other fields */

struct list_page {
    uint32_t size; /* rows at most; 0: as many as fit */
    /* The last row of the page before; NULL: this is the first page. `after` points into the
     * request. */
    const char *after;
    int64_t after_number;
    /* So far: */
    size_t count, bytes;
    uint32_t left_out;
};

/* Begins a page with these fields of a request. `named`: rows have a text. */
status_t list_page_begin(struct list_page *page, uint32_t size, const char *token,
                         bool named) FSDPD_MUST_USE;

/* For a token that list_page_begin cannot check. */
status_t list_page_token_error(void) FSDPD_MUST_USE;

/* Offers the next row in the order of the list. Whether the page has it; once it lacks one, it
 * lacks all that follow. */
bool list_page_take(struct list_page *page, const ProtobufCMessage *row);

/* The token of the next page, after the last row of this one; "" if this is the last page. The
 * caller frees it. */
char *list_page_next(const struct list_page *page, int64_t number, const char *text);

#endif
