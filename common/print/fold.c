/* Folding of names; see fold.h. Pure functions; any thread. */
#include "print/fold.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { DIGITS_MAX = 9 };

/* The digits of a number that starts at text[at]; 0: none does. */
static size_t number_length(const char *text, size_t at)
{
    if (at > 0 && text[at - 1] != '.' && text[at - 1] != ' ') return 0;
    size_t length = 0;
    while (isdigit((unsigned char)text[at + length])) length++;
    char next = text[at + length];
    bool ends = next == '\0' || next == '.' || next == ' ';
    return ends && length <= DIGITS_MAX ? length : 0;
}

/* Compares two names number by number. *first: the number that differs first; *differ: how many
 * do. */
static bool compare(const char *a, const char *b, int *first, int *differ)
{
    size_t i = 0, j = 0;
    *first = -1;
    *differ = 0;
    for (int number = 0;;) {
        size_t a_length = number_length(a, i), b_length = number_length(b, j);
        if ((a_length > 0) != (b_length > 0)) return false;
        if (a_length > 0) {
            bool same = a_length == b_length && memcmp(a + i, b + j, a_length) == 0;
            if (!same && (*differ)++ == 0) *first = number;
            number++;
            i += a_length;
            j += b_length;
        } else if (a[i] != b[j]) {
            return false;
        } else if (a[i] == '\0') {
            return true;
        } else {
            i++;
            j++;
        }
    }
}

bool fold_is_same(const char *a, const char *b)
{
    int first, differ;
    return compare(a, b, &first, &differ);
}

int fold_difference(const char *a, const char *b)
{
    int first, differ;
    return compare(a, b, &first, &differ) && differ == 1 ? first : -1;
}

/* "[0-11]", "[0-3,5]", "[2-0]"; a single number if all are equal. */
static void add_numbers(struct buf *out, const int *numbers, size_t count)
{
    bool equal = true;
    for (size_t i = 1; i < count; i++) equal = equal && numbers[i] == numbers[0];
    if (equal) {
        buf_printf(out, "%d", numbers[0]);
        return;
    }
    buf_add_char(out, '[');
    for (size_t i = 0; i < count;) {
        size_t end = i;
        int step = i + 1 < count && numbers[i + 1] < numbers[i] ? -1 : 1;
        while (end + 1 < count && numbers[end + 1] == numbers[end] + step) end++;
        buf_printf(out, "%s%d", i > 0 ? "," : "", numbers[i]);
        if (end > i) buf_printf(out, "-%d", numbers[end]);
        i = end + 1;
    }
    buf_add_char(out, ']');
}

void fold_add(struct buf *out, const char *const *names, size_t count)
{
    AUTO_FREE size_t *at = mem_alloc_array(count, sizeof *at); /* where each name is read */
    AUTO_FREE int *numbers = mem_alloc_array(count, sizeof *numbers);
    while (names[0][at[0]] != '\0') {
        if (number_length(names[0], at[0]) == 0) {
            buf_add_char(out, names[0][at[0]]);
            for (size_t i = 0; i < count; i++) at[i]++;
            continue;
        }
        for (size_t i = 0; i < count; i++) {
            numbers[i] = atoi(names[i] + at[i]);
            at[i] += number_length(names[i], at[i]);
        }
        add_numbers(out, numbers, count);
    }
}
