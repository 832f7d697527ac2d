/* A growing run of bytes; see buf.h. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static void reserve(struct buf *buf, size_t extra)
{
    size_t needed = buf->length + extra + 1;
    if (needed <= buf->capacity) return;
    size_t capacity = buf->capacity ? buf->capacity : 64;
    while (capacity < needed) capacity *= 2;
    buf->data = mem_resize_array(buf->data, capacity, 1);
    buf->capacity = capacity;
}

void buf_add(struct buf *buf, const void *bytes, size_t count)
{
    reserve(buf, count);
    if (count) memcpy(buf->data + buf->length, bytes, count);
    buf->length += count;
    buf->data[buf->length] = '\0';
}

void buf_add_text(struct buf *buf, const char *text)
{
    buf_add(buf, text, strlen(text));
}

void buf_add_char(struct buf *buf, char c)
{
    buf_add(buf, &c, 1);
}

void buf_printf(struct buf *buf, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    va_list again;
    va_copy(again, args);
    reserve(buf, 31); /* most texts fit: formatted once */
    const size_t room = buf->capacity - buf->length;
    int count = vsnprintf(buf->data + buf->length, room, format, args);
    va_end(args);
    if (count > 0 && (size_t)count >= room) {
        reserve(buf, (size_t)count);
        vsnprintf(buf->data + buf->length, (size_t)count + 1, format, again);
    }
    if (count > 0) buf->length += (size_t)count;
    va_end(again);
}

void buf_clear(struct buf *buf)
{
    buf->length = 0;
    if (buf->data) buf->data[0] = '\0';
}

const char *buf_text(const struct buf *buf)
{
    return buf->data ? buf->data : "";
}

char *buf_take(struct buf *buf)
{
    char *data = buf->data ? buf->data : mem_strdup("");
    *buf = (struct buf){0};
    return data;
}

void buf_deinit(struct buf *buf)
{
    free(buf->data);
    *buf = (struct buf){0};
}
