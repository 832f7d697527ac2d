/* Text from and for people: strict parsing of numbers; formatting of byte sizes and durations. */
#ifndef FSDPD_BASE_TEXT_H
#define FSDPD_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The whole of `text` must be the number; no leading spaces, no overflow, no nan or inf. */
bool text_parse_i64(const char *text, int64_t *value);
bool text_parse_f64(const char *text, double *value);

/* "4.8 MB", "320 B" (powers of 1000). `text` holds at least 32 bytes; returns it. */
char *text_format_bytes(uint64_t bytes, char text[static 32]);

/* The reverse, with any number and a unit of B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB
 * or none: "80GB", "1.5 GiB", "4e9". False, with *bytes unchanged, for other texts. */
bool text_parse_bytes(const char *text, uint64_t *bytes);

/* "1,199,882". `text` holds at least 32 bytes; returns it. */
char *text_format_count(uint64_t count, char text[static 32]);

/* "41.3s", "2m05s", "3h12m". `text` holds at least 32 bytes; returns it. */
char *text_format_seconds(double seconds, char text[static 32]);

/* For short durations too: "41.3 s", "1.25 ms", "40 us". `text` holds at least 32 bytes; returns
 * it. */
char *text_format_duration(double seconds, char text[static 32]);

/* Whether `name` matches the shell pattern `glob` (* ? [...]); '*' crosses dots. */
bool text_glob_match(const char *glob, const char *name);

/* The candidate nearest to `word` by edit distance, or NULL if none is close: for "did you mean". */
const char *text_nearest(const char *word, const char *const *candidates, size_t count);

/* UTF-8 from untrusted sources. */

/* Length in bytes and code point of the character at `text` (which is not at its end); 0 if it is
 * not valid UTF-8. */
int utf8_decode(const char *text, uint32_t *character);

/* The length of `text` cut to at most `most` bytes, at the end of a character. */
size_t utf8_cut(const char *text, size_t most);

/* Characters that change how a terminal displays others: controls, marks and overrides of
 * direction, line separators. */
bool utf8_is_control(uint32_t character);

#endif
