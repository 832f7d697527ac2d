/* Text for and from people; see text.h. */
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

bool text_parse_i64(const char *text, int64_t *value)
{
    const char *digits = text[0] == '-' || text[0] == '+' ? text + 1 : text;
    if (!isdigit((unsigned char)digits[0])) return false;
    errno = 0;
    char *end;
    long long parsed = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0') return false;
    *value = parsed;
    return true;
}

bool text_parse_f64(const char *text, double *value)
{
    unsigned char first = (unsigned char)text[0];
    if (!isdigit(first) && first != '-' && first != '+' && first != '.') return false;
    if (strpbrk(text, "xXnN") != NULL) return false; /* hexadecimal, nan, inf */
    errno = 0;
    char *end;
    double parsed = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(parsed)) return false;
    *value = parsed;
    return true;
}

char *text_format_bytes(uint64_t bytes, char text[static 32])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 999.5 && unit + 1 < COUNT_OF(units)) {
        value /= 1000;
        unit++;
    }
    if (unit == 0) snprintf(text, 32, "%llu B", (unsigned long long)bytes);
    else
        snprintf(text, 32, "%.*f %s",
                 value < 9.995   ? 2
                 : value < 99.95 ? 1
                                 : 0,
                 value, units[unit]);
    return text;
}

bool text_parse_bytes(const char *text, uint64_t *bytes)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},         {"B", 1},        {"kB", 1e3},    {"KB", 1e3},
                 {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},   {"KiB", 1024},
                 {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    size_t length = strlen(text);
    while (length > 0 && isalpha((unsigned char)text[length - 1])) length--;
    const char *unit = text + length;
    while (length > 0 && text[length - 1] == ' ') length--;
    char number[32];
    double value;
    if (length == 0 || length >= sizeof number) return false;
    memcpy(number, text, length);
    number[length] = '\0';
    if (!text_parse_f64(number, &value) || !(value >= 0)) return false;
    for (size_t i = 0; i < COUNT_OF(units); i++) {
        if (strcmp(unit, units[i].name) != 0) continue;
        if (value * units[i].bytes >= 0x1p63) return false;
        *bytes = (uint64_t)(value * units[i].bytes);
        return true;
    }
    return false;
}

char *text_format_count(uint64_t count, char text[static 32])
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)count);
    char *out = text;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) *out++ = ',';
        *out++ = digits[i];
    }
    *out = '\0';
    return text;
}

char *text_format_seconds(double seconds, char text[static 32])
{
    if (!(seconds >= 0)) seconds = 0;
    if (seconds > 1e9) seconds = 1e9;
    long whole = lround(seconds);
    if (seconds < 59.95) snprintf(text, 32, "%.1fs", seconds);
    else if (whole < 3600) snprintf(text, 32, "%ldm%02lds", whole / 60, whole % 60);
    else snprintf(text, 32, "%ldh%02ldm", whole / 3600, whole / 60 % 60);
    return text;
}

char *text_format_duration(double seconds, char text[static 32])
{
    if (!(seconds > 0)) seconds = 0;
    if (seconds >= 59.95) return text_format_seconds(seconds, text);
    const char *unit = seconds >= 0.9995 ? "s" : seconds >= 0.9995e-3 ? "ms" : "us";
    double value = seconds * (unit[0] == 's' ? 1 : unit[0] == 'm' ? 1e3 : 1e6);
    int digits = unit[0] == 'u' || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(text, 32, "%.*f %s", digits, value, unit);
    return text;
}

bool text_glob_match(const char *glob, const char *name)
{
    return fnmatch(glob, name, 0) == 0;
}

static bool is_same_letter(char a, char b)
{
    return tolower((unsigned char)a) == tolower((unsigned char)b);
}

/* The optimal string alignment distance, in which two neighbours in the wrong order are one edit;
 * capitals count as small letters. */
static size_t edit_distance(const char *a, const char *b)
{
    enum { LONGEST = 64 };
    size_t rows[3][LONGEST + 1];
    size_t *before = rows[0], *last = rows[1], *row = rows[2];
    size_t a_length = strlen(a), b_length = strlen(b);
    if (a_length > LONGEST || b_length > LONGEST) return SIZE_MAX;
    for (size_t j = 0; j <= b_length; j++) row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t *oldest = before;
        before = last;
        last = row;
        row = oldest;
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t best = last[j - 1] + !is_same_letter(a[i - 1], b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            bool swapped = i > 1 && j > 1 && is_same_letter(a[i - 1], b[j - 2]) &&
                           is_same_letter(a[i - 2], b[j - 1]);
            if (swapped && before[j - 2] + 1 < best) best = before[j - 2] + 1;
            row[j] = best;
        }
    }
    return row[b_length];
}

const char *text_nearest(const char *word, const char *const *candidates, size_t count)
{
    const char *nearest = NULL;
    /* At this distance it is another word: most short words are two edits apart. */
    size_t length = strlen(word), best = length > 4 ? length / 3 + 2 : 2;
    for (size_t i = 0; i < count; i++) {
        size_t distance = edit_distance(word, candidates[i]);
        if (distance < best) {
            best = distance;
            nearest = candidates[i];
        }
    }
    return nearest;
}

/* ---- utf8 ---- */

static int announced_length(unsigned char first)
{
    if (first < 0x80) return 1;
    if (first < 0xC2) return 0;
    if (first < 0xE0) return 2;
    if (first < 0xF0) return 3;
    return first < 0xF5 ? 4 : 0;
}

int utf8_decode(const char *text, uint32_t *character)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *bytes = (const unsigned char *)text;
    int length = announced_length(bytes[0]);
    if (length == 0) return 0;
    uint32_t value = length == 1 ? bytes[0] : bytes[0] & (0x7Fu >> length);
    for (int i = 1; i < length; i++) {
        if ((bytes[i] & 0xC0) != 0x80) return 0; /* the terminating NUL stops here too */
        value = value << 6 | (bytes[i] & 0x3Fu);
    }
    bool surrogate = value >= 0xD800 && value < 0xE000;
    if (value < smallest[length] || value > 0x10FFFF || surrogate) return 0;
    *character = value;
    return length;
}

size_t utf8_cut(const char *text, size_t most)
{
    size_t length = strnlen(text, most + 1);
    if (length <= most) return length;
    length = most;
    while (length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80) length--;
    return length;
}

bool utf8_is_control(uint32_t c)
{
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x200E && c <= 0x200F) ||
           (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0x061C ||
           c == 0xFEFF;
}
