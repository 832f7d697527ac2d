/* Arrays. */
#ifndef FSDPD_BASE_ARRAY_H
#define FSDPD_BASE_ARRAY_H

/* The number of elements of an array; a pointer has none. */
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
