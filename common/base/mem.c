/* Heap memory for bookkeeping; see mem.h. */
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *checked(void *memory)
{
    if (memory == NULL) abort();
    return memory;
}

void *mem_alloc(size_t size)
{
    return checked(calloc(1, size ? size : 1));
}

void *mem_alloc_array(size_t count, size_t size)
{
    return checked(calloc(count ? count : 1, size ? size : 1));
}

void *mem_resize_array(void *memory, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) abort();
    return checked(realloc(memory, bytes ? bytes : 1));
}

char *mem_strdup(const char *text)
{
    return checked(strdup(text));
}

char *mem_strndup(const char *text, size_t length)
{
    return checked(strndup(text, length));
}

void *mem_dup(const void *bytes, size_t size)
{
    void *copy = mem_alloc(size);
    if (size) memcpy(copy, bytes, size);
    return copy;
}

char *mem_vprintf(const char *format, va_list args)
{
    char *text = NULL;
    if (vasprintf(&text, format, args) < 0) abort();
    return text;
}

char *mem_printf(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = mem_vprintf(format, args);
    va_end(args);
    return text;
}
