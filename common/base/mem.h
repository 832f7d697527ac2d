/*
 * Heap memory for our own bookkeeping. These functions never return NULL: without memory for such
 * small, bounded structures the process cannot continue, so they abort. Bound every size that comes
 * from outside before passing it here. Memory for tensors comes from devices, never from here.
 */
#ifndef FSDPD_BASE_MEM_H
#define FSDPD_BASE_MEM_H

#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* The least multiple of `unit` that is not below `value`: sizes of aligned parts of a buffer. */
static inline size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* `size` zeroed bytes; free() them. */
void *mem_alloc(size_t size);

/* `count` zeroed elements; aborts when count * size overflows. */
void *mem_alloc_array(size_t count, size_t size);

/* realloc to `count` elements of `size` bytes; the new part is not initialised. */
void *mem_resize_array(void *memory, size_t count, size_t size);

char *mem_strdup(const char *text);
char *mem_strndup(const char *text, size_t length);
void *mem_dup(const void *bytes, size_t size);
char *mem_printf(const char *format, ...) FSDPD_PRINTF(1, 2);
char *mem_vprintf(const char *format, va_list args) FSDPD_PRINTF(1, 0);

/*
 * Frees a local variable at the end of its block, whichever way leads out of it:
 *     AUTO_FREE char *path = file_path_join(directory, name);
 *     AUTO(buf_deinit) struct buf text = {0};
 * Initialise it where it is declared.
 */
#define AUTO_FREE AUTO(mem_free_variable)
#define AUTO(deinit) __attribute__((cleanup(deinit)))

static inline void mem_free_variable(void *variable)
{
    void *memory;
    memcpy(&memory, variable, sizeof memory); /* `variable` may point to a pointer of any type */
    free(memory);
}

/*
 * Makes room for one more element at the end of a growing array:
 *     MEM_GROW(list->items, list->count, list->capacity);
 *     list->items[list->count++] = item;
 */
#define MEM_GROW(items, count, capacity)                                                           \
    do {                                                                                           \
        if ((count) == (capacity)) {                                                               \
            (capacity) = (capacity) ? (capacity) * 2 : 8;                                          \
            (items) = mem_resize_array((items), (capacity), sizeof *(items));                      \
        }                                                                                          \
    } while (0)

#endif
