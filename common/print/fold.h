/*
 * Names that differ only in numbers, "layers.0.attn" and "layers.1.attn", as one:
 * "layers.[0-1].attn". A number is all digits between dots, spaces or the name's ends.
 */
#ifndef FSDPD_PRINT_FOLD_H
#define FSDPD_PRINT_FOLD_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

/* Whether the names are equal but for their numbers. */
bool fold_is_same(const char *a, const char *b);

/* Which of their numbers is the only difference between two names, from 0; -1: none is. */
int fold_difference(const char *a, const char *b);

/* Appends the names, equal but for their numbers, as one: numbers that differ become a list of
 * ranges, in the order given. */
void fold_add(struct buf *out, const char *const *names, size_t count);

#endif
