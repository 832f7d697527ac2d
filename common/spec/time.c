/* Durations and RFC 3339; see queue.h. */
#include "spec/queue.h"

#include <ctype.h>
#include <time.h>

#include "base/array.h"
#include "spec/internal.h"

static const int64_t LONGEST_MS = INT64_C(10) * 366 * 86400 * 1000;

/* `count` digits as a number; advances *at. */
static bool take_digits(const char **at, int count, int *number)
{
    *number = 0;
    for (int i = 0; i < count; i++, ++*at) {
        if (!isdigit((unsigned char)**at)) return false;
        *number = *number * 10 + (**at - '0');
    }
    return true;
}

static bool take(const char **at, char expected)
{
    if (**at != expected) return false;
    ++*at;
    return true;
}

static int days_of(int month, int year)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month - 1] + (month == 2 && leap);
}

/* A fraction is read to the millisecond; further digits are ignored. */
static bool take_fraction(const char **at, int *milliseconds)
{
    *milliseconds = 0;
    if (**at != '.') return true;
    ++*at;
    if (!isdigit((unsigned char)**at)) return false;
    for (int weight = 100; isdigit((unsigned char)**at); ++*at, weight /= 10)
        *milliseconds += (**at - '0') * weight;
    return true;
}

static bool take_offset(const char **at, int *minutes)
{
    int hour, minute;
    *minutes = 0;
    if (**at == 'Z' || **at == 'z') {
        ++*at;
        return true;
    }
    int sign = **at == '+' ? 1 : **at == '-' ? -1 : 0;
    if (sign == 0) return false;
    ++*at;
    if (!take_digits(at, 2, &hour) || !take(at, ':') || !take_digits(at, 2, &minute)) return false;
    *minutes = sign * (hour * 60 + minute);
    return hour < 24 && minute < 60;
}

static bool parse_point(const char *text, int64_t *milliseconds)
{
    struct tm parts = {0};
    int year, month, fraction, offset;
    const char *at = text;
    if (!take_digits(&at, 4, &year) || !take(&at, '-') || !take_digits(&at, 2, &month) ||
        !take(&at, '-') || !take_digits(&at, 2, &parts.tm_mday))
        return false;
    if (*at != 'T' && *at != 't' && *at != ' ') return false;
    at++;
    if (!take_digits(&at, 2, &parts.tm_hour) || !take(&at, ':') ||
        !take_digits(&at, 2, &parts.tm_min) || !take(&at, ':') ||
        !take_digits(&at, 2, &parts.tm_sec) || !take_fraction(&at, &fraction) ||
        !take_offset(&at, &offset) || *at != '\0')
        return false;
    /* 60: a leap second, read as the next second. */
    if (year < 1970 || month < 1 || month > 12 || parts.tm_mday < 1 ||
        parts.tm_mday > days_of(month, year) || parts.tm_hour > 23 || parts.tm_min > 59 ||
        parts.tm_sec > 60)
        return false;
    parts.tm_year = year - 1900;
    parts.tm_mon = month - 1;
    *milliseconds = ((int64_t)timegm(&parts) - offset * 60) * 1000 + fraction;
    return *milliseconds > 0;
}

static bool parse_duration(const char *text, int64_t *milliseconds)
{
    static const struct {
        char letter;
        int64_t ms;
    } units[] = {{'w', 604800000}, {'d', 86400000}, {'h', 3600000}, {'m', 60000}, {'s', 1000}};
    size_t next = 0, count = COUNT_OF(units);
    double total = 0;
    bool fraction = false;
    if (*text == '\0') return false;
    for (const char *at = text; *at != '\0'; at++) {
        if (!isdigit((unsigned char)*at) || fraction) return false;
        double value = 0;
        for (; isdigit((unsigned char)*at); at++) value = value * 10 + (*at - '0');
        if (*at == '.') {
            fraction = true;
            if (!isdigit((unsigned char)*++at)) return false;
            for (double weight = 0.1; isdigit((unsigned char)*at); at++, weight /= 10)
                value += (*at - '0') * weight;
        }
        while (next < count && units[next].letter != *at) next++;
        if (next == count) return false;
        total += value * (double)units[next++].ms;
        if (!(total <= (double)LONGEST_MS)) return false;
    }
    *milliseconds = (int64_t)(total + 0.5);
    return *milliseconds > 0;
}

status_t spec_parse_time(const char *text, bool *is_duration, int64_t *milliseconds)
{
    *is_duration = parse_duration(text, milliseconds);
    if (*is_duration || parse_point(text, milliseconds)) return NULL;
    char shown[72];
    return status_new(STATUS_INVALID_ARGUMENT,
                      "expected a duration of at most ten years, such as 90s, 2h30m or 7d, or a "
                      "time such as 2026-12-01T08:00:00Z, found '%s'",
                      yamldoc_excerpt(text, shown));
}

int64_t spec_time_at(const char *text, int64_t submitted_ms)
{
    bool is_duration;
    int64_t milliseconds;
    if (text == NULL || text[0] == '\0') return 0;
    status_t status = spec_parse_time(text, &is_duration, &milliseconds);
    if (status != NULL) {
        status_free(status);
        return 0;
    }
    return is_duration ? submitted_ms + milliseconds : milliseconds;
}
