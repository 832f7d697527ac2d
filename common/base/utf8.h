/* UTF-8 that came from elsewhere. */
#ifndef FSDPD_BASE_UTF8_H
#define FSDPD_BASE_UTF8_H

#include <stdbool.h>
#include <stdint.h>

/* The bytes of the character at `text` (which is not at its end) and its number; 0 if they are not
 * valid UTF-8. */
int utf8_decode(const char *text, uint32_t *character);

/* Characters that change how a terminal shows others: controls, marks and overrides of direction,
 * line separators. */
bool utf8_is_control(uint32_t character);

#endif
