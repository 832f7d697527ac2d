/* UTF-8 from untrusted sources. */
#ifndef FSDPD_BASE_UTF8_H
#define FSDPD_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length in bytes and code point of the character at `text` (which is not at its end); 0 if it is
 * not valid UTF-8. */
int utf8_decode(const char *text, uint32_t *character);

/* The length of `text` cut to at most `most` bytes, at the end of a character. */
size_t utf8_cut(const char *text, size_t most);

/* Characters that change how a terminal displays others: controls, marks and overrides of
 * direction, line separators. */
bool utf8_is_control(uint32_t character);

#endif
