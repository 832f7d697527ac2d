/*
 * A growing run of bytes that is always followed by a NUL, so it serves as a string too. A zeroed
 * struct is an empty buffer. The buffer owns `data`; buf_take hands it over.
 */
#ifndef FSDPD_BASE_BUF_H
#define FSDPD_BASE_BUF_H

#include <stddef.h>

#include "base/mem.h"

struct buf {
    char *data; /* NULL until something is added; use buf_text to read it as a string */
    size_t length;
    size_t capacity;
};

void buf_add(struct buf *buf, const void *bytes, size_t count);
void buf_add_text(struct buf *buf, const char *text);
void buf_add_char(struct buf *buf, char c);
void buf_printf(struct buf *buf, const char *format, ...) FSDPD_PRINTF(2, 3);
void buf_clear(struct buf *buf);

/* Never NULL. */
const char *buf_text(const struct buf *buf);

/* Returns the bytes (never NULL; the caller frees them) and leaves the buffer empty. */
char *buf_take(struct buf *buf);

void buf_deinit(struct buf *buf);

#endif
